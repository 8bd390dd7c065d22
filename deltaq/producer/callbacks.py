"""The callbacks of a producer, with the statistics that `stats_cb` gets: queued by its senders, run
by `poll` and `flush` on threads of the application. Futures end without them.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from deltaq.clock import Clock, this_thread
from deltaq.config import ProducerConfig
from deltaq.errors import KafkaError, KafkaException, OutcomeUnknown
from deltaq.message import (
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    DeliveredMessage,
    Message,
    TopicPartition,
)
from deltaq.outage import OutageReports
from deltaq.producer.accumulator import ArrowBlock, BatchResult, Flush, RecordAccumulator, RowBlock
from deltaq.producer.encoding import produced_ms
from deltaq.statistics import ClientFields, StatisticsTimer
from deltaq.topics.columns import Headers, rows_by_partition
from deltaq.weak import weakly

if TYPE_CHECKING:
    from deltaq.producer.topic_handle import TopicHandle

_log = logging.getLogger("deltaq.producer")

_OF_THE_STORE = (KafkaError._TRANSPORT, KafkaError._MSG_TIMED_OUT)
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)

_SLICE_S = 0.2
"""Longest uninterrupted wait in seconds, so that Ctrl-C is answered."""

_MADE_TOGETHER = 256
"""Messages that are made at once for their callbacks. More would start Python's garbage collector,
at 700 objects.
"""

Due: TypeAlias = "PendingCallbacks | Notice"
_UNASSIGNED = -1
"""librdkafka's partition for messages whose partition is not chosen yet. Here it is chosen when a
batch is encoded.
"""


@dataclass(slots=True, eq=False)
class _CallbackBatch:
    """Callbacks that a `poll` or `flush` has taken. Those left over by an exception are due again
    once it `is_over`.
    """

    thread: int
    due: deque[Due] = field(default_factory=deque)
    is_over: bool = False


class CallbackQueue:
    """Callbacks that are due, those being run, and the calls of `flush` that wait for them.
    `changed` guards the fields: threads that report results and threads that run callbacks hold it.

    `silent` counts the messages reported without a callback since the last call that served.
    `on_report` and `on_change` are called, with `changed` held, before and after a result is
    reported. They must not block. `has_futures`: whether callbacks may be futures.
    """

    def __init__(self, config: ProducerConfig, clock: Clock) -> None:
        self.changed = clock.condition()
        self.due: deque[Due] = deque()
        self.silent = 0
        self.running: list[_CallbackBatch] = []
        self.flushes: list[Flush] = []
        self.has_futures = False
        self.on_report: Callable[[BatchResult], object] | None = None
        self.on_change: Callable[[], object] | None = None
        self._monotonic = clock.monotonic
        self._only_errors = config.delivery_report_only_error
        self._error_cb = config.error_cb
        self._outage = OutageReports(clock)
        self._outage_notices: list[Notice] = []  # the last calls of `error_cb` about an outage

    def report(self, buffer: RecordAccumulator, result: BatchResult) -> None:
        """Called by the sender when the outcome of records is known, or known to be unknown."""
        deliveries = PendingCallbacks(result)
        if self.has_futures:
            deliveries.finish_futures()
        wanted = deliveries.is_wanted(only_errors=self._only_errors)
        error = result.error
        if error is not None and (count := deliveries.without_callback):
            log_failure(result.topic, error, count)  # before `flush` can return
        due: list[Due] = [deliveries] if wanted else []
        if self._error_cb and error is not None and error.error.code() in _OF_THE_STORE:
            due.insert(0, Notice(self._error_cb, error.error))
        with self.changed:
            if self.on_report is not None:
                self.on_report(result)
            buffer.reported_rows += len(result)
            buffer.reported_bytes += result.bytes
            self.reported(*due, silent=0 if wanted else len(result))

    def reported(self, *due: Due, silent: int = 0) -> None:
        """A result was reported, for which these callbacks are due, or of `silent` messages for
        which none is. The caller holds `changed`.
        """
        self.due.extend(due)
        self.silent += silent
        self.changed.notify_all()
        if self.on_change is not None:
            self.on_change()

    def store_failed(self, error: KafkaError) -> None:
        """A request failed, and will be repeated: call `error_cb`, unless such a call waits for
        `poll` already.
        """
        if self._error_cb is None:
            return
        with self.changed:
            if all(notice.is_called for notice in self._outage_notices) and (
                errors := self._outage.due(error)
            ):
                self._outage_notices = [Notice(self._error_cb, each) for each in errors]
                self.reported(*self._outage_notices)

    def in_other_threads(self) -> int:
        """Messages whose callbacks other threads are running; 0 inside a callback, since two
        callbacks that flush would otherwise wait for each other for ever. The caller holds
        `changed`.
        """
        if any(batch.thread == this_thread() for batch in self.running):
            return 0
        return sum(len(deliveries) for batch in self.running for deliveries in tuple(batch.due))

    def is_running_here(self) -> bool:
        """Whether this thread is inside a callback."""
        return any(
            batch.thread == this_thread() and not batch.is_over for batch in tuple(self.running)
        )

    def serve_until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Whether `condition()`, called with `changed` held, is true. If not, run all due
        callbacks, or wait until the deadline for a result.
        """
        with self.changed:
            if self.running:
                self.take_back()
            if condition():
                return True
            if not self.due:
                self.changed.wait(max(0.0, min(_SLICE_S, deadline - self._monotonic())))
        self.serve(self._monotonic(), lambda: 1)
        return False

    def forget_flushes(self) -> None:
        """Remove the ended calls of `flush`. Records linger again once the last one has ended."""
        with self.changed:
            self._forget_flushes()

    def _forget_flushes(self) -> None:
        # A function of its own, since Python 3.12 and newer do not end a `with` block for an
        # exception that a signal handler raises at the conditional end of a loop or comprehension
        # inside it: the lock would stay taken.
        self.flushes[:] = [flush for flush in self.flushes if not flush.is_over]

    def serve(self, deadline: float | None, queued: Callable[[], int]) -> int:
        """Run all due callbacks, waiting until the deadline for messages to be reported; returns
        the number of messages reported since the last call. During a flush, the wait ends once
        `queued()` is 0. Raises the first exception that a callback raised.
        """
        batch = _CallbackBatch(this_thread())
        try:
            with self.changed:
                if not self._wait_for_report(deadline, queued):
                    return 0
                silent, self.silent = self.silent, 0
                # Signal handlers run between calls only, so no exception can split this exchange.
                self.running.append(batch)
                batch.due, self.due = self.due, batch.due
            return silent + _run(batch.due)
        finally:
            batch.is_over = True  # one assignment, which no exception of a signal handler can split
            if self.running:
                self.take_back()

    def _wait_for_report(self, deadline: float | None, queued: Callable[[], int]) -> bool:
        """Wait until messages were reported; False if none were by the deadline. The caller holds
        `changed`.
        """
        while True:
            if self.running:
                self.take_back()
            if self.due or self.silent:
                return True
            left = _SLICE_S if deadline is None else min(_SLICE_S, deadline - self._monotonic())
            is_flushing = any(not flush.is_over for flush in self.flushes)
            # A flush ends once all is reported: it must not wait for messages produced later.
            if left <= 0 or (is_flushing and not queued()):
                return False
            self.changed.wait(left)

    def take_back(self) -> None:
        """Put callbacks left over by ended calls in front of those that are due. An interrupted
        call is repeated.
        """
        with self.changed:
            self._take_back()  # a function of its own, as `_forget_flushes`
            if self.flushes:
                self.changed.notify_all()  # `flush` waits for these callbacks too

    def _take_back(self) -> None:
        over = [batch for batch in self.running if batch.is_over]
        for batch in reversed(over):
            if batch.due:
                due, nothing = batch.due + self.due, deque[Due]()
                self.due, batch.due = due, nothing
        self.running = [batch for batch in self.running if batch not in over]


