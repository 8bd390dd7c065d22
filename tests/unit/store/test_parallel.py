"""Several operations at once: results in order, one failure comes out, time is limited."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from deltaq.clock import SYSTEM_CLOCK, Condition, SystemClock, Thread
from deltaq.errors import KafkaError, KafkaException
from deltaq.store.parallel import REQUESTS_MAX, in_parallel, within


def test_results_come_in_the_order_of_the_items():
    assert in_parallel(SYSTEM_CLOCK, lambda item: item * 2, range(50)) == [
        item * 2 for item in range(50)
    ]
    assert in_parallel(SYSTEM_CLOCK, lambda item: None, ["a", "b"]) == [None, None]
    assert in_parallel(SYSTEM_CLOCK, str, []) == []
    assert in_parallel(SYSTEM_CLOCK, str, [], timeout_s=5) == []


def test_items_are_processed_concurrently_up_to_a_limit():
    # Every wave of the largest allowed number must meet before any of it goes on.
    barrier = threading.Barrier(REQUESTS_MAX, timeout=30)
    assert (
        len(in_parallel(SYSTEM_CLOCK, lambda item: barrier.wait(), range(3 * REQUESTS_MAX)))
        == 3 * REQUESTS_MAX
    )


def test_a_single_item_needs_no_thread():
    assert in_parallel(SYSTEM_CLOCK, lambda item: threading.get_ident(), [1]) == [
        threading.get_ident()
    ]


def test_the_failure_of_one_item_is_raised_and_pending_items_are_dropped():
    begun = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise KeyError(item)

    with pytest.raises(KeyError):
        in_parallel(SYSTEM_CLOCK, work, [0, *[0] * 1000])
    assert len(begun) <= 2 * REQUESTS_MAX


class LingeringThread(threading.Thread):
    """Has done its work long before it ends: that it does when it is joined."""

    def __init__(self, target: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = target
        self._joined = threading.Event()

    def run(self) -> None:
        self._work()
        self._joined.wait(20)

    def join(self, timeout: float | None = None) -> None:
        self._joined.set()
        super().join(timeout)


class LingeringClock(SystemClock):
    """Starts threads that linger; a wait on its conditions is `interrupted` if requested."""

    def __init__(self, interrupted: bool) -> None:
        self.threads: list[LingeringThread] = []
        self._interrupted = interrupted

    def start_thread(self, target: Callable[[], None], name: str) -> LingeringThread:
        self.threads.append(LingeringThread(target))
        self.threads[-1].start()
        return self.threads[-1]

    def condition(self) -> Condition:
        condition = threading.Condition()
        if self._interrupted:

            def wait(timeout: float | None = None) -> bool:
                raise KeyboardInterrupt

            condition.wait = wait  # type: ignore[method-assign]
        return condition


@pytest.mark.parametrize("failure", [KeyError, KeyboardInterrupt])
def test_threads_have_ended_when_a_failure_is_raised(failure):
    """One that outlives the program's end inside Arrow would abort it."""
    clock = LingeringClock(interrupted=failure is KeyboardInterrupt)
    done = []

    def work(item: int) -> None:
        done.append(item)
        if failure is KeyError:
            raise KeyError(item)
        clock.threads[0]._joined.wait(20)  # still at it when the caller is interrupted

    with pytest.raises(failure):
        in_parallel(clock, work, range(1000))
    assert clock.threads
    assert not any(thread.is_alive() for thread in clock.threads)
    assert len(done) <= 2 * REQUESTS_MAX


def test_work_beyond_the_time_limit_raises_a_timeout():
    release = threading.Event()
    try:
        with pytest.raises(KafkaException) as late:
            in_parallel(SYSTEM_CLOCK, lambda item: release.wait(60), [1], timeout_s=0.01)
    finally:
        release.set()
    assert late.value.args[0].code() == KafkaError._TIMED_OUT
    assert late.value.args[0].retriable()


def test_an_interrupted_caller_with_a_time_limit_does_not_wait_for_a_silent_store():
    begun, release = threading.Event(), threading.Event()

    class BusyClock(LingeringClock):
        def start_thread(self, target: Callable[[], None], name: str) -> LingeringThread:
            thread = super().start_thread(target, name)
            assert begun.wait(20)
            return thread

    def work(item: int) -> None:
        begun.set()
        release.wait(60)

    clock = BusyClock(interrupted=True)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_parallel(clock, work, [1], timeout_s=0.01)
        assert clock.threads[0].is_alive(), "it was waited for"
    finally:
        release.set()


def test_a_caller_interrupted_while_threads_are_started_leaves_no_work_behind():
    begun: list[int] = []
    is_busy, release = threading.Event(), threading.Event()
    threads: list[Thread] = []

    class InterruptedClock(SystemClock):
        def start_thread(self, target: Callable[[], None], name: str) -> Thread:
            if threads:
                assert is_busy.wait(20)
                raise KeyboardInterrupt
            threads.append(super().start_thread(target, name))
            return threads[0]

    def work(item: int) -> None:
        begun.append(item)
        is_busy.set()
        release.wait(60)

    try:
        with pytest.raises(KeyboardInterrupt):
            in_parallel(InterruptedClock(), work, range(5), timeout_s=0.01)
    finally:
        release.set()
    threads[0].join(20)
    assert begun == [0]


@pytest.mark.parametrize("timeout_s", [None, 60])
@pytest.mark.parametrize("given", [0, 1, 3])
def test_fewer_threads_do_all_the_work_and_without_any_the_caller_does(given, timeout_s):
    class ShortOfThreads(SystemClock):
        started = 0

        def start_thread(self, target: Callable[[], None], name: str) -> Thread:
            if self.started == given:
                raise RuntimeError("can't start new thread")
            self.started += 1
            return super().start_thread(target, name)

    workers = set[int]()

    def work(item: int) -> int:
        workers.add(threading.get_ident())
        return item * 2

    assert in_parallel(ShortOfThreads(), work, range(50), timeout_s) == [
        item * 2 for item in range(50)
    ]
    assert (threading.get_ident() in workers) == (given == 0)
    with pytest.raises(KeyError):
        in_parallel(ShortOfThreads(), dict[int, int]().__getitem__, range(50), timeout_s)


@pytest.mark.parametrize("seconds", [1e10, 1e300])
def test_a_time_limit_of_centuries_is_unlimited(seconds):
    waits = threading.Event()

    class Waiting(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waits.set()
            return super().wait(timeout)

    class WaitingClock(SystemClock):
        def condition(self) -> Condition:
            return Waiting()

    def answered_late() -> str:
        assert waits.wait(20), "the caller has not waited"
        return "answer"

    assert within(WaitingClock(), seconds, answered_late) == "answer"
