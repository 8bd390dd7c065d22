"""Delivery reports on the event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from deltaq.aio.threads import call_soon
from deltaq.errors import KafkaError, KafkaException

R = TypeVar("R")


class LoopReports:
    """Serves the delivery reports of one producer on the event loop, and gives futures their
    results.

    `serve()` runs the callbacks that are due; `wake` has it called. `only_errors` is
    `delivery.report.only.error`, which holds for callbacks, not for futures.
    """

    def __init__(self, *, only_errors: bool) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.serve: Callable[[], int] = lambda: 0
        self._only_errors = only_errors
        self._reported: deque[
            tuple[asyncio.Future[Any], Callable[..., object] | None, KafkaError | None, Any]
        ] = deque()
        self._is_scheduled = False
        self._is_serving = False
        self._served_elsewhere = 0
        self._next: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Future[Any]] = set()

    # --- in any thread ---

    def wake(self) -> None:
        """Have the event loop serve what is due, soon."""
        if self.loop is not None and not self._is_scheduled:
            self._is_scheduled = True
            call_soon(self.loop, self.serve_due)

    def callback(
        self, delivered: asyncio.Future[R], on_delivery: Callable[..., object] | None
    ) -> Callable[[KafkaError | None, Any], None]:
        """The delivery callback of a message: it gives `delivered` its result, and has
        `on_delivery` called.
        """
        return partial(self._report, delivered, on_delivery)

    def _report(
        self,
        delivered: asyncio.Future[Any],
        on_delivery: Callable[..., object] | None,
        error: KafkaError | None,
        result: Any,
    ) -> None:
        self._reported.append((delivered, on_delivery, error, result))
        if not self._is_serving:  # a thread runs this callback
            self.wake()

    def on_loop(self, callback: Callable[..., object]) -> Callable[..., object]:
        """A function that has a callback, a coroutine function or not, called on the event loop,
        soon.
        """

        def call(*arguments: Any) -> None:
            if self.loop is not None:
                call_soon(self.loop, self._call, callback, *arguments)

        return call

    # --- on the event loop ---

    def next_report(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future that ends with the next report. All who wait share it."""
        if self._next is None:
            self._next = loop.create_future()
        return self._next

    @contextmanager
    def served_elsewhere(self) -> Iterator[None]:
        """A thread runs the callbacks that are due during this block."""
        self._served_elsewhere += 1
        try:
            yield
        finally:
            self._served_elsewhere -= 1
            self.serve_due()

    def serve_due(self) -> int:
        """Run the callbacks that are due, and give futures their results. Returns the number of
        messages served.
        """
        self._is_scheduled = False  # before the look at what is due, so that no report is missed
        served = 0
        if not self._served_elsewhere:
            self._is_serving = True
            try:
                served = self.serve()
            finally:  # else the reports of threads would wake nothing any more
                self._is_serving = False
        while self._reported:
            self._finish(*self._reported.popleft())
        if self._next is not None:
            if not self._next.done():
                self._next.set_result(None)
            self._next = None
        return served

    def _finish(
        self,
        delivered: asyncio.Future[Any],
        on_delivery: Callable[..., object] | None,
        error: KafkaError | None,
        result: Any,
    ) -> None:
        if on_delivery is not None and (error is not None or not self._only_errors):
            self._call(on_delivery, error, result)
        if delivered.done():  # cancelled
            return
        if error is None:
            delivered.set_result(result)
            return
        delivered.set_exception(KafkaException(error))
        if on_delivery is not None:
            # It was reported: asyncio need not warn of a future that is not awaited.
            delivered.exception()

    def _call(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call a callback of the application. What it raises goes to the loop's exception
        handler.
        """
        try:
            result = callback(*arguments)
        except Exception as error:  # noqa: BLE001 - reported like an error in `call_soon`
            self._failed(error)
            return
        if inspect.isawaitable(result):
            task = asyncio.ensure_future(result)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if self.loop is not None:
            self.loop.call_exception_handler(
                {"message": "a callback of an AIOProducer failed", "exception": error}
            )
