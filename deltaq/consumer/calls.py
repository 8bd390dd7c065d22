"""Calls of the application: which are refused, and callbacks that run inside them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial, wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from deltaq.clock import Clock, this_thread
from deltaq.config import ConsumerConfig
from deltaq.errors import KafkaError, Unavailable, WrongState
from deltaq.message import TopicPartition
from deltaq.outage import OutageReports

P = ParamSpec("P")
R = TypeVar("R")


class CallGuard:
    """Refuses calls of a closed consumer, and calls that a signal handler makes inside another one
    on the same thread: a nested call could deadlock on the locks of the first.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self.is_close_delayed = False
        self._why_closed = "Consumer closed"
        # Ids of the threads that are inside a method, but not in a callback.
        self._inside: set[int] = set()

    def refuse_all(self, why: str) -> None:
        """Close for this reason."""
        self.is_closed = True
        self._why_closed = why

    @property
    def is_ending(self) -> bool:
        """Whether a callback has closed the consumer, or a signal handler has called `close`."""
        return self.is_closed or self.is_close_delayed

    def check_open(self) -> None:
        """Raise RuntimeError if the consumer is closed."""
        if self.is_closed:
            raise RuntimeError(self._why_closed)

    def check_not_inside(self) -> None:
        """Raise WrongState if a signal handler makes this call inside another one on the same
        thread.
        """
        if self._inside and this_thread() in self._inside:
            raise WrongState(
                "a signal handler called this consumer inside another of its calls; set a flag in "
                "the handler, and handle it after that call has returned"
            )

    def run(self, call: Callable[[], R]) -> R:
        """Run a call that must not be re-entered."""
        thread = this_thread()
        try:
            self._inside.add(thread)
            return call()
        finally:
            self._inside.discard(thread)

    def run_close(self, close: Callable[[], None]) -> None:
        """Run `close` once, or delay it until the call ends inside which a signal handler calls
        it.
        """
        if self.is_closed:
            return
        if this_thread() in self._inside:
            self.is_close_delayed = True
        else:
            self.run(close)

    def call_out(self, call: Callable[[], object]) -> None:
        """Run a callback of the application, which may call the consumer."""
        thread = this_thread()
        was_inside = thread in self._inside
        try:
            self._inside.discard(thread)
            call()
        finally:
            if was_inside:
                self._inside.add(thread)


class Guarded(Protocol):
    """A client with a `CallGuard`."""

    _calls: CallGuard

    def close(self) -> None: ...


C = TypeVar("C", bound=Guarded)


def exclusive(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Decorate a method that must not be re-entered on the same thread.

    Only a signal handler can nest calls. A nested `close` is delayed until this call ends; other
    methods raise WrongState.
    """

    @wraps(method)
    def call(self: C, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        calls = self._calls
        calls.check_open()
        calls.check_not_inside()
        try:
            return calls.run(lambda: method(self, *arguments, **keywords))
        finally:
            if calls.is_close_delayed:
                self.close()

    return call


class PendingEvents:
    """Callbacks about events (`on_commit`, `error_cb`) that wait for the next call of the
    application. Thread-safe.
    """

    def __init__(self, config: ConsumerConfig, calls: CallGuard, clock: Clock) -> None:
        self._on_commit = config.on_commit
        self._error_cb = config.error_cb
        self._outage = OutageReports(clock)
        self._stats_cb = config.stats_cb
        self._statistics: str | None = None  # that no call has handed over yet
        self._calls = calls
        self.pending: deque[Callable[[], object]] = deque()

    def committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """The result of an asynchronous or periodic commit."""
        callback = self._on_commit
        if callback is not None:
            self.pending.append(lambda: callback(error, partitions))

    def store_unavailable(self, error: Unavailable) -> None:
        """The store does not answer."""
        callback = self._error_cb
        if callback is not None:
            self.pending.extend(partial(callback, each) for each in self._outage.due(error.error))

    def statistics(self, text: str) -> None:
        """Statistics as JSON. They replace those that still wait."""
        waiting, self._statistics = self._statistics, text
        if waiting is None:
            self.pending.append(self._hand_over_statistics)

    def _hand_over_statistics(self) -> None:
        text, self._statistics = self._statistics, None
        if self._stats_cb is not None and text is not None:
            self._stats_cb(text)

    def run(self) -> None:
        """Run the callbacks. Raises what they raise."""
        while self.pending:
            self._calls.call_out(self.pending.popleft())
