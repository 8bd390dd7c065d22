"""One session of a group member, on a manual clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltaq.clock import Clock
from deltaq.errors import Unavailable
from deltaq.groups.heartbeat import SessionExpired
from deltaq.groups.log import GroupLog
from deltaq.groups.session import MemberSettings, MemberTopics
from deltaq.groups.state import NO_MEMBER, GroupHead, Member, Owner
from deltaq.names import member_key
from deltaq.store.memory import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from tests.doubles.groups import RANGE, join, new_member, partition_counts, topics

SESSION_S = 6.0


class SlowStore(MemoryStore):
    """A memory store in which each read takes a second."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("slow", clock)
        self._clock = clock

    def get(self, key: str, size_max: int | None = None) -> bytes:
        self._clock.sleep(1.0)
        return super().get(key, size_max)


def test_a_member_joins_in_its_first_session_though_reading_the_log_takes_longer_than_a_session() -> (  # noqa: E501
    None
):
    clock = ManualClock(auto_advance=True)
    store = SlowStore(clock)
    written = GroupLog(store, "g", clock)
    for _ in range(10):
        written.change("LEAVE", NO_MEMBER, lambda head: GroupHead(head.generation + 1), 1e9)
    begun = clock.monotonic()
    log = GroupLog(store, "g", clock)
    member = Member(("t",), "c", "host", int(SESSION_S * 1000), protocols=(("range", ""),))
    session = MemberSettings(store, log, member, RANGE, 1.0, clock).session(lambda: None)
    session.join(topics(t=1), (), is_refused=False)
    assert clock.monotonic() - begun > SESSION_S
    assert session.view is not None


def test_a_session_that_fell_silent_while_it_joined_ends_without_a_further_heartbeat() -> None:
    """The group may have removed it: heartbeats would show a member that does not act as one."""
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("silent")
    member = new_member("m", int(SESSION_S * 1000))
    session = MemberSettings(store, GroupLog(store, "g", clock), member, RANGE, 1.0, clock).session(
        lambda: None
    )
    session.join(topics(t=1), (), is_refused=False)
    before = store.get(member_key("g", session.member_id))
    clock.advance(SESSION_S)
    with pytest.raises(SessionExpired):
        session.join(topics(t=1), (), is_refused=False)
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
    """The consumer may hold a partition that an entry just before the release takes away: it has
    final offsets.
    """
    clock = ManualClock(auto_advance=True)
    store = RacingStore("racing")
    session = MemberSettings(
        store, GroupLog(store, "g", clock), new_member("m"), RANGE, 1.0, clock
    ).session(lambda: None)
    session.join(topics(t=2), (), is_refused=False)
    join(GroupLog(store, "g"), "z", known=partition_counts(t=2))
    known = topics(t=2)
    session.keep_up(known, frozenset())
    assert GroupLog(store, "g").head().to_release(session.member_id) == {("t", 1)}
    clock.advance(1.0)
    store.first = lambda: join(GroupLog(store, "g"), "a", known=partition_counts(t=2))
    session.keep_up(known, frozenset())
    head = GroupLog(store, "g").head()
    assert head.to_release(session.member_id) == {("t", 0)}, "it is not released yet"


def test_a_changed_subscription_is_written_once_though_another_member_fills_the_slot_first() -> (
    None
):
    clock = ManualClock(auto_advance=True)
    store = RacingStore("resubscribing")
    session = MemberSettings(
        store, GroupLog(store, "g", clock), new_member("m"), RANGE, 1.0, clock
    ).session(lambda: None)
    session.join(topics(t=2), (), is_refused=False)
    store.first = lambda: join(GroupLog(store, "g"), "a", known=partition_counts(t=2))
    changed = MemberTopics(1, ("u",), partition_counts(u=1))
    session.keep_up(changed, frozenset())
    head = GroupLog(store, "g").head()
    assert {name: member.topics for name, member in head.members.items()} == {
        session.member_id: ("u",),
        "a": ("t",),
    }
    assert head.owners == {
        ("t", 0): Owner("a", 3),
        ("t", 1): Owner("a", 3),
        ("u", 0): Owner(session.member_id, 3),
    }
    assert session.view is not None
    assert (session.view.subscription, set(session.view.owned)) == (1, {("u", 0)})
    session.keep_up(changed, frozenset())
    assert GroupLog(store, "g").head() == head, "it is not written again"


def test_a_subscription_that_could_not_be_written_is_written_in_the_next_round() -> None:
    clock = ManualClock(auto_advance=True)
    store = FaultyStore(MemoryStore("failing"), clock=clock)
    session = MemberSettings(
        store, GroupLog(store, "g", clock), new_member("m"), RANGE, 1.0, clock
    ).session(lambda: None)
    session.join(topics(t=2), (), is_refused=False)
    store.add(Rule("create", "groups/*", Fault.refused(), times=None))
    changed = MemberTopics(1, ("u",), partition_counts(u=1))
    with pytest.raises(Unavailable):
        session.keep_up(changed, frozenset())
    assert session.view is not None
    assert session.view.subscription == 0
    store.clear()
    session.keep_up(changed, frozenset())
    assert (session.view.subscription, set(session.view.owned)) == (1, {("u", 0)})


def test_the_same_topics_are_a_view_of_the_newer_subscription() -> None:
    """The consumer assigns partitions only once the group knows its subscription."""
    clock = ManualClock(auto_advance=True)
    store = MemoryStore("same")
    changes: list[int] = []
    settings = MemberSettings(
        store, GroupLog(store, "g", clock), new_member("m"), RANGE, 1.0, clock
    )
    session = settings.session(lambda: changes.append(1))
    session.join(topics(t=2), (), is_refused=False)
    head = GroupLog(store, "g").head()
    session.keep_up(MemberTopics(1, ("t",), partition_counts(t=2)), frozenset())
    assert (GroupLog(store, "g").head(), len(changes)) == (head, 2)
    assert session.view is not None
    assert session.view.subscription == 1
