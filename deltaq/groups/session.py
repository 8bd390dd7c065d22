"""One session of a group member, from its join until it leaves, is removed or falls silent.

Each session has its own member id, so that commits of an earlier one are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from deltaq import metrics, names
from deltaq.clock import Clock
from deltaq.groups.heartbeat import (
    Heartbeat,
    LivenessCheck,
    MemberWatch,
    SessionExpired,
    remove_heartbeat,
)
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import OffsetDelegation, PendingOffsets
from deltaq.groups.rebalance import (
    Strategies,
    joined,
    left,
    needs_rebalance,
    released,
    resubscribed,
)
from deltaq.groups.state import GroupHead, Key, Member, MemberIdentity, PartitionCount, not_a_member
from deltaq.store import Store

_log = logging.getLogger("deltaq.groups")

POLL_S = 1.0
"""Longest time between two reads of the group's log while no partition has to move. On local disk a
change of the folder ends the wait.
"""

BUSY_POLL_S = 0.1
"""The same while partitions move."""

RECENT_POLL_S = 0.25
RECENT_S = 10.0
"""So long after a rebalance the log is read each `RECENT_POLL_S`, because changes come together:
members start one after the other, and a deployment restarts them in turn. 40 reads more for each
rebalance.
"""


@dataclass(frozen=True, slots=True)
class MemberTopics:
    """What a member subscribes to: `names` as in `Member.topics`, and the partition counts of the
    topics. `subscription` counts the calls of `subscribe`.
    """

    subscription: int
    names: tuple[str, ...]
    partition_counts: Mapping[str, PartitionCount]


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group as one of its members sees it: the partitions that it shall have, and those that it
    owns. It has the topics of this `subscription`, or those of a later one.
    """

    member_id: str
    instance_id: str | None
    generation: int
    assigned: frozenset[Key]
    owned: frozenset[Key]
    subscription: int = 0

    @property
    def identity(self) -> MemberIdentity:
        """On whose behalf offsets are committed."""
        return MemberIdentity(self.member_id, self.generation, self.instance_id)


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What a consumer joins its group with; the topics of `member` are given to `Session.join`.
    `delegation` is None if the consumer always commits its offsets itself.
    """

    store: Store
    log: GroupLog
    member: Member
    strategies: Strategies
    heartbeat_interval_s: float
    clock: Clock
    delegation: OffsetDelegation | None = None

    def session(self, on_change: Callable[[], None]) -> Session:
        """A new session, which has not joined yet."""
        return Session(
            self, names.member_id(self.member.client_id, self.clock.unique_id()), on_change
        )


@dataclass(eq=False)
class Session:
    """For the membership's thread; `view`, `is_silent` and `heartbeat.silent_at` may be read in
    any. `on_change()` is called when `view` has changed. All methods that write the log raise what
    `GroupLog.change` raises; each change is idempotent.
    """

    _of: MemberSettings
    member_id: str
    _on_change: Callable[[], None]
    view: GroupView | None = None
    _head: GroupHead | None = None  # of `view`
    _written: MemberTopics | None = None  # as last written or found in the log
    _unreleased: frozenset[Key] = frozenset()
    _unreleased_since: float = 0.0
    _read_at: float = float("-inf")
    _rebalanced_at: float = float("-inf")

    def __post_init__(self) -> None:
        of = self._of
        session_timeout_s = of.member.session_timeout_s
        self.heartbeat = Heartbeat(
            of.store, of.log.group, of.clock, session_timeout_s, of.heartbeat_interval_s
        )
        watch = LivenessCheck(of.store, of.log.group, of.clock)
        self._members = MemberWatch(watch, of.clock, of.heartbeat_interval_s)

    def is_silent(self) -> bool:
        """Whether the last heartbeat is `session.timeout.ms` old: the group may have removed this
        member.
        """
        return self.heartbeat.is_silent()

    def join(self, topics: MemberTopics, gone: Collection[str], *, is_refused: bool) -> None:
        """Join the group, and remove the members in `gone`. With `is_refused` those that are dead,
        too: the group may have refused this member because of them. Raises SessionExpired, and what
        `joined` raises.
        """
        # An earlier try may have joined, and the group may have removed this member since.
        if self.is_silent():
            raise SessionExpired
        head = self._of.log.head()  # first: a session may end while a long log is read
        self.heartbeat.beat(self.member_id)
        dead = self._members.dead(head, self.member_id) if is_refused else frozenset()
        member = replace(self._of.member, topics=topics.names)

        def plan(head: GroupHead) -> GroupHead | None:
            # This can happen when an earlier try, whose outcome was unknown, has succeeded.
            if self.member_id in head.members:
                return None
            return joined(
                head,
                self.member_id,
                member,
                topics.partition_counts,
                dead | set(gone),
                self._of.strategies,
            )

        head = self._change("JOIN", plan)
        metrics.JOINS.add(group=self._of.log.group)
        self._of.log.clear_away(dead)
        self.heartbeat.beat(self.member_id)
        self._written = topics
        _log.info(
            "joined group=%r member=%r generation=%d",
            self._of.log.group,
            self.member_id,
            head.generation,
        )
        self._publish(head)

    def keep_up(self, topics: MemberTopics, held: frozenset[Key]) -> None:
        """One round: send a heartbeat if one is due, read the log, write what the consumer
        subscribes to (`topics`) and what it could not release (all but what it holds), and remove
        dead members. Raises Fenced if this consumer is no longer a member, and SessionExpired.
        """
        head = self._show_life()
        self._publish(head)
        # The group has no assignment if the member that left last does not know the assignor: this
        # one computes it.
        if topics is not self._written or needs_rebalance(head, {}):
            names, partition_counts, strategies = (
                topics.names,
                topics.partition_counts,
                self._of.strategies,
            )
            changed = self._change(
                "REBALANCE",
                lambda head: resubscribed(
                    head, self.member_id, names, partition_counts, strategies
                ),
            )
            self._written = topics
            self._publish(changed)
        self._release_later(head, held)
        self._remove_dead(head)

    def leave(self, gone: Collection[str]) -> GroupHead:
        """Remove members: this one, or others that are dead."""

        def plan(head: GroupHead) -> GroupHead | None:
            return (
                left(head, gone, self._of.strategies) if head.members.keys() & set(gone) else None
            )

        return self._change("LEAVE", plan)

    def end(self) -> None:
        """End the session. The consumer can only join again with a new one."""
        self.view = None
        remove_heartbeat(self._of.store, self._of.log.group, self.member_id)

    def due_in_s(self) -> float:
        """Seconds until the next round."""
        now = self._of.clock.monotonic()
        if self._head is None or not self._head.is_stable():
            poll_s = BUSY_POLL_S
        else:
            poll_s = RECENT_POLL_S if now - self._rebalanced_at < RECENT_S else POLL_S
        return min(self.heartbeat.due_at, self._members.due_at, self._read_at + poll_s) - now

    def read_s_ago(self) -> float:
        """Seconds since the log was read."""
        return self._of.clock.monotonic() - self._read_at

    def _show_life(self) -> GroupHead:
        """Send a heartbeat if one is due, and read the log."""
        of = self._of
        try:
            if of.clock.monotonic() >= self.heartbeat.due_at:
                self.heartbeat.beat(self.member_id, self._pending())
        finally:  # Fenced takes precedence over the reason why the heartbeat failed
            head = of.log.head()
            self._read_at = of.clock.monotonic()
            if self.member_id not in head.members:
                raise not_a_member(head, of.log.group, of.member.instance_id)
        return head

    def _publish(self, head: GroupHead) -> None:
        subscription = 0 if self._written is None else self._written.subscription
        # Most rounds: the log has new commits of offsets at most.
        if head is self._head and self.view is not None and self.view.subscription == subscription:
            return
        if self._head is None or head.generation != self._head.generation:
            metrics.REBALANCES.add(group=self._of.log.group)
            self._rebalanced_at = self._of.clock.monotonic()
        self._head = head
        assigned = head.assigned.get(self.member_id, frozenset())
        instance_id = self._of.member.instance_id
        owned = head.owned(self.member_id)
        view = GroupView(
            self.member_id, instance_id, head.generation, assigned, owned, subscription
        )
        if view != self.view:
            self.view = view
            self._on_change()

    def _release_later(self, head: GroupHead, held: frozenset[Key]) -> None:
        """Release what the consumer does not hold and has not released for a heartbeat interval.

        Nothing else: the plan may see a newer head, and the consumer may by now hold what that one
        takes away.
        """

        def plan(head: GroupHead) -> GroupHead | None:
            mine = head.to_release(self.member_id) & unreleased
            return released(head, self.member_id, mine, self._of.strategies) if mine else None

        now, unreleased = self._of.clock.monotonic(), head.to_release(self.member_id) - held
        if unreleased != self._unreleased:
            self._unreleased, self._unreleased_since = unreleased, now
        elif unreleased and now - self._unreleased_since >= self._of.heartbeat_interval_s:
            self._publish(self._change("RELEASE", plan))

    def _remove_dead(self, head: GroupHead) -> None:
        if self._of.clock.monotonic() < self._members.due_at:
            return
        dead = self._members.dead(head, self.member_id)
        # Only the leader has read the heartbeats of all members.
        if head.leader == self.member_id and (delegation := self._sharing(head)):
            delegation.commit_pending(self._members.pending())
        if dead:
            self._publish(self.leave(dead))
            _log.info(
                "members removed group=%r members=%s",
                self._of.log.group,
                ", ".join(map(repr, sorted(dead))),
            )
            self._of.log.clear_away(dead)

    def _sharing(self, head: GroupHead) -> OffsetDelegation | None:
        """With whom offset commits are shared; None while this is the only member."""
        return self._of.delegation if len(head.members) > 1 else None

    def _pending(self) -> PendingOffsets | None:
        """What the heartbeat shows to the leader: nothing in the leader itself."""
        head = self._head
        delegation = None if head is None or head.leader == self.member_id else self._sharing(head)
        return None if delegation is None else delegation.pending(self.member_id)

    def _change(self, operation: str, plan: Callable[[GroupHead], GroupHead | None]) -> GroupHead:
        of = self._of
        identity = MemberIdentity(
            self.member_id,
            -1 if self._head is None else self._head.generation,
            of.member.instance_id,
        )
        return of.log.change(
            operation, identity, plan, of.clock.monotonic() + of.member.session_timeout_s
        )
