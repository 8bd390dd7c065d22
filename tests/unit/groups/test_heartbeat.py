"""A member's own heartbeat, and which heartbeats of others it watches."""

from __future__ import annotations

import pytest

from deltaq import Unavailable
from deltaq.groups.heartbeat import Heartbeat, LivenessCheck, MemberWatch, SessionExpired
from deltaq.groups.state import GroupHead
from deltaq.names import member_key
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from tests.doubles.groups import new_member

SESSION_S, INTERVAL_S = 9.0, 1.0


class World:
    """A group of `count` members m00, m01 ..., of which the first is the leader, and what each has
    read.
    """

    def __init__(self, count: int, interval_s: float = INTERVAL_S) -> None:
        self.clock = ManualClock()
        self.interval_s = interval_s
        self.inner = MemoryStore("test")
        self.alive = [f"m{number:02}" for number in range(count)]
        self.head = GroupHead(
            1,
            {
                name: new_member(name, int(SESSION_S * 1000), joined=place)
                for place, name in enumerate(self.alive)
            },
        )
        self.stores = {name: FaultyStore(self.inner, trace=True) for name in self.alive}
        self.watches = {name: self.watch(name) for name in self.alive}
        self.beats = 0

    def watch(self, name: str) -> MemberWatch:
        return MemberWatch(
            LivenessCheck(self.stores[name], "g", self.clock), self.clock, self.interval_s
        )

    def pass_time(self, seconds: float) -> None:
        """Let the time pass in steps of a heartbeat interval, at each of which all living members
        beat and look.
        """
        for _ in range(round(seconds / self.interval_s)):
            self.clock.advance(self.interval_s)
            self.beats += 1
            for name in self.alive:
                self.inner.put(member_key("g", name), b"%d" % self.beats)
            for name in self.alive:
                self.dead(name)

    def dead(self, name: str) -> frozenset[str]:
        """What a member finds dead when it looks."""
        return self.watches[name].dead(self.head, name)

    def requests(self) -> int:
        """How many heartbeats all members have read so far."""
        return sum(store.operations["get_range"] for store in self.stores.values())

    def read(self, name: str) -> list[str]:
        """The heartbeats that a member has read since the last call."""
        keys = [step.key.rpartition("/")[2] for step in self.stores[name].trace]
        self.stores[name].trace.clear()
        return keys


def test_the_leader_watches_all_others_and_the_others_watch_the_leader():
    world = World(5)
    world.pass_time(2)
    for name in world.alive:
        world.read(name)
    world.pass_time(1)
    assert world.read("m00") == ["m01", "m02", "m03", "m04"]
    assert [world.read(name) for name in world.alive[1:]] == [["m00"]] * 4


@pytest.mark.parametrize("interval_s", [INTERVAL_S, SESSION_S / 3, SESSION_S / 2])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 50])
def test_the_reads_grow_with_the_number_of_members_and_not_with_its_square(count, interval_s):
    world = World(count, interval_s)
    world.pass_time(2 * interval_s)
    before = world.requests()
    world.pass_time(20 * interval_s)
    assert world.requests() - before == 20 * 2 * (count - 1)


def test_a_new_member_watches_all_until_it_has_seen_that_the_leader_lives():
    world = World(4)
    world.pass_time(1)
    assert world.read("m03") == ["m00", "m01", "m02"]
    world.pass_time(1)
    assert world.read("m03") == ["m00", "m01", "m02"], (
        "it has seen the heartbeat of the leader change, now"
    )
    world.pass_time(1)
    assert world.read("m03") == ["m00"]


def test_all_members_are_watched_while_the_leader_is_silent():
    world = World(4)
    world.pass_time(4)
    world.alive.remove("m00")
    world.pass_time(2)
    world.read("m03")
    world.pass_time(1)
    assert world.read("m03") == ["m00", "m01", "m02"], "silent for a third of its session time-out"
    world.alive.append("m00")
    world.pass_time(1)
    world.read("m03")
    world.pass_time(1)
    assert world.read("m03") == ["m00"]


@pytest.mark.fault("R1")
def test_members_that_die_with_the_leader_are_found_dead_by_one_survivor_one_session_later():
    world = World(6)
    world.pass_time(4)
    world.alive = ["m05"]
    world.pass_time(SESSION_S - 1)
    assert world.dead("m05") == frozenset()
    world.pass_time(1)
    assert world.dead("m05") == {"m00"}, "their silence was not watched from the beginning"
    world.pass_time(SESSION_S / 3)
    assert world.dead("m05") == {"m00", "m01", "m02", "m03", "m04"}


