"""A clock for clients of which a test kills the process by a `Crash`."""

from __future__ import annotations

from collections.abc import Callable

from deltaq.clock import SystemClock, Thread
from deltaq.testing.faults import Crash

__all__ = ["MortalClock", "until_crash"]


class MortalClock(SystemClock):
    """The system's clock, except that a thread in which a `Crash` is raised ends silently, as in a
    killed process.

    With the default clock of clients, Python or pytest would report an unhandled exception in the
    thread.
    """

    def start_thread(self, target: Callable[[], None], name: str) -> Thread:
        return super().start_thread(until_crash(target), name)


def until_crash(target: Callable[[], None]) -> Callable[[], None]:
    """`target`, except that it returns if a `Crash` is raised."""

    def run() -> None:
        try:
            target()
        except Crash:
            pass  # a killed process reports nothing

    return run
