"""Group commit: which of several writers commits next, and how long the others wait for it. Pure;
the caller waits.

Only speed depends on it: if two writers commit at once, one of them loses the race for the slot and
retries.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTENTION_S = 2.0
"""Seconds after the last sign of another writer for which uploads are still made as shared
files.
"""

LOAD_MIN = 0.15
"""Below this log utilisation (commit time per interval, if each file had its own commit), group
commit is off.
"""

LOOK_S = 1.0
"""Seconds between two listings of shared files by a writer that seems to be the only one and keeps
the log busy. Others may lose every race against it: they have to read an entry before they can
follow it, and it does not.
"""

LEADER_COMMITS = 32
"""Commits in a row after which a leader gives way once: its own records wait less than those of
other writers.
"""

_INTERVAL_FIRST_S = 0.05
"""Assumed interval between commits until one has been measured."""
INTERVAL_MAX_S = 0.06
"""Longer intervals are cut to this: waiting lengthens intervals, which would lengthen the waits
again.
"""
TIMEOUT_INTERVALS = 1.5
"""Least wait for the leader, in intervals. The leader commits about once per interval."""
_INERTIA = 0.3
_POLLS = 2.0
"""Reads of the log per interval while waiting."""
_POLL_MIN_S = 0.004


@dataclass(eq=False)
class GroupCommitPolicy:
    """What a writer has seen of the commits of a topic, its own included.

    The writer of the newest commit is the leader: it makes the next one at once, with the files
    that others have shared until then. The others wait. If the leader writes no more, the writer
    whose timeout ends first takes over.
    """

    _contended_at: float = float("-inf")
    _learned_at: float = float("-inf")
    _interval_s: float = _INTERVAL_FIRST_S
    _files_per_commit: float = 1.0
    _commit_s: float = float("inf")
    _in_a_row: int = 0
    _looked_at: float = float("-inf")
    _lost: int = 0  # races lost from the log's end, less own commits since

    def observe(self, now: float, appends: int, files: int, *, contended: bool) -> None:
        """Learn of `appends` more entries with `files` more files at `now`. `contended`: other
        writers took part.
        """
        self._contended_at = now if contended else self._contended_at
        if appends and self._learned_at > float("-inf"):
            self._interval_s += _INERTIA * (
                min(1.0, (now - self._learned_at) / appends) - self._interval_s
            )
            self._files_per_commit += _INERTIA * (
                max(1.0, files / appends) - self._files_per_commit
            )
        self._learned_at = now

    def committed(self, commit_s: float) -> None:
        """Learn that our newest commit could have lost for `commit_s` seconds. The estimate follows
        the minimum.
        """
        known = self._commit_s < float("inf")
        self._commit_s = min(commit_s, self._commit_s * 0.9 + commit_s * 0.1 if known else commit_s)
        self._in_a_row += 1
        self._lost = max(0, self._lost - 1)

    def peer_committed(self, now: float) -> None:
        """Another writer has committed at `now`."""
        self._contended_at = now
        self._in_a_row = 0

    def is_contended(self, now: float) -> bool:
        """Whether other writers are active and the load is high enough for group commit."""
        return now - self._contended_at < CONTENTION_S and self.is_busy

    def lost_race(self, now: float, *, again: bool) -> None:
        """Another writer has won the slot. `again`: as the one before, so this writer knew the
        log's end.
        """
        self.peer_committed(now)
        self._lost += again

    @property
    def is_busy(self) -> bool:
        """Whether log utilisation is above LOAD_MIN; true until the first commit has been
        measured.
        """
        return (
            self._lost > 0 or self._commit_s * self._files_per_commit > LOAD_MIN * self._interval_s
        )

    def looks_for_peers(self, now: float) -> bool:
        """Whether the next commit should list shared files though no other writer was seen; true
        once in LOOK_S.
        """
        is_first = self._looked_at == float("-inf")
        if not is_first and (
            not self.is_busy or now - max(self._contended_at, self._looked_at) < LOOK_S
        ):
            return False
        self._looked_at = now
        return not is_first  # nothing is known of the log's utilisation yet

    def contended_left_s(self, now: float) -> float:
        """Seconds for which `is_contended` stays true without another sign of other writers."""
        return max(0.0, self._contended_at + CONTENTION_S - now) if self.is_contended(now) else 0.0

    def leader_timeout_s(self, now: float, chance: float, lost: int, *, is_ours: bool) -> float:
        """Seconds to wait for the leader's commit, after `lost` races in a row. `chance` is a
        random number in [0, 1), so that timeouts of different writers do not end together.
        `is_ours`: this writer made the newest commit.
        """
        if not self.is_contended(now) or (is_ours and self._in_a_row % LEADER_COMMITS):
            return 0.0
        return self._capped_interval_s * (
            TIMEOUT_INTERVALS + chance * (1 + self._files_per_commit / 2) * 2.0**lost
        )

    @property
    def poll_s(self) -> float:
        """Seconds between two reads of the log while waiting."""
        return max(_POLL_MIN_S, self._capped_interval_s / _POLLS)

    @property
    def _capped_interval_s(self) -> float:
        return min(self._interval_s, INTERVAL_MAX_S)
