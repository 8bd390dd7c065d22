"""The heartbeat of a member, and which heartbeats of others it watches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaq import metrics, names
from deltaq.clock import Clock
from deltaq.delta.store_errors import unavailable
from deltaq.groups.liveness import LivenessCheck, heartbeat_name
from deltaq.groups.pending import PendingOffsets, heartbeat_content
from deltaq.groups.state import GroupHead, Member
from deltaq.store import Store, StoreError


class SessionExpired(Exception):
    """This member was silent for its `session.timeout.ms`, so the group may have removed it."""


@dataclass(eq=False)
class Heartbeat:
    """Shows that a consumer lives: overwrites the heartbeat object of its member id. For one
    thread; `is_silent` and `silent_at` may be read in any.
    """

    _store: Store
    _group: str
    _clock: Clock
    _session_timeout_s: float
    _interval_s: float
    _beats: int = 0
    silent_at: float = float("inf")
    """When others may hold this member for dead unless there is another heartbeat, `Clock.uptime`:
    time during which the machine is suspended counts. Infinite before the first heartbeat.
    """
    due_at: float = float("-inf")
    """When the next heartbeat is due, `Clock.monotonic`."""

    def is_silent(self) -> bool:
        """Whether others may hold this member for dead."""
        return self._clock.uptime() >= self.silent_at

    def s_ago(self) -> float:
        """Seconds since the last successful heartbeat; below 0 before the first."""
        return self._clock.uptime() - (self.silent_at - self._session_timeout_s)

    def beat(self, member_id: str, pending: PendingOffsets | None = None) -> None:
        """Write the heartbeat object, with offsets for the leader to commit. Raises Unavailable,
        and SessionExpired if the previous heartbeat is too old.
        """
        # It counts from before the request, and only if that ended before the previous heartbeat
        # was `session.timeout.ms` old: when the store applied it in between is unknown.
        begun_at = self._clock.uptime()
        self.due_at = self._clock.monotonic() + self._interval_s
        self._beats += 1
        try:
            self._store.put(
                names.member_key(self._group, member_id), heartbeat_content(self._beats, pending)
            )
        except StoreError as error:
            metrics.HEARTBEATS_FAILED.add(group=self._group)
            raise unavailable(error) from error
        if self.is_silent():
            raise SessionExpired
        self.silent_at = begun_at + self._session_timeout_s


@dataclass(eq=False)
class MemberWatch:
    """The failure detection of one member.

    The oldest member of the group, its leader, watches all others, and the others watch the leader,
    so that the requests grow with the number of members and not with its square. A member that has
    not seen the leader's heartbeat change for a third of the leader's session time-out, or for one
    and a half heartbeat intervals if these are longer, watches all others too: if several members
    have died with the leader, all are found dead one session time-out later.
    """

    _seen: LivenessCheck
    _clock: Clock
    _interval_s: float
    _leader: str | None = None
    _leader_alive_at: float = float("-inf")
    # Those whose heartbeat was new at the last check.
    _alive: Mapping[str, Member] = field(default_factory=dict)
    due_at: float = float("-inf")
    """When the next check is due, `Clock.monotonic`."""

    def dead(self, head: GroupHead, member_id: str) -> frozenset[str]:
        """Check the heartbeats that this member watches. Returns the members that are dead. Raises
        Unavailable.
        """
        if head.leader != self._leader:
            self._leader, self._leader_alive_at = head.leader, float("-inf")
        watched = self._watched(head, member_id)
        found = self._seen.check(watched)
        now = self._clock.monotonic()
        if self._leader in found.alive:
            self._leader_alive_at = now
        living = {name: member for name, member in watched.items() if name not in found.dead}
        self.due_at = now + max(
            min(self._interval_s, self._seen.next_verdict_s(living)), self._interval_s / 20
        )
        self._alive = {name: watched[name] for name in found.alive}
        return found.dead

    def pending(self) -> list[PendingOffsets]:
        """The offsets in the heartbeats that the last check found to be new."""
        return self._seen.pending(self._alive)

    def _watched(self, head: GroupHead, member_id: str) -> Mapping[str, Member]:
        own = head.members.get(member_id)
        # Members of this process share its fate.
        beside = heartbeat_name(member_id, own) if own else member_id
        others = {
            name: other
            for name, other in head.members.items()
            if heartbeat_name(name, other) != beside
        }
        leader = others.get(self._leader or "")
        if leader is None or self._leader is None:
            return others
        trusted_s = max(leader.session_timeout_s / 3, 1.5 * self._interval_s)
        return (
            {self._leader: leader}
            if self._clock.monotonic() - self._leader_alive_at < trusted_s
            else others
        )
