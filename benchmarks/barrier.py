"""Runs the parts of a measurement in processes of their own, which wait for each other before they
start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier, Event
from threading import BrokenBarrierError
from typing import TypeVar

__all__ = [
    "START_TIMEOUT_S",
    "await_reader",
    "reader_is_ready",
    "run_together",
    "send_to_reader",
    "wait_for_all",
]

START_TIMEOUT_S = 120.0
"""Seconds that all processes together may take to start; after that the benchmark fails."""

_Outcome = TypeVar("_Outcome")
_Sent = TypeVar("_Sent")
_Read = TypeVar("_Read")


# --- a sender that waits for a reader
# --------------------------------------------------------------------------------

_reader_ready: Event | None = None


def _share_event(ready: Event) -> None:
    global _reader_ready
    _reader_ready = ready


def send_to_reader(send: Callable[[], _Sent], read: Callable[[], _Read]) -> tuple[_Sent, _Read]:
    """Run `read` in one process and, once that has called `reader_is_ready`, `send` in another;
    their results.

    Raises what either raised.
    """
    context = get_context("spawn")
    ready = context.Event()
    with ProcessPoolExecutor(2, context, _share_event, (ready,)) as pool:
        reading = pool.submit(read)
        await_reader(ready, reading)
        sent = pool.submit(send).result()
        return sent, reading.result()


def reader_is_ready() -> None:
    """Called by the reader: from now on it receives every message that is sent."""
    assert _reader_ready is not None
    _reader_ready.set()


def await_reader(ready: Event | threading.Event, reading: Future[_Read]) -> None:
    """Wait until a reader, a process or a thread, has set `ready`. Raises what it raised before."""
    while not ready.wait(0.1):
        if reading.done():
            reading.result()


# --- processes that start at once
# ------------------------------------------------------------------------------------

_all_ready: Barrier | None = None


def _share_barrier(barrier: Barrier) -> None:
    global _all_ready
    _all_ready = barrier


def run_together(tasks: Sequence[Callable[[], _Outcome]]) -> list[_Outcome]:
    """Run tasks in processes of their own, which wait for each other in `wait_for_all`; their
    results in order.

    Raises what the first of them raised.
    """
    context = get_context("spawn")
    barrier = context.Barrier(len(tasks))
    with ProcessPoolExecutor(len(tasks), context, _share_barrier, (barrier,)) as pool:
        running = [pool.submit(_guarded, task) for task in tasks]
        failures = [failure for one in running if (failure := one.exception()) is not None]
        # Report the failure that broke the barrier, not the processes that found it broken.
        for failure in sorted(
            failures, key=lambda failure: isinstance(failure, BrokenBarrierError)
        ):
            raise failure
        return [one.result() for one in running]


def wait_for_all() -> None:
    """Wait until all processes are ready. BrokenBarrierError if one of them failed, or takes too
    long.
    """
    assert _all_ready is not None
    _all_ready.wait(START_TIMEOUT_S)


def _guarded(task: Callable[[], _Outcome]) -> _Outcome:
    assert _all_ready is not None
    try:
        return task()
    except BaseException:
        _all_ready.abort()  # the others must not wait for a failed process
        raise
