"""One session of a group member, on a manual clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltaq.clock import Clock
from deltaq.groups.fencing import NO_MEMBER
from deltaq.groups.heartbeat import SessionExpired
from deltaq.groups.log import GroupLog
from deltaq.groups.session import Candidate
from deltaq.groups.state import GroupHead, Member
from deltaq.names import member_key
from deltaq.store.memory import MemoryStore
from deltaq.testing import ManualClock
from tests.doubles.groups import RANGE, join, new_member, sizes

SESSION_S = 6.0


class SlowStore(MemoryStore):
    """A memory store in which each read takes a second."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("slow", clock)
        self._clock = clock

    def get(self, key: str) -> bytes:
        self._clock.sleep(1.0)
        return super().get(key)


def test_a_member_joins_in_its_first_session_though_reading_the_log_takes_longer_than_a_session() -> None:
    clock = ManualClock(auto_advance=True)
    store = SlowStore(clock)
    written = GroupLog(store, "g", clock)
    for _ in range(10):
        written.change("LEAVE", NO_MEMBER, lambda head: GroupHead(head.generation + 1), 1e9)
    begun = clock.monotonic()
    log = GroupLog(store, "g", clock)
    member = Member(("t",), "c", "host", int(SESSION_S * 1000), protocols=(("range", ""),))
    session = Candidate(store, log, member, RANGE, 1.0, clock).session(lambda: None)
    session.join(sizes(t=1), (), is_refused=False)
    assert clock.monotonic() - begun > SESSION_S
    assert session.view is not None


def test_a_session_that_fell_silent_while_it_joined_ends_without_a_further_heartbeat() -> None:
    """The group may have removed it: heartbeats would show a member that does not act as one."""
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("silent")
    member = new_member("m", int(SESSION_S * 1000))
    session = Candidate(store, GroupLog(store, "g", clock), member, RANGE, 1.0, clock).session(lambda: None)
    session.join(sizes(t=1), (), is_refused=False)
    before = store.get(member_key("g", session.member_id))
    clock.advance(SESSION_S)
    with pytest.raises(SessionExpired):
        session.join(sizes(t=1), (), is_refused=False)
    assert store.get(member_key("g", session.member_id)) == before


class RacingStore(MemoryStore):
    """Calls `first` once, before the next create."""

    first: Callable[[], object] | None = None

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        if self.first is not None:
            first, self.first = self.first, None
            first()
        super().create(key, data, after)


def test_a_session_releases_only_what_it_has_found_unreleased_for_a_while() -> None:
    """The consumer may hold a partition that an entry just before the release takes away: it has final offsets."""
    clock = ManualClock(auto_advance=True)
    store = RacingStore("racing")
    session = Candidate(store, GroupLog(store, "g", clock), new_member("m"), RANGE, 1.0, clock).session(lambda: None)
    session.join(sizes(t=2), (), is_refused=False)
    join(GroupLog(store, "g"), "z", known=sizes(t=2))
    known = sizes(t=2)
    session.keep_up(known, frozenset())
    assert GroupLog(store, "g").head().to_release(session.member_id) == {("t", 1)}
    clock.advance(1.0)
    store.first = lambda: join(GroupLog(store, "g"), "a", known=sizes(t=2))
    session.keep_up(known, frozenset())
    head = GroupLog(store, "g").head()
    assert head.to_release(session.member_id) == {("t", 0)}, "it is not released yet"
