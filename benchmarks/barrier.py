"""Runs the parts of a measurement in processes of their own, which wait for each other before they
start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError
from typing import Any, TypeVar

START_TIMEOUT_S = 120.0
"""Seconds that all processes together may take to start; after that the benchmark fails."""

_Outcome = TypeVar("_Outcome")
_Sent = TypeVar("_Sent")
_Read = TypeVar("_Read")


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


def send_to_reader(send: Callable[[], _Sent], read: Callable[[], _Read]) -> tuple[_Sent, _Read]:
    """As `run_together`, of a sender and a reader, for each of which `wait_for_all` returns once
    the reader receives every message that is sent.
    """
    tasks: list[Callable[[], Any]] = [send, read]
    sent, seen = run_together(tasks)
    return sent, seen


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
