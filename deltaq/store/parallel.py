"""Runs several store operations in parallel, so that a call waits for the slowest and not for the
sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from deltaq.clock import Clock, Thread
from deltaq.errors import KafkaError, KafkaException
from deltaq.store import Store

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_MAX = 8
"""Maximum number of concurrent operations of one call: hides the latency of a store without
overloading it.
"""

LONGEST_WAIT_S = 3600.0
"""Longest single wait on a condition: the system rejects very long ones."""

INTERRUPTED_WAIT_S = 1.0
"""How long an interrupted call with a timeout waits for its running operations."""


def in_parallel(
    clock: Clock, work: Callable[[T], R], items: Sequence[T], timeout_s: float | None = None
) -> list[R]:
    """`work(item)` for each item, in the order of the items, on up to `REQUESTS_MAX` threads.

    After a failure no further item is started, and the exception is raised once the running items
    have ended. KafkaException (_TIMED_OUT) after `timeout_s` seconds; running items then continue
    in the background.

    Where no thread can be started, the calling thread does all the work, without a time limit.
    Python 3.12.0 to 3.12.2 start none once the main thread has ended, when producers still flush
    and consumers still leave their groups.
    """
    if len(items) <= 1 and timeout_s is None:
        return [work(item) for item in items]
    job = _ParallelJob(clock, work, items)
    threads: list[Thread] = []
    try:
        _start(clock, job.run, min(REQUESTS_MAX, len(items)), threads)
        if not threads:
            job.run()
        return job.results(timeout_s)
    finally:
        job.begin_no_more()  # the caller may have been interrupted
        if not job.is_abandoned:
            join_timeout_s = None if timeout_s is None else min(timeout_s, INTERRUPTED_WAIT_S)
            for thread in threads:
                # The threads are ending. One that is still inside Arrow when the program exits
                # would abort it.
                thread.join(join_timeout_s)


def within(clock: Clock, seconds: float, ask: Callable[[], R]) -> R:
    """The result of `ask`. KafkaException (_TIMED_OUT) after this time; `ask` then continues in the
    background. See `in_parallel` where no thread can be started.
    """
    if seconds == float("inf"):
        return ask()
    (answer,) = in_parallel(clock, lambda _: ask(), (None,), seconds)
    return answer


def _start(clock: Clock, run: Callable[[], None], count: int, threads: list[Thread]) -> None:
    """Start up to `count` threads, as many as the system can, and add them to `threads`."""
    while len(threads) < count:
        try:
            threads.append(clock.start_thread(run, "deltaq-parallel"))
        except RuntimeError:
            break  # fewer threads do the same work, more slowly


def in_parallel_if_remote(
    store: Store, clock: Clock, work: Callable[[T], R], items: Sequence[T]
) -> list[R]:
    """As `in_parallel` on a remote store. On a local disk, where threads cost more than the reads,
    one by one.
    """
    return in_parallel(clock, work, items) if store.is_remote else [work(item) for item in items]


def delete_all(store: Store, clock: Clock, keys: Sequence[str]) -> None:
    """Delete objects: in parallel on a remote store, otherwise in order. Raises what `delete`
    raises.
    """
    in_parallel_if_remote(store, clock, store.delete, keys)


class _ParallelJob(Generic[T, R]):
    def __init__(self, clock: Clock, work: Callable[[T], R], items: Sequence[T]) -> None:
        self._clock = clock
        self._work = work
        self._items = items
        self._changed = clock.condition()
        self._begun = 0
        self._under_way = 0
        self._results: dict[int, R] = {}
        self._failure: BaseException | None = None
        self.is_abandoned = False  # timed out: threads may be blocked in the store

    def run(self) -> None:
        """The body of each thread: process items until none is left or one has failed."""
        while (at := self._next()) is not None:
            failure: BaseException | None = None
            try:
                self._results[at] = self._work(self._items[at])
            except BaseException as error:  # noqa: BLE001 - raised in the calling thread
                failure = error
            with self._changed:
                self._under_way -= 1
                self._failure = self._failure or failure
                self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            if self._failure is not None or self._begun == len(self._items):
                return None
            self._begun += 1
            self._under_way += 1
            return self._begun - 1

    def begin_no_more(self) -> None:
        """Start no further item."""
        with self._changed:
            self._begun = len(self._items)

    def results(self, timeout_s: float | None) -> list[R]:
        """Wait for the threads and return their results. Called by the calling thread."""
        with self._changed:
            # In a function of its own for the reason in `CallbackQueue.forget_flushes`.
            self._wait(timeout_s)
            if self._failure is not None:
                raise self._failure
            return [self._results[at] for at in range(len(self._items))]

    def _wait(self, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        while self._under_way or (self._failure is None and self._begun < len(self._items)):
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                self.is_abandoned = True
                reason = f"no answer from the store within {timeout_s:g} seconds"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason, retriable=True))
            self._changed.wait(None if left is None else min(left, LONGEST_WAIT_S))
