"""When to wait less than `linger.ms` before a commit, and when to wait longer. Pure; the caller waits."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

__all__ = ["COMMITS_MAX", "EXTRA_S_MAX", "LONE_MIN", "AdaptiveLinger", "BatchTimes", "LoneRecords"]

LONE_MIN = 3
"""After so many records in a row that nothing followed within their linger time, the next one does not wait for
company."""

COMMITS_MAX = 3
"""How many times as many commits there may be, at most, as if all records waited for `linger.ms`."""

EXTRA_S_MAX = 5.0
"""Longest wait beyond `linger.ms`. A crowd that this does not thin out loses more races."""

_LOAD = 0.45
"""The share of time in which commits of others, lost races included, may be under way: about every third create then
meets one."""

_MEMORY = 4
"""Of how many intervals between two commits of ours the writers are remembered."""

_FULL = 0.5
"""A writer that commits at least half as often as we do counts as one that wants as much. One with fewer commits counts
for what it uses."""

_CONSENSUS = 0.75
"""How much what the others do counts against what we compute from our own commits: theirs may take less long, and who
believed only in itself would get less than its share for good."""

_STEP = 2.0
_INERTIA = 0.25


class LoneRecords:
    """Knows whether lingering has been in vain of late: then a record leaves at once, and `linger.ms` is the most that
    it waits, not the least.

    What comes sooner than that after the record before it has company, and from then on records wait for each other
    again. So each change from single records to denser traffic costs one commit more than always lingering, and no
    other does.
    """

    def __init__(self) -> None:
        self._alone = 0
        self._last_at = float("-inf")

    def is_next(self, produced_at: float, linger_s: float) -> bool:
        """Whether a record produced then, the oldest that waits, would wait `linger_s` seconds in vain."""
        return self._alone >= LONE_MIN and produced_at - self._last_at >= linger_s

    def left(self, records: int, produced_at: float, linger_s: float) -> None:
        """So many records leave together; the oldest was produced at `produced_at` and might have waited `linger_s`
        seconds."""
        lone = records == 1 and produced_at - self._last_at >= linger_s
        self._alone = self._alone + 1 if lone else 0
        self._last_at = produced_at


class BatchTimes:
    """Knows how long records take of late from their taking to their commit: while none are on their way, others do not
    wait longer than that. So `linger.ms` is the most that they wait, and the log is busy, but not busier than it is
    with one commit behind the other."""

    def __init__(self) -> None:
        self._mean_s: float | None = None

    def landed(self, seconds: float) -> None:
        """Learn from a batch that took so long."""
        if self._mean_s is None:
            self._mean_s = seconds
        else:
            # An outage is no reason to believe that all batches take that long.
            self._mean_s += _INERTIA * (min(seconds, 2 * self._mean_s) - self._mean_s)

    def enough_s(self, linger_s: float) -> float:
        """How long records need to wait while none are on their way, if they may wait `linger_s` seconds.

        A third of that at least: who lets records wait for long wants few commits.
        """
        return linger_s if self._mean_s is None else min(linger_s, max(linger_s / COMMITS_MAX, self._mean_s))


class AdaptiveLinger:
    """Seconds to linger beyond the configured time, learned from who else writes and how long a commit takes; and
    whether anybody else does.

    The log takes one commit at a time, so n writers that each commit as fast as they can lose n-1 races for one they
    win. All of them read the same entries, hence know how many they are, and how often the others come; each one waits
    until those can have had their turn, and about as long as they do, so that nobody starves. Who writes alone, or with
    others that write little, does not wait at all.
    """

    def __init__(self) -> None:
        self.extra_s = 0.0
        self.is_alone = True
        self._wait_s = 0.0
        self._commit_s = 0.0
        self._committed_at: float | None = None
        self._intervals: deque[Mapping[str, int]] = deque(maxlen=_MEMORY)

    def committed(self, others: Mapping[str, int], now: float, commit_s: float, chance: float) -> None:
        """Learn from a commit that stood at `now`, and for `commit_s` seconds was exposed to commits of others.

        `others` has the number of commits of each other writer since the call before. `chance` is a random number in
        [0, 1): writers that wait equally long must not come back at the same moment.
        """
        if self._committed_at is None:
            self._commit_s = commit_s
        else:
            self._intervals.append(others)
            # An outage is no reason to believe that all commits take that long.
            self._commit_s += _INERTIA * (min(commit_s, 2 * self._commit_s) - self._commit_s)
            self._adapt(max(1e-6, now - self._committed_at))
        self._committed_at = now
        self.is_alone = not any(self._intervals)
        self.extra_s = self._wait_s * (0.75 + 0.5 * chance)

    def _adapt(self, interval_s: float) -> None:
        """Bring the interval between our commits nearer to what leaves each of the others its turn."""
        commits: Counter[str] = Counter()
        for interval in self._intervals:
            commits.update(interval)
        full = _FULL * len(self._intervals)
        others = sum(min(1.0, count / full) for count in commits.values())
        change = 1 / _STEP
        if others:
            fair_s = others * self._commit_s / _LOAD
            theirs_s = interval_s * len(self._intervals) * others / sum(commits.values())
            aim_s = fair_s ** (1 - _CONSENSUS) * theirs_s**_CONSENSUS
            change = min(_STEP, max(change, (aim_s / interval_s) ** 0.5))
        wait_s = max(self._wait_s, self._commit_s) * change
        self._wait_s = min(EXTRA_S_MAX, wait_s) if wait_s > self._commit_s else 0.0
