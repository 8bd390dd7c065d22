"""Group commit: everything that a process has buffered for a topic goes into one commit.

One writer per topic and process, with two threads, so that the upload of one flight of records overlaps the commit of
the one before; while whole batches wait, further threads upload beside the first. Flights are committed in the order in
which they were taken, which keeps the order of each producer.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol
from weakref import WeakValueDictionary

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK, Clock, Thread
from deltaq.errors import (
    InvalidValue,
    KafkaError,
    KafkaException,
    MessageTooLarge,
    OutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from deltaq.log.buffer import ArrowBlock, BufferSettings, RecordBuffer, Records, Report, RowBlock
from deltaq.log.encoding import chosen_partitions, in_segments, joined, resolved_block, row_columns
from deltaq.log.linger import AdaptiveLinger, FlightTimes, LoneRecords
from deltaq.log.records import Columns
from deltaq.log.table import TableState
from deltaq.log.topic_log import Appended, SharedTopicLog, TopicLog, UploadsGone
from deltaq.log.topic_state import PendingSegment
from deltaq.log.topic_view import NewTopicPlan, TopicView, create_topic, view_of
from deltaq.log.upload import pause_before_retry, upload_segment
from deltaq.store import Store

__all__ = ["Caretaker", "TopicWriter", "topic_writer"]

_log = logging.getLogger("deltaq.log")

FLIGHT_ROWS_MAX = 250_000
FLIGHT_BYTES_MAX = 256 * 1024 * 1024
"""About how much goes into one flight, far below what one Arrow array can hold."""
SEGMENT_BYTES_MAX = 64 * 1024 * 1024
FLIGHTS_AHEAD_MAX = 8
"""Flights that may be on their way to a commit. Beyond that records stay in their buffers and make larger ones."""

UPLOADS_MAX = 4
"""How many flights are uploaded at once. More than one only of whole batches: where less waits, larger flights cost
less."""

EXIT_WAIT_S = 2.0
"""How long the exit of the process waits for a writer's threads."""


@dataclass(slots=True, eq=False)
class _Part:
    """Records of one buffer inside a flight; `partitions` (of rows) and `columns` are filled in by encoding them.

    `bytes` is their share of the client's budget, `epoch_ms` what the monotonic clock's zero was on the wall clock when
    they were encoded. `told` is set once the client knows what became of them.
    """

    buffer: RecordBuffer
    records: Records
    bytes: int
    partitions: list[int] = field(default_factory=list)
    columns: Columns | None = None
    epoch_ms: float = 0.0
    told: bool = False


@dataclass(slots=True, eq=False)
class _Flight:
    """Records that are uploaded together, taken at `taken_at`. `deadline` is that of its oldest record. Both on the
    monotonic clock.

    `segments` and `topic_id` are known once `is_uploaded`.
    """

    parts: list[_Part]
    taken_at: float
    deadline: float
    segments: list[PendingSegment] = field(default_factory=list)
    topic_id: str = ""
    is_uploaded: bool = False


class Caretaker(Protocol):
    """Keeps the topic in good order while it is written; see `deltaq/maintenance/background.py`."""

    def uploaded(self, path: str, rows: pa.RecordBatch) -> None:
        """The file `path` has `rows` in it, and will be in the topic if its commit succeeds."""

    def committed(self, version: int, state: Callable[[], TableState]) -> None:
        """A commit became `version`; `state()` is a copy of the table's state then."""

    def due_in_s(self) -> float:
        """Seconds until `look_after` should be called, even if nothing is written."""

    def look_after(self) -> None:
        """Do what is due, in the background."""