def test_the_leader_finds_each_dead_member_after_its_session_timeout():
    world = World(3)
    world.pass_time(4)
    world.alive.remove("m01")
    world.pass_time(SESSION_S - 1)
    assert world.dead("m00") == frozenset()
    world.pass_time(1)
    assert world.dead("m00") == {"m01"}


def test_after_a_change_of_the_leader_all_are_watched_until_the_new_one_is_seen_alive():
    world = World(4)
    world.pass_time(4)
    world.alive.remove("m00")
    world.head = GroupHead(2, {name: world.head.members[name] for name in world.alive})
    world.read("m03")
    world.pass_time(1)
    assert world.read("m03") == ["m01", "m02"]
    world.pass_time(2)
    world.read("m03")
    world.pass_time(1)
    assert world.read("m03") == ["m01"]


def test_members_of_one_process_do_not_watch_each_other_and_are_read_once():
    world = World(5)
    shared = {
        name: new_member(name, 9_000, joined=place, heartbeat="here" if place < 2 else "there")
        for place, name in enumerate(world.alive)
    }
    world.head = GroupHead(1, shared)
    world.dead("m00")
    assert world.read("m00") == ["there"]
    world.dead("m04")
    assert world.read("m04") == ["here"]
    world.clock.advance(SESSION_S)
    assert world.dead("m00") == {"m02", "m03", "m04"}
    assert world.dead("m04") == {"m00", "m01"}


def test_a_consumer_that_has_not_joined_yet_watches_all_members():
    world = World(3)
    world.stores["new"] = FaultyStore(world.inner, trace=True)
    world.watches["new"] = world.watch("new")
    world.dead("new")
    assert world.read("new") == ["m00", "m01", "m02"]
    world.clock.advance(SESSION_S)
    assert world.dead("new") == {"m00", "m01", "m02"}


def test_the_next_check_is_due_at_the_next_verdict_and_no_later_than_the_next_heartbeat():
    world = World(2)
    world.pass_time(4)
    watch = world.watches["m00"]
    assert watch.due_at == world.clock.monotonic() + INTERVAL_S
    world.alive.remove("m01")
    world.pass_time(SESSION_S - 1)
    world.clock.advance(0.9)
    world.dead("m00")
    assert watch.due_at == pytest.approx(world.clock.monotonic() + 0.1)
    world.clock.advance(0.099)
    world.dead("m00")
    assert watch.due_at == pytest.approx(world.clock.monotonic() + INTERVAL_S / 20), (
        "never in a tight loop"
    )


def test_a_check_that_fails_is_due_again_at_once():
    world = World(2)
    world.stores["m00"].add(Rule("get_range", "*", Fault.error_before()))
    with pytest.raises(Unavailable):
        world.dead("m00")
    assert world.watches["m00"].due_at <= world.clock.monotonic()


# --- its own heartbeat ---


def heartbeat(store: FaultyStore, clock: ManualClock) -> Heartbeat:
    return Heartbeat(store, "g", clock, SESSION_S, INTERVAL_S)


def test_each_heartbeat_has_other_content():
    clock, store = ManualClock(), FaultyStore(MemoryStore("test"))
    heart, seen = heartbeat(store, clock), []
    for _ in range(3):
        heart.beat("a")
        seen.append(store.get(member_key("g", "a")))
    assert len(set(seen)) == 3


def test_a_member_is_silent_once_its_last_heartbeat_is_as_old_as_its_session_timeout():
    clock, store = ManualClock(), FaultyStore(MemoryStore("test"))
    heart = heartbeat(store, clock)
    assert not heart.is_silent(), "it has not begun"
    assert heart.due_at <= clock.monotonic()
    heart.beat("a")
    assert heart.due_at == clock.monotonic() + INTERVAL_S
    clock.advance(SESSION_S - 0.1)
    assert not heart.is_silent()
    clock.suspend(0.1)
    assert heart.is_silent(), "time in which the machine is suspended counts"
    with pytest.raises(SessionExpired):
        heart.beat("a")
    assert heart.is_silent()


def test_a_failed_heartbeat_proves_nothing_and_is_not_repeated_before_it_is_due():
    clock, store = ManualClock(), FaultyStore(MemoryStore("test"))
    heart = heartbeat(store, clock)
    heart.beat("a")
    clock.advance(SESSION_S - 1)
    store.add(Rule("put", "*", Fault.error_before()))
    with pytest.raises(Unavailable):
        heart.beat("a")
    assert heart.due_at == clock.monotonic() + INTERVAL_S
    clock.advance(1)
    assert heart.is_silent()