def _run(due: deque[Due]) -> int:
    """Run and remove callbacks; the number of messages served. Raises the first exception that a
    callback raised.
    """
    served = 0
    failure: Exception | None = None
    while due:
        count, raised = due[0].call()
        served += count
        failure = failure or raised
        due.popleft()
    if failure is not None:
        raise failure
    return served


@dataclass(slots=True, eq=False)
class PendingCallbacks:
    """The callbacks that are due for one report. Each is marked as called just before its call, so
    that none is called again after an exception of a signal handler, which can end `call` between
    any two steps.
    """

    report: BatchResult
    _called: int = 0

    def __len__(self) -> int:
        return len(self.report)

    def call(self) -> tuple[int, Exception | None]:
        """Call those not called yet. Returns the number of messages served and the first exception
        raised.
        """
        report, records = self.report, self.report.records
        error = None if report.error is None else report.error.error
        if isinstance(records, ArrowBlock):
            return self._call_for_table(records.callback, error)
        return self._call_for_rows(records, error)

    def _call_for_table(
        self, callback: Any, error: KafkaError | None
    ) -> tuple[int, Exception | None]:
        result = _table_result(self.report, error)
        if self._called or callback is None:
            return 0, None
        self._called = 1
        try:
            callback(error, result)
        except Exception as raised:  # noqa: BLE001 - raised by `poll`
            return 1, raised
        return 1, None

    def _call_for_rows(
        self, records: RowBlock, error: KafkaError | None
    ) -> tuple[int, Exception | None]:
        served = 0
        failure: Exception | None = None
        outcome = _Outcome(self.report, records, error)
        callback: Any
        for first in range(self._called, len(records), _MADE_TOGETHER):
            rows = range(first, min(first + _MADE_TOGETHER, len(records)))
            messages = DeliveredMessage.of(outcome, rows)
            for callback, message in zip(
                records.callbacks[rows.start : rows.stop], messages, strict=True
            ):
                # A future has got its result already, in `finish_futures`.
                if callback is None or type(callback) is DeliveryFuture:
                    self._called += 1
                    served += 1
                    continue
                self._called += 1
                served += 1
                try:
                    callback(error, message)
                except Exception as raised:  # noqa: BLE001 - `poll` raises the first; the other ones must still run
                    failure = failure or raised
        return served, failure

    def finish_futures(self) -> None:
        """Give the futures among the callbacks their results. They are not called again."""
        report, records = self.report, self.report.records
        if isinstance(records, ArrowBlock) or not any(
            type(each) is DeliveryFuture for each in records.callbacks
        ):
            return
        outcome = _Outcome(report, records, None if report.error is None else report.error.error)
        messages = DeliveredMessage.of(outcome, range(len(records)))
        for callback, message in zip(records.callbacks, messages, strict=True):
            if isinstance(callback, DeliveryFuture):
                callback.finish(report.error, message)

    def is_wanted(self, *, only_errors: bool) -> bool:
        """Whether any callback must be called for these records."""
        records = self.report.records
        if only_errors and self.report.error is None:
            return False
        if isinstance(records, ArrowBlock):
            return records.callback is not None
        return not set(map(type, records.callbacks)) <= {type(None), DeliveryFuture}

    @property
    def without_callback(self) -> int:
        """How many of these records have no callback."""
        records = self.report.records
        if isinstance(records, ArrowBlock):
            return len(records) if records.callback is None else 0
        return sum(callback is None for callback in records.callbacks)