class TopicWriter:
    """Writes one topic on behalf of all producers of this process. Without a `caretaker` it is left to others to look
    after the topic.

    `log` is where it is in the topic's log.
    """

    def __init__(self, store: Store, topic: str, clock: Clock, client_id: str = "") -> None:
        self.topic = topic
        self._store = store
        self._clock = clock
        self.log = SharedTopicLog(TopicLog(store, topic, clock, indexed=True, client_id=client_id), clock)
        self._view: TopicView | None = None
        self._changed = clock.condition()
        self._buffers: list[RecordBuffer] = []
        self._flights: deque[_Flight] = deque()  # in the order in which they were taken
        self._uploads = 0  # how many of them are being uploaded
        self._reliefs = 0  # threads that upload beside the first
        self._under_way: dict[_Part, None] = {}  # in the order in which they were taken
        self._linger = AdaptiveLinger()
        self._lone = LoneRecords()
        self._flight_times = FlightTimes()
        self._running = False
        self._uploading = False
        self._stopping = False
        self._threads: list[Thread] = []
        self.caretaker: Caretaker | None = None

    # --- what producers call ---

    def view(
        self, plan: NewTopicPlan | None = None, timeout_s: float = 60.0, *, anew: bool = False
    ) -> TopicView | None:
        """The topic as last seen, looked up at the first call; created by `plan` if it does not exist. None if there
        is none.

        With `anew` it is looked at again, unless a commit is under way, which does that too and may take its time.
        Raises Unavailable, Corrupt, Incompatible, UnsafeStore.
        """
        view = self._view
        if view is None or (anew and not self._under_way):
            with self.log.turn() as log:
                if log.load() if view is None else log.catch_up():
                    view = view_of(log)
                elif plan is not None:
                    view = create_topic(log, plan, self._clock.monotonic() + timeout_s, exist_ok=True)
                else:
                    view = None
                self._look(view)
        return view

    def attach(self, buffer: RecordBuffer) -> None:
        """Write what is put into `buffer` from now on."""
        with self._changed:
            self._buffers.append(buffer)
            while self._running and not self._uploading:
                self._changed.wait()  # the threads of earlier buffers are just ending
            if not self._running:
                self._running = self._uploading = True
                loops = {"upload": self._upload_loop, "commit": self._commit_loop}
                self._threads = [self._clock.start_thread(loops[n], f"deltaq-{n}-{self.topic}") for n in loops]

    def detach(self, buffer: RecordBuffer) -> None:
        """Forget a buffer once it is empty; the threads end with the last one."""
        with self._changed:
            buffer.abandoned = buffer.flushing = True
            self._changed.notify_all()

    def stop(self) -> None:
        """End the threads, with what is not written yet left unwritten: the process is about to exit."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        until = SYSTEM_CLOCK.monotonic() + EXIT_WAIT_S  # a test's clock stands still by then
        for thread in self._threads:
            thread.join(max(0.0, until - SYSTEM_CLOCK.monotonic()))

    def append_block(self, buffer: RecordBuffer, block: ArrowBlock) -> None:
        """Add a table behind what is in `buffer`."""
        with self._changed:
            buffer.append_block(block)
            self._relieve()
            self._changed.notify_all()

    def wake(self) -> None:
        """A buffer has something new, or wants to be flushed."""
        with self._changed:
            self._relieve()
            self._changed.notify_all()

    def purge(self, buffer: RecordBuffer, *, in_queue: bool, in_flight: bool) -> None:
        """Drop what waits in a buffer, reported with _PURGE_QUEUE, and what is being written, with _PURGE_INFLIGHT.

        As in Kafka, what is being written may end up in the topic all the same.
        """
        with self._changed:
            queued = []
            while in_queue and (taken := buffer.take(FLIGHT_ROWS_MAX, float("inf"))) is not None:
                queued.append(_Part(buffer, *taken))
            flying = [part for part in self._under_way if in_flight and part.buffer is buffer]
            self._under_way.update(dict.fromkeys(queued))
            self._changed.notify_all()
        self._fail(queued, KafkaException(KafkaError(KafkaError._PURGE_QUEUE)))
        self._fail(flying, KafkaException(KafkaError(KafkaError._PURGE_INFLIGHT)))
        self.wake()  # nobody waits for these flights any more, so others have room

    def settle(self, token: str, timeout_s: float) -> bool:
        """Whether the append behind an OutcomeUnknown stands. Raises OutcomeUnknown if that cannot be found out in
        time."""
        log = TopicLog(self._store, self.topic, self._clock)
        return log.settle(token, self._clock.monotonic() + timeout_s) is not None

    # --- the topic ---

    def _look(self, view: TopicView | None) -> None:
        """Remember how the topic is, and tell the producers if that has changed."""
        before, self._view = self._view, view
        if view is not None and view != before:
            with self._changed:
                buffers = list(self._buffers)
            for buffer in buffers:
                buffer.seen(view)

    def _known(self, plan: NewTopicPlan | None, deadline: float) -> TopicView:
        """The topic, looked up again and again until the deadline: a store may be away for a while."""
        failures = 0
        while True:
            try:
                view = self.view(plan, max(0.0, deadline - self._clock.monotonic()))
            except OutcomeUnknown:
                # Its token is that of creating the topic; about the messages nothing is unknown.
                failures += 1
                reason = "no answer yet whether the topic was created"
                pause_before_retry(self._clock, self.topic, failures, deadline, reason)
            except Unavailable as error:
                if not error.error.retriable():
                    raise
                failures += 1
                pause_before_retry(self._clock, self.topic, failures, deadline, error.error.str())
            else:
                if view is None:
                    raise UnknownTopic(self.topic)
                return view

    def _newest(self) -> TopicView:
        """The topic as it is now. Raises Unavailable, UnknownTopic."""
        with self.log.turn() as log:
            log.catch_up()
            view = view_of(log)
            self._look(view)
            return view

    # --- upload ---

    def _upload_loop(self) -> None:
        while (flight := self._next_flight()) is not None:
            self._carry(flight)

    def _carry(self, flight: _Flight) -> None:
        """Upload a flight, or report why it cannot be."""
        try:
            self._upload(flight)
        except KafkaException as error:
            self._fail(flight.parts, error)
        except Exception as error:  # noqa: BLE001 - a defect must not leave callers waiting for ever
            _log.exception("writing a batch failed topic=%r", self.topic)
            self._fail(flight.parts, _defect(error))
        finally:
            with self._changed:
                self._uploads -= 1
                if flight.segments:
                    flight.is_uploaded = True
                elif flight in self._flights:
                    self._flights.remove(flight)
                self._changed.notify_all()

    def _relieve(self) -> None:
        """Have a whole batch uploaded beside what is being uploaded: somebody produces faster than one thread writes.
        The writer's lock is held."""
        if not self._uploads or not self._is_relief_due() or self._reliefs >= UPLOADS_MAX - 1:
            return
        self._reliefs += 1
        try:
            thread = self._clock.start_thread(self._relief_loop, f"deltaq-upload-{self.topic}")
        except RuntimeError:  # the system gives no more threads: then it takes longer
            self._reliefs -= 1
            return
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]

    def _relief_loop(self) -> None:
        try:
            while (flight := self._next_full()) is not None:
                self._carry(flight)
        finally:
            with self._changed:
                self._reliefs -= 1

    def _next_full(self) -> _Flight | None:
        """A flight of at least a whole batch; None if there is none, or enough is under way."""
        with self._changed:
            return self._taken() if self._is_relief_due() else None

    def _is_relief_due(self) -> bool:
        """Whether a whole batch waits, and is to be uploaded now. Not in a crowd, where the turn of others comes first:
        then larger flights are better than more of them."""
        has_room = self._uploads < UPLOADS_MAX and len(self._flights) < FLIGHTS_AHEAD_MAX
        is_free = has_room and not self._stopping and not self._linger.extra_s
        return is_free and any(buffer.is_full for buffer in self._buffers)

    def _next_flight(self) -> _Flight | None:
        """Wait until some buffer has lingered long enough, then take from all of them. None: no buffer is left,
        and no upload under way."""
        with self._changed:
            while True:
                self._buffers = [buffer for buffer in self._buffers if len(buffer) or not buffer.abandoned]
                if self._stopping or not (self._buffers or self._uploads):
                    self._uploading = False
                    self._changed.notify_all()
                    return None
                wait_s = self._wait_s()
                if wait_s is not None and wait_s <= 0:
                    flight = self._taken()
                    self._relieve()
                    return flight
                self._changed.wait(wait_s)

    def _taken(self) -> _Flight:
        """A flight of what waits, in its place among the others. The writer's lock is held."""
        parts = list(self._take())
        self._under_way.update(dict.fromkeys(parts))
        records = sum(len(part.records) for part in parts)
        linger_s = max(part.buffer.settings.linger_s for part in parts)
        self._lone.left(records, min(part.records.produced_at for part in parts), linger_s)
        deadline = min(part.records.produced_at + part.buffer.settings.timeout_s for part in parts)
        flight = _Flight(parts, self._clock.monotonic(), deadline)
        self._flights.append(flight)
        self._uploads += 1
        return flight

    def _wait_s(self) -> float | None:
        """Seconds until records should be taken; None while there are none, or while enough are uploaded already."""
        if len(self._flights) >= FLIGHTS_AHEAD_MAX:
            return None
        now = self._clock.monotonic()
        waits = [buffer.due_in(now, self._linger_s) for buffer in self._buffers]
        return min((wait for wait in waits if wait is not None), default=None)

    def _linger_s(self, produced_at: float, linger_s: float) -> float:
        """Seconds that records should wait, the oldest of which was produced then and may wait `linger_s` seconds: less
        than that where it would be of no use, more in a crowd."""
        if self._lone.is_next(produced_at, linger_s):
            linger_s = 0.0
        elif not self._under_way and self._linger.is_alone and not self._store.is_remote:
            # Not of an object store: there each request has its price, and more of them make each take longer.
            linger_s = self._flight_times.enough_s(linger_s)
        return max(linger_s, self._linger.extra_s)

    def _take(self) -> Iterator[_Part]:
        """The oldest records of each buffer. Those of one flight share a deadline: so they must be about equally old,
        and of clients with the same patience."""
        waiting = [(at, buffer) for buffer in self._buffers if (at := buffer.first_produced_at()) is not None]
        oldest_at, first = min(waiting, key=lambda entry: entry[0])
        timeout_s = first.settings.timeout_s
        rows_left, bytes_left = FLIGHT_ROWS_MAX, FLIGHT_BYTES_MAX
        for _, buffer in waiting:
            if buffer.settings.timeout_s == timeout_s and rows_left and bytes_left > 0:
                rows_max = min(rows_left, buffer.rows_within(bytes_left))
                taken = buffer.take(rows_max, oldest_at + timeout_s / 10)
                if taken is not None:
                    rows_left = max(0, rows_left - len(taken[0]))
                    bytes_left -= taken[1]
                    yield _Part(buffer, *taken)

    def _upload(self, flight: _Flight) -> None:
        plan = next((part.buffer.plan for part in flight.parts if part.buffer.plan is not None), None)
        view = self._known(plan, flight.deadline)
        flight.parts = [part for part in flight.parts if self._encode(part, view)]
        # In the order of their segments: that is the order in which offsets are given.
        flight.parts = list(chain.from_iterable(_by_encoding(flight.parts)))
        flight.topic_id = view.topic_id
        flight.segments = self._upload_parts(flight.parts, view, flight.deadline)

    def _encode(self, part: _Part, view: TopicView) -> bool:
        """Turn a part into columns. Rows that cannot be written are reported; whether any are left."""
        settings = part.buffer.settings
        sticky = part.buffer.sticky(view.partitions, self._clock.monotonic(), self._clock.random())
        spread = settings.sticky_s == 0
        records = part.records
        try:
            if isinstance(records, ArrowBlock):
                columns = records.columns
                part.columns = resolved_block(columns, settings.partitioner, view.partitions, sticky, spread=spread)
                return True
            part.partitions = chosen_partitions(
                records.rows, settings.partitioner, view.partitions, sticky, spread=spread
            )
            refusals = self._refusals(records, part.partitions, view, unchecked=part.buffer.unchecked)
            if refusals:
                records = self._refuse(part, records, refusals)
            if len(records):
                part.epoch_ms = self._clock.time_ms() - self._clock.monotonic() * 1000
                part.columns = row_columns(records.rows, part.partitions, part.epoch_ms, view.schema)
        except InvalidValue as error:
            self._fail([part], error)  # alone: the other parts are of other clients
            return False
        return part.columns is not None

    def _refusals(
        self, records: RowBlock, partitions: list[int], view: TopicView, *, unchecked: bool
    ) -> dict[int, KafkaException]:
        """What is wrong with which rows, by number: what `produce` could not know yet."""
        rows = records.rows
        found: dict[int, KafkaException] = {}
        if max(partitions) >= view.partitions and max(partitions) >= (count := self._newest().partitions):
            code = KafkaError._UNKNOWN_PARTITION
            unknown = {n: UnknownTopic(self.topic, partition=n, code=code) for n in set(partitions) if n >= count}
            found = {at: unknown[partition] for at, partition in enumerate(partitions) if partition in unknown}
        if "compact" in view.settings.cleanup_policy:
            reason = f"topic {self.topic!r} is compacted: every message needs a key"
            error = KafkaException(KafkaError(KafkaError.INVALID_RECORD, reason))
            found |= {at: error for at, row in enumerate(rows) if row[1] is None}
        if unchecked:
            limit = view.settings.max_message_bytes
            sizes = [len(row[1] or b"") + (len(row[0]) if isinstance(row[0], bytes) else 0) for row in rows]
            found |= {
                at: MessageTooLarge(size=size, limit=limit, topic=self.topic)
                for at, size in enumerate(sizes)
                if size > limit
            }
        return found

    def _refuse(self, part: _Part, records: RowBlock, refusals: dict[int, KafkaException]) -> RowBlock:
        """Report the rows that are refused, and take them out of the part; the others."""
        partitions = part.partitions
        alike: dict[int, list[int]] = {}
        for at, error in refusals.items():
            alike.setdefault(id(error), []).append(at)
        for numbers in alike.values():
            share = part.bytes * len(numbers) // len(records)
            refused = _Part(part.buffer, records.picked(numbers), share, [partitions[at] for at in numbers])
            part.bytes -= share
            self._fail([refused], refusals[numbers[0]])
        kept = [at for at in range(len(records)) if at not in refusals]
        part.records = left = records.picked(kept)
        part.partitions = [partitions[at] for at in kept]
        if not kept:
            self._fail([part], refusals[0])  # no rows any more, but what is left of the bytes
        return left

    def _upload_parts(self, parts: list[_Part], view: TopicView, deadline: float) -> list[PendingSegment]:
        segments = []
        for group in _by_encoding(parts):
            settings: BufferSettings = group[0].buffer.settings
            codec = settings.compression, settings.compression_level
            as_of = self.log.version  # known before the files are there
            about = view.settings, *codec, deadline, self._clock, as_of
            whole = joined([part.columns for part in group if part.columns])
            # Of bytes alone the client knows how many there are, without a look at the columns.
            is_plain = view.schema is None and whole.headers.null_count == len(whole)
            is_small = is_plain and sum(part.bytes for part in group) < SEGMENT_BYTES_MAX // 8
            pieces = [whole] if is_small else in_segments(whole, SEGMENT_BYTES_MAX)
            for piece in pieces:
                segment, rows = upload_segment(self._store, self.topic, piece, *about)
                segments.append(segment)
                if self.caretaker is not None:
                    self.caretaker.uploaded(segment.path, rows)
        return segments

    # --- commit ---

    def _commit_loop(self) -> None:
        while self._wait_for_flight():
            taken: list[_Flight] = []
            try:
                appended = self._append(taken)
            except KafkaException as error:
                self._not_appended(taken, error)
            except Exception as error:  # noqa: BLE001 - a defect must not leave callers waiting for ever
                _log.exception("committing a batch failed topic=%r", self.topic)
                self._not_appended(taken, _defect(error))
            else:
                now, chance = self._clock.monotonic(), self._clock.random()
                self._linger.committed(appended.others, now, appended.seconds, chance)
                for flight in taken:
                    self._flight_times.landed(now - flight.taken_at)
                self._report(taken, appended)
                self._landed()

    def _landed(self) -> None:
        """Nothing may be under way any more: have it seen whether what waits has waited long enough."""
        with self._changed:
            if any(self._linger_s(0.0, (own_s := buffer.settings.linger_s)) < own_s for buffer in self._buffers):
                self._changed.notify_all()

    def _wait_for_flight(self) -> bool:
        with self._changed:
            while True:
                while self._flights and _is_purged(self._flights[0]):
                    self._flights.popleft()
                    self._changed.notify_all()
                if self._flights and self._flights[0].is_uploaded and not self._stopping:
                    return True
                if self._stopping or not self._uploading:
                    self._running = False
                    self._changed.notify_all()
                    return False
                self._changed.wait(self._look_after())

    def _look_after(self) -> float | None:
        """Between commits: have the topic looked after when it is time. Seconds until it is time again."""
        if self.caretaker is None:
            return None
        if self.caretaker.due_in_s() <= 0:
            self.caretaker.look_after()
        return self.caretaker.due_in_s()

    def _append(self, taken: list[_Flight]) -> Appended:
        topic_id = self._flights[0].topic_id
        deadline = self._flights[0].deadline

        def take_segments() -> list[PendingSegment]:
            # Asked again after a lost race: whatever has been uploaded meanwhile rides along.
            with self._changed:
                while self._flights and self._flights[0].is_uploaded and self._flights[0].topic_id == topic_id:
                    flight = self._flights.popleft()
                    if not _is_purged(flight):
                        taken.append(flight)
                self._relieve()  # there is room again
                self._changed.notify_all()
            return [segment for flight in taken for segment in flight.segments]

        with self.log.turn() as log:
            try:
                while True:
                    try:
                        appended = log.append(take_segments, topic_id, deadline)
                    except UploadsGone as gone:
                        self._upload_again(taken, gone.paths, view_of(log), deadline)
                    else:
                        if self.caretaker is not None:
                            self.caretaker.committed(log.version, log.copied_state)
                        return appended
            finally:
                self._look(view_of(log) if log.head is not None else None)

    def _upload_again(self, flights: list[_Flight], gone: frozenset[str], view: TopicView, deadline: float) -> None:
        """What was uploaded before a long suspension may have been removed as an orphan. Never heard of otherwise."""
        _log.warning("files that waited too long for their commit are uploaded again topic=%r", self.topic)
        for flight in flights:
            if any(segment.path in gone for segment in flight.segments):
                flight.segments = self._upload_parts(flight.parts, view, deadline)

    def _not_appended(self, taken: list[_Flight], error: KafkaException) -> None:
        now = self._clock.monotonic()
        again = []
        with self._changed:
            if not taken and self._flights and self._flights[0].is_uploaded:
                # Refused before anything was taken: the topic is gone.
                taken.append(self._flights.popleft())
        if isinstance(error, Unavailable) and error.error.retriable():
            again = [flight for flight in taken if flight.deadline > now]
        for flight in taken:
            if flight not in again:
                self._fail(flight.parts, error)
        with self._changed:
            self._flights.extendleft(reversed(again))
            self._changed.notify_all()

    # --- telling ---

    def _report(self, flights: list[_Flight], appended: Appended) -> None:
        files = {file.path: file for file in appended.files}
        now = self._clock.monotonic()
        for flight in flights:
            offsets: dict[int, int] = {}
            append_time = None
            for segment in flight.segments:
                append_time = files[segment.path].append_time_ms
                for batch in files[segment.path].batches:
                    offsets.setdefault(batch.partition, batch.base_offset)
            for part in flight.parts:
                columns = part.columns
                self._tell(
                    part,
                    Report(
                        part.records,
                        part.partitions,
                        columns,
                        dict(offsets),
                        append_time,
                        None,
                        now,
                        self.topic,
                        part.bytes,
                        part.epoch_ms,
                    ),
                )
                if len(flight.parts) > 1 and columns is not None:
                    for count in columns.partitions.value_counts():
                        offsets[count["values"].as_py()] += count["counts"].as_py()

    def _fail(self, parts: Sequence[_Part], error: KafkaException) -> None:
        """Report that parts were not written, or that nobody knows."""
        if isinstance(error, Unavailable) and error.error.retriable():
            # Not tried again, so their time is over.
            error = KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, error.error.str(), retriable=True))
        now = self._clock.monotonic()
        for part in parts:
            records = part.records
            partitions = part.partitions or ([row[2] for row in records.rows] if isinstance(records, RowBlock) else ())
            about = error, now, self.topic, part.bytes, part.epoch_ms
            self._tell(part, Report(records, partitions, part.columns, {}, None, *about))

    def _tell(self, part: _Part, report: Report) -> None:
        """Report what became of a part, unless its client has been told already."""
        with self._changed:
            if part.told:
                return
            part.told = True
            self._under_way.pop(part, None)
        part.buffer.report(report)


