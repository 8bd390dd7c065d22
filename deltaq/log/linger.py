"""How much longer to wait before a commit when other writers keep winning the race for the next slot."""

from __future__ import annotations

__all__ = ["AdaptiveLinger"]

EXTRA_S_MAX = 2.0


class AdaptiveLinger:
    """Seconds to linger beyond the configured time, learned from lost races.

    The log takes one commit at a time, so n writers that each commit as fast as they can lose n-1 races for one they
    win.
    As TCP does for a shared line: a lost race doubles the wait, a commit without one shortens it by a tenth.
    """

    def __init__(self) -> None:
        self.extra_s = 0.0

    def committed(self, lost_races: int, commit_s: float) -> None:
        """Learn from a commit that took `commit_s` seconds in its last slot after `lost_races`."""
        if lost_races:
            self.extra_s = min(EXTRA_S_MAX, max(commit_s, self.extra_s * 2.0))
        else:
            self.extra_s = self.extra_s * 0.9 if self.extra_s > 1e-4 else 0.0
