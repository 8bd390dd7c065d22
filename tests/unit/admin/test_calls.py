"""The threads of the admin client's calls."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread

from deltaq.admin.call_order import ALL_TOPICS, changes_topic, reads
from deltaq.admin.calls import Calls
from deltaq.clock import SystemClock


class InterruptedThread(Thread):
    """Asked whether it is alive, another call of the client begins first."""

    interrupt: Callable[[], None] | None = None

    def is_alive(self) -> bool:
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt()
        return super().is_alive()


class InterruptedClock(SystemClock):
    def start_thread(self, target: Callable[[], None], name: str) -> Thread:
        thread = InterruptedThread(target=target, name=name, daemon=True)
        thread.start()
        return thread


def test_calls_that_two_threads_begin_at_once_are_both_waited_for():
    calls, may_end = Calls(InterruptedClock()), Event()

    def begin() -> Future[bool]:
        return calls.one(may_end.wait, reads(ALL_TOPICS), float("inf"))

    try:
        futures = [begin()]
        (thread,) = calls._threads
        assert isinstance(thread, InterruptedThread)
        thread.interrupt = lambda: futures.append(begin())
        futures.append(begin())
        assert len(calls._threads) == 3
    finally:
        may_end.set()
    calls.close()
    assert len(futures) == 3
    assert all(future.done() for future in futures)


def test_a_call_that_gets_no_thread_ends_before_it_returns():
    class WithoutThreads(SystemClock):
        def start_thread(self, target: Callable[[], None], name: str) -> Thread:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    futures = Calls(WithoutThreads()).each(["1", "x"], int, changes_topic, float("inf"))
    assert all(future.done() for future in futures.values())
    assert futures["1"].result() == 1
    assert isinstance(futures["x"].exception(), ValueError)
