"""The sides of a measurement, each in a process of its own, and how they wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier, Event
from threading import BrokenBarrierError
from typing import TypeVar

__all__ = ["START_TIMEOUT_S", "await_reader", "meet", "reader_is_ready", "run_together", "send_to_reader"]

START_TIMEOUT_S = 120.0
"""How long all processes together may take to start; then the benchmark fails."""

_Outcome = TypeVar("_Outcome")
_Sent = TypeVar("_Sent")
_Read = TypeVar("_Read")


# --- one that sends, when another one reads --------------------------------------------------------------------------

_reader_ready: Event | None = None


def _share_event(ready: Event) -> None:
    global _reader_ready
    _reader_ready = ready


def send_to_reader(send: Callable[[], _Sent], read: Callable[[], _Read]) -> tuple[_Sent, _Read]:
    """Run `read` in one process and, once it has called `reader_is_ready`, `send` in another one; what they returned.

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
    """In the process that reads: from now on nothing that is sent will be missed."""
    assert _reader_ready is not None
    _reader_ready.set()


def await_reader(ready: Event | threading.Event, reading: Future[_Read]) -> None:
    """Wait until a reader, a process or a thread, has set `ready`. Raises what it raised before."""
    while not ready.wait(0.1):
        if reading.done():
            reading.result()


# --- many that begin at once -----------------------------------------------------------------------------------------

_all_ready: Barrier | None = None


def _share_barrier(barrier: Barrier) -> None:
    global _all_ready
    _all_ready = barrier


def run_together(tasks: Sequence[Callable[[], _Outcome]]) -> list[_Outcome]:
    """Run tasks that wait for each other with `meet`, each in a process of its own; what they returned, in their
    order. Raises what the first of them raised."""
    context = get_context("spawn")
    barrier = context.Barrier(len(tasks))
    with ProcessPoolExecutor(len(tasks), context, _share_barrier, (barrier,)) as pool:
        running = [pool.submit(_guarded, task) for task in tasks]
        failures = [failure for one in running if (failure := one.exception()) is not None]
        # One that broke the barrier is what is to be told, not those that found it broken.
        for failure in sorted(failures, key=lambda failure: isinstance(failure, BrokenBarrierError)):
            raise failure
        return [one.result() for one in running]


def meet() -> None:
    """Wait until all processes are ready. BrokenBarrierError if one of them failed, or takes too long."""
    assert _all_ready is not None
    _all_ready.wait(START_TIMEOUT_S)


def _guarded(task: Callable[[], _Outcome]) -> _Outcome:
    assert _all_ready is not None
    try:
        return task()
    except BaseException:
        _all_ready.abort()  # nobody is to wait for one that has failed
        raise
