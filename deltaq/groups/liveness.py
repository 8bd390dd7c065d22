"""Which members of a group are dead, judged by their heartbeat objects on the watcher's own clock.

A member overwrites its heartbeat object with content that differs each time. It is dead once it has not done so for its
`session.timeout.ms`. No clocks of two machines are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.store_errors import unavailable
from deltaq.groups.state import Member
from deltaq.store import ObjectMissing, Store, StoreError

__all__ = ["HeartbeatWatch", "Sighting", "remove_heartbeat"]

_log = logging.getLogger("deltaq.group")


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one look shows: the members whose heartbeat has changed since the look before, and those that are dead.

    A member that is in neither has to be looked at again.
    """

    alive: frozenset[str]
    dead: frozenset[str]


class HeartbeatWatch:
    """What one watcher has seen of the heartbeats of one group. Not thread-safe.

    Looks may be any time apart. A member's silence lasts from the end of the first look that found its object as it is
    to the beginning of the last one, so neither a slow store nor a watcher that was suspended can make it longer. A
    member that was silent for that long ends its stay by itself (`Membership`), so a verdict holds for ever.
    """

    def __init__(self, store: Store, group: str, clock: Clock) -> None:
        self._store = store
        self._group = group
        self._clock = clock
        self._seen: dict[str, tuple[bytes | None, float]] = {}  # by member, its object's content and since when

    def look(self, members: Mapping[str, Member]) -> Sighting:
        """Look at the heartbeats of these members, and forget all others. Raises Unavailable."""
        self._seen = {member_id: seen for member_id, seen in self._seen.items() if member_id in members}
        alive, dead = set(), set()
        for member_id, member in members.items():
            began_at = self._clock.monotonic()
            content = self._content(member_id)
            before = self._seen.get(member_id)
            if before is None or before[0] != content:
                self._seen[member_id] = content, self._clock.monotonic()
                if before is not None:
                    alive.add(member_id)
            elif began_at - before[1] >= member.session_timeout_s:
                dead.add(member_id)
        return Sighting(frozenset(alive), frozenset(dead))

    def _content(self, member_id: str) -> bytes | None:
        try:
            return self._store.get(names.member_key(self._group, member_id))
        except ObjectMissing:
            return None
        except StoreError as error:
            raise unavailable(error) from error


def remove_heartbeat(store: Store, group: str, member_id: str) -> None:
    """Remove a heartbeat object that is of no use any more. Maintenance removes what a failure leaves behind."""
    try:
        store.delete(names.member_key(group, member_id))
    except StoreError as error:
        _log.info("a heartbeat object stays behind group=%r reason=%s", group, error)
