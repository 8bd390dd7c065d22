"""Adaptive linger: when records wait less than `linger.ms`, and when longer. Pure; the caller
waits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

LONE_MIN = 3
"""After this many records in a row that no other followed within their linger time, the next one
does not linger.
"""

COMMITS_MAX = 3
"""Most commits, as a multiple of those made if all records waited for `linger.ms`."""

EXTRA_S_MAX = 5.0
"""Longest wait in seconds beyond `linger.ms`. Under contention that needs more, writers lose more
races.
"""

_LOAD = 0.45
"""Target fraction of time in which others commit, lost races included: about every third create
then loses its race.
"""

_MEMORY = 4
"""Intervals between two own commits for which the other writers are remembered."""

_FULL = 0.5
"""A writer that commits at least half as often as this one counts as one; a slower one counts by
its commits.
"""

_CONSENSUS = 0.75
"""Weight of the measured rate of the others against the rate computed from own commits. Their
commits may be faster: by its own measurement alone, a writer would get fewer slots than the others.
"""

_STEP = 2.0
_INERTIA = 0.25


def _moved_mean(mean_s: float, seconds: float) -> float:
    """The mean after another value. One outage adds at most a fixed fraction to it."""
    return mean_s + _INERTIA * (min(seconds, 2 * mean_s) - mean_s)


@dataclass(eq=False)
class LoneRecords:
    """Detects single records, for which lingering has gained nothing lately: they leave at once. A
    record within the linger time of the one before ends this. Such a change costs one commit more
    than always lingering.
    """

    _alone: int = 0
    _last_at: float = float("-inf")

    def is_next(self, produced_at: float, linger_s: float) -> bool:
        """Whether the oldest waiting record, produced at `produced_at`, should not linger its
        `linger_s` seconds.
        """
        return self._alone >= LONE_MIN and produced_at - self._last_at >= linger_s

    def left(self, records: int, produced_at: float, linger_s: float) -> None:
        """Learn that `records` were taken together, the oldest produced at `produced_at`, for a
        `linger.ms` of `linger_s`.
        """
        lone = records == 1 and produced_at - self._last_at >= linger_s
        self._alone = self._alone + 1 if lone else 0
        self._last_at = produced_at


@dataclass(eq=False)
class BatchTimes:
    """Measures how long batches take from their taking to their commit. While none is under way,
    records linger no longer than that: the log is then no busier than with back-to-back commits.
    """

    _mean_s: float | None = None

    def committed(self, seconds: float) -> None:
        """Learn that a batch took this long."""
        self._mean_s = seconds if self._mean_s is None else _moved_mean(self._mean_s, seconds)

    def enough_s(self, linger_s: float) -> float:
        """Seconds to linger while no batch is under way: between a third of `linger_s` and
        `linger_s`.
        """
        return (
            linger_s
            if self._mean_s is None
            else min(linger_s, max(linger_s / COMMITS_MAX, self._mean_s))
        )


@dataclass(eq=False)
class AdaptiveLinger:
    """Seconds to linger beyond the configured time, learned from the other writers and the duration
    of a commit.

    The log takes one commit at a time, so n writers that each commit as fast as they can lose n-1
    races for one that they win. All read the same entries, and so know how often each commits. Each
    waits long enough for the others to commit, and about as long as they do, so that none starves.
    A writer that `is_alone` does not wait longer.
    """

    extra_s: float = 0.0
    is_alone: bool = True
    _wait_s: float = 0.0
    _commit_s: float = 0.0
    _committed_at: float | None = None
    _intervals: deque[Mapping[str, int]] = field(default_factory=partial(deque, maxlen=_MEMORY))

    def committed(
        self, others: Mapping[str, int], now: float, commit_s: float, chance: float
    ) -> None:
        """Learn from an own commit at `now` that could have lost for `commit_s` seconds. `others`
        counts the commits of each other writer since the last call. `chance` in [0, 1) keeps
        writers with equal waits apart.
        """
        if self._committed_at is None:
            self._commit_s = commit_s
        else:
            self._intervals.append(others)
            self._commit_s = _moved_mean(self._commit_s, commit_s)
            self._adapt(max(1e-6, now - self._committed_at))
        self._committed_at = now
        self.is_alone = not any(self._intervals)
        self.extra_s = self._wait_s * (0.75 + 0.5 * chance)

    def _adapt(self, interval_s: float) -> None:
        """Move the interval between own commits towards one that leaves each other writer its
        slots.
        """
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


@dataclass(eq=False)
class Lingering:
    """What a sender has learned of its commits, for the question how long records linger."""

    adaptive: AdaptiveLinger = field(default_factory=AdaptiveLinger)
    lone: LoneRecords = field(default_factory=LoneRecords)
    batch_times: BatchTimes = field(default_factory=BatchTimes)

    def seconds(
        self, produced_at: float, linger_s: float, *, is_contended: bool, is_quiet: bool
    ) -> float:
        """Seconds to linger for records whose oldest was produced at `produced_at` and may wait
        `linger_s` seconds. It is less than `linger_s` where waiting gains nothing: `is_quiet` says
        that no batch is under way and a further commit costs nothing. It is more under contention,
        unless `is_contended` says that group commit takes care of it.
        """
        if self.lone.is_next(produced_at, linger_s):
            linger_s = 0.0
        elif is_quiet and not is_contended and self.adaptive.is_alone:
            linger_s = self.batch_times.enough_s(linger_s)
        return linger_s if is_contended else max(linger_s, self.adaptive.extra_s)
