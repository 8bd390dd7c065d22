"""Prefetch: a thread that follows the topics of one consumer and keeps a byte budget of records ready.

The tail of a log is followed by asking for its next entry; a store's watch only shortens the wait. Per partition,
records come out strictly in offset order. Each change of a partition's position (assign, seek, pause) starts a new
*epoch* for it; records and events of an earlier epoch are dropped when they come out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from deltaq import names
from deltaq.clock import Clock
from deltaq.errors import Corrupt, KafkaError, KafkaException, OffsetOutOfRange, Unavailable, UnknownTopic
from deltaq.log.backoff import error_pause_s
from deltaq.log.delta_log import LogCleaned
from deltaq.log.scan import Fetched, FileGone, FileRead, next_read, read_file
from deltaq.log.topic_log import TopicLog
from deltaq.log.topic_state import TopicHead
from deltaq.log.topic_view import TopicView, view_of
from deltaq.message import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED
from deltaq.store import Store

__all__ = ["FetchSettings", "Fetcher", "PartitionEnd", "PartitionError", "PartitionRecords"]

_log = logging.getLogger("deltaq.log")

ENTRIES_AT_ONCE = 256
"""Log entries read before records are fetched again, so that a long log does not keep records back."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Kafka's `queued.max.messages.kbytes`, `auto.offset.reset`, `fetch.wait.max.ms`, `enable.partition.eof`."""

    bytes_max: int
    reset: str
    wait_max_s: float
    report_end: bool


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """Fetched records of a topic's partition."""

    topic: str
    epoch: int
    fetched: Fetched
    view: TopicView
    bytes: int

    @property
    def partition(self) -> int:
        return self.fetched.partition


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """The end of the partition was reached: its next record will have `offset`."""

    topic: str
    partition: int
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class PartitionError:
    """Something about the partition (or with partition -1 the topic) that the application has to be told."""

    topic: str
    partition: int
    epoch: int
    error: KafkaException


@dataclass(slots=True)
class _Cursor:
    """Where fetching a partition stands. `offset` may be one of the OFFSET_ constants until it is resolved."""

    offset: int
    epoch: int
    paused: bool = False
    end_told: int = -1
    stopped: bool = False


@dataclass(slots=True)
class _Followed:
    """A topic that is followed. `seen_missing`: it did not exist at first, so its offset 0 is later than "latest" was."""

    log: TopicLog
    loaded: bool = False
    view: TopicView | None = None
    head: TopicHead | None = None
    seen_missing: bool = False
    missing_told: bool = False
    failures: int = 0
    retry_at: float = 0.0
    cursors: dict[int, _Cursor] = field(default_factory=dict)


