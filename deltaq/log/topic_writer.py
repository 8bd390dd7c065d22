"""Group commit: everything that a process has buffered for a topic goes into one commit.

One writer per topic and process, with two threads, so that the upload of one flight of records overlaps the commit of
the one before. Flights are committed in the order in which they were taken, which keeps the order of each producer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from weakref import WeakKeyDictionary

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import KafkaError, KafkaException, Unavailable, UnknownTopic
from deltaq.log.buffer import ArrowBlock, BufferSettings, RecordBuffer, Report, Row
from deltaq.log.encoding import chosen_partitions, in_segments, joined, resolved_block, row_columns
from deltaq.log.linger import AdaptiveLinger
from deltaq.log.records import Columns
from deltaq.log.store_errors import unavailable
from deltaq.log.topic_log import Appended, TopicLog
from deltaq.log.topic_state import PendingSegment
from deltaq.log.topic_view import NewTopicPlan, TopicView, create_topic, view_of
from deltaq.log.upload import pause_before_retry, upload_segment
from deltaq.store import Store

__all__ = ["TopicWriter", "topic_writer"]

_log = logging.getLogger("deltaq.log")

FLIGHT_ROWS_MAX = 250_000
SEGMENT_BYTES_MAX = 64 * 1024 * 1024
FLIGHTS_AHEAD_MAX = 4
"""Uploaded flights that may wait for their commit. Beyond that records stay in their buffers and make larger flights."""


@dataclass(slots=True)
class _Part:
    """Records of one buffer inside a flight; `partitions` (of rows) and `columns` are filled in by encoding them."""

    buffer: RecordBuffer
    records: list[Row] | ArrowBlock
    partitions: list[int] = field(default_factory=list)
    columns: Columns | None = None


@dataclass(slots=True)
class _Flight:
    """Records that are uploaded together. `deadline` is that of its oldest record, on the monotonic clock."""

    parts: list[_Part]
    deadline: float
    segments: list[PendingSegment]
    topic_id: str


class TopicWriter:
    """Writes one topic on behalf of all producers of this process."""

    def __init__(self, store: Store, topic: str, clock: Clock, client_id: str = "") -> None:
        self.topic = topic
        self._store = store
        self._clock = clock
        self._log_lock = clock.lock()
        self._topic_log = TopicLog(store, topic, clock, client_id=client_id)
        self._view: TopicView | None = None
        self._changed = clock.condition()
        self._buffers: list[RecordBuffer] = []
        self._flights: deque[_Flight] = deque()
        self._linger = AdaptiveLinger()
        self._running = False
        self._uploading = False

    # --- what producers call ---

    def view(self, plan: NewTopicPlan | None = None, timeout_s: float = 60.0) -> TopicView | None:
        """The topic as last seen, looked up at the first call; created by `plan` if it does not exist. None if there is none.

        Raises Unavailable, Corrupt, Incompatible, UnsafeStore.
        """
        view = self._view
        if view is None:
            with self._log_lock:
                if self._topic_log.load():
                    view = view_of(self._topic_log)
                elif plan is not None:
                    view = create_topic(self._topic_log, plan, self._clock.monotonic() + timeout_s, exist_ok=True)
                self._view = view
        return view

    def attach(self, buffer: RecordBuffer) -> None:
        """Write what is put into `buffer` from now on."""
        with self._changed:
            self._buffers.append(buffer)
            while self._running and not self._uploading:
                self._changed.wait()  # the threads of earlier buffers are just ending
            if not self._running:
                self._running = self._uploading = True
                self._clock.start_thread(self._upload_loop, f"deltaq-upload-{self.topic}")
                self._clock.start_thread(self._commit_loop, f"deltaq-commit-{self.topic}")

    def detach(self, buffer: RecordBuffer) -> None:
        """Forget an empty buffer; the threads end with the last one."""
        with self._changed:
            self._buffers.remove(buffer)
            self._changed.notify_all()

    def wake(self) -> None:
        """A buffer has something new, or wants to be flushed."""
        with self._changed:
            self._changed.notify_all()

    def purge(self, buffer: RecordBuffer) -> None:
        """Drop what waits in a buffer; it is reported with _PURGE_QUEUE."""
        with self._changed:
            while (records := buffer.take(FLIGHT_ROWS_MAX, float("inf"))) is not None:
                self._fail([_Part(buffer, records)], KafkaException(KafkaError(KafkaError._PURGE_QUEUE)))

    def settle(self, token: str, timeout_s: float) -> bool:
        """Whether the append behind an OutcomeUnknown stands. Raises OutcomeUnknown if that cannot be found out in time."""
        log = TopicLog(self._store, self.topic, self._clock)
        return log.settle(token, self._clock.monotonic() + timeout_s) is not None

    # --- upload ---

    def _upload_loop(self) -> None:
        while (parts := self._next_parts()) is not None:
            try:
                flight = self._upload(parts)
            except KafkaException as error:
                self._fail(parts, error)
            except Exception as error:  # a defect must not leave callers waiting for ever
                _log.exception("writing a batch failed topic=%r", self.topic)
                self._fail(parts, _defect(error))
            else:
                self._hand_over(flight)

    def _hand_over(self, flight: _Flight | None) -> None:
        if flight is not None:
            with self._changed:
                self._flights.append(flight)
                self._changed.notify_all()

    def _next_parts(self) -> list[_Part] | None:
        """Wait until some buffer has lingered long enough, then take from all of them. None: no buffer is left."""
        with self._changed:
            while True:
                if not self._buffers:
                    self._uploading = False
                    self._changed.notify_all()
                    return None
                wait_s = self._wait_s()
                if wait_s is not None and wait_s <= 0:
                    return list(self._take())
                self._changed.wait(wait_s)

    def _wait_s(self) -> float | None:
        """Seconds until records should be taken; None while there are none, or while enough are uploaded already."""
        if len(self._flights) >= FLIGHTS_AHEAD_MAX:
            return None
        now = self._clock.monotonic()
        waits = []
        for buffer in self._buffers:
            produced_at = buffer.first_produced_at()
            if produced_at is not None:
                at_once = buffer.flushing or buffer.is_full()
                linger_s = self._linger.extra_s if at_once else max(buffer.settings.linger_s, self._linger.extra_s)
                waits.append(produced_at + linger_s - now)
        return min(waits, default=None)

    def _take(self) -> Iterator[_Part]:
        rows_left = FLIGHT_ROWS_MAX
        for buffer in self._buffers:
            # Records of one flight share a deadline, so they must be about equally old.
            span_s = max(1.0, buffer.settings.timeout_s / 10)
            records = buffer.take(rows_left, span_s) if rows_left else None
            if records is not None:
                rows_left = max(0, rows_left - (len(records) if isinstance(records, list) else len(records.columns)))
                yield _Part(buffer, records)

    def _upload(self, parts: list[_Part]) -> _Flight | None:
        deadline = min(_produced_at(part.records) + part.buffer.settings.timeout_s for part in parts)
        view = self._known(deadline)
        groups = list(_by_encoding([part for part in parts if self._encode(part, view)]))
        segments = [
            self._upload_segment(columns, view, group[0].buffer.settings, deadline)
            for group in groups
            for columns in in_segments(joined([part.columns for part in group]), SEGMENT_BYTES_MAX)
        ]
        # Parts in the order of their segments: that is the order in which offsets are given.
        return _Flight(list(chain.from_iterable(groups)), deadline, segments, view.topic_id) if segments else None

    def _known(self, deadline: float) -> TopicView:
        """The topic, looked up again and again until the deadline: a store may be away for a while."""
        failures = 0
        while True:
            try:
                view = self.view()
            except Unavailable as error:
                if not error.args[0].retriable():
                    raise
                failures += 1
                self._pause(failures, deadline, str(error.args[0].str()))
            else:
                if view is None:
                    raise UnknownTopic(self.topic)
                return view

    def _encode(self, part: _Part, view: TopicView) -> bool:
        """Turn a part into columns. Rows that cannot be written are reported; whether any are left."""
        settings = part.buffer.settings
        sticky = int(self._clock.random() * view.partitions)
        if isinstance(part.records, ArrowBlock):
            part.columns = resolved_block(part.records.columns, settings.partitioner, view.partitions, sticky)
            return True
        part.partitions = chosen_partitions(part.records, settings.partitioner, view.partitions, sticky)
        if max(part.partitions) >= view.partitions:
            self._refuse_partitions(part, view.partitions)
        if part.records:
            epoch_ms = self._clock.time_ms() - self._clock.monotonic() * 1000
            part.columns = row_columns(part.records, part.partitions, epoch_ms, view.schema)
        return bool(part.records)

    def _refuse_partitions(self, part: _Part, count: int) -> None:
        """Report and drop the rows of a part that name a partition which the topic does not have."""
        rows = list(zip(part.records, part.partitions, strict=True))
        for partition in sorted({partition for _, partition in rows if partition >= count}):
            bad = [row for row, named in rows if named == partition]
            error = UnknownTopic(self.topic, partition=partition)
            part.buffer.report(Report(bad, [partition] * len(bad), None, {}, None, error, self._clock.monotonic(), self.topic))
        part.records = [row for row, partition in rows if partition < count]
        part.partitions = [partition for _, partition in rows if partition < count]

    def _upload_segment(
        self, columns: Columns, view: TopicView, settings: BufferSettings, deadline: float
    ) -> PendingSegment:
        codec = settings.compression, settings.compression_level
        return upload_segment(self._store, self.topic, columns, view.settings, *codec, deadline, self._clock)

    def _pause(self, failures: int, deadline: float, reason: str) -> None:
        pause_before_retry(self._clock, self.topic, failures, deadline, reason)

    # --- commit ---

    def _commit_loop(self) -> None:
        while self._wait_for_flight():
            taken: list[_Flight] = []
            try:
                appended = self._append(taken)
            except KafkaException as error:
                self._not_appended(taken, error)
            except Exception as error:  # a defect must not leave callers waiting for ever
                _log.exception("committing a batch failed topic=%r", self.topic)
                self._not_appended(taken, _defect(error))
            else:
                self._linger.committed(appended.lost_races, appended.seconds)
                self._report(taken, appended)

    def _wait_for_flight(self) -> bool:
        with self._changed:
            while not self._flights:
                if not self._uploading:
                    self._running = False
                    self._changed.notify_all()
                    return False
                self._changed.wait()
            return True

    def _append(self, taken: list[_Flight]) -> Appended:
        topic_id = self._flights[0].topic_id
        deadline = self._flights[0].deadline

        def take_segments() -> list[PendingSegment]:
            # Asked again after a lost race: whatever has been uploaded meanwhile rides along.
            with self._changed:
                while self._flights and self._flights[0].topic_id == topic_id:
                    taken.append(self._flights.popleft())
                self._changed.notify_all()
            return [segment for flight in taken for segment in flight.segments]

        with self._log_lock:
            try:
                appended = self._topic_log.append(take_segments, topic_id, deadline)
            finally:
                self._view = view_of(self._topic_log) if self._topic_log.head is not None else None
            return appended

    def _not_appended(self, taken: list[_Flight], error: KafkaException) -> None:
        now = self._clock.monotonic()
        again = []
        if not taken:  # refused before anything was taken: the topic is gone
            with self._changed:
                taken.append(self._flights.popleft())
        if isinstance(error, Unavailable) and error.args[0].retriable():
            again = [flight for flight in taken if flight.deadline > now]
        for flight in taken:
            if flight not in again:
                self._fail(flight.parts, error)
        with self._changed:
            self._flights.extendleft(reversed(again))
            self._changed.notify_all()

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
                part.buffer.report(
                    Report(part.records, part.partitions, columns, dict(offsets), append_time, None, now, self.topic)
                )
                if len(flight.parts) > 1 and columns is not None:
                    for count in columns.partitions.value_counts():
                        offsets[count["values"].as_py()] += count["counts"].as_py()

    def _fail(self, parts: list[_Part], error: KafkaException) -> None:
        now = self._clock.monotonic()
        for part in parts:
            records = part.records
            partitions = part.partitions or ([row[2] for row in records] if isinstance(records, list) else ())
            part.buffer.report(Report(records, partitions, part.columns, {}, None, error, now, self.topic))


def _produced_at(records: list[Row] | ArrowBlock) -> float:
    return records[0][6] if isinstance(records, list) else records.produced_at


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
    """The topic writers of this process, so that all producers of a topic share one."""

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()
        self._writers: WeakKeyDictionary[Store, dict[tuple[str, int], TopicWriter]] = WeakKeyDictionary()

    def get(self, store: Store, topic: str, clock: Clock, client_id: str) -> TopicWriter:
        with self._lock:
            writers = self._writers.setdefault(store, {})
            found = writers.get((topic, id(clock)))
            if found is None:
                found = writers[topic, id(clock)] = TopicWriter(store, topic, clock, client_id)
            return found


_WRITERS = _Writers()


def topic_writer(store: Store, topic: str, clock: Clock, client_id: str = "") -> TopicWriter:
    """The one writer of `topic` on `store` in this process."""
    return _WRITERS.get(store, topic, clock, client_id)
