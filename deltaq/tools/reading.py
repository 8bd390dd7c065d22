"""Reading topics: all records in order, the first, the last, those that match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.errors import InvalidConfig
from deltaq.serde.schema import Unreadable, python_values
from deltaq.tools.positions import Place, Ranges, offset_ranges
from deltaq.tools.records import Record, json_text, records_of
from deltaq.topic import Topic
from deltaq.topics.columns import table_schema

T = TypeVar("T")

BY_TIME = [("_timestamp", "ascending"), ("_partition", "ascending"), ("_offset", "ascending")]
"""The order of records of several partitions."""

_WIDER = 4
"""By which factor the range grows that is searched for the last records of a compacted topic."""

_UNSORTED_BYTES = 32 * 1024 * 1024


def read(topic: Topic, ranges: Ranges) -> Iterator[pa.RecordBatch]:
    """The records in `ranges` as batches of the topic's table, each of one partition. Raises as
    `Topic.to_batches`.
    """
    starts = {partition: start for partition, (start, _) in ranges.items()}
    ends = {partition: end for partition, (_, end) in ranges.items()}
    return topic.to_batches(list(ranges), starts, ends)


def first(topic: Topic, ranges: Ranges, count: int) -> Iterator[pa.RecordBatch]:
    """The first `count` records in `ranges`. Where key compaction has left gaps, reads on until
    there are so many.
    """
    window = count
    while count > 0 and any(start < end for start, end in ranges.values()):
        until = {partition: min(start + window, end) for partition, (start, end) in ranges.items()}
        for batch in read(
            topic, {partition: (ranges[partition][0], until[partition]) for partition in ranges}
        ):
            yield batch.slice(0, count)
            count -= batch.num_rows
            if count <= 0:
                return
        ranges = {partition: (until[partition], end) for partition, (_, end) in ranges.items()}
        window *= _WIDER


def last(topic: Topic, ranges: Ranges, count: int) -> pa.Table:
    """The last `count` records in `ranges`, over all partitions, by their timestamps."""
    window, columns = count, table_schema(topic.describe().schema)
    while True:
        starts = {partition: max(start, end - window) for partition, (start, end) in ranges.items()}
        tail = {partition: (starts[partition], end) for partition, (_, end) in ranges.items()}
        found = newest(read(topic, tail), columns, count)
        if found.num_rows >= count or all(
            starts[partition] == ranges[partition][0] for partition in ranges
        ):
            return found
        window *= _WIDER


def newest(batches: Iterable[pa.RecordBatch], columns: pa.Schema, count: int) -> pa.Table:
    """The `count` newest of these records by their timestamps, the newest last. Keeps no more of
    them in memory than these and the last `_UNSORTED_BYTES`: a topic may have many partitions with
    large records.
    """
    found: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        found.append(batch)
        size += batch.nbytes
        if size > _UNSORTED_BYTES:
            found, size = _newest(found, columns, count).to_batches(), 0
    return _newest(found, columns, count)


def _newest(batches: Sequence[pa.RecordBatch], columns: pa.Schema, count: int) -> pa.Table:
    by_time = pa.Table.from_batches(batches, columns).sort_by(BY_TIME)
    return by_time.slice(max(0, by_time.num_rows - count))


def matching(
    batch: pa.RecordBatch, pattern: str, *, ignore_case: bool = False, invert: bool = False
) -> pa.RecordBatch:
    """The rows whose key or value has a match of the regular expression `pattern` (syntax of RE2).

    The columns of a typed topic are searched as text: lists, structs and maps as the JSON that
    stands for them, or, if they cannot be returned, as what is stored. Raises InvalidConfig for a
    wrong pattern.
    """
    found = pa.repeat(False, batch.num_rows)
    for name in batch.schema.names:
        if name in ("_key", "value") or not name.startswith("_"):
            hits = _matches(_as_text(batch.column(name)), pattern, ignore_case=ignore_case)
            found = pc.or_(found, pc.fill_null(hits, False))
    return batch.filter(pc.invert(found) if invert else found)


def _as_text(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        return column
    if not pa.types.is_nested(column.type):
        return column.cast(pa.string())
    values = python_values(column)
    return pa.array([None if value is None else _text_of(value) for value in values], pa.string())


def _text_of(value: Any) -> str:
    return str(value.stored) if isinstance(value, Unreadable) else json_text(value)


def _matches(column: pa.Array, pattern: str, *, ignore_case: bool) -> pa.Array:
    try:
        return pc.match_substring_regex(column, pattern, ignore_case=ignore_case)
    except pa.ArrowInvalid as error:
        raise InvalidConfig(
            f"{pattern!r} is no regular expression: {error}", key="pattern"
        ) from None


def messages(topic: Topic, start: Place = None, end: Place = None) -> Iterator[Record]:
    """The records between two places, as they are now: each partition in order, partitions
    interleaved.

    Raises UnknownTopic, Corrupt, Incompatible, Unavailable; OffsetOutOfRange if retention removes
    records meanwhile.
    """
    schema = topic.describe().schema
    for batch in read(topic, offset_ranges(topic, start, end)):
        yield from records_of(batch, schema)


def foldl(
    topic: Topic,
    function: Callable[[T, Record], T],
    initial: T,
    start: Place = None,
    end: Place = None,
) -> T:
    """`function(... function(function(initial, first), second) ..., last)` over the records of
    `messages`.
    """
    for record in messages(topic, start, end):
        initial = function(initial, record)
    return initial
