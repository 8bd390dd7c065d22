"""Failure detection for group members by their heartbeat objects.

A member overwrites its heartbeat object with different content each time. It is dead once it has
not done so for its `session.timeout.ms`, measured on the watcher's own monotonic clock. No clocks
of two machines are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.store_errors import unavailable
from deltaq.groups.pending import PENDING_BYTES_MAX, PendingOffsets, parse_pending
from deltaq.groups.state import Member
from deltaq.store import ObjectMissing, Store, StoreError
from deltaq.store.parallel import in_parallel_if_remote

_log = logging.getLogger("deltaq.groups")

HEARTBEAT_BYTES_MAX = PENDING_BYTES_MAX + 30  # a 64-bit number and a checksum come first
"""Bytes of a heartbeat object that a watcher reads. A member writes fewer; an object of another
writer may be huge.
"""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Members whose heartbeat has changed since the check before, and dead ones. Others have to be
    checked again.
    """

    alive: frozenset[str]
    dead: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Read:
    """A heartbeat object's content, None if it does not exist, and when the read began and
    ended.
    """

    content: bytes | None
    began_at: float
    ended_at: float


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

    def check(self, members: Mapping[str, Member]) -> Sighting:
        """Check the heartbeats of these members, and forget all others. Raises Unavailable."""
        by_object: dict[str, list[str]] = {}
        for member_id, member in members.items():
            by_object.setdefault(heartbeat_name(member_id, member), []).append(member_id)
        self._seen = {name: seen for name, seen in self._seen.items() if name in by_object}
        alive: set[str] = set()
        dead: set[str] = set()
        found = in_parallel_if_remote(self._store, self._clock, self._read, list(by_object))
        for name, read in zip(by_object, found, strict=True):
            before, of_object = self._seen.get(name), by_object[name]
            if before is None or before[0] != read.content:
                self._seen[name] = read.content, read.ended_at
                if before is not None:
                    alive.update(of_object)
            else:
                silent_s = read.began_at - before[1]
                dead.update(
                    member_id
                    for member_id in of_object
                    if silent_s >= members[member_id].session_timeout_s
                )
        return Sighting(frozenset(alive), frozenset(dead))

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

    def _read(self, name: str) -> _Read:
        began_at = self._clock.monotonic()
        try:
            content = self._store.get_range(
                names.member_key(self._group, name), 0, HEARTBEAT_BYTES_MAX
            )
        except ObjectMissing:
            content = None
        except StoreError as error:
            raise unavailable(error) from error
        return _Read(content, began_at, self._clock.monotonic())


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
