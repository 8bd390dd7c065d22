"""Turns of members that write to their group's log without rest: which of them leaves the next slot
to others, and for how long.

On an object store the member that filled a slot knows at once that the next one is free. Each other
member learns it one request later, and loses that slot, too. So a member that commits again leaves
the slot to all members that do the same and have committed less recently. Only speed depends on it:
create-if-absent decides who has a slot. No I/O; the caller reads and waits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from deltaq.clock import Clock
from deltaq.delta.actions import Entry
from deltaq.delta.table_state import TableState

REST_PARAMETER = "restMs"
"""In `operationParameters` of a member's commit: milliseconds since the end of its commit before,
or 0 in its first commit if that lost a race.
"""

REST_COMMITS = 5.0
"""A member takes turns if it rested at most this many commits before its newest one."""

_NEXT_COMMITS = 4.0
"""A member that takes turns and does not use its slot for this many commits has stopped: time for a
read that finds the entry before, the create, and a read of it by the others, each of which may be a
slow one.
"""
_ORDER_COMMITS = 1.0
"""Added for each further member that is to commit first, so that those that wait do not all give up
together.
"""
_LEAVE_MAX_S = 2.0
"""Longest wait for the same member, in seconds."""
_EXTRA_EVERY = 4
"""Every so many commits a member leaves its own slot, too, to members that do not take turns
yet.
"""
_COMMIT_MAX_S = 1.0
_INERTIA = 0.25


@dataclass(eq=False)
class CommitTurns:
    """What one member has seen of the commits of its group. Thread-safe: several readers of the
    log share it. Members of one process that write one after the other count as one.

    A member leaves the slot to those that are more than `rounds` commits of each behind. Where a
    lost race costs little, races without turns are faster, and only starvation is to be prevented.
    """

    _clock: Clock
    rounds: int = 0
    # Version of the newest commit of each other member that takes turns.
    _newest: dict[str, int] = field(default_factory=dict)
    _read_to: int = -1
    _own_version: int = -1
    _own_commits: int = 0
    _ended_at: float | None = None  # of the own newest commit, `Clock.monotonic`
    _commit_s: float = 0.0  # mean duration of an own try

    def __post_init__(self) -> None:
        self._lock = self._clock.lock()

    # --- as `Fold` of the group's log: nothing is folded, each entry is looked at ---

    def restored(self, table: TableState) -> None:
        """A reader has begun anew."""

    def may_skip_to(self, view: None) -> bool:  # noqa: ARG002 - as in `Fold`
        """Another reader has looked at the entries."""
        return True

    def following(self, state: object, entry: Entry, path: str) -> None:  # noqa: ARG002 - as in `Fold`
        """A reader has read an entry; another one may have done so before."""
        if entry.info is None or (member_id := entry.info.parameters.get("member")) is None:
            return
        with self._lock:
            if entry.version <= self._read_to:
                return
            self._read_to = entry.version
            rest = entry.info.parameters.get(REST_PARAMETER, "")
            if rest.isdecimal() and int(rest) <= REST_COMMITS * self._commit_s * 1000:
                self._newest[member_id] = entry.version
            else:
                self._newest.pop(member_id, None)

    def rest_ms(self) -> int | None:
        """Milliseconds since the own newest commit; None without any."""
        return (
            None
            if self._ended_at is None
            else round((self._clock.monotonic() - self._ended_at) * 1000)
        )

    def committed(self, member_id: str, version: int, seconds: float) -> None:
        """Learn of an own commit, each try of which took `seconds` in the mean."""
        with self._lock:
            self._newest.pop(member_id, None)
            known_s = self._commit_s or seconds
            self._commit_s = min(
                _COMMIT_MAX_S, known_s + _INERTIA * (min(seconds, 2 * known_s) - known_s)
            )
            self._own_version = version
            self._own_commits += 1
            self._ended_at = self._clock.monotonic()

    def ahead(self) -> tuple[str, ...]:
        """The other members that take turns and have not committed since this one, or are `rounds`
        behind, in their order.
        """
        with self._lock:
            own_version = self._own_version - self.rounds * (len(self._newest) + 1)
            before = {
                other: version for other, version in self._newest.items() if version < own_version
            }
            return tuple(sorted(before, key=before.__getitem__))

    def gave_up(self, members: Collection[str]) -> None:
        """Leave no further slot to members that did not use theirs, until they commit again."""
        with self._lock:
            for member_id in members:
                self._newest.pop(member_id, None)

    def leave_s(self, ahead: int) -> float:
        """Seconds for which a slot is left to `ahead` members, of which the first does not commit
        meanwhile.
        """
        return min(_LEAVE_MAX_S, self._commit_s * (_NEXT_COMMITS + _ORDER_COMMITS * (ahead - 1)))

    def extra_s(self, others: int) -> float:
        """Seconds for which one of several own slots is left to members that do not take turns, if
        there are any among the `others` of the group.

        Those that take turns know when the next slot is free. A member that begins would lose every
        race against them.
        """
        with self._lock:
            if self._own_commits % _EXTRA_EVERY or len(self._newest) >= others:
                return 0.0
            return self._commit_s