@dataclass(slots=True, eq=False)
class Notice:
    """A due call of `error_cb` or `stats_cb`. It counts as no message."""

    callback: Callable[..., object] | None
    argument: object
    is_called: bool = False

    def __len__(self) -> int:
        return 0

    def call(self) -> tuple[int, Exception | None]:
        """Call it, once. Returns 0 and the exception raised."""
        if not self.is_called and self.callback is not None:
            self.is_called = True
            try:
                self.callback(self.argument)
            except Exception as raised:  # noqa: BLE001 - raised by `poll`
                return 0, raised
        return 0, None


class _Outcome:
    """The records of one report; see `deltaq.message.DeliveredRecords`."""

    def __init__(self, report: BatchResult, records: RowBlock, error: KafkaError | None) -> None:
        self.topic = report.topic
        self.error = error
        self._finished_at = report.finished_at
        self._append_time_ms = report.append_time_ms
        self._epoch_ms = None if report.columns is None else report.epoch_ms
        self._records = records
        self._partitions = report.partitions or records.partitions
        self._next_offsets = report.next_offsets

    @cached_property
    def _offsets(self) -> Sequence[int | None]:
        """The offset of each record; None if it failed or waits for a transaction's decision."""
        if self.error is not None or not self._next_offsets:
            return [None] * len(self._partitions)
        return _offsets(self._partitions, self._next_offsets)

    def partition_at(self, row: int) -> int | None:
        partition = self._partitions[row]
        return partition if partition >= 0 else None

    def offset_at(self, row: int) -> int | None:
        return self._offsets[row]

    def value_at(self, row: int) -> object:
        return self._records.values[row]

    def key_at(self, row: int) -> bytes | None:
        return self._records.keys[row]

    def headers_at(self, row: int) -> Headers:
        return self._records.headers[row]

    def latency_at(self, row: int) -> float:
        return self._finished_at - self._records.times[row]

    def timestamp_at(self, row: int) -> tuple[int, int]:
        if self._append_time_ms is not None:
            return TIMESTAMP_LOG_APPEND_TIME, self._append_time_ms
        # The records have failed before they were encoded, which gives them their time.
        if self._epoch_ms is None:
            return TIMESTAMP_NOT_AVAILABLE, 0
        records = self._records
        return TIMESTAMP_CREATE_TIME, records.timestamps[row] or produced_ms(
            records.times[row], self._epoch_ms
        )


def _offsets(partitions: Sequence[int], next_offsets: Mapping[int, int]) -> Sequence[int]:
    if len(next_offsets) == 1:
        ((_, first),) = next_offsets.items()
        return range(first, first + len(partitions))
    found = []
    following = dict(next_offsets)
    for partition in partitions:
        offset = following[partition]
        found.append(offset)
        following[partition] = offset + 1
    return found


