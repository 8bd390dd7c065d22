"""The due callbacks of a producer: queued by its senders, run by `poll` and `flush` on threads of the application."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from deltaq.clock import Clock, this_thread
from deltaq.producer.accumulator import Flush
from deltaq.producer.delivery import Due

_SLICE_S = 0.2
"""Longest uninterrupted wait in seconds, so that Ctrl-C is answered."""


@dataclass(slots=True, eq=False)
class _CallbackBatch:
    """Callbacks that a `poll` or `flush` on `thread` has taken and not called yet. Those that an exception leaves over
    become due again once that call `is_over`."""

    thread: int
    due: deque[Due] = field(default_factory=deque)
    is_over: bool = False


class CallbackQueue:
    """Callbacks that are due, those being run, and the calls of `flush` that wait for them. `changed` guards the
    fields: threads that report results and threads that run callbacks hold it."""

    def __init__(self, clock: Clock) -> None:
        self.changed = clock.condition()
        self.due: deque[Due] = deque()
        self.running: list[_CallbackBatch] = []
        self.flushes: list[Flush] = []
        self._monotonic = clock.monotonic

    def in_other_threads(self) -> int:
        """Messages whose callbacks other threads are running; 0 inside a callback, since two callbacks that flush would
        otherwise wait for each other for ever. The caller holds `changed`."""
        if any(batch.thread == this_thread() for batch in self.running):
            return 0
        return sum(len(deliveries) for batch in self.running for deliveries in tuple(batch.due))

    @property
    def _is_flushing(self) -> bool:
        return any(not flush.is_over for flush in self.flushes)

    def forget_flushes(self) -> None:
        """Several threads may flush at once. Records linger again once the last flush has ended."""
        with self.changed:
            self.flushes[:] = [flush for flush in self.flushes if not flush.is_over]

    def serve(self, deadline: float | None, queued: Callable[[], int]) -> int:
        """Run all due callbacks, waiting for the first until the deadline; returns the number of messages served.
        During a flush, the wait ends once `queued()` is 0. Raises the first exception that a callback raised."""
        batch = _CallbackBatch(this_thread())
        try:
            with self.changed:
                if not self._wait_for_due(deadline, queued):
                    return 0
                # Signal handlers run between calls only, so no exception can split this exchange.
                self.running.append(batch)
                batch.due, self.due = self.due, batch.due
            return _run(batch.due)
        finally:
            batch.is_over = True  # one assignment, which no exception of a signal handler can split
            if self.running:
                self.take_back()

    def _wait_for_due(self, deadline: float | None, queued: Callable[[], int]) -> bool:
        """Wait until callbacks are due; False if none are by the deadline. The caller holds `changed`."""
        while True:
            if self.running:
                self.take_back()
            if self.due:
                return True
            left = _SLICE_S if deadline is None else min(_SLICE_S, deadline - self._monotonic())
            if left <= 0 or (self._is_flushing and not queued()):
                return False
            self.changed.wait(left)

    def take_back(self) -> None:
        """Put callbacks left over by ended calls in front of those that are due. If an exception ends this, the next
        `poll`, `flush` or `len` completes it."""
        with self.changed:
            over = [batch for batch in self.running if batch.is_over]
            for batch in reversed(over):
                if batch.due:
                    due, nothing = batch.due + self.due, deque[Due]()
                    self.due, batch.due = due, nothing
            self.running = [batch for batch in self.running if batch not in over]
            if self.flushes:
                self.changed.notify_all()  # `flush` waits for these callbacks too


def _run(due: deque[Due]) -> int:
    """Run and remove callbacks; the number of messages served. Raises the first exception that a callback raised."""
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
