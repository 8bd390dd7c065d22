"""Encoding of records as columns: choose partitions, fill in timestamps, cut batches into segments. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.errors import InvalidValue
from deltaq.partitioner import assign_partitions
from deltaq.serde.schema import TopicSchema
from deltaq.topics.columns import Columns, bounds_of, columns_of_rows, slice_columns

if TYPE_CHECKING:
    from deltaq.producer.accumulator import Row

KERNEL_ROWS_MIN = 2000
"""Rows from which Arrow kernels are used. A call releases the GIL; getting it back costs smaller batches more."""


def row_columns(rows: Sequence[Row], partitions: Sequence[int], epoch_ms: float, schema: TopicSchema | None) -> Columns:
    """Rows as columns. A row without a timestamp gets the time at which it was produced: `epoch_ms` + monotonic time.
    Raises InvalidValue if a value does not fit the topic's schema."""
    times, time_bounds = _times(rows, epoch_ms)
    try:
        columns = columns_of_rows(
            partitions, times, [row[1] for row in rows], [row[4] for row in rows], [row[0] for row in rows], schema
        )
    except (pa.ArrowException, TypeError, AttributeError) as error:
        kind = "bytes" if schema is None else "dicts or model instances"
        raise InvalidValue(f"the topic holds {kind}: {error}") from error
    return replace(columns, partition_bounds=(min(partitions), max(partitions)), timestamp_bounds=time_bounds)


def _times(rows: Sequence[Row], epoch_ms: float) -> tuple[pa.Array, tuple[int, int]]:
    """The timestamp of each row in milliseconds, with the minimum and the maximum."""
    if len(rows) >= KERNEL_ROWS_MIN and not any(map(itemgetter(3), rows)):
        since = pa.array([row[5] for row in rows], pa.float64())
        array = pc.add(pc.multiply(since, 1000.0), epoch_ms).cast(pa.int64(), safe=False)
        return array, bounds_of(array)
    times = [row[3] or produced_ms(row, epoch_ms) for row in rows]
    return pa.array(times, pa.int64()), (min(times), max(times))


def produced_ms(row: Row, epoch_ms: float) -> int:
    """When a row was produced, in milliseconds since 1970. `epoch_ms` is the wall-clock time of the monotonic zero."""
    return int(row[5] * 1000 + epoch_ms)


def chosen_partitions(rows: Sequence[Row], partitioner: str, count: int, sticky: int, *, spread: bool) -> list[int]:
    """The partition of each row: the one it names, or the partitioner's choice among `count`."""
    named = [row[2] for row in rows]
    if min(named) >= 0:
        return named
    if count == 1:
        return [0] * len(named) if max(named) <= 0 else [max(name, 0) for name in named]
    chosen = assign_partitions(partitioner, [row[1] for row in rows], count, sticky, spread=spread)
    if max(named) < 0:
        return chosen
    return [choice if name < 0 else name for name, choice in zip(named, chosen, strict=True)]


def resolved_block(columns: Columns, partitioner: str, count: int, sticky: int, *, spread: bool = False) -> Columns:
    """A table's columns with every partition of -1 replaced by the partitioner's choice. Each distinct key is hashed
    once, so the Python work does not grow with the rows, unless they are spread."""
    unset = pc.less(columns.partitions, 0)
    if not pc.any(unset).as_py():
        return columns
    chosen: pa.Array
    if count > 1 and (spread or partitioner == "random"):
        keys = columns.keys.to_pylist()
        chosen = pa.array(assign_partitions(partitioner, keys, count, sticky, spread=spread), pa.int32())
    elif count == 1 or columns.keys.null_count == len(columns):
        partition = 0 if count == 1 else assign_partitions(partitioner, [None], count, sticky)[0]
        chosen = pa.repeat(pa.scalar(partition, pa.int32()), len(columns))
    else:
        encoded = columns.keys.dictionary_encode(null_encoding="encode")
        of_key = assign_partitions(partitioner, encoded.dictionary.to_pylist(), count, sticky)
        chosen = pa.array(of_key, pa.int32()).take(encoded.indices)
    return replace(columns, partitions=pc.if_else(unset, chosen, columns.partitions))


def largest_record(columns: Columns) -> int:
    """Bytes of the largest record: its key and its value columns of text or bytes."""
    lengths = [
        pc.binary_length(column).fill_null(0).cast(pa.int64())
        for column in (columns.keys, *columns.values.columns)
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    ]
    return int(pc.max(reduce(pc.add, lengths)).as_py())


def joined(parts: Sequence[Columns]) -> Columns:
    """Concatenate the columns of several parts."""
    if len(parts) == 1:
        return parts[0]
    return Columns(
        pa.concat_arrays([part.partitions for part in parts]),
        pa.concat_arrays([part.timestamps for part in parts]),
        pa.concat_arrays([part.keys for part in parts]),
        pa.concat_arrays([part.headers for part in parts]),
        pa.concat_batches([part.values for part in parts]),
    )


def in_segments(columns: Columns, bytes_max: int) -> Iterator[Columns]:
    """Cut columns into pieces of at most about `bytes_max` bytes (a single row may exceed it)."""
    size = columns.values.nbytes + columns.keys.nbytes + columns.headers.nbytes + 12 * len(columns)
    pieces = max(1, -(-size // bytes_max))
    rows = -(-len(columns) // pieces)
    if pieces == 1 or rows == len(columns):
        yield columns
        return
    for first in range(0, len(columns), rows):
        piece = slice_columns(columns, first, min(rows, len(columns) - first))
        # Uneven rows may leave a piece far above the limit.
        is_large = len(piece) > 1 and piece.values.nbytes + piece.keys.nbytes > 2 * bytes_max
        yield from in_segments(piece, bytes_max) if is_large else (piece,)
