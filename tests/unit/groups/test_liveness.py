"""Liveness of members: silence as counted by others and by the silent member itself, with pauses at
any point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Barrier

import pytest

from deltaq import Consumer, Fenced, KafkaError, KafkaException, Producer, Topic, TopicPartition
from deltaq.groups.heartbeat import Liveness, LivenessCheck
from deltaq.groups.log import GroupLog
from deltaq.groups.membership import Membership
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.state import MemberIdentity
from deltaq.names import member_key
from deltaq.store import MemoryStore, Store
from deltaq.store.parallel import REQUESTS_MAX
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from tests.doubles.groups import FOREVER, join, new_member, new_membership
from tests.doubles.reading import eventually, next_message

TIMEOUT_S = 10
VICTIM = new_member("victim", TIMEOUT_S * 1000)
EVER = None


class SteppedStore(FaultyStore):
    """Calls `done(number)` after each operation, while the process that asked has not gone on
    yet.
    """

    def __init__(self, inner: Store, done: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._done = done
        self._steps = 0

    def _step(self) -> None:
        self._steps += 1
        self._done(self._steps)

    def get(self, key, size_max=None):
        try:
            return super().get(key, size_max)
        finally:
            self._step()

    def get_range(self, key, start, length):
        try:
            return super().get_range(key, start, length)
        finally:
            self._step()

    def put(self, key, data):
        super().put(key, data)
        self._step()

    def create(self, key, data, after=""):
        try:
            super().create(key, data, after)
        finally:
            self._step()


class Heart:
    """The heartbeat object of a member, which beats when a test says so."""

    def __init__(self, store: Store, member_id: str = "victim") -> None:
        self.member_id = member_id
        self._store = store
        self._beats = 0

    def beat(self) -> None:
        self._beats += 1
        self._store.put(member_key("g", self.member_id), b"%d" % self._beats)


def is_dead(watch: LivenessCheck) -> bool:
    """Whether the next look finds the victim dead."""
    return "victim" in watch.check({"victim": VICTIM}).dead


@contextmanager
def membership(store: Store, clock: ManualClock, name: str = "watcher") -> Iterator[Membership]:
    found = new_membership(store, clock, new_member(name, TIMEOUT_S * 1000))
    found.begin()
    try:
        yield found
    finally:
        found.close()


def until_joined(found: Membership) -> str:
    eventually(lambda: found.view is not None, "the membership")
    assert found.view is not None
    return found.view.member_id


def members(store: Store) -> set[str]:
    return set(GroupLog(store, "g").head().members)


# --- one look after the other ---


def test_a_member_is_dead_if_its_heartbeat_is_unchanged_for_the_session_timeout():
    store, clock = MemoryStore("test"), ManualClock()
    heart, watch = Heart(store), LivenessCheck(store, "g", clock)
    heart.beat()
    assert not is_dead(watch)
    clock.advance(9.9)
    assert not is_dead(watch)
    clock.advance(0.1)
    assert is_dead(watch)


def test_a_heartbeat_before_a_late_check_restarts_the_session_timeout():
    store, clock = MemoryStore("test"), ManualClock()
    heart, watch = Heart(store), LivenessCheck(store, "g", clock)
    heart.beat()
    assert not is_dead(watch)
    clock.advance(3600)
    heart.beat()
    seen = watch.check({"victim": VICTIM})
    assert seen == Liveness(frozenset({"victim"}), frozenset())
    clock.advance(9.9)
    assert not is_dead(watch)
    clock.advance(0.1)
    assert is_dead(watch)


def test_a_slow_check_does_not_extend_the_observed_silence():
    """When the object was read is known no better than from when to when the look took."""
    clock, inner = ManualClock(), MemoryStore("test")
    slow = {1: 60.0, 3: 60.0}
    store = SteppedStore(inner, lambda step: clock.advance(slow.get(step, 0)))
    Heart(inner).beat()
    watch = LivenessCheck(store, "g", clock)
    assert not is_dead(watch)
    clock.advance(5)
    assert not is_dead(watch), "the first look ended 5 s ago"
    clock.advance(4)
    assert not is_dead(watch), (
        "it may have read the object 9 s after the first look, though it ended much later"
    )
    assert is_dead(watch)


def test_the_suspension_of_a_watcher_does_not_count_as_silence():
    store, clock = MemoryStore("test"), ManualClock()
    watch = LivenessCheck(store, "g", clock)
    Heart(store).beat()
    assert not is_dead(watch)
    clock.suspend(3600)
    assert not is_dead(watch), "both may be programs of a laptop that slept"


def test_each_member_has_the_session_timeout_that_it_joined_with():
    store, clock = MemoryStore("test"), ManualClock()
    watch = LivenessCheck(store, "g", clock)
    both = {"victim": VICTIM, "patient": new_member("patient", 60_000)}
    watch.check(both)
    clock.advance(59)
    assert watch.check(both).dead == {"victim"}
    clock.advance(1)
    assert watch.check(both).dead == {"victim", "patient"}, (
        "neither has a heartbeat object, and that does not change"
    )


def test_the_heartbeats_of_many_members_on_a_remote_store_are_read_in_parallel():
    together = Barrier(REQUESTS_MAX)

    class RemoteStore(MemoryStore):
        is_remote = True

        def get_range(self, key, start, length):
            together.wait(30)  # raises unless so many are being read at once
            return super().get_range(key, start, length)

    store, clock = RemoteStore("test"), ManualClock()
    members = {f"m{number}": new_member(f"m{number}", 10_000) for number in range(2 * REQUESTS_MAX)}
    hearts = [Heart(store, member_id) for member_id in members]
    for heart in hearts:
        heart.beat()
    watch = LivenessCheck(store, "g", clock)
    watch.check(members)
    for heart in hearts[1:]:
        heart.beat()
    clock.advance(10)
    assert watch.check(members) == Liveness(frozenset(members) - {"m0"}, frozenset({"m0"}))


def test_a_rejoined_member_of_the_same_name_is_another_member():
    store, clock = MemoryStore("test"), ManualClock()
    watch = LivenessCheck(store, "g", clock)
    assert not is_dead(watch)
    watch.check({})
    clock.advance(TIMEOUT_S)
    assert not is_dead(watch)


def test_a_failed_check_changes_nothing_and_the_next_one_continues():
    store, clock = FaultyStore(MemoryStore("test")), ManualClock()
    watch = LivenessCheck(store, "g", clock)
    assert not is_dead(watch)
    clock.advance(TIMEOUT_S)
    store.add(Rule("get_range", "*", Fault.error_before()))
    with pytest.raises(KafkaException):
        is_dead(watch)
    assert is_dead(watch)


# --- pauses ---


@pytest.mark.fault("C3")
@pytest.mark.parametrize("is_leader", [False, True])
@pytest.mark.parametrize("paused_after", range(1, 40))
def test_a_watcher_paused_after_any_step_removes_no_live_member(paused_after, is_leader):
    """The member beats every 9 s. Wherever the watcher is suspended, it then has to look once
    more.
    """
    clock = ManualClock()
    inner = MemoryStore("test", clock)
    heart, others = Heart(inner), GroupLog(inner, "g", clock)
    heart.beat()
    if not is_leader:
        join(others, "victim", VICTIM)
    lived_at, steps = [0.0], [0]

    def live(step: int) -> None:
        steps[0] = step
        if clock.monotonic() - lived_at[0] >= 9 or step == paused_after:
            heart.beat()
            lived_at[0] = clock.monotonic()
        if step == paused_after:
            for _ in range(5):
                clock.advance(9)
                heart.beat()
            lived_at[0] = clock.monotonic()

    with membership(SteppedStore(inner, live), clock) as watcher:

        def passes(condition: Callable[[], bool]) -> bool:
            clock.advance(0.5)
            return condition()

        if is_leader:
            eventually(lambda: passes(lambda: watcher.view is not None), "the membership")
            join(others, "victim", VICTIM)
        eventually(lambda: passes(lambda: steps[0] >= 100), "the hundredth step of the watcher")
        assert "victim" in members(inner)
        lived_at[0] = clock.monotonic() + 1e9  # its heart stops
        eventually(
            lambda: passes(lambda: "victim" not in members(inner)), "the removal of a dead member"
        )


@pytest.mark.fault("C3", "R2")
def test_a_member_that_rejoins_before_its_removal_entry_stays():
    clock = ManualClock()
    inner = MemoryStore("test", clock)
    store, other = FaultyStore(inner), FaultyStore(inner)
    with membership(store, clock, "silent") as silent, membership(other, clock) as watcher:
        # Neither releases a partition, so that the entry that hangs below is the removal.
        silent.held = watcher.held = frozenset({("t", 0), ("t", 1)})
        first, watching = until_joined(silent), until_joined(watcher)
        clock.until_waiting(2)
        store.add(Rule("put", "groups/g/_members/*", Fault.slow(), times=1))
        clock.advance(3)
        eventually(lambda: store.blocked, "a heartbeat that hangs")
        other.add(Rule("create", "*", Fault.slow(), times=1))

        def has_judged() -> bool:
            if clock.waiting:  # the watcher rests: otherwise its own heartbeat may be late, too
                clock.advance(1)
            return bool(other.blocked)

        eventually(has_judged, "the entry that puts the silent member out")
        assert silent.view is None, "as silent as that, it does not deliver"
        store.release()
        second = until_joined(silent)
        assert second != first
        other.release()
        eventually(
            lambda: watcher.view is not None and watcher.view.generation == 3,
            "the end of the removal",
        )
        clock.until_waiting(2)
        assert members(inner) == {second, watching}
        assert silent.view is not None


@pytest.mark.fault("C4")
def test_a_member_after_machine_suspension_rejoins_at_once():
    clock = ManualClock()
    store = MemoryStore("test", clock)
    with membership(store, clock) as sleeper:
        first = until_joined(sleeper)
        clock.until_waiting()
        clock.suspend(3600)
        assert sleeper.view is None
        clock.advance(3)
        second = until_joined(sleeper)
        assert second != first
        assert members(store) == {second}
    assert members(store) == set()
    assert list(store.list("groups/g/_members/")) == []


# --- commits from outside ---


def commit_from_outside(log: GroupLog, offset: int) -> bool:
    """Whether a consumer that assigned its partitions itself may commit."""
    try:
        log.commit(None, [CommittedOffset("t", "id", 0, offset)], FOREVER)
    except Fenced:
        return False
    return True


def test_an_outside_commit_is_refused_while_the_member_lives_and_accepted_after():
    store, clock = MemoryStore("test"), ManualClock()
    heart, log = Heart(store), GroupLog(store, "g", clock)
    join(GroupLog(store, "g"), "victim", VICTIM)
    for _ in range(5):
        heart.beat()
        assert not commit_from_outside(log, 1)
        clock.advance(9)
    heart.beat()
    assert not commit_from_outside(log, 1), "it beat after the last look"
    clock.advance(9.9)
    assert not commit_from_outside(log, 1)
    assert members(store) == {"victim"}
    clock.advance(0.1)
    version = log.state().version
    assert commit_from_outside(log, 2)
    assert log.state().version == version + 1, "put out and committed in one entry"
    assert members(store) == set()
    assert list(store.list("groups/g/_members/")) == []
    assert commit_from_outside(log, 3)
    assert log.committed([("t", "id", 0)]) == [CommittedOffset("t", "id", 0, 3)]


@pytest.mark.fault("R2")
def test_an_outside_commit_removes_no_member_that_joined_meanwhile():
    inner, clock = MemoryStore("test"), ManualClock()
    join(GroupLog(inner, "g"), "victim", VICTIM)

    def take_over(step: int) -> None:
        if steps and not joined and members(inner) == {"victim"}:
            joined.append(True)
            join(GroupLog(inner, "g"), "heir", VICTIM, ["victim"])

    steps: list[bool] = []
    joined: list[bool] = []
    log = GroupLog(SteppedStore(inner, take_over), "g", clock)
    assert not commit_from_outside(log, 1)
    clock.advance(TIMEOUT_S)
    steps.append(True)
    assert not commit_from_outside(log, 1)
    assert members(inner) == {"heir"}


def test_members_and_outsiders_of_an_empty_group_commit_without_heartbeat_reads():
    store = FaultyStore(MemoryStore("test"), trace=True)
    log = GroupLog(store, "g", ManualClock())
    assert commit_from_outside(log, 1)
    join(log, "victim", VICTIM)
    log.commit(MemberIdentity("victim", 1), [CommittedOffset("t", "id", 0, 2)], FOREVER)
    assert not [step for step in store.trace if "_members/" in step.key]


def test_automatic_commits_of_assigned_partitions_count_once_a_killed_member_has_timed_out():
    store, outcomes = MemoryStore("test"), []
    Topic("t", store=store).create()
    with Producer({"bootstrap.servers": "memory://unused"}, store=store) as producer:
        producer.produce("t", b"v")
    join(GroupLog(store, "g"), "killed", new_member("killed", 300))
    conf = {"bootstrap.servers": "memory://unused", "group.id": "g", "auto.commit.interval.ms": 50}
    with Consumer(conf, store=store, on_commit=lambda error, _: outcomes.append(error)) as reader:
        reader.assign([TopicPartition("t", 0, 0)])
        assert next_message(reader).offset() == 0
        eventually(lambda: reader.poll(0.01) is None and None in outcomes, "a commit that counts")
        assert reader.committed([TopicPartition("t", 0)])[0].offset == 1
    assert outcomes[0] == KafkaError.UNKNOWN_MEMBER_ID


@pytest.mark.fault("C3")
@pytest.mark.parametrize("by", ["commit", "close"])
def test_a_program_that_commits_once_and_ends_gets_past_a_killed_member(by: str):
    store = MemoryStore("test")
    Topic("t", store=store).create()
    with Producer({"bootstrap.servers": "memory://unused"}, store=store) as producer:
        producer.produce("t", b"v")
    join(GroupLog(store, "g"), "killed", new_member("killed", 300))
    conf = {
        "bootstrap.servers": "memory://unused",
        "group.id": "g",
        "enable.auto.commit": by == "close",
    }
    with Consumer(conf, store=store) as reader:
        reader.assign([TopicPartition("t", 0, 0)])
        assert next_message(reader).offset() == 0
        if by == "commit":
            reader.commit(asynchronous=False)
    with Consumer(conf, store=store) as reader:
        assert reader.committed([TopicPartition("t", 0)])[0].offset == 1
    assert members(store) == set()


# --- its own proof ---


@pytest.mark.fault("C4")
def test_a_heartbeat_counts_from_before_it_was_written():
    """Others may have seen it as soon as the write began, and count from then."""
    clock = ManualClock()
    inner = MemoryStore("test", clock)
    store = FaultyStore(inner)
    with membership(store, clock) as member:
        until_joined(member)
        clock.until_waiting()
        store.add(Rule("put", "groups/g/_members/*", Fault.slow(), times=1))
        clock.advance(3)
        eventually(lambda: store.blocked, "a heartbeat that hangs")
        clock.advance(6)  # it began 3 s after the one before it, and ends 9 s after it
        store.release()
        clock.until_waiting()
        assert member.view is not None
        store.add(Rule("put", "groups/g/_members/*", Fault.error_before(), EVER))
        clock.advance(3)
        clock.until_waiting()
        assert member.view is not None, "12 s, of which the heartbeat of 3 s proves ten"
        clock.advance(1)
        assert member.view is None, "13 s: the write ended 4 s ago, but began 10 s ago"


@pytest.mark.fault("C4")
def test_an_expired_membership_does_not_become_valid_again():
    class InterruptedClock(ManualClock):
        interruption: Callable[[], None] | None = None

        def uptime(self) -> float:
            interruption, self.interruption = self.interruption, None
            if interruption is not None:
                interruption()
            return super().uptime()

    clock = InterruptedClock()
    with membership(MemoryStore("test", clock), clock) as member:
        until_joined(member)
        clock.until_waiting()
        clock.suspend(3600)
        assert member.view is None
        expired = KafkaError(KafkaError._TIMED_OUT)
        clock.interruption = lambda: member._end_session(expired)  # as its thread does, just then
        assert member.view is None


def test_a_late_heartbeat_ends_the_membership():
    clock = ManualClock()
    inner = MemoryStore("test", clock)
    store = FaultyStore(inner)
    with membership(store, clock) as member:
        first = until_joined(member)
        clock.until_waiting()
        store.add(Rule("put", "groups/g/_members/*", Fault.slow(), times=1))
        clock.advance(3)
        eventually(lambda: store.blocked, "a heartbeat that hangs")
        clock.advance(7)
        store.release()
        assert until_joined(member) != first


def test_leaving_removes_all_memberships_of_a_client():
    """Its earlier stay is in the log still, when the store lets it neither join again nor leave."""
    clock = ManualClock()
    inner = MemoryStore("test", clock)
    store = FaultyStore(inner)
    with membership(store, clock) as member:
        first = until_joined(member)
        clock.until_waiting()
        store.add(Rule("put", "groups/g/_members/*", Fault.error_before(), EVER))
        clock.advance(TIMEOUT_S)
        eventually(lambda: isinstance(member.take_error(), KafkaException), "the end of the stay")
        assert members(inner) == {first}
    assert members(inner) == set()
