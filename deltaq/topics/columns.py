"""Records as Arrow: the columns of a topic's table, and the conversion of produced records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.parquet.plain_segment import PlainRows
from deltaq.serde.column_values import as_stored
from deltaq.serde.schema import TopicSchema

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

_BEFORE_VALUE = [
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", TIMESTAMP),
    pa.field("_key", pa.binary()),
    pa.field("_headers", HEADERS),
]

PLACES = pa.schema(_BEFORE_VALUE[:3])
"""The columns with the partition, offset and timestamp of a record."""

VALUE_SCHEMA = pa.schema([pa.field("value", pa.binary())])
"""The value columns of an untyped topic."""

_UNTYPED = pa.schema([*_BEFORE_VALUE, *VALUE_SCHEMA])

Headers: TypeAlias = "list[tuple[str, bytes | None]] | None"


@cache
def _thousand() -> pa.Scalar:
    """Made once: Arrow converts a Python number anew in each call, and tries to import `dateutil`
    for it. Not made with the module: the first scalar of a process imports pandas if it is
    installed, and not every program writes.
    """
    return pa.scalar(1000, pa.int64())


def prepare_arrow() -> None:
    """Let Arrow import pandas, if it is installed, as it does for the first array of a process.
    Otherwise the first message that needs Arrow would wait for it: 0.2 s, perhaps long after the
    start.
    """
    pa.array([], pa.null())


@dataclass(frozen=True, slots=True)
class Columns:
    """Records without offsets, as columns of equal length.

    `timestamps` are milliseconds (int64), `values` a record batch of the topic's value columns. The
    bounds are (minimum, maximum) of a column, if already computed.
    """

    partitions: pa.Array
    timestamps: pa.Array
    keys: pa.Array
    headers: pa.Array
    values: pa.RecordBatch
    partition_bounds: tuple[int, int] | None = None
    timestamp_bounds: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.partitions)


def table_schema(schema: TopicSchema | None) -> pa.Schema:
    """The Arrow schema of a topic's table: deltaq's five columns, then the value columns."""
    fields = list(VALUE_SCHEMA if schema is None else schema.arrow)
    return pa.schema([*_BEFORE_VALUE, *fields])


def columns_of_rows(
    partitions: Sequence[int],
    timestamps: pa.Array,
    keys: Sequence[bytes | None],
    headers: Sequence[Headers],
    values: Sequence[Any],
    schema: TopicSchema | None,
) -> Columns:
    """Columns from Python values and an array of milliseconds: `values` are bytes, or for a typed
    topic accepted dicts; None is a tombstone.
    """
    if schema is None:
        value_columns = pa.RecordBatch.from_arrays(
            [pa.array(values, pa.binary())], schema=VALUE_SCHEMA
        )
    else:
        value_columns = schema.to_arrow(values)
    return Columns(
        pa.array(partitions, pa.int32()),
        timestamps,
        pa.array(keys, pa.binary()),
        _header_column(headers),
        value_columns,
    )


def _header_column(headers: Sequence[Headers]) -> pa.Array:
    if not any(headers):
        return pa.nulls(len(headers), HEADERS)
    lists = [pairs or () for pairs in headers]
    names = pa.array([name for pairs in lists for name, _ in pairs], pa.string())
    contents = pa.array([content for pairs in lists for _, content in pairs], pa.binary())
    ends = list(accumulate(map(len, lists), initial=0))
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.StructArray.from_arrays([names, contents], fields=list(HEADERS.value_type)),
        type=HEADERS,
        mask=pa.array([not pairs for pairs in lists]),
    )


def header_pairs(column: pa.Array) -> list[Headers]:
    """The headers of each record, in order; None if there are none.

    A name that is no UTF-8 has each wrong byte as `\\xNN`, and a missing name is empty: no producer
    accepts either, and the record is not lost for them.
    """
    if column.null_count == len(column):
        return [None] * len(column)
    try:
        lists = column.to_pylist()
    except UnicodeDecodeError:
        lists = as_stored(column).to_pylist()
    return [[_header(pair) for pair in pairs] if pairs else None for pairs in lists]


def _header(pair: Mapping[str, Any] | None) -> tuple[str, bytes | None]:
    name, value = ("", None) if pair is None else (pair["key"] or "", pair["value"])
    return (name.decode(errors="backslashreplace") if isinstance(name, bytes) else name), value


def by_partition(
    columns: Columns, *, timed: bool = True
) -> tuple[pa.RecordBatch, tuple[tuple[int, int], ...]]:
    """The rows as a batch of the topic's table, stably sorted by partition, and the number of rows
    of each partition: pairs (partition, rows) in the order of the batch. `_offset` is null, since
    the commit assigns it. Unless `timed`, `_timestamp` is null too, and the time of the commit
    applies.
    """
    stamps = (
        pc.multiply(columns.timestamps, _thousand()).view(TIMESTAMP)
        if timed
        else pa.nulls(len(columns), TIMESTAMP)
    )
    batch = pa.RecordBatch.from_arrays(
        [
            columns.partitions,
            pa.nulls(len(columns), pa.int64()),
            stamps,
            columns.keys,
            columns.headers,
            *columns.values.columns,
        ],
        schema=pa.schema([*_BEFORE_VALUE, *columns.values.schema]),
    )
    lowest, highest = columns.partition_bounds or bounds_of(columns.partitions)
    if lowest == highest:
        return batch, ((lowest, len(columns)),)
    # Arrow's sort is stable: each partition keeps its order.
    batch = batch.take(pc.sort_indices(columns.partitions))
    runs = pc.run_end_encode(batch.column("_partition"))
    ends = runs.run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    partition_rows = zip(
        runs.values.to_pylist(),
        (end - start for start, end in zip(starts, ends, strict=True)),
        strict=True,
    )
    return batch, tuple(partition_rows)


def plain_batch(rows: PlainRows) -> pa.RecordBatch:
    """Plain rows as a batch of the topic's table, as `by_partition` returns it."""
    count = len(rows)
    partitions = [partition for partition, count in rows.partition_rows for _ in range(count)]
    times = pa.array([1000 * time_ms for time_ms in rows.times_ms], pa.int64()).view(TIMESTAMP)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(partitions, pa.int32()),
            pa.nulls(count, pa.int64()),
            times if rows.timed else pa.nulls(count, TIMESTAMP),
            pa.nulls(count, pa.binary()) if rows.keys is None else pa.array(rows.keys, pa.binary()),
            pa.nulls(count, HEADERS),
            pa.array(rows.values, pa.binary()),
        ],
        schema=_UNTYPED,
    )


def rows_by_partition(records: Columns | PlainRows) -> dict[int, int]:
    """The number of records of each partition."""
    if isinstance(records, PlainRows):
        return dict(records.partition_rows)
    counts = records.partitions.value_counts()
    return {count["values"].as_py(): count["counts"].as_py() for count in counts}


def bounds_of(column: pa.Array) -> tuple[int, int]:
    """The lowest and the highest number in a column."""
    bounds = pc.min_max(column)
    return bounds["min"].as_py(), bounds["max"].as_py()


def slice_columns(columns: Columns, first: int, count: int) -> Columns:
    """Rows `[first, first + count)`, without a copy."""
    return Columns(
        columns.partitions.slice(first, count),
        columns.timestamps.slice(first, count),
        columns.keys.slice(first, count),
        columns.headers.slice(first, count),
        columns.values.slice(first, count),
    )
