"""Statistics of a topic's records: how many, how large, where the smallest and the largest are, and
when.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.tools.positions import Ranges
from deltaq.tools.reading import read
from deltaq.tools.registry_values import PREFIX_BYTES, RegistryDecoder, schema_id_of
from deltaq.topic import Topic
from deltaq.topics.arrow_input import row_bytes


@dataclass(frozen=True, slots=True, order=True)
class MessageSize:
    """The size of a message in bytes, with its key and headers, and its place."""

    bytes: int
    partition: int
    offset: int


@dataclass(slots=True)
class TopicStats:
    """What `stats` has found. Bytes are those of keys, headers and values before compression;
    timestamps are in milliseconds since 1970 UTC, and None for no messages, as are `smallest` and
    `largest`. `by_schema` counts the values of a topic of bytes that begin with the id of a schema
    in the registry of its root.
    """

    messages: int = 0
    tombstones: int = 0
    without_key: int = 0
    bytes: int = 0
    smallest: MessageSize | None = None
    largest: MessageSize | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    by_partition: dict[int, int] = field(default_factory=dict)
    by_schema: dict[int, int] = field(default_factory=dict)

    @property
    def average_bytes(self) -> float:
        """The average size of a message; 0 without messages."""
        return self.bytes / self.messages if self.messages else 0.0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the records of a batch of one partition."""
        if not batch.num_rows:
            return
        values = [batch.column(name) for name in batch.schema.names if not name.startswith("_")]
        sizes = reduce(
            pc.add, map(row_bytes, [batch.column("_key"), batch.column("_headers"), *values])
        )
        bounds = pc.min_max(sizes)
        partition = batch.column("_partition")[0].as_py()
        offsets = batch.column("_offset")
        smallest, largest = (
            MessageSize(bound.as_py(), partition, offsets[pc.index(sizes, bound).as_py()].as_py())
            for bound in (bounds["min"], bounds["max"])
        )
        self.messages += batch.num_rows
        self.bytes += pc.sum(sizes).as_py()
        self.without_key += batch.column("_key").null_count
        self.tombstones += pc.sum(reduce(pc.and_, map(pc.is_null, values))).as_py()
        self.smallest = smallest if self.smallest is None else min(self.smallest, smallest)
        # Of equally large messages, the first one, as for the smallest.
        if self.largest is None or largest.bytes > self.largest.bytes:
            self.largest = largest
        self._add_times(batch.column("_timestamp").cast(pa.int64()))
        self.by_partition[partition] = self.by_partition.get(partition, 0) + batch.num_rows

    def _add_times(self, stamps: pa.Array) -> None:
        """Take times in microseconds into account, but for those that no message can have."""
        is_time = pc.and_(
            pc.greater_equal(stamps, 0), pc.less(stamps, 1000 * (TIMESTAMP_MS_MAX + 1))
        )
        times = pc.min_max(stamps.filter(is_time))
        if times["min"].as_py() is None:
            return
        earliest, latest = times["min"].as_py() // 1000, times["max"].as_py() // 1000
        # 0 is a timestamp.
        self.first_timestamp = (
            earliest if self.first_timestamp is None else min(self.first_timestamp, earliest)
        )
        self.last_timestamp = (
            latest if self.last_timestamp is None else max(self.last_timestamp, latest)
        )


def stats(topic: Topic, ranges: Ranges) -> TopicStats:
    """The statistics of the records in `ranges`. Reads all of them. Raises as
    `Topic.to_batches`.
    """
    found, decoder = TopicStats(), RegistryDecoder.of_topic(topic)
    for batch in read(topic, ranges):
        found.add(batch)
        if decoder is not None:
            for number, count in _schema_ids(batch.column("value")):
                if number in found.by_schema or decoder.knows(number):
                    found.by_schema[number] = found.by_schema.get(number, 0) + count
    return found


def _schema_ids(values: pa.Array) -> Iterator[tuple[int, int]]:
    """The ids that values may begin with, and how many values do."""
    prefixes = pc.binary_slice(values, 0, PREFIX_BYTES).drop_null()
    for pair in pc.value_counts(prefixes).to_pylist():
        if (number := schema_id_of(pair["values"])) is not None:
            yield number, pair["counts"]
