"""The threads of clients for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from deltaq.aio.threads import ThreadExecutor
from deltaq.clock import Thread
from deltaq.testing import ManualClock
from tests.doubles.reading import eventually


def test_an_idle_thread_is_used_again_and_ends_after_some_time():
    clock = ManualClock()
    executor = ThreadExecutor(clock, 4)
    first = executor.submit(threading.current_thread).result(20)
    clock.until_waiting(1)
    assert executor.submit(threading.current_thread).result(20) is first
    clock.until_waiting(1)
    clock.advance(60)
    eventually(lambda: not first.is_alive(), "the end of the thread")
    assert executor.submit(threading.current_thread).result(20) is not first
    executor.shutdown()


def test_as_many_calls_run_at_once_as_there_may_be_threads():
    executor = ThreadExecutor(ManualClock(), 2)
    together = threading.Barrier(3)
    calls = [executor.submit(together.wait, 20) for _ in range(2)]
    third = executor.submit(int)
    assert not third.done()
    together.wait(20)
    assert {call.result(20) for call in calls} <= {0, 1, 2}
    assert third.result(20) == 0


def test_after_its_end_an_executor_finishes_what_it_has_and_takes_no_more():
    executor = ThreadExecutor(ManualClock(), 1)
    leave = threading.Event()
    first, second = executor.submit(leave.wait, 20), executor.submit(lambda: "second")
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(int)
    leave.set()
    assert first.result(20)
    assert second.result(20) == "second"


def test_a_call_that_was_refused_for_lack_of_threads_is_never_made():
    class ShortOfThreads(ManualClock):
        has_some = False

        def start_thread(self, target: Callable[[], None], name: str) -> Thread:
            if not self.has_some:
                raise RuntimeError("can't start new thread")
            return super().start_thread(target, name)

    clock, made = ShortOfThreads(), list[int]()
    executor = ThreadExecutor(clock, 2)
    with pytest.raises(RuntimeError, match="new thread"):
        executor.submit(made.append, 1)
    clock.has_some = True
    leave = threading.Event()
    first = executor.submit(leave.wait, 20)
    clock.has_some = False
    second = executor.submit(made.append, 2)  # waits for the only thread
    leave.set()
    assert first.result(20)
    second.result(20)
    assert made == [2]
    executor.shutdown()


def test_an_executor_without_threads_is_refused():
    with pytest.raises(ValueError, match="max_workers must be at least 1"):
        ThreadExecutor(ManualClock(), 0)
