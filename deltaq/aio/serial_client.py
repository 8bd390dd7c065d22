"""What the consumers for asyncio have in common: one call at a time, on threads where it blocks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar

from deltaq.aio.calls import ConsumerCalls, Worker
from deltaq.aio.threads import ThreadExecutor
from deltaq.clock import Clock

P = ParamSpec("P")
R = TypeVar("R")

_CALLBACKS = ("error_cb", "on_commit", "stats_cb", "throttle_cb")


class BlockingClient(Protocol):
    """The client whose calls are made."""

    @property
    def is_closed(self) -> bool: ...

    def check_open(self) -> None: ...

    def close(self) -> None: ...


class SerialClient:
    """A client for asyncio around a blocking one, `_consumer`.

    Blocking work runs on up to `max_workers` threads, at least two, or on those of `executor`.
    """

    _consumer: BlockingClient

    def __init__(self, max_workers: int, executor: Executor | None, clock: Clock) -> None:
        self._owns_executor = executor is None
        self.executor = (
            ThreadExecutor(clock, max_workers, at_least=2) if executor is None else executor
        )
        self._calls = ConsumerCalls(self.executor, type(self).__name__)
        self._clock = clock
        self._is_closing = False

    def _with_callbacks(self, conf: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration with callbacks that run on the event loop."""
        return {
            name: self._calls.on_loop(value) if name in _CALLBACKS and callable(value) else value
            for name, value in conf.items()
        }

    async def close(self) -> None:
        """Close the blocking client, as its own `close` does. Idempotent. Calls that wait in other
        tasks end soon, without a message.
        """
        self._is_closing = True
        async with self._calls.exclusive() as worker:
            if not self._consumer.is_closed:
                await worker.run(self._consumer.close)
        if self._owns_executor:
            self.executor.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(self, method: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R:
        """Call a method that may block or run callbacks."""
        async with self._exclusive() as worker:
            return await worker.run(partial(method, *arguments, **keywords))

    async def _call_here(
        self, method: Callable[P, R], *arguments: P.args, **keywords: P.kwargs
    ) -> R:
        """Call a method that does neither, without a thread."""
        async with self._exclusive():
            return method(*arguments, **keywords)

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[Worker]:
        self._consumer.check_open()
        async with self._calls.exclusive() as worker:
            self._consumer.check_open()  # `close` may have been the call before
            yield worker
