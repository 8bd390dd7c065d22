"""The fetcher: a thread that follows the topics of one consumer and keeps a byte budget of records ready.

It polls the log of each topic for the next entry; the store's watch only shortens the wait between polls. The records
of a partition are delivered strictly in offset order. Each change of a partition's position (assign, seek, pause)
starts a new *epoch*; the consumer drops records and events of an earlier epoch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from deltaq import names
from deltaq.clock import Clock, Thread
from deltaq.delta.reader import LogCleaned
from deltaq.delta.retry import error_pause_s
from deltaq.errors import Corrupt, KafkaError, KafkaException, OffsetOutOfRange, Unavailable, UnknownTopic
from deltaq.message import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED, OFFSET_TAIL_BASE
from deltaq.parquet.segment import SegmentLayout
from deltaq.store import Store
from deltaq.store.parallel import REQUESTS_MAX, in_parallel
from deltaq.topics.log import TopicLog
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.metadata import NewTopicPlan, TopicDefinition, create_topic, definition_of
from deltaq.topics.scan import Fetched, FileGone, FileRead, first_parts, next_read, read_file
from deltaq.topics.state import TopicHead

__all__ = [
    "FetchItem",
    "FetchSettings",
    "Fetcher",
    "PartitionEnd",
    "PartitionError",
    "PartitionRecords",
    "StoreUnavailable",
]

_log = logging.getLogger("deltaq.consumer")

ENTRIES_AT_ONCE = 256
"""Most log entries to read before records are fetched, so that a long log does not delay records already found."""

KEEPING_UP_READS = 2
"""Log reads in a row that may return all the entries they ask for while the consumer still counts as keeping up.
Asking for entries that do not exist yet can block on some stores and delays records already found."""

FAR_BEHIND_READS = 6
"""Log reads in a row that return all the (increasingly many) entries they ask for, after which the consumer counts as
far behind."""

GAP_CHECK_S = 1.0, 64.0
"""Seconds for which a topic has to be quiet before its log is listed to find a gap: the first interval and the
longest. Each interval is twice the one before."""

FIRST_READ_BYTES = 512 * 1024
"""How much of a large file the first read from a new position fetches. It is less than an uncompressed row group of a
compacted file, so such a read fetches one row group. The size doubles with each read up to `fetch.max.bytes`: the
first record comes soon, and a long scan needs few requests."""

CREATE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Kafka's `queued.max.messages.kbytes` (in bytes), `fetch.max.bytes`, `auto.offset.reset`, `fetch.wait.max.ms` (in
    seconds), `enable.partition.eof`; and how to create missing topics, or None not to create them."""

    bytes_max: int
    read_bytes_max: int
    reset: str
    wait_max_s: float
    report_end: bool
    plan: NewTopicPlan | None = None


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """Fetched records of one partition. `bytes` is their size in the queue's budget."""

    topic: str
    epoch: int
    fetched: Fetched
    view: TopicDefinition
    bytes: int

    @property
    def partition(self) -> int:
        return self.fetched.partition


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """The fetcher reached the end of the partition. The next record will have `offset`."""

    topic: str
    partition: int
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class PartitionError:
    """An error to report to the application about a partition; with partition -1, about the topic."""

    topic: str
    partition: int
    epoch: int
    error: KafkaException
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class StoreUnavailable:
    """The store is temporarily unavailable while reading a topic. The fetcher retries."""

    topic: str
    error: Unavailable


FetchItem: TypeAlias = "PartitionRecords | PartitionEnd | PartitionError | StoreUnavailable"


@dataclass(frozen=True, slots=True)
class _Ready:
    """An item of the queue, with the total bytes of records ever queued before it, and including it."""

    item: FetchItem
    bytes_before: int
    bytes_after: int


@dataclass(slots=True)
class _Cursor:
    """The fetch position of a partition. `offset` may be an OFFSET_ constant until it is resolved."""

    offset: int
    epoch: int
    paused: bool = False
    read_bytes: int = FIRST_READ_BYTES
    reported_end: int = -1
    missing_reported: bool = False
    stopped: bool = False
    doubted_at: int | None = None  # the value of `end_reads` when `offset` was found beyond the log's end


