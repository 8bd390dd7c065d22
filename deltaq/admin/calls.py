"""Calls of the admin client: their futures, their threads, and the checks of their arguments."""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from enum import Enum
from typing import Any, TypeVar
from weakref import WeakSet

from deltaq.admin.call_order import CallOrder, Touched, Turn
from deltaq.clock import Clock, Thread
from deltaq.errors import KafkaError, KafkaException, Unavailable
from deltaq.maintenance.throttle import Throttle
from deltaq.message import TopicPartition
from deltaq.outage import OutageReports
from deltaq.store.parallel import in_parallel

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

TIMEOUT_S = 60.0
TIMEOUT_S_MAX = 3600.0

ERRORS_MAX = 100
"""Most errors that wait for a `poll`, which few programs of an admin client call; older ones are
dropped.
"""

EXIT_WAIT_S = 2.0
"""How long the exit of the process waits for the unfinished calls of each client."""


class OrderedEnum(Enum):
    """An enumeration whose members are ordered by their numbers, as those of confluent-kafka."""

    def __lt__(self, other: object) -> bool:
        if isinstance(other, OrderedEnum) and type(other) is type(self):
            return int(self.value) < int(other.value)
        return NotImplemented


class Calls:
    """Runs the calls of one admin client on threads, in the order of `CallOrder`. `rewrites`
    throttles the rewrites that follow a call.
    """

    def __init__(self, clock: Clock, error_cb: Callable[..., object] | None = None) -> None:
        self.rewrites = Throttle(clock)
        self._clock = clock
        self._order = CallOrder(clock)
        self._is_closed = False
        self._error_cb = error_cb
        self._reporting = clock.lock()  # calls run on threads of their own
        self._outage = OutageReports(clock)
        # That `error_cb` has not got yet.
        self._errors: deque[KafkaError] = deque(maxlen=ERRORS_MAX)
        # Changed by single operations: any thread may begin a call.
        self._threads: dict[Thread, None] = {}

    def deadline(self, request_timeout: float, operation_timeout: float = 0.0) -> float:
        """The end of a call that begins now, a time of `Clock.monotonic`. Raises TypeError,
        ValueError, and RuntimeError after `close`.
        """
        self.check_open()
        for name, seconds in (
            ("request_timeout", request_timeout),
            ("operation_timeout", operation_timeout),
        ):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise TypeError(f"{name} must be a number of seconds, not {type(seconds).__name__}")
            if not 0 <= seconds <= TIMEOUT_S_MAX:
                raise ValueError(f"{name} of {seconds} seconds is outside 0..{TIMEOUT_S_MAX:g}")
        return self._clock.monotonic() + request_timeout

    def check_open(self) -> None:
        """Raise RuntimeError if the client is closed."""
        if self._is_closed:
            raise RuntimeError("AdminClient has been closed")

    def one(self, work: Callable[[], R], touched: Touched, deadline: float) -> Future[R]:
        """A future of `work()`."""
        return self.each([""], lambda _: work(), lambda _: touched, deadline)[""]

    def each(
        self,
        keys: Iterable[K],
        work: Callable[[K], R],
        touches: Callable[[K], Touched],
        deadline: float,
    ) -> dict[K, Future[R]]:
        """A future of `work(key)` for each key. `touches(key)` is what it reads and changes."""
        futures: dict[K, Future[R]] = {key: running_future() for key in keys}

        def answer(key: K, turn: Turn) -> None:
            def in_turn() -> R:
                turn.wait()
                return work(key)

            self.complete(futures[key], in_turn)

        self.begin(answer, list(futures), touches, deadline)
        return futures

    def complete(self, future: Future[R], work: Callable[[], R]) -> None:
        """Complete the future of a call with the result or the exception of `work()`."""

        def answer() -> R:
            try:
                return work()
            except Unavailable as error:
                raise self.raised_by_future(error) from None  # it may be the error itself

        complete(future, answer)

    def raised_by_future(self, error: BaseException) -> BaseException:
        """What the future of a call raises in place of this error: a store that does not answer is
        a time-out, as in Kafka, whose clients ask until then. `error_cb` gets it as an outage.
        """
        if not isinstance(error, Unavailable):
            return error
        self._report(error)
        return error.as_timeout()

    def _report(self, error: Unavailable) -> None:
        """Keep what is due of this failure for `error_cb`, unless a retry would not help."""
        if self._error_cb is not None and error.error.retriable():
            with self._reporting:
                self._errors.extend(
                    self._outage.due(
                        KafkaError(KafkaError._TRANSPORT, error.error.str(), retriable=True)
                    )
                )

    def run_callbacks(self) -> int:
        """Call `error_cb` for what was reported since the last call; how often. Raises what it
        raises.
        """
        called = 0
        while self._error_cb is not None and self._errors:
            called += 1
            self._error_cb(self._errors.popleft())
        return called

    def begin(
        self,
        work: Callable[[K, Turn], None],
        items: list[K],
        touches: Callable[[K], Touched],
        deadline: float,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Run `work(item, turn)`, which first waits for its turn, for each item in parallel, then
        `then()`, in the background if a thread can be started.
        """
        turns = dict(zip(items, self._order.begin(map(touches, items), deadline), strict=True))

        def work_in_turn(item: K) -> None:
            try:
                work(item, turns[item])
            finally:
                turns[item].end()

        def run() -> None:
            try:
                in_parallel(self._clock, work_in_turn, items)
            finally:
                for turn in turns.values():
                    turn.end()
            then()

        _OPEN.add(self)
        try:
            self._threads[self._clock.start_thread(run, "deltaq-admin")] = None
        except RuntimeError:  # Python 3.12.0 to 3.12.2 start none in functions of `atexit`
            run()
        for thread in tuple(self._threads):
            if not thread.is_alive():
                self._threads.pop(thread, None)

    def after(self, touched: Touched, timeout_s: float, ask: Callable[[], R]) -> R:
        """The result of `ask()` after the earlier calls, for a call that blocks up to `timeout_s`
        seconds. Raises KafkaException (_TIMED_OUT).
        """
        self.check_open()
        deadline = self._clock.monotonic() + timeout_s
        (turn,) = self._order.begin([touched], deadline)
        try:
            turn.wait()
            return ask()
        except Unavailable as error:
            self._report(error)
            raise
        finally:
            turn.end()

    def close(self) -> None:
        """Refuse further calls, and wait for all calls and what follows them."""
        self._is_closed = True
        for thread in tuple(self._threads):
            thread.join()

    def end(self) -> None:
        """Wait for the threads, up to `EXIT_WAIT_S`."""
        until = self._clock.monotonic() + EXIT_WAIT_S
        for thread in tuple(self._threads):
            thread.join(max(0.0, until - self._clock.monotonic()))


_OPEN: WeakSet[Calls] = WeakSet()


def end_threads() -> None:
    """At exit: stop rewriting files and wait for the clients' threads.

    A thread that is inside Arrow's C++ or the store's Rust when Python finalizes aborts the
    process.
    """
    unfinished = tuple(_OPEN)
    for calls in unfinished:
        calls.rewrites.stop()
    for calls in unfinished:
        calls.end()


atexit.register(end_threads)


def running_future() -> Future[Any]:
    """A future that cannot be cancelled, as the request that it stands for."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def complete(future: Future[R], work: Callable[[], R]) -> None:
    """Complete a future with the result or the exception of `work()`."""
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised by the future
        future.set_exception(error)


def unsupported(reason: str) -> Future[Any]:
    """A future that raises KafkaException (_UNSUPPORTED_FEATURE)."""
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE, reason)))
    return future


def check_list(
    items: object, types: tuple[type, ...], what: str, *, may_be_empty: bool = False
) -> None:
    """Raise TypeError for what is not a list of these types, ValueError for an empty list."""
    if not isinstance(items, list):
        raise TypeError(f"expected a list of {what} objects, not {type(items).__name__}")
    if not items and not may_be_empty:
        raise ValueError(f"Expected non-empty list of {what} objects")
    for item in items:
        if not isinstance(item, types):
            raise TypeError(f"expected a list of {what} objects, found {type(item).__name__}")


def check_partition(partition: object) -> None:
    """Raise TypeError, ValueError for what does not name a partition."""
    if not isinstance(partition, TopicPartition):
        raise TypeError("partition must be a TopicPartition")
    if not partition.topic:
        raise ValueError("partition topic name cannot be empty")
    if partition.partition < 0:
        raise ValueError("partition index must be non-negative")
