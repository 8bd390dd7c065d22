"""The lease of a member: for how long its `poll` may return accepted records without looking for
other work.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class PollLease:
    """Lasts until `until`, or until another thread ends it after a change that the application's
    thread has to follow.

    It is made known to the other threads before the application's thread looks for changes, so that
    none is missed. `polled_at` is when `poll` was called last, infinite before the first time. Both
    are times of `Clock.uptime`.
    """

    until: float
    polled_at: float

    def end(self) -> None:
        """End the lease for good. For any thread."""
        self.until = float("-inf")
