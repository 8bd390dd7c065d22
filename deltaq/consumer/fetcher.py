"""Prefetch: a thread that follows the topics of one consumer and keeps a byte budget of records ready.

The tail of a log is followed by asking for its next entry; a store's watch only shortens the wait. Per partition,
records come out strictly in offset order. Each change of a partition's position (assign, seek, pause) starts a new
*epoch* for it; records and events of an earlier epoch are dropped when they come out.
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
from deltaq.delta.log import LogCleaned
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

__all__ = ["FetchItem", "FetchSettings", "Fetcher", "PartitionEnd", "PartitionError", "PartitionRecords", "StoreAway"]

_log = logging.getLogger("deltaq.consumer")

ENTRIES_AT_ONCE = 256
"""Log entries read before records are fetched again, so that a long log does not keep records back."""

KEEPING_UP_LOOKS = 2
"""Looks in a row that find all they ask for without a sign of being behind. Who asks for more than there is may have to
wait until that is written, and keeps back what was found."""

FAR_BEHIND_LOOKS = 6
"""Looks in a row that find all they ask for, more and more, and are the sign of being far behind."""

GAP_CHECK_S = 1.0, 64.0
"""How long a topic has to be quiet before its log is listed for a gap, the first time and, doubling, at most."""

FIRST_READ_BYTES = 512 * 1024
"""How much of a large file is fetched at first from a new position: less than a row group of a compacted one that is
not compressed, so no more than one of these. It doubles with each read up to `fetch.max.bytes`, so that neither the
first record waits for much nor a long scan for many requests."""

CREATE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Kafka's `queued.max.messages.kbytes`, `fetch.max.bytes`, `auto.offset.reset`, `fetch.wait.max.ms`,
    `enable.partition.eof`; and how to create a topic that does not exist, if that is wanted."""

    bytes_max: int
    read_bytes_max: int
    reset: str
    wait_max_s: float
    report_end: bool
    plan: NewTopicPlan | None = None


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """Fetched records of a topic's partition."""

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
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class StoreAway:
    """The store does not answer about a topic at the moment. It is asked again and again."""

    topic: str
    error: Unavailable


FetchItem: TypeAlias = "PartitionRecords | PartitionEnd | PartitionError | StoreAway"


@dataclass(frozen=True, slots=True)
class _Ready:
    """An item of the queue, and how many bytes of records were queued before it and up to its end."""

    item: FetchItem
    bytes_before: int
    bytes_after: int


@dataclass(slots=True)
class _Cursor:
    """Where fetching a partition stands. `offset` may be one of the OFFSET_ constants until it is resolved."""

    offset: int
    epoch: int
    paused: bool = False
    read_bytes: int = FIRST_READ_BYTES
    end_told: int = -1
    missing_told: bool = False
    stopped: bool = False
    doubted_at: int | None = None  # the look at the log's end at which `offset` was found to lie beyond it


@dataclass(slots=True)
class _Followed:
    """A topic that is followed. `published`: the version that `head` and `view` are of. `partitions_at_first`: those
    that came later have nothing but new records."""

    log: TopicLog
    plan: NewTopicPlan | None
    loaded: bool = False
    published: int | None = None
    view: TopicDefinition | None = None
    head: TopicHead | None = None
    partitions_at_first: int | None = None
    missing_told: bool = False
    looks: int = 0  # how often the end of the log was seen
    entries_ahead: int = 1  # how many of its entries to ask for at once
    is_at_end: bool = False  # nothing followed at the last look
    full_looks: int = 0  # the last ones in a row that found all they asked for
    failures: int = 0
    retry_at: float = 0.0
    quiet_since: float = 0.0
    next_check_s: float = GAP_CHECK_S[0]
    cursors: dict[int, _Cursor] = field(default_factory=dict)
    layouts: dict[str, SegmentLayout] = field(default_factory=dict)  # of the large files that are being read, by path

    @property
    def knows_end(self) -> bool:
        """Whether what the last look found is the end of the log, and no gap in it."""
        return self.is_at_end and not self.log.is_end_open


