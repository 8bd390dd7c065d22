"""Records of a topic that hold what no producer accepts: they are named, and the records beside
them stay readable.

An earlier version accepted such values, and other programs may have written the files. The rule for
values is `deltaq/serde/column_values.py`. Pure, but for lines in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.errors import printable
from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.serde.column_values import Check, faulty_rows, unsound

NAMED_AT_ONCE = 10
"""How many values at fault of a batch are named in the log."""


@dataclass(frozen=True, slots=True)
class RecordFault:
    """A value at fault: the place of its record, the path of its column, and the reason."""

    partition: int
    offset: int
    path: str
    reason: str

    def __str__(self) -> str:
        return (
            f"partition {self.partition}, offset {self.offset}: column {self.path!r} {self.reason}"
        )


def record_faults(rows: pa.RecordBatch) -> Iterator[RecordFault]:
    """The values at fault in rows of a topic's table, column by column."""
    partitions, offsets = rows.column("_partition"), rows.column("_offset")
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for fault in faulty_rows(column, name, _CHECKS.get(name, unsound)):
            yield RecordFault(
                partitions[fault.row].as_py(), offsets[fault.row].as_py(), fault.path, fault.reason
            )


def _wrong_time(times: pa.Array, path: str) -> tuple[str, str] | None:
    bounds = pc.min_max(times.cast(pa.int64()))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or (low >= 0 and high // 1000 <= TIMESTAMP_MS_MAX):
        return None
    return path, "is no time of a message (1970 to 2262)"


def _wrong_headers(headers: pa.Array, path: str) -> tuple[str, str] | None:
    pairs = pc.list_flatten(headers)
    if pairs.null_count or pairs.field("key").null_count:
        return path, "has a header without a name"
    return unsound(headers, path)


_CHECKS: dict[str, Check] = {"_timestamp": _wrong_time, "_headers": _wrong_headers}


def name_faults(rows: pa.RecordBatch, topic: str, logger: logging.Logger, consequence: str) -> None:
    """Name the values at fault in rows of a topic's table as warnings of a log, and what they mean
    for its reader.
    """
    found = record_faults(rows)
    for fault in islice(found, NAMED_AT_ONCE):
        logger.warning("%s topic=%s %s", consequence, topic, printable(str(fault)))
    if (more := sum(1 for _ in found)) > 0:
        logger.warning("%s topic=%s %d more values", consequence, topic, more)


def without_faults(
    rows: pa.RecordBatch,
    topic: str,
    logger: logging.Logger,
    concerns: Callable[[pa.DataType], bool] = lambda _: True,
) -> pa.RecordBatch:
    """The rows with null in the place of each value at fault, for libraries that fail or crash
    because of it: DuckDB, Polars, pandas, Spark and what writes text. The log names each record
    that loses a value.

    Columns whose types a library reads whatever they hold do not concern it.
    """
    columns, is_changed = [], False
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        # A time of 1969 is one for these libraries.
        check = _wrong_headers if name == "_headers" else unsound
        lost = (
            {fault.row for fault in faulty_rows(column, name, check)}
            if concerns(column.type)
            else ()
        )
        keep = pa.array([row not in lost for row in range(len(column))]) if lost else None
        columns.append(
            column if keep is None else pc.if_else(keep, column, pa.scalar(None, column.type))
        )
        is_changed = is_changed or bool(lost)
    if not is_changed:
        return rows
    named = [
        field.name
        for field in rows.schema
        if field.name in ("_partition", "_offset") or concerns(field.type)
    ]
    name_faults(rows.select(named), topic, logger, "a value that cannot be shown is left out")
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
