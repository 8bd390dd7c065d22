"""The offsets that one member's heartbeats have delegated to the group's leader, and what has
become of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from deltaq.delta.table_state import TableState
from deltaq.groups.fencing import Claim
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.pending import PendingOffsets
from deltaq.groups.state import GroupHead

SHARED_BEATS = 4
"""Heartbeat intervals for which a member waits for the leader to commit its offsets: one until the
next heartbeat, one until the leader reads it, one for the commit and the read of its entry, and one
to spare.
"""

RETRY_SHARING_S = 30.0
"""How long a member then commits its offsets itself before it delegates them to the leader again.
"""


@dataclass(frozen=True, slots=True)
class _Delegated:
    """Heartbeats delegate offsets of a partition, the last of which is `newest`: the first one
    since `at` (`Clock.monotonic`), of `generation`, when the member had read the log up to version
    `after`.
    """

    newest: CommittedOffset
    at: float
    generation: int
    after: int


@dataclass(eq=False)
class DelegatedOffsets:
    """The partitions whose offsets heartbeats have delegated, and the log has not had since. Not
    thread-safe.

    The leader may still commit one of these offsets, even after the member has gone back to the
    offset committed before. So such a partition does not count as committed: the next offset in the
    log voids all that was delegated.

    Times are of `Clock.monotonic`, in seconds. `interval_s` is that of the periodic commits,
    infinite without any.
    """

    _interval_s: float
    _beat_s: float
    _delegated: dict[str, _Delegated] = field(default_factory=dict)  # by app id
    _delegate_from: float = float("-inf")
    _paused_until: float = float("-inf")
    _relied_until: float = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._delegated)

    def __contains__(self, app_id: str) -> bool:
        return app_id in self._delegated

    def is_possible(self, now: float) -> bool:
        """Whether heartbeats are frequent enough for the periodic commits, and the leader has not
        failed lately.
        """
        return self._beat_s <= self._interval_s < float("inf") and now >= self._paused_until

    def is_relied_upon(self, now: float) -> bool:
        """Whether the leader, and not the member itself, makes the periodic commits."""
        return now < self._relied_until

    def rest(self, now: float) -> None:
        """The member's offsets are committed: heartbeats delegate the next ones shortly before
        these are due.
        """
        self._delegate_from = now + self._interval_s - 2 * self._beat_s

    def show(self, pending: PendingOffsets, now: float) -> bool:
        """Whether the next heartbeat delegates these offsets."""
        self._relied_until = now + SHARED_BEATS * self._beat_s
        if not pending.offsets or (not self._delegated and now < self._delegate_from):
            return False
        for offset in pending.offsets:
            first = self._delegated.get(offset.app_id) or _Delegated(
                offset, now, pending.generation, pending.after
            )
            self._delegated[offset.app_id] = replace(first, newest=offset)
        return True

    def overdue_at(self, app_ids: Iterable[str]) -> float:
        """When the member has to commit these partitions itself; infinite if heartbeats delegate
        none of them.
        """
        first = min(
            (self._delegated[app_id].at for app_id in app_ids if app_id in self._delegated),
            default=float("inf"),
        )
        return first + SHARED_BEATS * self._beat_s if self._delegated else float("inf")

    def pause(self, now: float) -> None:
        """The leader does not commit what is delegated to it."""
        self._relied_until, self._paused_until = float("-inf"), now + RETRY_SHARING_S
        self._delegated = {
            app_id: replace(delegated, at=self._paused_until)
            for app_id, delegated in self._delegated.items()
        }

    def drop(self, app_ids: Iterable[str]) -> None:
        """The member itself has committed these partitions."""
        for app_id in app_ids:
            self._delegated.pop(app_id, None)

    def clear(self) -> None:
        """The assignment has ended: in the next generation all that was delegated is void."""
        self._delegated.clear()

    def take_committed(
        self,
        state: TableState,
        head: GroupHead,
        claim: Claim,
        last: Mapping[tuple[str, int], tuple[str | None, int]],
    ) -> list[CommittedOffset]:
        """Forget the partitions whose offsets the log has since, and return these offsets.

        All of them are this member's: it still owns the partition, as it did in the generation that
        was delegated. What was delegated of other partitions is void for ever, and forgotten too.
        `last` has the topic id and offset that this member has last seen committed of each
        partition, which tells new from old offsets of a checkpoint.
        """
        found = []
        for app_id, delegated in list(self._delegated.items()):
            key = delegated.newest.topic, delegated.newest.partition
            owner, txn = head.owners.get(key), state.txns.get(app_id)
            if state.version <= delegated.after:
                continue
            if (
                owner is None
                or owner.member_id != claim.member_id
                or owner.since > delegated.generation
            ):
                del self._delegated[app_id]
            elif txn is not None and _is_new(state, app_id, delegated, last.get(key)):
                del self._delegated[app_id]
                metadata = (
                    delegated.newest.metadata if txn.version == delegated.newest.offset else None
                )
                found.append(replace(delegated.newest, offset=txn.version, metadata=metadata))
        return found


def _is_new(
    state: TableState, app_id: str, delegated: _Delegated, last: tuple[str | None, int] | None
) -> bool:
    """Whether the committed offset of a partition is of an entry after `delegated.after`. Of one
    that comes from a checkpoint only the offset itself can say so, by not being the `last` one.
    """
    slot = state.txn_slots.get(app_id)
    if slot is not None:
        return slot > delegated.after
    return state.restored_version > delegated.after and last != (
        delegated.newest.topic_id,
        state.txns[app_id].version,
    )
