"""Fetching one topic: its log is followed, positions are resolved, and the next files are read
ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from deltaq import metrics
from deltaq.clock import Clock, Condition
from deltaq.consumer.fetch_buffer import (
    CompletedFetch,
    FetchBuffer,
    PartitionEnd,
    PartitionError,
    StoreOutage,
)
from deltaq.consumer.offset_reset import FetchPosition, FetchState, OffsetReset
from deltaq.consumer.tail import LiveTopic, TopicTail
from deltaq.delta.retry import error_pause_s
from deltaq.errors import Corrupt, KafkaError, KafkaException, Unavailable, UnknownTopic
from deltaq.groups.state import PartitionCount
from deltaq.message import OFFSET_BEGINNING
from deltaq.parquet.segment import SegmentLayout
from deltaq.store import Store
from deltaq.store.parallel import REQUESTS_MAX, in_parallel
from deltaq.topics.layout_cache import LayoutCache
from deltaq.topics.metadata import NewTopicPlan
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.scan import Fetched, FileGone, FileRead, first_parts, next_read, read_file

_log = logging.getLogger("deltaq.consumer")


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """How far fetching a topic has come: the topic as read last, the offset and state of each
    position, the error of the last attempt, and when (`Clock.monotonic`) the log was read and
    records were found last.
    """

    live: LiveTopic | None
    is_read: bool
    positions: Mapping[int, tuple[int, FetchState]]
    failure: KafkaException | None
    read_at: float
    fetched_at: float


class TopicFetcher:
    """Fetches one followed topic. `advance` is for the fetch thread; `positions` are guarded by
    `changed`.

    A missing topic is created if there is a `plan`. With `report_end`, the ends of partitions are
    reported (`enable.partition.eof`). `grown` is called when the topic is created, deleted or gets
    more partitions.
    """

    def __init__(
        self,
        tail: TopicTail,
        resets: OffsetReset,
        reads: ReadAhead,
        queue: FetchBuffer,
        changed: Condition,
        clock: Clock,
        grown: Callable[[], None],
        plan: NewTopicPlan | None,
        *,
        report_end: bool,
    ) -> None:
        self.tail = tail
        self.positions: dict[int, FetchPosition] = {}
        self._topic = tail.log.topic
        self._resets = resets
        self._reads = reads
        self._queue = queue
        self._changed = changed
        self._clock = clock
        self._grown = grown
        self._plan = plan
        self._report_end = report_end
        # Partitions from this one on were added after following began.
        self._new_from: int | None = None
        self._missing_reported = False
        self._is_unreadable = False
        self._failures = 0
        self._failure: KafkaException | None = None  # of the last attempt to read
        self._fetched_at = float("-inf")  # when records were found last
        self._retry_at = 0.0

    @property
    def size(self) -> PartitionCount | None:
        """The topic's size, with 0 partitions if it does not exist or cannot be read; None if it is
        not known yet.
        """
        live, version = self.tail.live, self.tail.published
        if live is not None and version is not None:
            return PartitionCount(live.head.partitions, version, live.created_ms)
        if self._is_unreadable or version is None:
            return PartitionCount(0) if self._is_unreadable else None
        return PartitionCount(0, version) if self._plan is None else None

    def progress(self) -> TopicProgress:
        """How far fetching has come. The caller holds the lock."""
        tail = self.tail
        positions = {
            partition: (position.offset, position.state)
            for partition, position in self.positions.items()
        }
        is_read = tail.published is not None
        return TopicProgress(
            tail.live, is_read, positions, self._failure, tail.log.read_at, self._fetched_at
        )

    def advance(self) -> bool:
        """Read new log entries and fetch from the next files. Returns whether anything was
        found.
        """
        self.tail.rested_s = 0.0
        if self._clock.monotonic() < self._retry_at:
            return False
        try:
            found = self._advance()
            self._failure, self._failures, self._is_unreadable = None, 0, False
            return found
        except KafkaException as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - a bug must not leave the application waiting forever
            _log.exception("reading failed topic=%r", self._topic)
            text = f"unexpected {type(error).__name__}: {error}"
            self._failed(KafkaException(KafkaError(KafkaError._FAIL, text)))
        return False

    def _advance(self) -> bool:
        tail = self.tail
        found = tail.advance(self._needs_end)
        if found:
            self._publish()
            found = tail.log.version >= 0
        # `allow.auto.create.topics`: only while the topic has never been seen.
        if tail.live is None and self._plan is not None:
            tail.create(self._plan)
            self._publish()
        if tail.live is None:
            self._report_missing()
            return found
        # The end may be a gap. To find out costs requests, so it is done only if a position depends
        # on it.
        if tail.log.is_end_open and self._is_end_awaited(tail.live):
            tail.log.check_end()
            self._publish()
        # The topic may have been deleted, which the check of the end finds.
        if tail.live is None:
            return found
        self._resets.resolve(
            self._copied_positions(), tail.live.head, tail.end, self._new_from or 0
        )
        return self._fetch(tail.live) or found

    def _failed(self, error: KafkaException) -> None:
        """Report an error to the application, and retry with back-off."""
        self._failures += 1
        self._failure = error
        self._retry_at = self._clock.monotonic() + error_pause_s(
            self._failures + 3, self._clock.random()
        )
        _log.warning("reading failed topic=%r error=%s", self._topic, error)
        # Damage, or a store that refuses: no retry helps, so `poll` returns it until it is fixed.
        # An outage ends by itself.
        if not isinstance(error, Unavailable) or not error.error.retriable():
            self._is_unreadable = True
            self._queue.put_until_fixed(PartitionError(self._topic, -1, 0, error))
        else:
            self._queue.put_outage(StoreOutage(self._topic, error))

    # --- the topic ---

    def _publish(self) -> None:
        """Let the application's thread see the topic as read so far."""
        with self._changed:
            before = self.tail.live
            self.tail.publish()
            live = self.tail.live
            if self._new_from is None:
                self._new_from = 0 if live is None else live.head.partitions
            # The topic was deleted, and may have been created again.
            if before is not None and (live is None or live.head.topic_id != before.head.topic_id):
                self._missing_reported = False
                self._new_from = 0
                # The old topic's offsets have no meaning in the new topic. A position that was set
                # meanwhile and not resolved yet applies to the new topic.
                for partition, position in self.positions.items():
                    is_unresolved = position.offset < 0 and position.state is not FetchState.STOPPED
                    offset = position.offset if is_unresolved else OFFSET_BEGINNING
                    self.positions[partition] = FetchPosition(
                        offset, position.epoch, position.paused
                    )
            if _partitions(before) != _partitions(live):
                self._grown()
            if live is not None:
                self._plan = None  # a topic that is deleted later must not be created again
            self._changed.notify_all()

    def _report_missing(self) -> None:
        if not self._missing_reported:
            self._missing_reported = True
            self._queue.put(PartitionError(self._topic, -1, 0, UnknownTopic(self._topic)))

    def _needs_end(self) -> bool:
        """Whether nothing can be fetched before the end of the log is known.

        Fetching does not wait for it if the ends of partitions are not reported and every position
        is an offset within the known part of the log.
        """
        live = self.tail.live
        if self._report_end or live is None:
            return True
        ends = dict(enumerate(live.head.next_offsets))
        return any(
            not 0 <= c.offset <= ends[p] for p, c in self._copied_positions().items() if p in ends
        )

    def _is_end_awaited(self, live: LiveTopic) -> bool:
        """Whether some position depends on the end of the log, or has reached it."""
        ends = dict(enumerate(live.head.next_offsets))
        return any(
            not 0 <= position.offset < ends.get(p, 0)
            for p, position in self._copied_positions().items()
        )

    def _copied_positions(self) -> dict[int, FetchPosition]:
        with self._changed:
            return dict(self.positions)

    # --- its records ---

    def _fetch(self, live: LiveTopic) -> bool:
        """Fetch from the next files that some partition needs. Returns whether there were any."""
        ends = dict(enumerate(live.head.next_offsets))
        positions = {
            partition: position
            for partition, position in self._copied_positions().items()
            if not position.paused and position.state is not FetchState.STOPPED
            if partition in ends and 0 <= position.offset <= ends[partition]
        }
        begun_at = self._clock.monotonic()
        reads = self._reads.plan(self.tail.log.index, positions, self._queue.room)
        for read, outcome in self._reads.read(reads, live.definition.columns):
            # Compaction or retention has removed the file since the log was read.
            if isinstance(outcome, FileGone):
                self._gone(positions, read)
                break  # the plan is stale
            if isinstance(outcome, Corrupt):
                self._damaged(positions, read, outcome)
            else:
                self._hand_over(live, positions, outcome)
        if reads:
            metrics.FETCH_LATENCY.observe(self._clock.monotonic() - begun_at, topic=self._topic)
        if self._report_end and self.tail.end.is_known:
            for partition, position in positions.items():
                self._report_end_of(partition, position, ends[partition])
        return bool(reads)

    def _hand_over(
        self, live: LiveTopic, positions: Mapping[int, FetchPosition], parts: list[Fetched]
    ) -> None:
        found = []
        for fetched in parts:
            position = positions[fetched.partition]
            # Stopped by a damaged file of the same plan: these records come after those of that
            # file.
            if position.state is not FetchState.STOPPED:
                position.offset = fetched.next_offset
                # Key compaction may have left no record of the partition in the file.
                if len(fetched):
                    found.append(
                        CompletedFetch(self._topic, position.epoch, fetched, live.definition)
                    )
        if found:
            self._fetched_at = self._clock.monotonic()
            metrics.RECORDS_CONSUMED.add(
                sum(len(item.fetched) for item in found), topic=self._topic
            )
            metrics.BYTES_CONSUMED.add(sum(item.fetched.bytes for item in found), topic=self._topic)
            self._queue.put(*found)

    def _gone(self, positions: Mapping[int, FetchPosition], read: FileRead) -> None:
        """Handle a missing file. If it was compacted, the newest snapshot has its records;
        otherwise it is lost.
        """
        metrics.MISSING_FILES.add(topic=self._topic)
        self.tail.log.load()
        self._publish()
        if self.tail.log.is_lost(read.file):
            segment = read.file.segment
            damage = Corrupt("data file is missing", path=segment.key, version=segment.version)
            self._damaged(positions, read, damage)

    def _damaged(
        self, positions: Mapping[int, FetchPosition], read: FileRead, damage: Corrupt
    ) -> None:
        """Stop only the partitions that need a damaged file, so that none of their records is
        skipped.
        """
        for batch, _, _ in read.wanted:
            self._resets.stop(batch.partition, positions[batch.partition], damage)

    def _report_end_of(self, partition: int, position: FetchPosition, end: int) -> None:
        if (
            position.state is not FetchState.STOPPED
            and position.offset >= end != position.reported_end
        ):
            position.reported_end = end
            self._queue.put(PartitionEnd(self._topic, partition, position.epoch, end))