@dataclass(slots=True)
class _Followed:
    """A followed topic. `head` and `view` are those of version `published`. Partitions from `partitions_at_first` on
    were added after the consumer began to follow the topic, so they hold only new records."""

    log: TopicLog
    plan: NewTopicPlan | None
    loaded: bool = False
    published: int | None = None
    view: TopicDefinition | None = None
    head: TopicHead | None = None
    partitions_at_first: int | None = None
    missing_reported: bool = False
    end_reads: int = 0  # number of log reads that reached the end of the log
    entries_ahead: int = 1  # number of entries to request in parallel
    is_at_end: bool = False  # whether the last log read reached the end
    full_reads: int = 0  # number of log reads in a row that returned all the entries they asked for
    failures: int = 0
    retry_at: float = 0.0
    quiet_since: float = 0.0
    next_check_s: float = GAP_CHECK_S[0]
    cursors: dict[int, _Cursor] = field(default_factory=dict)
    layouts: dict[str, SegmentLayout] = field(default_factory=dict)  # of the large files that are being read, by path

    @property
    def knows_end(self) -> bool:
        """Whether the last log read reached the proven end of the log, not a possible gap."""
        return self.is_at_end and not self.log.is_end_open


class Fetcher:
    """Fetches for one consumer. Thread-safe, but `first` and `remove` are for one thread at a time.

    `stored_offsets(topic, topic_id, partitions)` returns committed offsets, None where there is none. `changes`
    increases whenever a followed topic is created, deleted or gets more partitions. `lookup` is a cache of topics that
    may already be loaded.
    """

    def __init__(
        self,
        store: Store,
        settings: FetchSettings,
        stored_offsets: Callable[[str, str, Sequence[int]], Sequence[int | None]],
        clock: Clock,
        name: str,
        lookup: TopicLookup,
    ) -> None:
        self._store = store
        self._settings = settings
        self._stored_offsets = stored_offsets
        self.changes = 0
        self._clock = clock
        self._lookup = lookup
        self._watch = store.watch()
        self._changed = clock.condition()
        self._topics: dict[str, _Followed] = {}
        self._ready: deque[_Ready] = deque()
        self._put_bytes = 0  # total size of all records ever queued
        self._epochs = 0
        self._closed = False
        self._abandoned = False
        self._idle_s = store.poll_interval.busy_s
        self._found_at = clock.monotonic()
        self._name = name
        self._is_running = False
        self._thread: Thread | None = None

    # --- what the consumer calls ---

    def begin(self) -> None:
        """Start the fetch thread unless it is running.

        Call this after the consumer holds a reference to the fetcher: otherwise an interrupted start leaves a thread
        that nothing ends.
        """
        if self._thread is None:
            self._thread = self._clock.start_thread(self._run, f"deltaq-fetch-{self._name}")

    def follow(self, topics: Iterable[str], may_create: Container[str] = ()) -> None:
        """Follow exactly these topics. The cursors of all other topics are dropped.

        A missing topic is created if it is in `may_create` and the settings have a plan.
        """
        wanted = set(topics)
        with self._changed:
            if wanted == self._topics.keys():
                return
            self.changes += 1  # first: after an interrupt, a repeated call may find nothing left to do
            for topic in set(self._topics) - wanted:
                del self._topics[topic]
            for topic in wanted - set(self._topics):
                self._watch.add(names.topic_log(topic))
                log = TopicLog(self._store, topic, self._clock, indexed=True)
                self._topics[topic] = _Followed(log, self._settings.plan if topic in may_create else None)
        self._watch.wake()

    def assign(self, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Fetch exactly these partitions of followed topics from the given offsets. Returns their new epochs."""
        with self._changed:
            for followed in self._topics.values():
                followed.cursors.clear()
            epochs = {
                (topic, partition): self._set(topic, partition, offset)
                for (topic, partition), offset in positions.items()
            }
        self._watch.wake()
        return epochs

    def seek(self, topic: str, partition: int, offset: int, topic_id: str | None = None) -> int:
        """Continue at `offset`. Returns the partition's new epoch.

        `topic_id` is the topic that the offset is from. If the name now belongs to another topic, that topic is read
        from its beginning.
        """
        with self._changed:
            head = None if topic not in self._topics else self._topics[topic].head
            if topic_id is not None and (head is None or head.topic_id != topic_id):
                offset = OFFSET_BEGINNING
            epoch = self._set(topic, partition, offset)
        self._watch.wake()
        return epoch

    def pause(self, topic: str, partition: int, paused: bool) -> None:
        """Stop or start fetching a partition."""
        with self._changed:
            if (followed := self._topics.get(topic)) is not None and partition in followed.cursors:
                followed.cursors[partition].paused = paused
        self._watch.wake()

    def drop(self, topic: str, partition: int) -> None:
        """Stop fetching a partition and forget its position."""
        with self._changed:
            if (followed := self._topics.get(topic)) is not None:
                followed.cursors.pop(partition, None)

    def seen(self, topic: str) -> tuple[TopicDefinition, TopicHead] | None:
        """A followed topic as last read by the thread; None if it does not exist or has not been read yet."""
        with self._changed:
            followed = self._topics.get(topic)
            if followed is None or followed.view is None or followed.head is None:
                return None
            return followed.view, followed.head

    def counts(self) -> dict[str, int | None]:
        """The number of partitions of every followed topic; None if the topic is not known to exist."""
        with self._changed:
            return {topic: None if f.head is None else f.head.partitions for topic, f in self._topics.items()}

    def first(self, timeout_s: float) -> FetchItem | None:
        """The first item of the queue, waiting up to `timeout_s` seconds for one. It stays queued until `remove`."""
        if not self._ready and timeout_s > 0:
            with self._changed:
                if not self._ready:
                    self._changed.wait(timeout_s)
        # No lock is needed: only the caller's thread removes items.
        return self._ready[0].item if self._ready else None

    def remove(self, item: object) -> None:
        """Remove `item`, which the consumer has accepted, from the queue. No effect if it is not the first item."""
        if not self._ready or self._ready[0].item is not item:
            return
        with self._changed:
            was_full = self._is_full()
            self._ready.popleft()
            if was_full:
                self._changed.notify_all()

    def wake(self) -> None:
        """Wake a thread that waits in `first`."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread and wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._watch.wake()
        if self._thread is not None:
            self._thread.join()
        self._watch.close()

    def abandon(self) -> Thread | None:
        """Let the thread end soon, and return it. Does not wake its watch: a finalizer may call this in that very
        thread while it waits there."""
        with self._changed:
            self._closed = self._abandoned = True
            self._changed.notify_all()
        return self._thread

    def _set(self, topic: str, partition: int, offset: int) -> int:
        self._epochs += 1
        if (followed := self._topics.get(topic)) is not None:
            before = followed.cursors.get(partition)
            paused = before is not None and before.paused
            followed.cursors[partition] = _Cursor(offset, self._epochs, paused)
        return self._epochs

    # --- the thread ---

    def _run(self) -> None:
        with self._changed:
            if self._is_running:
                return  # an interrupted `begin` has already started a thread
            self._is_running = True
        while not self._closed:
            with self._changed:
                topics = list(self._topics.items())
            found = False
            for topic, followed in topics:
                found = self._advance(topic, followed) or found
            self._rest(found)
        if self._abandoned:
            self._watch.close()

    def _rest(self, found: bool) -> None:
        """Wait for room in the queue, then for new entries: briefly while busy, longer each time while idle."""
        with self._changed:
            while self._is_full() and not self._closed:
                self._changed.wait(1.0)
        interval = self._store.poll_interval
        now = self._clock.monotonic()
        if found:
            self._idle_s, self._found_at = interval.busy_s, now
            return
        is_steady = now - self._found_at < interval.steady_s
        if not self._watch.wait(max(interval.busy_s, min(self._idle_s, self._settings.wait_max_s))) and not is_steady:
            self._idle_s = min(self._idle_s * 1.5, max(interval.busy_s, interval.idle_s))

    def _is_full(self) -> bool:
        return self._ready_bytes >= self._settings.bytes_max

    @property
    def _ready_bytes(self) -> int:
        # Derived from the queue: an interrupted `remove` would leave a separate counter wrong for good.
        with self._changed:
            return self._ready[-1].bytes_after - self._ready[0].bytes_before if self._ready else 0

    def _advance(self, topic: str, followed: _Followed) -> bool:
        """Read new log entries of one topic and fetch from its next files. Returns whether anything was found."""
        if self._clock.monotonic() < followed.retry_at:
            return False
        try:
            found = self._tail(followed)
            if followed.head is None and followed.plan is not None:
                self._create(followed, followed.plan)
            if followed.head is None:
                self._report_missing(topic, followed)
                return found
            if followed.log.is_end_open and self._is_end_awaited(followed):
                followed.log.check_end()
                self._publish(followed)
            self._resolve(topic, followed)
            found = self._fetch(topic, followed) or found
            followed.failures = 0
        except KafkaException as error:
            self._failed(topic, followed, error)
            return False
        except Exception as error:  # noqa: BLE001 - a bug must not leave the application waiting forever
            _log.exception("reading failed topic=%r", topic)
            text = f"unexpected {type(error).__name__}: {error}"
            self._failed(topic, followed, KafkaException(KafkaError(KafkaError._FAIL, text)))
            return False
        return found

    def _failed(self, topic: str, followed: _Followed, error: KafkaException) -> None:
        """Report an error to the application, and retry with back-off."""
        followed.failures += 1
        followed.retry_at = self._clock.monotonic() + error_pause_s(followed.failures + 3, self._clock.random())
        _log.warning("reading failed topic=%r error=%s", topic, error)
        if not isinstance(error, Unavailable) or not error.error.retriable():
            self._report_until_fixed(PartitionError(topic, -1, 0, error))
        elif followed.failures == 1:
            self._put(StoreUnavailable(topic, error))

    def _report_until_fixed(self, report: PartitionError) -> None:
        """Queue an error that needs intervention, unless the same error is still queued. So `poll` returns it again
        and again until it is fixed."""
        with self._changed:
            waiting = (
                ready.item
                for ready in self._ready
                if isinstance(ready.item, PartitionError) and ready.item.topic == report.topic
            )
            if all(item.partition >= 0 or item.error.error.code() != report.error.error.code() for item in waiting):
                self._put(report)

    # --- following the log ---

    def _tail(self, followed: _Followed) -> bool:
        """Apply new log entries, and check a quiet log for gaps. Returns whether there were new entries."""
        if not followed.loaded:
            if self._lookup.lend(followed.log):
                # `_advance` proves the end of the log once a position depends on it.
                followed.log.catch_up(to_end=False)
            else:
                followed.log.load()
            followed.loaded = True
        try:
            self._read_entries(followed)
        except LogCleaned:
            followed.log.load()
        # Compare with the published version: an earlier call may have applied entries and then failed.
        if followed.log.version == followed.published:
            self._check_quiet(followed)
        if followed.log.version == followed.published:
            return False
        followed.quiet_since, followed.next_check_s = self._clock.monotonic(), GAP_CHECK_S[0]
        self._publish(followed)
        return followed.log.version >= 0

    def _read_entries(self, followed: _Followed) -> None:
        """Apply new log entries.

        Requests to a remote store are slow, so entries are requested in parallel: first as many as the last call
        found, then one, because more may not exist yet, then twice as many each time while there are more.

        One log read is enough if records can be fetched without knowing the end of the log. A consumer that is far
        behind reads on first, because the files that it would fetch may have been merged since.
        """
        found, at_once = 0, followed.entries_ahead
        needs_no_end = self._needs_no_end(followed)
        one_read = needs_no_end and followed.full_reads < FAR_BEHIND_READS
        while True:
            there = followed.log.read_following(at_once)
            found += there
            followed.is_at_end = there < at_once
            followed.full_reads = 0 if followed.is_at_end else followed.full_reads + 1
            followed.end_reads += followed.is_at_end
            if followed.is_at_end or one_read or found >= ENTRIES_AT_ONCE:
                break
            if self._store.is_remote:
                at_once = 1 if followed.full_reads == 1 else min(2 * at_once, REQUESTS_MAX)
        if self._store.is_remote:
            is_behind = needs_no_end and followed.full_reads > KEEPING_UP_READS
            followed.entries_ahead = min(2 * at_once if is_behind else max(1, found), REQUESTS_MAX)

    def _needs_no_end(self, followed: _Followed) -> bool:
        """Whether records of a remote store may be fetched before the end of the log is known.

        That is so if `enable.partition.eof` is off and every position is an offset within the known part of the log.
        """
        head = followed.head
        if not self._store.is_remote or self._settings.report_end or head is None:
            return False
        cursors = self._cursors(followed).items()
        return all(0 <= c.offset <= head.next_offsets[p] for p, c in cursors if p < head.partitions)

    def _is_end_awaited(self, followed: _Followed) -> bool:
        """Whether some position depends on the end of the log, or has reached it."""
        head = followed.head
        assert head is not None  # noqa: S101 - the caller has checked
        cursors = self._cursors(followed).items()
        return any(p >= head.partitions or not 0 <= c.offset < head.next_offsets[p] for p, c in cursors)

    def _check_quiet(self, followed: _Followed) -> None:
        """List a log that stays quiet at growing intervals: a lost entry looks like the end of the log."""
        if self._clock.monotonic() - followed.quiet_since >= followed.next_check_s:
            if followed.log.version >= 0:
                followed.log.check_end()
            followed.next_check_s = min(followed.next_check_s * 2, GAP_CHECK_S[1])
            followed.quiet_since = self._clock.monotonic()

    def _publish(self, followed: _Followed) -> None:
        head = followed.log.head
        with self._changed:
            followed.published = followed.log.version
            before = followed.head
            if followed.partitions_at_first is None:
                followed.partitions_at_first = 0 if head is None else head.partitions
            if before is not None and (head is None or head.topic_id != before.topic_id):
                followed.missing_reported = False
                followed.partitions_at_first = 0
                for partition, cursor in followed.cursors.items():
                    # The old topic's offsets have no meaning in the new topic. A position that was set meanwhile and
                    # not resolved yet applies to the new topic.
                    is_open = cursor.offset < 0 and not cursor.stopped
                    offset = cursor.offset if is_open else OFFSET_BEGINNING
                    followed.cursors[partition] = _Cursor(offset, cursor.epoch, cursor.paused)
            if _partitions(before) != _partitions(head):
                self.changes += 1
            if head is not None:
                followed.plan = None  # a topic that is deleted later must not be created again
            followed.head = head
            followed.view = None if head is None else definition_of(followed.log)
            self._changed.notify_all()

    def _create(self, followed: _Followed, plan: NewTopicPlan) -> None:
        create_topic(followed.log, plan, self._clock.monotonic() + CREATE_TIMEOUT_S, exist_ok=True)
        self._publish(followed)

    def _report_missing(self, topic: str, followed: _Followed) -> None:
        if not followed.missing_reported:
            followed.missing_reported = True
            self._put(PartitionError(topic, -1, 0, UnknownTopic(topic)))

    # --- where to read ---

    def _resolve(self, topic: str, followed: _Followed) -> None:
        """Resolve OFFSET_ constants to offsets, and apply `auto.offset.reset` to offsets that are not in the log."""
        head = followed.head
        assert head is not None  # noqa: S101 - the caller has checked
        cursors = {p: c for p, c in self._cursors(followed).items() if not c.stopped}
        for partition in [partition for partition in cursors if partition >= head.partitions]:
            cursor = cursors.pop(partition)
            if not cursor.missing_reported:  # the partition may be added later
                cursor.missing_reported = True
                error = UnknownTopic(topic, partition=partition)
                self._put(PartitionError(topic, partition, cursor.epoch, error))
        asked = [partition for partition, cursor in cursors.items() if cursor.offset in (OFFSET_STORED, OFFSET_INVALID)]
        stored = dict(zip(asked, self._stored_offsets(topic, head.topic_id, asked) if asked else (), strict=True))
        for partition, cursor in cursors.items():
            wanted = stored.get(partition, cursor.offset)
            if wanted is not None and wanted > head.next_offsets[partition] and self._is_new_doubt(cursor, followed):
                continue
            if not followed.knows_end and self._means_the_end(wanted):
                continue  # the known part of the log may be far from its end
            offset = self._real_offset(topic, partition, wanted, followed, head)
            if isinstance(offset, PartitionError):
                self._stop(cursor, offset)
            else:
                cursor.offset = offset

    def _means_the_end(self, wanted: int | None) -> bool:
        """Whether `wanted` (None: nothing is committed) is relative to the end of the log."""
        if wanted is None:
            return self._settings.reset == "latest"
        return wanted == OFFSET_END or wanted <= OFFSET_TAIL_BASE

    def _is_new_doubt(self, cursor: _Cursor, followed: _Followed) -> bool:
        """Whether to wait for another read of the log's end before treating an offset beyond the end as out of range.

        A producer may have written the record, and the application may have asked for it, after the last read began.
        """
        if cursor.doubted_at is None or followed.log.is_end_open:
            cursor.doubted_at = followed.end_reads
        return followed.end_reads == cursor.doubted_at

    def _real_offset(
        self, topic: str, partition: int, wanted: int | None, followed: _Followed, head: TopicHead
    ) -> int | PartitionError:
        """Resolve `wanted` (None: nothing is committed) to an offset."""
        start, end = head.start_offsets[partition], head.next_offsets[partition]
        if wanted is None:
            return self._reset(topic, partition, followed, head)
        if wanted == OFFSET_BEGINNING:
            return start
        if wanted == OFFSET_END:
            return end
        if wanted <= OFFSET_TAIL_BASE:
            return max(start, end - (OFFSET_TAIL_BASE - wanted))
        return wanted if start <= wanted <= end else self._out_of_range(topic, partition, wanted, head)

    def _reset(self, topic: str, partition: int, followed: _Followed, head: TopicHead) -> int | PartitionError:
        """The start position without a committed offset."""
        if self._settings.reset == "error":
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "no committed offset, and auto.offset.reset is error")
            return PartitionError(topic, partition, 0, KafkaException(error))
        # Partitions that were added after this consumer began to follow the topic hold only new records.
        is_new = partition >= (followed.partitions_at_first or 0)
        at_start = self._settings.reset == "earliest" or is_new
        return head.start_offsets[partition] if at_start else head.next_offsets[partition]

    def _out_of_range(self, topic: str, partition: int, offset: int, head: TopicHead) -> int | PartitionError:
        earliest, latest = head.start_offsets[partition], head.next_offsets[partition]
        error = OffsetOutOfRange(topic=topic, partition=partition, requested=offset, earliest=earliest, latest=latest)
        if self._settings.reset == "error":
            reset = KafkaException(KafkaError(KafkaError._AUTO_OFFSET_RESET, error.error.str()))
            return PartitionError(topic, partition, 0, reset, offset)
        _log.warning("offset reset to %s: %s", self._settings.reset, error)
        return earliest if self._settings.reset == "earliest" else latest

    def _stop(self, cursor: _Cursor, error: PartitionError) -> None:
        """Report an error, and fetch nothing from the partition until its position is set again."""
        if not cursor.stopped:
            cursor.stopped = True
            self._put(replace(error, epoch=cursor.epoch))

    # --- reading ---

    def _fetch(self, topic: str, followed: _Followed) -> bool:
        """Fetch from the next files that some partition needs. Returns whether there were any."""
        head = followed.head
        assert head is not None  # noqa: S101 - the caller has checked
        every = self._cursors(followed)
        cursors = {
            partition: cursor
            for partition, cursor in every.items()
            if not cursor.paused and not cursor.stopped and partition < head.partitions
            if 0 <= cursor.offset <= head.next_offsets[partition]
        }
        reads = self._plan(followed, cursors)
        assert followed.view is not None  # noqa: S101 - as the head
        columns = followed.view.columns
        outcomes = in_parallel(self._clock, lambda read: self._try_read(read, columns), reads)
        for read, outcome in zip(reads, outcomes, strict=True):
            if isinstance(outcome, FileGone):
                self._gone(topic, followed, cursors, read)
                break  # the plan is stale
            if isinstance(outcome, Corrupt):
                self._damaged(topic, cursors, read, outcome)
            else:
                self._hand_over(topic, followed, cursors, outcome)
        if self._settings.report_end and followed.knows_end:
            self._report_ends(topic, head, cursors)
        return bool(reads)

    def _plan(self, followed: _Followed, cursors: Mapping[int, _Cursor]) -> list[FileRead]:
        """The reads to do now: one file, or several of a remote store, which are then fetched in parallel."""
        positions = {partition: cursor.offset for partition, cursor in cursors.items()}
        reads: list[FileRead] = []
        room = self._settings.bytes_max - self._ready_bytes
        while room > 0 and len(reads) < (REQUESTS_MAX if self._store.is_remote else 1):
            read = next_read(followed.log.index, positions)
            if read is None:
                break
            read = self._cut(followed, cursors, read)
            reads.append(read)
            room -= read.bytes
            positions |= {batch.partition: end for batch, _, end in read.wanted}
        followed.layouts = {read.file.path: read.layout for read in reads if read.layout is not None}
        for partition in {batch.partition for read in reads for batch, _, _ in read.wanted}:
            cursors[partition].read_bytes = min(2 * cursors[partition].read_bytes, self._settings.read_bytes_max)
        return reads

    def _cut(self, followed: _Followed, cursors: Mapping[int, _Cursor], read: FileRead) -> FileRead:
        """Limit the read of a large file to the bytes allowed at a time; partitions read least so far come first."""
        read_bytes = {batch.partition: cursors[batch.partition].read_bytes for batch, _, _ in read.wanted}
        bytes_max = min(self._settings.read_bytes_max, *read_bytes.values())
        path = read.file.path
        if read.file.segment.size <= bytes_max:
            return read
        try:
            layout = followed.layouts.get(path) or self._lookup.layouts.of(read.file)
        except (FileGone, Corrupt):
            return read  # reading the file raises the same error
        if layout is None:
            return read
        followed.layouts[path] = layout
        wanted = sorted(read.wanted, key=lambda want: read_bytes[want[0].partition])
        return first_parts(replace(read, wanted=tuple(wanted)), layout, bytes_max)

    def _try_read(self, read: FileRead, columns: pa.Schema) -> list[Fetched] | FileGone | Corrupt:
        try:
            return read_file(self._store, read, columns)
        except (FileGone, Corrupt) as error:
            return error

    def _hand_over(
        self, topic: str, followed: _Followed, cursors: Mapping[int, _Cursor], parts: Sequence[Fetched]
    ) -> None:
        assert followed.view is not None  # noqa: S101 - a topic with records
        for fetched in parts:
            cursor = cursors[fetched.partition]
            if not cursor.stopped:
                cursor.offset = fetched.next_offset
                if fetched.rows.num_rows:
                    self._put(PartitionRecords(topic, cursor.epoch, fetched, followed.view, fetched.rows.nbytes))

    def _gone(self, topic: str, followed: _Followed, cursors: Mapping[int, _Cursor], read: FileRead) -> None:
        """Handle a missing file. If it was compacted, the newest snapshot has its records; otherwise it is lost."""
        followed.log.load()
        self._publish(followed)
        if followed.log.is_lost(read.file):
            segment = read.file.segment
            damage = Corrupt("data file is missing", path=segment.key, version=segment.version)
            self._damaged(topic, cursors, read, damage)

    def _damaged(self, topic: str, cursors: Mapping[int, _Cursor], read: FileRead, damage: Corrupt) -> None:
        """Stop only the partitions that need a damaged file, so that none of their records is skipped."""
        for batch, _, _ in read.wanted:
            self._stop(cursors[batch.partition], PartitionError(topic, batch.partition, 0, damage))

    def _report_ends(self, topic: str, head: TopicHead, cursors: Mapping[int, _Cursor]) -> None:
        for partition, cursor in cursors.items():
            if not cursor.stopped and cursor.offset >= head.next_offsets[partition] != cursor.reported_end:
                cursor.reported_end = head.next_offsets[partition]
                self._put(PartitionEnd(topic, partition, cursor.epoch, cursor.reported_end))

    def _cursors(self, followed: _Followed) -> dict[int, _Cursor]:
        with self._changed:
            return dict(followed.cursors)

    def _put(self, item: FetchItem) -> None:
        with self._changed:
            before = self._put_bytes
            self._put_bytes += item.bytes if isinstance(item, PartitionRecords) else 0
            self._ready.append(_Ready(item, before, self._put_bytes))
            self._changed.notify_all()


def _partitions(head: TopicHead | None) -> int:
    return 0 if head is None else head.partitions
