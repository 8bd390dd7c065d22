"""The heartbeat of a member, which heartbeats of others it watches, and which members these show to
be dead.

A member overwrites its heartbeat object with different content each time. It is dead once it has
not done so for its `session.timeout.ms`, measured on the watcher's own monotonic clock. No clocks
of two machines are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaq import metrics, names
from deltaq.clock import Clock
from deltaq.delta.store_errors import unavailable
from deltaq.groups.offsets import (
    PENDING_BYTES_MAX,
    PendingOffsets,
    heartbeat_content,
    parse_pending,
)
from deltaq.groups.state import GroupHead, Member
from deltaq.store import ObjectMissing, Store, StoreError
from deltaq.store.parallel import in_parallel_if_remote

_log = logging.getLogger("deltaq.groups")

HEARTBEAT_BYTES_MAX = PENDING_BYTES_MAX + 39  # a 64-bit number and two checksums come first
"""Bytes of a heartbeat object that a watcher reads. A member writes fewer; an object of another
writer may be huge.
"""


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
        # A new leader counts as silent until its heartbeat was seen to change: its members are
        # watched meanwhile.
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


@dataclass(frozen=True, slots=True)
class Liveness:
    """Members whose heartbeat has changed since the check before, and dead ones. Others have to be
    checked again.
    """

    alive: frozenset[str]
    dead: frozenset[str]


@dataclass(eq=False)
class LivenessCheck:
    """What one watcher has seen of the heartbeats of one group. Not thread-safe.

    A member's silence is measured from the end of the first check that found its object's present
    content to the beginning of the last one, so neither a slow store nor a suspended watcher makes
    it longer. "Dead" is final: such a member ends its own session (`Membership`).
    """

    _store: Store
    _group: str
    _clock: Clock
    _seen: dict[str, tuple[bytes | None, float]] = field(default_factory=dict)
    """By heartbeat object: its content, and when first seen."""

    def check(self, members: Mapping[str, Member]) -> Liveness:
        """Check the heartbeats of these members, and forget all others. Raises Unavailable."""
        by_object: dict[str, list[str]] = {}
        for member_id, member in members.items():
            by_object.setdefault(heartbeat_name(member_id, member), []).append(member_id)
        self._seen = {name: seen for name, seen in self._seen.items() if name in by_object}
        alive: set[str] = set()
        dead: set[str] = set()
        found = in_parallel_if_remote(self._store, self._clock, self._read, list(by_object))
        for name, (content, began_at, ended_at) in zip(by_object, found, strict=True):
            before, of_object = self._seen.get(name), by_object[name]
            if before is None or before[0] != content:
                self._seen[name] = content, ended_at
                # The first look proves nothing: the object may have been there for long.
                if before is not None:
                    alive.update(of_object)
            else:
                silent_s = began_at - before[1]
                dead.update(
                    member_id
                    for member_id in of_object
                    if silent_s >= members[member_id].session_timeout_s
                )
        return Liveness(frozenset(alive), frozenset(dead))

    def pending(self, members: Mapping[str, Member]) -> list[PendingOffsets]:
        """The offsets in the heartbeats of these members, as the last check has read them."""
        found = (
            (name, self._seen.get(heartbeat_name(name, member))) for name, member in members.items()
        )
        parsed = (parse_pending(seen[0], name) for name, seen in found if seen is not None)
        return [pending for pending in parsed if pending is not None]

    def next_verdict_s(self, members: Mapping[str, Member]) -> float:
        """Seconds until the first of these members is dead if it stays silent; infinite without a
        checked member.
        """
        now = self._clock.monotonic()
        left = [
            seen[1] + member.session_timeout_s - now
            for member_id, member in members.items()
            if (seen := self._seen.get(heartbeat_name(member_id, member))) is not None
        ]
        return max(0.0, min(left, default=float("inf")))

    def _read(self, name: str) -> tuple[bytes | None, float, float]:
        """The content of a heartbeat object, None if it does not exist, and when the read began and
        ended.
        """
        began_at = self._clock.monotonic()
        try:
            content = self._store.get_range(
                names.member_key(self._group, name), 0, HEARTBEAT_BYTES_MAX
            )
        except ObjectMissing:
            content = None
        except StoreError as error:
            raise unavailable(error) from error
        return content, began_at, self._clock.monotonic()


def heartbeat_name(member_id: str, member: Member) -> str:
    """The name of a member's heartbeat object, which members of one process may share."""
    return member.heartbeat or member_id


def remove_heartbeat(store: Store, group: str, member_id: str) -> None:
    """Remove the heartbeat object of a former member. If that fails, maintenance removes it
    later.
    """
    try:
        store.delete(names.member_key(group, member_id))
    except StoreError as error:
        _log.info("heartbeat object not removed, maintenance will group=%r reason=%s", group, error)