def _partitions(live: LiveTopic | None) -> int:
    return 0 if live is None else live.head.partitions


# --- which files are read next, and how much of each at a time ---

ReadOutcome: TypeAlias = list[Fetched] | FileGone | Corrupt


class ReadAhead:
    """Plans and does the reads of one topic's data files. For the fetch thread."""

    def __init__(
        self, store: Store, clock: Clock, layouts: LayoutCache, read_bytes_max: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._layout_cache = layouts
        self._read_bytes_max = read_bytes_max
        # Of the large files that are being read, by path.
        self._layouts: dict[str, SegmentLayout] = {}

    def plan(
        self, index: OffsetIndex, positions: Mapping[int, FetchPosition], room: int
    ) -> list[FileRead]:
        """The reads to do now for at most `room` bytes: one file, or several of a remote store."""
        offsets = {partition: position.offset for partition, position in positions.items()}
        reads: list[FileRead] = []
        while room > 0 and len(reads) < (REQUESTS_MAX if self._store.is_remote else 1):
            read = next_read(index, offsets)
            if read is None:
                break
            read = self._cut(positions, read)
            reads.append(read)
            room -= read.bytes
            offsets |= {batch.partition: end for batch, _, end in read.wanted}
        self._layouts = {read.file.path: read.layout for read in reads if read.layout is not None}
        for partition in {batch.partition for read in reads for batch, _, _ in read.wanted}:
            positions[partition].read_bytes = min(
                2 * positions[partition].read_bytes, self._read_bytes_max
            )
        return reads

    def _cut(self, positions: Mapping[int, FetchPosition], read: FileRead) -> FileRead:
        """Limit the read of a large file to the bytes allowed at a time; partitions read least so
        far come first.
        """
        read_bytes = {
            batch.partition: positions[batch.partition].read_bytes for batch, _, _ in read.wanted
        }
        bytes_max = min(self._read_bytes_max, *read_bytes.values())
        path = read.file.path
        if read.file.segment.size <= bytes_max:
            return read
        try:
            layout = self._layouts.get(path) or self._layout_cache.of(read.file)
        except (FileGone, Corrupt):
            return read  # reading the file raises the same error
        if layout is None:
            return read
        self._layouts[path] = layout
        wanted = sorted(read.wanted, key=lambda want: read_bytes[want[0].partition])
        return first_parts(replace(read, wanted=tuple(wanted)), layout, bytes_max)

    def read(
        self, reads: list[FileRead], columns: pa.Schema
    ) -> Iterator[tuple[FileRead, ReadOutcome]]:
        """Do the reads in parallel. Raises Unavailable."""
        return zip(
            reads,
            in_parallel(self._clock, lambda read: self._outcome(read, columns), reads),
            strict=True,
        )

    def _outcome(self, read: FileRead, columns: pa.Schema) -> ReadOutcome:
        try:
            return read_file(self._store, read, columns, plain=True)
        except (FileGone, Corrupt) as error:
            return error
