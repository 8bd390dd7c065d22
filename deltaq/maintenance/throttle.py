"""Throttling of maintenance: full speed in a process of its own, a small share of the time in a
producer's process.
"""

from __future__ import annotations

from typing import TypeVar

from deltaq.clock import Clock
from deltaq.work import Work, finish

T = TypeVar("T")

PAUSE_S_MAX = 60.0
"""Longest pause between two steps. A process that was suspended for an hour did not work for an
hour.
"""

REST_S = 1.0
"""Longest time that a pause or rest continues after `stop`; less than the exit of a process
waits.
"""

STEP_S_MIN = 0.001
"""Steps are added up until they have taken this long, then followed by one pause: each wake-up has
a cost too.
"""

PAUSE_S = 0.001
"""Length of `pause`."""


class Stopped(Exception):
    """Maintenance was asked to end. Unfinished work is harmless; the next round, in any process,
    completes it.
    """


class Throttle:
    """Sleeps after each step, so that work takes at most `fraction` of the time (above 0, up to 1).

    `boost` multiplies the fraction while there is a backlog.
    """

    def __init__(self, clock: Clock, fraction: float = 1.0) -> None:
        self.boost = 1.0
        self._clock = clock
        self._fraction = fraction
        self._worked_from = clock.monotonic()
        self._stopped = False

    @property
    def shares_time(self) -> bool:
        """Whether it sleeps at all, because it shares processor and disk with a client."""
        return self._fraction < 1

    def stop(self) -> None:
        """Make the next `step` raise Stopped, and a `rest` within `REST_S`. May be called from any
        thread.
        """
        self._stopped = True

    def begin(self) -> None:
        """Start counting work from now; the time before does not count."""
        self._worked_from = self._clock.monotonic()

    def pause(self) -> None:
        """Yield to other threads for `PAUSE_S` between small pieces of work that cannot wait
        longer. Raises Stopped.
        """
        if self._stopped:
            raise Stopped
        if self._fraction * self.boost < 1:
            self._clock.sleep(PAUSE_S)
            self._worked_from += PAUSE_S

    def rest(self, seconds: float) -> None:
        """Sleep for so many seconds. Raises Stopped."""
        self._sleep(seconds)
        if self._stopped:
            raise Stopped
        self.begin()

    def step(self) -> None:
        """Report a finished piece of work, and sleep as long as the fraction requires. Raises
        Stopped.
        """
        if self._stopped:
            raise Stopped
        fraction = self._fraction * self.boost
        worked_s = self._clock.monotonic() - self._worked_from
        if fraction < 1 and worked_s >= STEP_S_MIN:
            self._sleep(min(PAUSE_S_MAX, worked_s * (1 / fraction - 1)))
            self._worked_from = self._clock.monotonic()
        if self._stopped:
            raise Stopped

    def run(self, work: Work[T]) -> T:
        """Do all of the work, with a step after each piece. Raises what the work raises;
        Stopped.
        """
        return finish(work, self.step)

    def _sleep(self, seconds: float) -> None:
        """Sleep; ends early after `stop`."""
        until = self._clock.monotonic() + seconds
        while not self._stopped and (left_s := until - self._clock.monotonic()) > 0:
            self._clock.sleep(min(REST_S, left_s))
