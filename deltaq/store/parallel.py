"""Several store operations at once: what is waited for is the slowest, not the sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from deltaq.clock import Clock, Thread
from deltaq.errors import KafkaError, KafkaException
from deltaq.store import Store

__all__ = ["REQUESTS_MAX", "delete_all", "in_parallel", "within"]

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_MAX = 8
"""How many operations one call has under way: enough to hide the latency of a store, too few to overrun one."""

LONGEST_WAIT_S = 3600.0
"""Longest uninterrupted wait: the system refuses to wait for centuries, and a caller's time limit may be that long."""

INTERRUPTED_WAIT_S = 1.0
"""How long a call with a time limit, when it is interrupted, waits for what is under way, which the exit of the program
would abort."""


def in_parallel(clock: Clock, work: Callable[[T], R], items: Sequence[T], timeout_s: float | None = None) -> list[R]:
    """`work(item)` for each item, in the order of the items, on up to `REQUESTS_MAX` threads.

    What `work` raises comes out once no other item is being worked on; those not begun are then left. KafkaException
    (_TIMED_OUT) when it is not over within `timeout_s` seconds; what has begun goes on behind the caller's back. So it
    does when a caller with a time limit is interrupted.
    """
    if len(items) <= 1 and timeout_s is None:
        return [work(item) for item in items]
    job = _Job(clock, work, items)
    threads = _started(clock, job.run, min(REQUESTS_MAX, len(items)))
    try:
        return job.results(timeout_s)
    finally:
        job.begin_no_more()  # the caller may have been interrupted
        if not job.is_abandoned:
            patience_s = None if timeout_s is None else min(timeout_s, INTERRUPTED_WAIT_S)
            for thread in threads:
                # They are just ending; one that outlives the program's end inside Arrow would abort it.
                thread.join(patience_s)


def within(clock: Clock, seconds: float, ask: Callable[[], R]) -> R:
    """What `ask` answers. KafkaException (_TIMED_OUT) when that takes longer; it goes on behind the caller's back."""
    if seconds == float("inf"):
        return ask()
    (answer,) = in_parallel(clock, lambda _: ask(), (None,), seconds)
    return answer


def _started(clock: Clock, run: Callable[[], None], count: int) -> list[Thread]:
    """Up to `count` threads. RuntimeError if the system gives not even one."""
    threads: list[Thread] = []
    while len(threads) < count:
        try:
            threads.append(clock.start_thread(run, "deltaq-parallel"))
        except RuntimeError:
            if not threads:
                raise
            break  # these do it as well, only later
    return threads


def delete_all(store: Store, clock: Clock, keys: Sequence[str]) -> None:
    """Delete objects: one after the other, in this order, unless the store is remote. Raises what `delete` raises."""
    if store.is_remote:
        in_parallel(clock, store.delete, keys)
    else:
        for key in keys:
            store.delete(key)


class _Job(Generic[T, R]):
    def __init__(self, clock: Clock, work: Callable[[T], R], items: Sequence[T]) -> None:
        self._clock = clock
        self._work = work
        self._items = items
        self._changed = clock.condition()
        self._begun = 0
        self._under_way = 0
        self._results: dict[int, R] = {}
        self._failure: BaseException | None = None
        self.is_abandoned = False  # time was over: threads may be stuck in the store

    def run(self) -> None:
        """What each thread does: one item after the other, until none is left or one has failed."""
        while (at := self._next()) is not None:
            try:
                self._results[at] = self._work(self._items[at])
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                self._ended(error)
            else:
                self._ended(None)

    def _next(self) -> int | None:
        with self._changed:
            if self._failure is not None or self._begun == len(self._items):
                return None
            self._begun += 1
            self._under_way += 1
            return self._begun - 1

    def _ended(self, failure: BaseException | None) -> None:
        with self._changed:
            self._under_way -= 1
            self._failure = self._failure or failure
            self._changed.notify_all()

    def begin_no_more(self) -> None:
        """What has not begun is left."""
        with self._changed:
            self._begun = len(self._items)

    def results(self, timeout_s: float | None) -> list[R]:
        """What the caller does: wait for the threads, and take what they found."""
        deadline = None if timeout_s is None else self._clock.monotonic() + timeout_s
        with self._changed:
            while self._under_way or (self._failure is None and self._begun < len(self._items)):
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    self.is_abandoned = True
                    reason = f"no answer from the store within {timeout_s:g} seconds"
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason, retriable=True))
                self._changed.wait(None if left is None else min(left, LONGEST_WAIT_S))
            if self._failure is not None:
                raise self._failure
            return [self._results[at] for at in range(len(self._items))]