def _is_purged(flight: _Flight) -> bool:
    """Whether nobody waits for any of it any more."""
    return all(part.told for part in flight.parts)


def _by_encoding(parts: list[_Part]) -> Iterator[list[_Part]]:
    """Parts that can share a segment: those whose clients want the same compression."""
    groups: dict[tuple[str, int | None], list[_Part]] = {}
    for part in parts:
        settings = part.buffer.settings
        groups.setdefault((settings.compression, settings.compression_level), []).append(part)
    yield from groups.values()


def _defect(error: Exception) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._FAIL, f"unexpected {type(error).__name__}: {error}"))


# --- the writers of this process -------------------------------------------------------------------------------------


class _Writers:
    """The topic writers of this process, so that all producers of a topic share one.

    A writer keeps its store and clock, so their identities stay theirs as long as the writer is here.
    """

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()
        self._writers: WeakValueDictionary[tuple[int, str, int], TopicWriter] = WeakValueDictionary()

    def stop(self) -> None:
        for writer in tuple(self._writers.values()):
            writer.stop()

    def get(self, store: Store, topic: str, clock: Clock, client_id: str) -> TopicWriter:
        with self._lock:
            found = self._writers.get((id(store), topic, id(clock)))
            if found is None:
                found = self._writers[id(store), topic, id(clock)] = TopicWriter(store, topic, clock, client_id)
            return found


_WRITERS = _Writers()


def _forget_writers() -> None:
    """A forked child has neither the threads of its parent's writers nor a say in their locks: it starts anew."""
    global _WRITERS
    _WRITERS = _Writers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_writers)


def _stop_writers() -> None:
    """At exit: a thread that is inside Arrow's C++ or the store's Rust when Python finalizes aborts the process."""
    _WRITERS.stop()


atexit.register(_stop_writers)


def topic_writer(store: Store, topic: str, clock: Clock, client_id: str = "") -> TopicWriter:
    """The one writer of `topic` on `store` in this process."""
    return _WRITERS.get(store, topic, clock, client_id)
