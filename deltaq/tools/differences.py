"""The differences between two topics: records that only one of them has, and records that differ at
one offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.errors import KafkaError, KafkaException
from deltaq.serde.schema import TopicSchema
from deltaq.tools.positions import Ranges
from deltaq.tools.reading import read
from deltaq.tools.records import Record, records_of
from deltaq.topic import Topic


@dataclass(frozen=True, slots=True)
class Difference:
    """A record of the left topic, of the right one, or one of both at the same offset with
    different content.
    """

    left: Record | None
    right: Record | None

    @property
    def fields(self) -> tuple[str, ...]:
        """What differs: `timestamp`, `key`, `headers`, `value`; nothing if only one topic has the
        record.
        """
        if self.left is None or self.right is None:
            return ()
        pairs = zip(Record._fields, self.left, self.right, strict=True)
        return tuple(name for name, left, right in pairs if repr(left) != repr(right))


def diff(
    left: Topic, right: Topic, left_ranges: Ranges, right_ranges: Ranges
) -> Iterator[Difference]:
    """Compare the records of two topics by partition and offset: timestamp, key, headers and value.

    Raises KafkaException (_INVALID_TYPE) for topics with different columns, and what
    `Topic.to_batches` raises.
    """
    schemas = left.describe().schema, right.describe().schema
    if schemas[0] != schemas[1]:
        reason = f"topics {left.name!r} and {right.name!r} have different columns"
        raise KafkaException(KafkaError(KafkaError._INVALID_TYPE, reason))
    for partition in sorted(left_ranges.keys() | right_ranges.keys()):
        sides = [
            _Side(read(topic, {partition: ranges[partition]}) if partition in ranges else iter(()))
            for topic, ranges in ((left, left_ranges), (right, right_ranges))
        ]
        yield from _compared(sides[0], sides[1], schemas[0])


class _Side:
    """The records of one partition of one topic that are still to be compared."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows: pa.RecordBatch | None = None
        self.drop(0)

    def drop(self, count: int) -> None:
        """Remove the first records; `rows` is None once all are compared."""
        self.rows = None if self.rows is None else self.rows.slice(count)
        while self.rows is None or not self.rows.num_rows:
            self.rows = next(self._batches, None)
            if self.rows is None:
                return

    def before(self, offset: int) -> int:
        """The number of records in `rows` before an offset."""
        if self.rows is None:
            return 0
        return pc.sum(pc.less(self.rows.column("_offset"), offset)).as_py() or 0


def _compared(left: _Side, right: _Side, schema: TopicSchema | None) -> Iterator[Difference]:
    while left.rows is not None and right.rows is not None:
        count = min(left.rows.num_rows, right.rows.num_rows)
        ours, theirs = left.rows.slice(0, count), right.rows.slice(0, count)
        if ours.equals(theirs):
            left.drop(count)
            right.drop(count)
            continue
        until = 1 + min(ours.column("_offset")[-1].as_py(), theirs.column("_offset")[-1].as_py())
        counts = left.before(until), right.before(until)
        yield from _by_offset(left.rows.slice(0, counts[0]), right.rows.slice(0, counts[1]), schema)
        left.drop(counts[0])
        right.drop(counts[1])
    while left.rows is not None:
        yield from (Difference(record, None) for record in records_of(left.rows, schema))
        left.drop(left.rows.num_rows)
    while right.rows is not None:
        yield from (Difference(None, record) for record in records_of(right.rows, schema))
        right.drop(right.rows.num_rows)


def _by_offset(
    ours: pa.RecordBatch, theirs: pa.RecordBatch, schema: TopicSchema | None
) -> Iterator[Difference]:
    left = {record.offset: record for record in records_of(ours, schema)}
    right = {record.offset: record for record in records_of(theirs, schema)}
    for offset in sorted(left.keys() | right.keys()):
        pair = Difference(left.get(offset), right.get(offset))
        # As text, in which NaN equals NaN, and 0.0 is not -0.0.
        if repr(pair.left) != repr(pair.right):
            yield pair
