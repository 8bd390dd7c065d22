"""Calls of one consumer, one after the other, and its callbacks, which run on the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from deltaq.aio.threads import run_blocking
from deltaq.clock import Clock

R = TypeVar("R")

_FAIR_S = 0.001
"""Longest time, in seconds, for which calls that need not wait keep other tasks from running."""


def running_loop(bound: asyncio.AbstractEventLoop | None, client: str) -> asyncio.AbstractEventLoop:
    """The loop of this task. RuntimeError if the client is `bound` to another one."""
    loop = asyncio.get_running_loop()
    if bound is not None and bound is not loop:
        raise RuntimeError(f"this {client} belongs to another event loop: make one in each loop")
    return loop


class Fairness:
    """Lets other tasks run between calls that succeed without waiting. A loop over such calls would
    otherwise keep the event loop to itself.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._yielded_at = clock.monotonic()

    async def let_others_run(self) -> None:
        """Let other tasks run, if they have not for some time."""
        if self._monotonic() - self._yielded_at > _FAIR_S:
            await asyncio.sleep(0)
            self._yielded_at = self._monotonic()


class _Callback:
    """A callback that is running. Calls that it makes do not wait for the call that runs it."""

    def __init__(self, calls: ConsumerCalls) -> None:
        self.calls = calls
        self.lock = asyncio.Lock()
        self.is_over = False


_CALLBACK: contextvars.ContextVar[_Callback | None] = contextvars.ContextVar(
    "deltaq_callback", default=None
)


class Worker:
    """Runs the blocking steps of one call. At most one of them runs at a time."""

    def __init__(self, executor: Executor, loop: asyncio.AbstractEventLoop) -> None:
        self._executor = executor
        self._loop = loop
        self._step: asyncio.Future[Any] | None = None

    async def run(self, step: Callable[[], R]) -> R:
        """The result of a blocking step. If the task is cancelled, the step still runs to its
        end.
        """
        done = run_blocking(self._executor, self._loop, step, contextvars.copy_context())
        self._step = done
        return await asyncio.shield(done)

    def when_idle(self, call: Callable[[], object]) -> None:
        """Make a call when no step runs any more."""
        if self._step is None or self._step.done():
            call()
        else:
            self._step.add_done_callback(lambda _: call())


class ConsumerCalls:
    """Serializes the calls of a consumer, which is for one thread at a time.

    A call that a callback makes belongs to the call that runs the callback, and does not wait for
    it.
    """

    def __init__(self, executor: Executor, client: str) -> None:
        self._executor = executor
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()

    @property
    def is_idle(self) -> bool:
        """Whether a call would begin at once."""
        return not self._current_lock().locked()

    def bind(self) -> asyncio.AbstractEventLoop:
        """The event loop of this consumer: that of its first call. RuntimeError in another loop."""
        self._loop = running_loop(self._loop, self._client)
        return self._loop

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Worker]:
        """Wait for the calls before this one, and let later calls wait for the end of the block. If
        the task is cancelled, they also wait for the blocking step that still runs.
        """
        worker = Worker(self._executor, self.bind())
        lock = self._current_lock()
        await lock.acquire()
        try:
            yield worker
        finally:
            worker.when_idle(lock.release)

    def _current_lock(self) -> asyncio.Lock:
        callback = _CALLBACK.get()
        # A task that a callback has started may outlive the callback.
        is_inside = callback is not None and callback.calls is self and not callback.is_over
        return callback.lock if callback is not None and is_inside else self._lock

    def on_loop(self, callback: Callable[..., object]) -> Callable[..., object]:
        """A function that runs a callback, a coroutine function or not, on the event loop, and
        waits for its end. For threads.
        """

        async def run(*arguments: Any) -> object:
            scope = _Callback(self)
            _CALLBACK.set(scope)
            try:
                result = callback(*arguments)
                return await result if inspect.isawaitable(result) else result
            finally:
                scope.is_over = True

        def call(*arguments: Any) -> object:
            if (loop := self._loop) is None:
                raise RuntimeError("a callback ran outside of all calls")
            return asyncio.run_coroutine_threadsafe(run(*arguments), loop).result()

        return call