class Fetcher:
    """Fetches for one consumer. Every method may be called from any thread.

    `stored_offset(topic, topic_id, partition)` looks a committed offset up; None if there is none.
    """

    def __init__(
        self,
        store: Store,
        settings: FetchSettings,
        stored_offset: Callable[[str, str, int], int | None],
        clock: Clock,
        name: str,
    ) -> None:
        self._store = store
        self._settings = settings
        self._stored_offset = stored_offset
        self._clock = clock
        self._watch = store.watch()
        self._changed = clock.condition()
        self._topics: dict[str, _Followed] = {}
        self._ready: deque[PartitionRecords | PartitionEnd | PartitionError] = deque()
        self._ready_bytes = 0
        self._epochs = 0
        self._closed = False
        self._idle_s = store.pace.busy_s
        self._thread = clock.start_thread(self._run, f"deltaq-fetch-{name}")

    # --- what the consumer calls ---

    def follow(self, topics: Iterable[str]) -> None:
        """Follow these topics and no others; cursors of the others are dropped."""
        wanted = set(topics)
        with self._changed:
            for topic in set(self._topics) - wanted:
                del self._topics[topic]
            for topic in wanted - set(self._topics):
                self._topics[topic] = _Followed(TopicLog(self._store, topic, self._clock, indexed=True))
                self._watch.add(names.topic_log(topic))
        self._watch.wake()

    def assign(self, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Fetch exactly these partitions of followed topics, from the given offsets; their epochs."""
        with self._changed:
            for followed in self._topics.values():
                followed.cursors.clear()
            epochs = {
                (topic, partition): self._set(topic, partition, offset)
                for (topic, partition), offset in positions.items()
            }
        self._watch.wake()
        return epochs

    def seek(self, topic: str, partition: int, offset: int) -> int:
        """Go on at `offset`; the partition's new epoch."""
        with self._changed:
            epoch = self._set(topic, partition, offset)
        self._watch.wake()
        return epoch

    def pause(self, topic: str, partition: int, paused: bool) -> None:
        """Stop or start fetching a partition."""
        with self._changed:
            self._topics[topic].cursors[partition].paused = paused
        self._watch.wake()

    def drop(self, topic: str, partition: int) -> None:
        """Fetch this partition no longer."""
        with self._changed:
            self._topics[topic].cursors.pop(partition, None)

    def seen(self, topic: str) -> tuple[TopicView, TopicHead] | None:
        """A followed topic as last seen by the thread; None if it does not exist or was not looked at yet."""
        with self._changed:
            followed = self._topics.get(topic)
            if followed is None or followed.view is None or followed.head is None:
                return None
            return followed.view, followed.head

    def counts(self) -> dict[str, int | None]:
        """Every followed topic and its number of partitions; None for one that does not exist or was not looked at yet."""
        with self._changed:
            return {topic: None if f.head is None else f.head.partitions for topic, f in self._topics.items()}

    def next(self, timeout_s: float) -> PartitionRecords | PartitionEnd | PartitionError | None:
        """The next thing that is ready, waiting up to `timeout_s` for it."""
        with self._changed:
            if not self._ready and timeout_s > 0:
                self._changed.wait(timeout_s)
            if not self._ready:
                return None
            item = self._ready.popleft()
            if isinstance(item, PartitionRecords):
                was_full = self._ready_bytes >= self._settings.bytes_max
                self._ready_bytes -= item.bytes
                if was_full:
                    self._changed.notify_all()
            return item

    def wake(self) -> None:
        """End a wait in `next`."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._watch.wake()
        self._thread.join()
        self._watch.close()

    def _set(self, topic: str, partition: int, offset: int) -> int:
        self._epochs += 1
        followed = self._topics[topic]
        before = followed.cursors.get(partition)
        followed.cursors[partition] = _Cursor(offset, self._epochs, paused=before is not None and before.paused)
        return self._epochs

    # --- the thread ---

    def _run(self) -> None:
        while not self._closed:
            with self._changed:
                topics = list(self._topics.items())
            found = False
            for topic, followed in topics:
                found = self._advance(topic, followed) or found
            self._rest(found)

    def _rest(self, found: bool) -> None:
        """Wait for room, or for something new: shortly while busy, longer and longer when idle."""
        with self._changed:
            while self._ready_bytes >= self._settings.bytes_max and not self._closed:
                self._changed.wait(1.0)
        pace = self._store.pace
        if found:
            self._idle_s = pace.busy_s
        elif not self._watch.wait(min(self._idle_s, self._settings.wait_max_s)):
            self._idle_s = min(self._idle_s * 1.5, max(pace.busy_s, pace.idle_s))

    def _advance(self, topic: str, followed: _Followed) -> bool:
        """Look for new entries of one topic and fetch one file; whether anything was found."""
        if self._clock.monotonic() < followed.retry_at:
            return False
        try:
            found = self._tail(topic, followed)
            if followed.head is None:
                self._tell_missing(topic, followed)
                return found
            self._resolve(topic, followed)
            found = self._fetch(topic, followed) or found
            followed.failures = 0
        except FileGone:
            followed.loaded = False  # compacted meanwhile: the newest snapshot has the records
            return True
        except KafkaException as error:
            self._failed(topic, followed, error)
            return False
        return found

    def _failed(self, topic: str, followed: _Followed, error: KafkaException) -> None:
        """Tell the application at the first failure; go on trying in growing steps, for stores come back."""
        followed.failures += 1
        followed.retry_at = self._clock.monotonic() + error_pause_s(followed.failures + 3, self._clock.random())
        _log.warning("reading failed topic=%r error=%s", topic, error)
        # A store that is away for a moment is told once; what will not mend itself is told until somebody mends it.
        if followed.failures == 1 or not isinstance(error, Unavailable):
            self._put(PartitionError(topic, -1, 0, error))

    def _tail(self, topic: str, followed: _Followed) -> bool:
        """Apply new log entries; whether there were any."""
        before = followed.log.version if followed.loaded else None
        try:
            if not followed.loaded:
                followed.log.load()
                followed.loaded = True
            for _ in range(ENTRIES_AT_ONCE):
                if followed.log.read_next() is None:
                    break
        except LogCleaned:
            followed.log.load()
        if followed.log.version != before:
            self._publish(topic, followed)
            return followed.log.version >= 0
        return False

    def _publish(self, topic: str, followed: _Followed) -> None:
        head = followed.log.head
        with self._changed:
            replaced = followed.head is not None and (head is None or head.topic_id != followed.head.topic_id)
            if replaced:
                followed.missing_told = False
                followed.seen_missing = True
                for partition, cursor in followed.cursors.items():
                    # The old topic's records are gone and its offsets mean nothing in the new one.
                    followed.cursors[partition] = _Cursor(OFFSET_BEGINNING, cursor.epoch, cursor.paused)
            followed.head = head
            followed.view = None if head is None else view_of(followed.log)
            self._changed.notify_all()

    def _tell_missing(self, topic: str, followed: _Followed) -> None:
        followed.seen_missing = True
        if not followed.missing_told:
            followed.missing_told = True
            self._put(PartitionError(topic, -1, 0, UnknownTopic(topic)))

    def _resolve(self, topic: str, followed: _Followed) -> None:
        """Turn logical offsets into real ones, and apply `auto.offset.reset` where an offset is not in the log."""
        head = followed.head
        assert head is not None
        for partition, cursor in self._cursors(followed).items():
            if partition >= head.partitions:
                self._stop(topic, partition, cursor, UnknownTopic(topic, partition=partition))
                continue
            offset: int | None = cursor.offset
            if offset in (OFFSET_STORED, OFFSET_INVALID):
                offset = self._stored_offset(topic, head.topic_id, partition)
            if offset is not None and offset >= 0 and not head.start_offsets[partition] <= offset <= head.next_offsets[partition]:
                offset = self._out_of_range(topic, partition, cursor, head, offset)
            elif offset is None:
                offset = self._reset(topic, partition, cursor, followed, head)
            elif offset == OFFSET_BEGINNING:
                offset = head.start_offsets[partition]
            elif offset == OFFSET_END:
                offset = head.next_offsets[partition]
            if offset is not None:
                cursor.offset = offset

    def _reset(self, topic: str, partition: int, cursor: _Cursor, followed: _Followed, head: TopicHead) -> int | None:
        """Where to start without a committed offset."""
        if self._settings.reset == "error":
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "no committed offset, and auto.offset.reset is error")
            self._stop(topic, partition, cursor, KafkaException(error))
            return None
        # A topic that came into being after this consumer asked for it has nothing but new records.
        at_start = self._settings.reset == "earliest" or followed.seen_missing
        return head.start_offsets[partition] if at_start else head.next_offsets[partition]

    def _out_of_range(self, topic: str, partition: int, cursor: _Cursor, head: TopicHead, offset: int) -> int | None:
        earliest, latest = head.start_offsets[partition], head.next_offsets[partition]
        error = OffsetOutOfRange(topic=topic, partition=partition, requested=offset, earliest=earliest, latest=latest)
        if self._settings.reset == "error":
            self._stop(topic, partition, cursor, error)
            return None
        _log.warning("offset reset to %s: %s", self._settings.reset, error)
        return earliest if self._settings.reset == "earliest" else latest

    def _stop(self, topic: str, partition: int, cursor: _Cursor, error: KafkaException) -> None:
        """Fetch nothing more from this partition until its position is set anew."""
        if not cursor.stopped:
            cursor.stopped = True
            self._put(PartitionError(topic, partition, cursor.epoch, error))

    def _fetch(self, topic: str, followed: _Followed) -> bool:
        """Fetch the next file that some partition needs; whether there was one."""
        view, head = followed.view, followed.head
        assert view is not None and head is not None
        every = self._cursors(followed)
        cursors = {p: c for p, c in every.items() if not c.paused and not c.stopped and c.offset >= 0}
        read = next_read(followed.log.index, {partition: cursor.offset for partition, cursor in cursors.items()})
        for fetched in () if read is None else self._read(topic, cursors, read):
            cursor = cursors[fetched.partition]
            cursor.offset = fetched.next_offset
            if fetched.rows.num_rows:
                self._put(PartitionRecords(topic, cursor.epoch, fetched, view, fetched.rows.nbytes))
        if self._settings.report_end:
            for partition, cursor in cursors.items():
                if cursor.offset >= head.next_offsets[partition] != cursor.end_told:
                    cursor.end_told = head.next_offsets[partition]
                    self._put(PartitionEnd(topic, partition, cursor.epoch, cursor.end_told))
        return read is not None

    def _read(self, topic: str, cursors: Mapping[int, _Cursor], read: FileRead) -> list[Fetched]:
        """Read a file. One that is damaged stops the partitions that need it, and only these: nothing is skipped."""
        try:
            return read_file(self._store, read)
        except Corrupt as error:
            try:
                return read_file(self._store, read)  # the damage may have happened on the way
            except Corrupt:
                for batch, _, _ in read.wanted:
                    self._stop(topic, batch.partition, cursors[batch.partition], error)
                return []

    def _cursors(self, followed: _Followed) -> dict[int, _Cursor]:
        with self._changed:
            return dict(followed.cursors)

    def _put(self, item: PartitionRecords | PartitionEnd | PartitionError) -> None:
        with self._changed:
            self._ready.append(item)
            if isinstance(item, PartitionRecords):
                self._ready_bytes += item.bytes
            self._changed.notify_all()
