"""Threads for calls that block, and how their results come back to the event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from deltaq.clock import Clock

P = ParamSpec("P")
R = TypeVar("R")

_IDLE_S = 5.0
"""Seconds after which an idle thread ends, so that a client that is dropped without `close` leaves
no thread.
"""


class ThreadExecutor(Executor):
    """Runs calls on threads of a clock, which are reused. `at_least` so many there may be, whatever
    `max_workers` says. ValueError if that is below 1.
    """

    def __init__(self, clock: Clock, max_workers: int, at_least: int = 1) -> None:
        if max_workers < 1:
            raise ValueError("max_workers must be at least 1")
        self._clock = clock
        self._threads_max = max(max_workers, at_least)
        self._changed = clock.condition()
        self._calls: deque[Callable[[], object]] = deque()
        self._threads = 0
        self._idle = 0
        self._is_shut = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a call on some thread. RuntimeError after `shutdown`, and if the system cannot start
        even one thread.
        """
        future: Future[R] = Future()
        with self._changed:
            if self._is_shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.append(partial(_run, future, partial(fn, *args, **kwargs)))
            if len(self._calls) > self._idle and self._threads < self._threads_max:
                self._start()
            self._changed.notify_all()
        return future

    def _start(self) -> None:
        try:
            self._clock.start_thread(self._work, "deltaq-aio")
        except RuntimeError:
            if not self._threads:
                self._calls.pop()  # the caller takes it for refused, and may make it again
                raise
        else:
            self._threads += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - of `Executor`
        """Refuse further calls. Threads end when the calls that were submitted have ended; nothing
        waits for them.
        """
        with self._changed:
            self._is_shut = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # it refers to the client

    def _next(self) -> Callable[[], object] | None:
        """The next call; None if the thread is to end."""
        with self._changed:
            end = self._clock.monotonic() + _IDLE_S
            self._idle += 1
            while (
                not self._calls
                and not self._is_shut
                and (left := end - self._clock.monotonic()) > 0
            ):
                self._changed.wait(left)
            self._idle -= 1
            if self._calls:
                return self._calls.popleft()
            self._threads -= 1
            return None


def _run(future: Future[R], call: Callable[[], R]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
        future.set_exception(error)
    else:
        future.set_result(result)


def run_blocking(
    executor: Executor,
    loop: asyncio.AbstractEventLoop,
    call: Callable[[], R],
    context: contextvars.Context,
) -> asyncio.Future[R]:
    """Run a call on a thread. The future of the event loop gets its result; a loop that was closed
    meanwhile does not matter.
    """
    done: asyncio.Future[R] = loop.create_future()

    def work() -> None:
        try:
            notify = partial(_set_result, done, context.run(call))
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            notify = partial(_set_exception, done, error)
        call_soon(loop, notify)

    executor.submit(work)
    return done


def call_soon(
    loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any
) -> None:
    """Have the event loop make a call. May be called in any thread. Without effect once the loop is
    closed.
    """
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _set_result(done: asyncio.Future[R], result: R) -> None:
    if not done.done():
        done.set_result(result)


def _set_exception(done: asyncio.Future[Any], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
