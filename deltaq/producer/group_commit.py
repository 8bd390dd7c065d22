"""Who of several writers commits next, and how long the others wait for that. Pure; the caller waits.

Nothing but speed rests on it: two that commit at once lose a race, as ever.
"""

from __future__ import annotations

__all__ = ["GroupCommitPolicy"]

COMPANY_S = 2.0
"""How long after the last sign of another writer uploads are still offered to others."""

LOAD_MIN = 0.15
"""With files that come more seldom, in commits of their own, than would keep the log busy for this share of the time,
everybody commits for himself."""

TURN_COMMITS = 32
"""Commits that one writer makes in a row. It waits less than those that it commits for, and others want that too."""

_INTERVAL_FIRST_S = 0.05
"""What is taken for the interval until it has been seen."""
_INTERVAL_MAX_S = 0.06
"""What counts of a longer one. Who waits makes the intervals longer, and would then wait even longer."""
_PATIENCE = 1.5
"""How many intervals somebody is waited for at least: whoever commits for all takes about one."""
_INERTIA = 0.3
_LOOKS = 2.0
"""Looks at the log in one interval."""
_LOOK_MIN_S = 0.004


class GroupCommitPolicy:
    """What a writer has seen of the commits of a topic, its own included.

    Whoever made the newest commit makes the next one too, at once, with what the others have uploaded until then. The
    others wait. If it has nothing to write any more, the one that is first to lose patience takes its place. With
    `is_on` false, everybody commits for himself.
    """

    def __init__(self, *, is_on: bool = False) -> None:
        self.is_on = is_on
        self._company_at = float("-inf")
        self._learned_at = float("-inf")
        self._interval_s = _INTERVAL_FIRST_S
        self._crowd = 1.0  # files in one commit
        self._commit_s = float("inf")
        self._in_a_row = 0

    def learned(self, now: float, appends: int, files: int, *, company: bool) -> None:
        """`appends` with so many `files` more are in the log at `now` than at the call before; with `company`, others
        took part."""
        self._company_at = now if company else self._company_at
        if appends and self._learned_at > float("-inf"):
            self._interval_s += _INERTIA * (min(1.0, (now - self._learned_at) / appends) - self._interval_s)
            self._crowd += _INERTIA * (max(1.0, files / appends) - self._crowd)
        self._learned_at = now

    def committed(self, commit_s: float) -> None:
        """The newest commit is ours, and was exposed to those of others for `commit_s` seconds.

        The least counts: a crowd, or an outage, makes it longer, and that is not what one commit costs.
        """
        known = self._commit_s < float("inf")
        self._commit_s = min(commit_s, self._commit_s * 0.9 + commit_s * 0.1 if known else commit_s)
        self._in_a_row += 1

    def met(self, now: float) -> None:
        """Somebody else has committed at `now`."""
        self._company_at = now
        self._in_a_row = 0

    def in_company(self, now: float) -> bool:
        """Whether others write too, and so much that it makes sense to have one of them commit for all."""
        return now - self._company_at < COMPANY_S and self.is_busy

    @property
    def is_busy(self) -> bool:
        """Whether the log is, as far as is known: as long as nothing is, it may be."""
        return self.is_on and self._commit_s * self._crowd > LOAD_MIN * self._interval_s

    def company_left_s(self, now: float) -> float:
        """For how long `in_company` stays true if nothing else is seen."""
        return max(0.0, self._company_at + COMPANY_S - now) if self.in_company(now) else 0.0

    def patience_s(self, now: float, chance: float, lost: int, *, is_ours: bool) -> float:
        """Seconds to wait for somebody else to commit, after `lost` races in a row.

        `chance` is a random number in [0, 1): those that lose patience must not do so all at once. `is_ours`: whether
        we made the newest commit.
        """
        if not self.in_company(now) or (is_ours and self._in_a_row % TURN_COMMITS):
            return 0.0
        return self._turn_s * (_PATIENCE + chance * (1 + self._crowd / 2) * 2.0**lost)

    @property
    def look_s(self) -> float:
        """Seconds between two looks at the log while waiting."""
        return max(_LOOK_MIN_S, self._turn_s / _LOOKS)

    @property
    def _turn_s(self) -> float:
        return min(self._interval_s, _INTERVAL_MAX_S)
