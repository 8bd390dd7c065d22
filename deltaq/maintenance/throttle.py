"""How fast maintenance goes: at full speed by itself, or in a producer with most of the time left to others."""

from __future__ import annotations

from deltaq.clock import Clock

__all__ = ["Stopped", "Throttle"]

PAUSE_S_MAX = 60.0
"""Longest pause between two steps: a process that stood still for an hour has not worked for so long."""

REST_S = 1.0
"""How long a pause or rest goes on at most when it is stopped: less than the exit of a process waits."""

STEP_S_MIN = 0.001
"""Smaller steps go on without a pause until they have taken so long together: to wake up disturbs others too."""

BREATH_S = 0.001
"""How long others go first between two of many small things."""


class Stopped(Exception):
    """Maintenance was asked to end. What is half done is harmless, and done by whoever comes next."""


class Throttle:
    """Takes a pause after each step, so that working takes at most `share` of the time (above 0, up to 1).

    `boost` raises that share for as long as there is more to do than it allows.
    """

    def __init__(self, clock: Clock, share: float = 1.0) -> None:
        self.boost = 1.0
        self._clock = clock
        self._share = share
        self._worked_from = clock.monotonic()
        self._stopped = False

    @property
    def shares_time(self) -> bool:
        """Whether it takes pauses: others want the processor, and the disk."""
        return self._share < 1

    def stop(self) -> None:
        """Make the next `step` raise Stopped, and a `rest` soon. From any thread."""
        self._stopped = True

    def begin(self) -> None:
        """Work begins now; what was before was rest."""
        self._worked_from = self._clock.monotonic()

    def pause(self) -> None:
        """Between two of many small things that must get done nevertheless: let others go first. Raises Stopped."""
        if self._stopped:
            raise Stopped
        if self._share * self.boost < 1:
            self._clock.sleep(BREATH_S)
            self._worked_from += BREATH_S

    def rest(self, seconds: float) -> None:
        """Let so many seconds pass. Raises Stopped."""
        self._sleep(seconds)
        if self._stopped:
            raise Stopped
        self.begin()

    def step(self) -> None:
        """A piece of work is done. Raises Stopped."""
        if self._stopped:
            raise Stopped
        share = self._share * self.boost
        worked_s = self._clock.monotonic() - self._worked_from
        if share < 1 and worked_s >= STEP_S_MIN:
            self._sleep(min(PAUSE_S_MAX, worked_s * (1 / share - 1)))
            self._worked_from = self._clock.monotonic()
        if self._stopped:
            raise Stopped

    def _sleep(self, seconds: float) -> None:
        """Less if it is stopped meanwhile."""
        until = self._clock.monotonic() + seconds
        while not self._stopped and (left_s := until - self._clock.monotonic()) > 0:
            self._clock.sleep(min(REST_S, left_s))
