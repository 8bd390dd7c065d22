"""The topics of a share consumer: which offsets they have, and their records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from deltaq import names
from deltaq.clock import Clock
from deltaq.config.group import duration_ms
from deltaq.consumer.decoding import DecodedRecords
from deltaq.errors import Corrupt, KafkaException, UnknownTopic
from deltaq.message import OFFSET_END, AcknowledgeType, SharedMessage
from deltaq.serde.schema import TopicSchema
from deltaq.share_groups.dead_letters import DeadRecord, RecordContent
from deltaq.share_groups.exchange import LogRange, PartitionId
from deltaq.share_groups.log import ShareGroup, ShareLog
from deltaq.share_groups.state import Acknowledgement, TakenRange
from deltaq.store import Store, Watch
from deltaq.store.parallel import in_parallel_if_remote
from deltaq.topics.delivery_time import deliver_at_ms
from deltaq.topics.follower import TopicReader, topic_reader
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.metadata import definition_of
from deltaq.topics.scan import FEW_ROWS, FileRead, plan_reads, read_file
from deltaq.topics.time_lookup import through_compactions

_KEPT_BYTES_MAX = 2 * 1024 * 1024, 16 * 1024 * 1024
"""The size of a file that is kept decoded, and of all such files together, in bytes."""


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """What was read of the taken offsets of a partition: messages, the number of the delivery of
    each offset that has one, and the other offsets. `damage` is why these could not be read; None
    if the topic has no records there.
    """

    partition: PartitionId
    messages: Sequence[SharedMessage]
    deliveries: Mapping[int, int]
    others: Sequence[TakenRange]
    damage: Corrupt | None = None

    def later(self, now_ms: int) -> list[Acknowledgement]:
        """Release the messages that are to be delivered later than now, each until its time."""
        times = (
            (each.offset() or 0, deliver_at_ms(headers))
            for each in self.messages
            if (headers := each.headers()) is not None
        )
        release, count = AcknowledgeType.RELEASE, self.deliveries
        return [
            Acknowledgement(offset, offset + 1, count[offset], release, at_ms, unseen=True)
            for offset, at_ms in times
            if at_ms > now_ms
        ]

    def without(self, released: Sequence[Acknowledgement]) -> ReadPartition:
        """Without the messages that are released."""
        if not released:
            return self
        offsets = {each.first for each in released}
        left = {at: count for at, count in self.deliveries.items() if at not in offsets}
        messages = [message for message in self.messages if message.offset() in left]
        return replace(self, messages=messages, deliveries=left)


class SharedTopics:
    """The topics that one share consumer reads. Not thread-safe.

    `schema_of(topic)` has the model of the application for a topic, or None.
    """

    def __init__(
        self, store: Store, clock: Clock, schema_of: Callable[[str], TopicSchema | None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._schema_of = schema_of
        self._lookup = TopicLookup(store, clock)
        self._readers: dict[str, TopicReader] = {}
        # Of topics that others of the group read: their dead letters.
        self._others: dict[str, TopicReader] = {}
        # Topics that did not exist when this consumer looked: all their records are new.
        self._were_missing: set[str] = set()
        self._turn = 0
        # Of each partition the file that was read last, decoded, with its size.
        self._kept: dict[PartitionId, tuple[str, list[DecodedRecords], int]] = {}

    def follow(self, topics: Iterable[str], watch: Watch) -> None:
        """Read exactly these topics; `watch` is signalled when they change."""
        wanted = set(topics)
        for topic in sorted(wanted - self._readers.keys()):
            self._readers[topic] = topic_reader(self._store, topic, self._clock)
            watch.add(names.topic_log(topic))
        for topic in self._readers.keys() - wanted:
            del self._readers[topic]
        self._kept.clear()
        self._were_missing &= wanted

    def log_ranges(self, log: ShareLog) -> dict[PartitionId, LogRange]:
        """What the topics have now, for the group with this log. Another partition comes first each
        time, so that none waits for the others. Raises Unavailable, Corrupt, Incompatible.
        """
        found: dict[PartitionId, LogRange] = {}
        for topic, reader in self._readers.items():
            reader.catch_up(to_end=False)
            if (head := reader.head) is None:
                self._were_missing.add(topic)
                continue
            found |= {
                PartitionId(topic, head.topic_id, number): LogRange(start, end)
                for number, (start, end) in enumerate(
                    zip(head.start_offsets, head.next_offsets, strict=True)
                )
            }
        new = found.keys() - log.last_read().known(found).keys()
        if new:
            found |= self._with_first_offsets(log.read(), {key: found[key] for key in sorted(new)})
        keys = sorted(found)
        self._turn += 1
        first = self._turn % len(keys) if keys else 0
        return {key: found[key] for key in keys[first:] + keys[:first]}

    def _with_first_offsets(
        self, group: ShareGroup, log_ranges: Mapping[PartitionId, LogRange]
    ) -> Mapping[PartitionId, LogRange]:
        """The ranges of partitions that the group has perhaps never read, with where it begins."""
        reset = group.settings.share_auto_offset_reset
        found = {}
        for key, log_range in log_ranges.items():
            is_known = key.topic in self._were_missing or group.reads(key.topic)
            if is_known or reset == "earliest":
                first = log_range.log_start
            elif reset == "latest":
                first = self._end(key)
            else:
                first = self._first_since(key, duration_ms(reset))
            found[key] = replace(log_range, first=first)
        return found

    def _end(self, key: PartitionId) -> int:
        """The end of a partition; that of its range may be of an earlier version."""
        reader = self._readers[key.topic]
        if reader.is_end_open:
            reader.check_end()
        return reader.live_head.next_offsets[key.partition]

    def _first_since(self, key: PartitionId, ago_ms: int) -> int:
        since_ms = max(0, self._clock.time_ms() - ago_ms)
        (found,) = self._lookup.offsets_for_times(key.topic, [(key.partition, since_ms)])
        if isinstance(found, UnknownTopic):
            raise found
        return self._end(key) if found == OFFSET_END else found

    def read(
        self, topic: str, topic_id: str, taken: Mapping[int, Sequence[TakenRange]]
    ) -> list[ReadPartition]:
        """The records of one topic that were taken, by partition. Raises Unavailable."""
        found = []
        for number, ranges in taken.items():
            key = PartitionId(topic, topic_id, number)
            parts: list[DecodedRecords | Corrupt] = []
            try:
                for hull in _hulls(ranges):
                    parts += self._records(key, hull)
            except UnknownTopic:
                parts = []  # it was deleted after they were taken
            except Corrupt as error:
                parts.append(error)  # of the topic's log
            records = [part for part in parts if not isinstance(part, Corrupt)]
            damages = (part for part in parts if isinstance(part, Corrupt))
            found.append(_read(key, records, ranges, next(damages, None)))
        return found

    def _reader(self, topic: str) -> TopicReader:
        if topic in self._readers:
            return self._readers[topic]
        new = topic_reader(self._store, topic, self._clock)
        other = self._others.setdefault(topic, new)
        other.catch_up()
        return other

    def schemas(self, topics: Collection[str]) -> dict[str, TopicSchema | None]:
        """The schemas of those of the topics that exist, by name; None for one of bytes. Raises
        Unavailable, Corrupt.
        """
        found = {}
        for topic in sorted(topics):
            with suppress(UnknownTopic):
                found[topic] = definition_of(self._reader(topic)).schema
        return found

    def contents(
        self, records: Sequence[DeadRecord]
    ) -> dict[tuple[PartitionId, int], RecordContent]:
        """The contents of records, as far as the topics have them and they can be read. Raises
        Unavailable.
        """
        found = {}
        of_topic: dict[tuple[str, str], dict[int, list[TakenRange]]] = {}
        for record in records:
            topic, topic_id, partition = record.partition
            ranges = of_topic.setdefault((topic, topic_id), {}).setdefault(partition, [])
            ranges.append(TakenRange(record.offset, record.offset + 1, record.deliveries))
        for (topic, topic_id), taken in of_topic.items():
            for ranges in taken.values():
                ranges.sort()
            for part in self.read(topic, topic_id, taken):
                for message in part.messages:
                    try:
                        content = RecordContent(message.key(), message.headers(), message.value())
                    except KafkaException:
                        continue  # its columns have a value that cannot be returned
                    found[part.partition, message.offset() or 0] = content
        return found

    def _records(self, key: PartitionId, hull: tuple[int, int]) -> list[DecodedRecords | Corrupt]:
        """The records of these offsets, with others of the same files; for a damaged file what is
        wrong with it. Raises UnknownTopic if the topic was deleted, Unavailable, and Corrupt if its
        log is damaged.
        """
        reader = self._reader(key.topic)
        if reader.live_head.topic_id != key.topic_id:
            raise UnknownTopic(key.topic)

        def records_of(read: FileRead) -> Sequence[DecodedRecords | Corrupt]:
            try:
                return self._records_of(key, reader, read)
            except Corrupt as error:
                return [error]  # the records of other files are read

        def search() -> list[Sequence[DecodedRecords | Corrupt]]:
            reads = plan_reads(reader.index, {key.partition: hull})
            return in_parallel_if_remote(self._store, self._clock, records_of, reads)

        return [each for of_file in through_compactions(reader, search) for each in of_file]

    def _records_of(
        self, key: PartitionId, reader: TopicReader, read: FileRead
    ) -> list[DecodedRecords]:
        """The records of a file. One that is not large is read as a whole, and all that it has of
        the partition is kept: the next messages are in it, too. Raises as `read_file`.
        """
        path, kept, _ = self._kept.get(key, ("", [], 0))
        if path == read.file.path:
            return kept
        size = read.file.segment.size
        is_kept = size <= _KEPT_BYTES_MAX[0]
        if is_kept:
            whole = tuple(
                (batch, batch.base_offset, batch.next_offset) for batch, *_ in read.wanted
            )
            read = replace(read, wanted=whole)
        definition = definition_of(reader)
        schema = self._schema_of(key.topic) or definition.schema
        parts = read_file(self._store, read, definition.columns, plain=True)
        found = [DecodedRecords(key.topic, key.topic_id, part, schema) for part in parts]
        if is_kept:
            self._kept.pop(key, None)
            while sum(other for *_, other in self._kept.values()) + size > _KEPT_BYTES_MAX[1]:
                del self._kept[next(iter(self._kept))]  # the one that was read first
            self._kept[key] = read.file.path, found, size
        return found


def _hulls(ranges: Sequence[TakenRange]) -> Iterator[tuple[int, int]]:
    """The offsets to read for these ranges, in order: a few others between two of them cost less
    than another read.
    """
    first, end = ranges[0].first, ranges[0].end
    for each in ranges[1:]:
        if each.first - end > FEW_ROWS:
            yield first, end
            first = each.first
        end = each.end
    yield first, end


def _read(
    key: PartitionId,
    found: Iterable[DecodedRecords],
    taken: Sequence[TakenRange],
    damage: Corrupt | None = None,
) -> ReadPartition:
    """The messages of those records that were taken."""
    messages: list[SharedMessage] = []
    deliveries: dict[int, int] = {}
    for records in found:
        for each in taken:
            for row in _rows(records, each.first, each.end):
                deliveries[records.offset_at(row)] = each.deliveries
                messages.append(SharedMessage.delivered(records, row, each.deliveries))
    return ReadPartition(key, messages, deliveries, _without(taken, deliveries), damage)


def _rows(records: DecodedRecords, first: int, end: int) -> range:
    """The rows of the offsets `[first, end)`."""
    rows = range(records.count)
    begin = bisect_left(rows, first, key=records.offset_at)
    return range(begin, bisect_left(rows, end, lo=begin, key=records.offset_at))


def _without(taken: Sequence[TakenRange], offsets: Mapping[int, int]) -> list[TakenRange]:
    """The taken ranges without these offsets."""
    if len(offsets) == sum(each.end - each.first for each in taken):
        return []
    found = []
    for each in taken:
        first = each.first
        for at in range(each.first, each.end):
            if at in offsets:
                if first < at:
                    found.append(replace(each, first=first, end=at))
                first = at + 1
        if first < each.end:
            found.append(replace(each, first=first))
    return found