def _table_result(report: BatchResult, error: KafkaError | None) -> list[TopicPartition]:
    if error is not None or report.columns is None:
        return []
    partitions = sorted(rows_by_partition(report.columns))
    return [
        TopicPartition(report.topic, partition, report.next_offsets.get(partition, OFFSET_INVALID))
        for partition in partitions
    ]


def not_callable(callback: object) -> TypeError:
    """The error for an `on_delivery` that cannot be called."""
    return TypeError(f"on_delivery must be callable, not {type(callback).__name__}")


def log_failure(topic: str, error: KafkaException, count: int) -> None:
    """Log the failure of messages that have no callback, in one line per batch."""
    about = f"{count} messages without a delivery callback, topic={topic!r}"
    if error.error.code() in _PURGED:
        _log.debug("purged: %s", about)
    elif isinstance(error, OutcomeUnknown):
        advice = f"Producer.resolve({topic!r}, {error.token!r}) tells whether they are in the topic"
        _log.warning("outcome unknown: %s; %s: %s", about, advice, error)
    elif error.error.code() == KafkaError._FAIL:
        _log.warning("failed by a defect, perhaps in the topic: %s: %s", about, error)
    else:
        _log.warning("not written: %s: %s", about, error)


class DeliveryFuture(Future[Message]):
    """The future of one message, queued in the place of its delivery callback. The sender finishes
    it as soon as the result is there, so that it ends without calls of `poll`.
    """

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Makes it valid as a callback. Not called: see `PendingCallbacks.finish_futures`."""

    def finish(self, error: KafkaException | None, message: Message) -> None:
        """Give the future its result, unless it was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        if error is None:
            self.set_result(message)
        else:
            self.set_exception(error)


class ProducerStatistics:
    """Counts what was written, and queues a call of `stats_cb` every `statistics.interval.ms`.
    Calls that the application is late for are replaced by newer ones. All state is guarded by
    `callbacks.changed`.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        callbacks: CallbackQueue,
        handles: Mapping[Any, TopicHandle],
    ) -> None:
        self._config = config
        self._fields = ClientFields("producer", config.client_id, clock)
        self._callbacks = callbacks
        self._handles = handles
        self._messages: dict[str, Counter[int]] = {}
        self._bytes = 0
        self._notice: Notice | None = None
        self._timer = StatisticsTimer(
            clock, config.statistics_interval_ms / 1000, weakly(self._emit, False), config.client_id
        )
        callbacks.on_report = weakly(self._delivered, None)

    def close(self) -> None:
        """End the emissions."""
        self._timer.abandon()

    def _delivered(self, result: BatchResult) -> None:
        """Count the records of a result. The caller holds `changed`."""
        if result.error is None and result.columns is not None:
            self._bytes += result.bytes
            partitions = self._messages.setdefault(result.topic, Counter())
            partitions.update(rows_by_partition(result.columns))

    def _emit(self) -> bool:
        with self._callbacks.changed:
            text = json.dumps(self._read())
            if self._notice is None or self._notice.is_called:
                self._notice = Notice(self._config.stats_cb, text)
                self._callbacks.reported(self._notice)
            else:
                self._notice.argument = text
        return True

    def _read(self) -> dict[str, Any]:
        buffers = {handle.name: handle.buffer for handle in tuple(self._handles.values())}
        return {
            **self._fields.now(),
            "replyq": len(self._callbacks.due),
            "msg_cnt": sum(buffer.pending_rows for buffer in buffers.values())
            + sum(map(len, self._callbacks.due)),
            "msg_size": sum(buffer.pending_bytes for buffer in buffers.values()),
            "msg_max": self._config.queue_buffering_max_messages,
            "msg_size_max": self._config.queue_buffering_max_kbytes * 1024,
            "metadata_cache_cnt": len(buffers),
            "brokers": {},
            "topics": {name: self._topic(name, buffer) for name, buffer in buffers.items()},
            "txmsgs": sum(partitions.total() for partitions in self._messages.values()),
            "txmsg_bytes": self._bytes,
        }

    def _topic(self, name: str, buffer: RecordAccumulator) -> dict[str, Any]:
        waiting = {
            "partition": _UNASSIGNED,
            "msgq_cnt": len(buffer),
            "msgq_bytes": buffer.pending_bytes - buffer.taken_bytes + buffer.reported_bytes,
            "msgs_inflight": buffer.taken_rows - buffer.reported_rows,
        }
        written = self._messages.get(name, Counter())
        partitions = {
            str(number): {"partition": number, "txmsgs": written[number]}
            for number in sorted(written)
        }
        return {"topic": name, "partitions": {**partitions, str(_UNASSIGNED): waiting}}