class Fetcher:
    """Fetches for one consumer. Every method may be called from any thread, `first` and `remove` from one at a time.

    `stored_offsets(topic, topic_id, partitions)` looks committed offsets up; None where there is none. `changes` grows
    whenever a followed topic comes, goes, or gets partitions. `lookup` may know topics already.
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
        self._put_bytes = 0  # of all records that were ever queued
        self._epochs = 0
        self._closed = False
        self._abandoned = False
        self._idle_s = store.pace.busy_s
        self._found_at = clock.monotonic()
        self._name = name
        self._is_running = False
        self._thread: Thread | None = None

    # --- what the consumer calls ---

    def begin(self) -> None:
        """Start the thread that fetches, unless it was started. To be called once the consumer has this object: an
        interrupted start must not leave a thread that nothing ends."""
        if self._thread is None:
            self._thread = self._clock.start_thread(self._run, f"deltaq-fetch-{self._name}")

    def follow(self, topics: Iterable[str], may_create: Container[str] = ()) -> None:
        """Follow these topics and no others; cursors of the others are dropped."""
        wanted = set(topics)
        with self._changed:
            if wanted == self._topics.keys():
                return
            self.changes += 1  # first: called again after an interrupt, this may find nothing left to do
            for topic in set(self._topics) - wanted:
                del self._topics[topic]
            for topic in wanted - set(self._topics):
                self._watch.add(names.topic_log(topic))
                log = TopicLog(self._store, topic, self._clock, indexed=True)
                self._topics[topic] = _Followed(log, self._settings.plan if topic in may_create else None)
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

    def seek(self, topic: str, partition: int, offset: int, topic_id: str | None = None) -> int:
        """Go on at `offset`; the partition's new epoch.

        An offset that was read in the topic `topic_id` means nothing in one created since: that is read from its
        beginning.
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
        """Fetch this partition no longer."""
        with self._changed:
            if (followed := self._topics.get(topic)) is not None:
                followed.cursors.pop(partition, None)

    def seen(self, topic: str) -> tuple[TopicDefinition, TopicHead] | None:
        """A followed topic as last seen by the thread; None if it does not exist or was not looked at yet."""
        with self._changed:
            followed = self._topics.get(topic)
            if followed is None or followed.view is None or followed.head is None:
                return None
            return followed.view, followed.head

    def counts(self) -> dict[str, int | None]:
        """Every followed topic and its number of partitions; None for one that does not exist, as far as is known."""
        with self._changed:
            return {topic: None if f.head is None else f.head.partitions for topic, f in self._topics.items()}

    def first(self, timeout_s: float) -> FetchItem | None:
        """What is ready first, waiting up to `timeout_s` seconds for it. It stays so until `remove`."""
        if not self._ready and timeout_s > 0:
            with self._changed:
                if not self._ready:
                    self._changed.wait(timeout_s)
        # Only the caller's thread removes.
        return self._ready[0].item if self._ready else None

    def remove(self, item: object) -> None:
        """Make room: `item` has been taken over. Nothing happens if it is not what is ready first."""
        if not self._ready or self._ready[0].item is not item:
            return
        with self._changed:
            was_full = self._is_full()
            self._ready.popleft()
            if was_full:
                self._changed.notify_all()

    def wake(self) -> None:
        """End a wait in `first`."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._watch.wake()
        if self._thread is not None:
            self._thread.join()
        self._watch.close()

    def abandon(self) -> Thread | None:
        """End the thread, soon: it is not woken, for who waits may be the one that calls this, in a finalizer."""
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
                return  # an interrupted `begin` had started a thread already
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
        """Wait for room, or for something new: shortly while busy, longer and longer when idle."""
        with self._changed:
            while self._is_full() and not self._closed:
                self._changed.wait(1.0)
        pace = self._store.pace
        now = self._clock.monotonic()
        if found:
            self._idle_s, self._found_at = pace.busy_s, now
            return
        is_steady = now - self._found_at < pace.steady_s
        if not self._watch.wait(max(pace.busy_s, min(self._idle_s, self._settings.wait_max_s))) and not is_steady:
            self._idle_s = min(self._idle_s * 1.5, max(pace.busy_s, pace.idle_s))

    def _is_full(self) -> bool:
        return self._ready_bytes >= self._settings.bytes_max

    @property
    def _ready_bytes(self) -> int:
        # Derived from the queue, so that an interrupted `remove` cannot leave a count that is wrong for ever.
        with self._changed:
            return self._ready[-1].bytes_after - self._ready[0].bytes_before if self._ready else 0

    def _advance(self, topic: str, followed: _Followed) -> bool:
        """Look for new entries of one topic and fetch one file; whether anything was found."""
        if self._clock.monotonic() < followed.retry_at:
            return False
        try:
            found = self._tail(followed)
            if followed.head is None and followed.plan is not None:
                self._create(followed, followed.plan)
            if followed.head is None:
                self._tell_missing(topic, followed)
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
        except Exception as error:  # noqa: BLE001 - a defect must not leave the application waiting for ever
            _log.exception("reading failed topic=%r", topic)
            text = f"unexpected {type(error).__name__}: {error}"
            self._failed(topic, followed, KafkaException(KafkaError(KafkaError._FAIL, text)))
            return False
        return found

    def _failed(self, topic: str, followed: _Followed, error: KafkaException) -> None:
        """Tell the application, and go on trying in growing steps, for stores come back."""
        followed.failures += 1
        followed.retry_at = self._clock.monotonic() + error_pause_s(followed.failures + 3, self._clock.random())
        _log.warning("reading failed topic=%r error=%s", topic, error)
        if not isinstance(error, Unavailable) or not error.error.retriable():
            self._tell_again(PartitionError(topic, -1, 0, error))
        elif followed.failures == 1:
            self._put(StoreAway(topic, error))

    def _tell_again(self, told: PartitionError) -> None:
        """What will not mend itself is told until somebody mends it: each time when the last one was taken."""
        with self._changed:
            waiting = (
                ready.item
                for ready in self._ready
                if isinstance(ready.item, PartitionError) and ready.item.topic == told.topic
            )
            if all(item.partition >= 0 or item.error.error.code() != told.error.error.code() for item in waiting):
                self._put(told)

    # --- following the log ---

    def _tail(self, followed: _Followed) -> bool:
        """Apply new log entries; whether there were any."""
        if not followed.loaded:
            if self._lookup.lend(followed.log):
                # Whoever asks for the end means what it is now; whether it is one is asked when somebody does.
                followed.log.catch_up(to_end=False)
            else:
                followed.log.load()
            followed.loaded = True
        try:
            self._read_entries(followed)
        except LogCleaned:
            followed.log.load()
        # Not the version from before this look: an earlier one may have moved on and then failed.
        if followed.log.version == followed.published:
            self._check_quiet(followed)
        if followed.log.version == followed.published:
            return False
        followed.quiet_since, followed.next_check_s = self._clock.monotonic(), GAP_CHECK_S[0]
        self._publish(followed)
        return followed.log.version >= 0

    def _read_entries(self, followed: _Followed) -> None:
        """Apply new log entries: of a remote store, where each request takes its time, as many at once as there were at
        the last look; then one, so as not to ask for much that nobody has written yet; and twice as many while there
        are more.

        Records that somebody waits for are not kept back by a look at what may follow them, unless very many do:
        then what is read next may have been merged since.
        """
        found, at_once = 0, followed.entries_ahead
        needs_no_end = self._needs_no_end(followed)
        one_look = needs_no_end and followed.full_looks < FAR_BEHIND_LOOKS
        while True:
            there = followed.log.read_following(at_once)
            found += there
            followed.is_at_end = there < at_once
            followed.full_looks = 0 if followed.is_at_end else followed.full_looks + 1
            followed.looks += followed.is_at_end
            if followed.is_at_end or one_look or found >= ENTRIES_AT_ONCE:
                break
            if self._store.is_remote:
                at_once = 1 if followed.full_looks == 1 else min(2 * at_once, REQUESTS_MAX)
        if self._store.is_remote:
            is_behind = needs_no_end and followed.full_looks > KEEPING_UP_LOOKS
            followed.entries_ahead = min(2 * at_once if is_behind else max(1, found), REQUESTS_MAX)

    def _needs_no_end(self, followed: _Followed) -> bool:
        """Whether the next records of a remote store may be fetched before the end of its log was seen: nobody has to
        be told of it, and no position depends on it, as the end itself does, and one beyond what is known of the
        log."""
        head = followed.head
        if not self._store.is_remote or self._settings.report_end or head is None:
            return False
        cursors = self._cursors(followed).items()
        return all(0 <= c.offset <= head.next_offsets[p] for p, c in cursors if p < head.partitions)

    def _is_end_awaited(self, followed: _Followed) -> bool:
        """Whether some position depends on where the log ends, or has come there."""
        head = followed.head
        assert head is not None  # noqa: S101 - the caller has looked
        cursors = self._cursors(followed).items()
        return any(p >= head.partitions or not 0 <= c.offset < head.next_offsets[p] for p, c in cursors)

    def _check_quiet(self, followed: _Followed) -> None:
        """A lost entry looks like the end of the log. So one that stays quiet is listed, now and then."""
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
                followed.missing_told = False
                followed.partitions_at_first = 0
                for partition, cursor in followed.cursors.items():
                    # The old topic's records are gone and its offsets mean nothing in the new one. A position that was
                    # set meanwhile, and not looked up yet, is one in the new topic.
                    is_open = cursor.offset < 0 and not cursor.stopped
                    offset = cursor.offset if is_open else OFFSET_BEGINNING
                    followed.cursors[partition] = _Cursor(offset, cursor.epoch, cursor.paused)
            if _partitions(before) != _partitions(head):
                self.changes += 1
            if head is not None:
                followed.plan = None  # once it has existed, somebody who deletes it means it
            followed.head = head
            followed.view = None if head is None else definition_of(followed.log)
            self._changed.notify_all()

    def _create(self, followed: _Followed, plan: NewTopicPlan) -> None:
        create_topic(followed.log, plan, self._clock.monotonic() + CREATE_TIMEOUT_S, exist_ok=True)
        self._publish(followed)

    def _tell_missing(self, topic: str, followed: _Followed) -> None:
        if not followed.missing_told:
            followed.missing_told = True
            self._put(PartitionError(topic, -1, 0, UnknownTopic(topic)))

    # --- where to read ---

    def _resolve(self, topic: str, followed: _Followed) -> None:
        """Turn logical offsets into real ones, and apply `auto.offset.reset` where an offset is not in the log."""
        head = followed.head
        assert head is not None  # noqa: S101 - the caller has looked
        cursors = {p: c for p, c in self._cursors(followed).items() if not c.stopped}
        for partition in [partition for partition in cursors if partition >= head.partitions]:
            cursor = cursors.pop(partition)
            if not cursor.missing_told:  # it may come yet
                cursor.missing_told = True
                error = UnknownTopic(topic, partition=partition)
                self._put(PartitionError(topic, partition, cursor.epoch, error))
        asked = [partition for partition, cursor in cursors.items() if cursor.offset in (OFFSET_STORED, OFFSET_INVALID)]
        stored = dict(zip(asked, self._stored_offsets(topic, head.topic_id, asked) if asked else (), strict=True))
        for partition, cursor in cursors.items():
            wanted = stored.get(partition, cursor.offset)
            if wanted is not None and wanted > head.next_offsets[partition] and self._is_new_doubt(cursor, followed):
                continue
            if not followed.knows_end and self._means_the_end(wanted):
                continue  # what is known of the log may be long past
            offset = self._real_offset(topic, partition, wanted, followed, head)
            if isinstance(offset, PartitionError):
                self._stop(cursor, offset)
            else:
                cursor.offset = offset

    def _means_the_end(self, wanted: int | None) -> bool:
        if wanted is None:
            return self._settings.reset == "latest"
        return wanted == OFFSET_END or wanted <= OFFSET_TAIL_BASE

    def _is_new_doubt(self, cursor: _Cursor, followed: _Followed) -> bool:
        """Whether an offset beyond the end may be there all the same, at an end that was not seen yet.

        It may have been acknowledged, and asked for, after our last look began.
        """
        if cursor.doubted_at is None or followed.log.is_end_open:
            cursor.doubted_at = followed.looks
        return followed.looks == cursor.doubted_at

    def _real_offset(
        self, topic: str, partition: int, wanted: int | None, followed: _Followed, head: TopicHead
    ) -> int | PartitionError:
        """The offset that `wanted` (None: nothing is committed) stands for."""
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
        """Where to start without a committed offset."""
        if self._settings.reset == "error":
            error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "no committed offset, and auto.offset.reset is error")
            return PartitionError(topic, partition, 0, KafkaException(error))
        # What came into being after this consumer began to follow the topic has nothing but new records.
        is_new = partition >= (followed.partitions_at_first or 0)
        at_start = self._settings.reset == "earliest" or is_new
        return head.start_offsets[partition] if at_start else head.next_offsets[partition]

    def _out_of_range(self, topic: str, partition: int, offset: int, head: TopicHead) -> int | PartitionError:
        earliest, latest = head.start_offsets[partition], head.next_offsets[partition]
        error = OffsetOutOfRange(topic=topic, partition=partition, requested=offset, earliest=earliest, latest=latest)
        if self._settings.reset == "error":
            told = KafkaException(KafkaError(KafkaError._AUTO_OFFSET_RESET, error.error.str()))
            return PartitionError(topic, partition, 0, told, offset)
        _log.warning("offset reset to %s: %s", self._settings.reset, error)
        return earliest if self._settings.reset == "earliest" else latest

    def _stop(self, cursor: _Cursor, error: PartitionError) -> None:
        """Fetch nothing more from this partition until its position is set anew."""
        if not cursor.stopped:
            cursor.stopped = True
            self._put(replace(error, epoch=cursor.epoch))

    # --- reading ---

    def _fetch(self, topic: str, followed: _Followed) -> bool:
        """Fetch from the next files that some partition needs; whether there were any."""
        head = followed.head
        assert head is not None  # noqa: S101 - the caller has looked
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
                break  # the plan was made for a log that is not the newest any more
            if isinstance(outcome, Corrupt):
                self._damaged(topic, cursors, read, outcome)
            else:
                self._hand_over(topic, followed, cursors, outcome)
        if self._settings.report_end and followed.knows_end:
            self._tell_ends(topic, head, cursors)
        return bool(reads)

    def _plan(self, followed: _Followed, cursors: Mapping[int, _Cursor]) -> list[FileRead]:
        """What to read now. Of a remote store, several files at once: so the wait is for the slowest, not the sum."""
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
        """As much of a large file as may be fetched at a time, beginning with the partitions read least so far."""
        read_bytes = {batch.partition: cursors[batch.partition].read_bytes for batch, _, _ in read.wanted}
        bytes_max = min(self._settings.read_bytes_max, *read_bytes.values())
        path = read.file.path
        if read.file.segment.size <= bytes_max:
            return read
        try:
            layout = followed.layouts.get(path) or self._lookup.layouts.of(read.file)
        except (FileGone, Corrupt):
            return read  # whoever reads it meets the same
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
        """A file is not there: compacted meanwhile, so the newest snapshot has its records; or lost."""
        followed.log.load()
        self._publish(followed)
        if followed.log.is_lost(read.file):
            segment = read.file.segment
            damage = Corrupt("data file is missing", path=segment.key, version=segment.version)
            self._damaged(topic, cursors, read, damage)

    def _damaged(self, topic: str, cursors: Mapping[int, _Cursor], read: FileRead, damage: Corrupt) -> None:
        """Stop the partitions that need a damaged file, and only these: nothing is skipped."""
        for batch, _, _ in read.wanted:
            self._stop(cursors[batch.partition], PartitionError(topic, batch.partition, 0, damage))

    def _tell_ends(self, topic: str, head: TopicHead, cursors: Mapping[int, _Cursor]) -> None:
        for partition, cursor in cursors.items():
            if not cursor.stopped and cursor.offset >= head.next_offsets[partition] != cursor.end_told:
                cursor.end_told = head.next_offsets[partition]
                self._put(PartitionEnd(topic, partition, cursor.epoch, cursor.end_told))

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
