"""A clock for clients whose process may die."""

from __future__ import annotations

from collections.abc import Callable

from deltaq.clock import SystemClock, Thread
from deltaq.testing.faults import Crash

__all__ = ["MortalClock", "until_crash"]


class MortalClock(SystemClock):
    """The system's clock, but a thread that meets a `Crash` just ends, as all threads of a killed process do.

    With the clock that clients have by default, Python or pytest would report an unhandled exception of the thread.
    """

    def start_thread(self, target: Callable[[], None], name: str) -> Thread:
        return super().start_thread(until_crash(target), name)


def until_crash(target: Callable[[], None]) -> Callable[[], None]:
    """`target`, but a `Crash` ends it without a word."""

    def run() -> None:
        try:
            target()
        except Crash:
            pass  # the dead tell nobody

    return run
