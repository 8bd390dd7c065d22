"""Maintenance of groups: short logs, expiry of the offsets of abandoned groups, and members that
stay.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from deltaq import Consumer, Fenced, Producer, Topic, TopicPartition
from deltaq.clock import SYSTEM_CLOCK, Thread
from deltaq.delta import checkpoint_columns
from deltaq.delta.checkpoint import read_newest_checkpoint
from deltaq.delta.log import DeltaLog
from deltaq.delta.slot_proof import CLEAN_UP_GRACE_S
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.state import MemberIdentity
from deltaq.maintenance import log_maintenance
from deltaq.maintenance.groups import GroupPass
from deltaq.maintenance.log_maintenance import BackgroundLogMaintenance
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.names import entry_version, group_folder, member_key
from deltaq.store import MemoryStore, Store, forget_memory_store, open_store
from deltaq.testing import Crash, Effect, Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.log import TopicLog
from tests.doubles.groups import FOREVER, commit, join, leave, new_member
from tests.doubles.reading import drain, eventually

FOLDER = group_folder("g")
LOG = FOLDER + "_delta_log/"
DAY_S = 24 * 60 * 60
WEEK_MS = 7 * DAY_S * 1000
SMALL = MaintenanceSettings(
    checkpoint_interval=10, keep_entries_min=20, keep_entries_max=200, keep_checkpoint_interval=50
)


def offset(number: int, partition: int = 0, note: str | None = None) -> CommittedOffset:
    return CommittedOffset("t", "id", partition, number, note)


class World:
    """A store with group `g`."""

    def __init__(self) -> None:
        self.clock = ManualClock(auto_advance=True)
        self.store: Store = MemoryStore("test", self.clock)

    def log(
        self, store: Store | None = None, background: BackgroundLogMaintenance | None = None
    ) -> GroupLog:
        return GroupLog(store or self.store, "g", self.clock, "client", background)

    def maintainer(
        self, store: Store | None = None, settings: MaintenanceSettings = SMALL
    ) -> GroupPass:
        return GroupPass(store or self.store, "g", self.clock, settings, WEEK_MS)

    def committed(self, partition: int = 0) -> int | None:
        found = self.log().committed([("t", "id", partition)])[0]
        return None if found is None else found.offset

    def entries(self) -> list[int]:
        found = [entry_version(entry.key) for entry in self.store.list(LOG)]
        return [version for version in found if version is not None]

    def beat(self, member_id: str, content: bytes = b"1") -> None:
        self.store.put(member_key("g", member_id), content)

    def heartbeats(self) -> list[str]:
        return [entry.key.rpartition("/")[2] for entry in self.store.list(FOLDER + "_members/")]


@pytest.fixture
def world() -> World:
    return World()


# --- offsets of abandoned groups ---


def test_offsets_are_forgotten_a_week_after_the_last_commit_of_a_group_without_members(world):
    world.log().commit(None, [offset(5), offset(6, 1, "note")], FOREVER)
    maintainer = world.maintainer()
    world.clock.advance(7 * DAY_S - 60)
    assert maintainer.run()["offsets forgotten"] == 0
    assert (world.committed(0), world.committed(1)) == (5, 6)
    world.clock.advance(61)
    assert maintainer.plan()["actions planned"] == 1
    assert (world.committed(0), world.committed(1)) == (5, 6), "a plan changes nothing"
    assert maintainer.run()["offsets forgotten"] == 2
    assert (world.committed(0), world.committed(1)) == (None, None)
    assert maintainer.run()["offsets forgotten"] == 0
    world.log().commit(None, [offset(1)], FOREVER)
    assert world.committed() == 1


def test_the_week_counts_from_when_the_last_member_left(world):
    log = world.log()
    join(log, "a")
    commit(log, "a", offset(5))
    maintainer = world.maintainer()
    for day in range(20):
        world.beat("a", b"%d" % day)
        world.clock.advance(DAY_S)
        maintainer.run()
    leave(log, "a")
    world.clock.advance(7 * DAY_S - 60)
    maintainer.run()
    assert world.committed() == 5
    world.clock.advance(61)
    maintainer.run()
    assert world.committed() is None


def test_a_dead_member_is_removed_after_a_week_and_two_scans(world):
    log = world.log()
    world.beat("a")
    join(log, "a")
    commit(log, "a", offset(5))
    maintainer = world.maintainer()
    world.clock.advance(8 * DAY_S)
    maintainer.run()
    assert world.committed() == 5, (
        "it looks still, but for how long this maintainer cannot know yet"
    )
    world.clock.advance(CLEAN_UP_GRACE_S)
    maintainer.run()
    assert world.committed() is None
    assert world.log().head().members == {}
    assert world.heartbeats() == []
    with pytest.raises(Fenced):
        commit(log, "a", offset(6))


def test_a_member_that_was_seen_alive_within_the_week_stays(world):
    """Its heartbeats may be hours apart: that is up to its settings."""
    join(world.log(), "a")
    commit(world.log(), "a", offset(5))
    world.clock.advance(8 * DAY_S)
    world.beat("a")
    maintainer = world.maintainer()
    for _ in range(3):
        maintainer.run()
        world.clock.advance(DAY_S)
    assert world.committed() == 5
    assert world.heartbeats() == ["a"]


def test_a_member_with_a_wrong_clock_stays_while_it_heartbeats(world):
    world.beat("a")
    join(world.log(), "a")
    commit(world.log(), "a", offset(5))
    maintainer = world.maintainer()
    world.clock.advance(30 * DAY_S)
    for beat in range(5):
        now = world.clock.time_ms()
        # The store's clock is three weeks late.
        world.clock.set_wall_clock(now - 20 * DAY_S * 1000 + beat)
        world.beat("a", b"%d" % beat)
        world.clock.set_wall_clock(now)
        maintainer.run()
        world.clock.advance(CLEAN_UP_GRACE_S)
    assert world.committed() == 5
    assert set(world.log().head().members) == {"a"}


@pytest.mark.parametrize("returns_with", ["a commit", "a new member"])
def test_a_member_that_returns_at_the_last_moment_loses_nothing(returns_with, world):
    world.log().commit(None, [offset(5)], FOREVER)
    world.clock.advance(8 * DAY_S)

    class Rival(FaultyStore):
        """Another process writes between the look at the group and the commit that would forget."""

        came = 0

        def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
            if key.endswith("01.json") and not self.came:
                self.came += 1
                if returns_with == "a commit":
                    world.log().commit(None, [offset(7)], FOREVER)
                else:
                    join(world.log(), "a")
            super().create(key, data, after)

    rival = Rival(world.store)
    assert world.maintainer(rival).run()["offsets forgotten"] == 0
    assert rival.came == 1
    assert world.committed() == (7 if returns_with == "a commit" else 5)


def test_a_forgotten_group_leaves_a_stub_and_can_be_used_again(world):
    world.log().commit(None, [offset(5)], FOREVER)
    sleeper = world.log()
    assert sleeper.committed([("t", "id", 0)]) == [offset(5)]
    maintainer = world.maintainer()
    for _ in range(6):
        world.clock.advance(4 * DAY_S)
        maintainer.run()
    assert [entry.key.removeprefix(FOLDER) for entry in world.store.list(FOLDER)] == [
        "_delta_log/00000000000000000001.checkpoint.parquet",
        "_delta_log/00000000000000000001.json",
        "_delta_log/_last_checkpoint",
        "_deltaq/log_start/00000000000000000001",
    ]
    assert sleeper.committed([("t", "id", 0)]) == [None]
    join(sleeper, "a")
    commit(sleeper, "a", offset(1))
    assert world.committed() == 1
    assert world.entries() == [1, 2, 3]


# --- offsets of deleted topics ---


def lives(world: World, count: int) -> list[str]:
    """The ids under which topic `t` has lived, the last of which still does."""
    ids: list[str] = []
    for _ in range(count):
        log = TopicLog(world.store, "t", world.clock)
        if log.load():
            log.delete(FOREVER)
        Topic("t", partitions=2, store=world.store, clock=world.clock).create()
        log.load()
        ids.append(log.live_head.topic_id)
    return ids


def kept_ids(world: World) -> list[str]:
    return sorted({app_id.split("/")[1] for app_id in world.log().state().txns})


@pytest.mark.parametrize("identity", [MemberIdentity("a", 1), None])
def test_offsets_of_deleted_topics_are_removed_while_the_group_is_in_use(world, identity):
    first, second = lives(world, 2)
    log = world.log()
    if identity is not None:
        join(log, identity.member_id)
    head = log.head()
    for topic_id in (first, second):
        log.commit(
            identity, [CommittedOffset("t", topic_id, n, 5, "note") for n in range(2)], FOREVER
        )
    log.commit(identity, [CommittedOffset("never-there", "x", 0, 5)], FOREVER)
    assert world.maintainer().plan()["actions planned"] >= 1
    assert kept_ids(world) == sorted([first, second, "x"]), "a plan changes nothing"
    assert world.maintainer().run()["offsets forgotten"] == 2
    assert kept_ids(world) == sorted([second, "x"])
    assert log.head() == head, "members stay, and their generation"
    assert log.committed([("t", second, 1)]) == [CommittedOffset("t", second, 1, 5, "note")]
    assert log.committed([("t", first, 1)]) == [None]
    assert first not in log.state().domains["deltaq.offset_metadata"]
    topic = TopicLog(world.store, "t", world.clock)
    topic.load()
    topic.delete(FOREVER)
    assert world.maintainer().run()["offsets forgotten"] == 2
    assert kept_ids(world) == ["x"]
    assert world.maintainer().run()["offsets forgotten"] == 0


@pytest.mark.parametrize("fault", [Fault.error_before(), Fault.refused()])
def test_offsets_stay_while_the_log_of_their_topic_cannot_be_read(world, fault):
    first, _ = lives(world, 2)
    world.log().commit(None, [CommittedOffset("t", first, 0, 5)], FOREVER)
    faulty = FaultyStore(world.store, Rule("*", "topics/*", fault, times=None), clock=world.clock)
    assert world.maintainer(faulty).run()["offsets forgotten"] == 0
    assert faulty.struck.total() > 0
    assert kept_ids(world) == [first]


# --- heartbeats ---


def test_orphan_heartbeats_are_removed_and_those_of_members_and_joiners_stay(world):
    join(world.log(), "a")
    maintainer = world.maintainer()
    for beat in range(4):
        for member in ("a", "waiting"):
            world.beat(member, b"%d" % beat)
        if not beat:
            world.beat("gone")
        maintainer.run()
        world.clock.advance(CLEAN_UP_GRACE_S)
    assert world.heartbeats() == ["a", "waiting"]


def test_the_heartbeat_that_members_of_one_process_share_is_that_of_each_of_them(world):
    for member in "ab":
        join(world.log(), member, new_member(member, heartbeat="process"))
    commit(world.log(), "a", offset(5))
    maintainer = world.maintainer()
    for day in range(9):
        world.beat("process", b"%d" % day)
        for _ in range(2):  # unchanged for longer than the object of a stranger may be
            maintainer.run()
            world.clock.advance(CLEAN_UP_GRACE_S)
        assert (world.heartbeats(), world.committed()) == (["process"], 5), "they live"
        world.clock.advance(DAY_S)
    world.clock.advance(8 * DAY_S)
    maintainer.run()
    world.clock.advance(CLEAN_UP_GRACE_S)
    maintainer.run()
    assert world.log().head().members == {}
    assert (world.committed(), world.heartbeats()) == (None, [])


def test_the_heartbeat_of_a_never_created_group_is_removed(world):
    world.beat("gone")
    maintainer = world.maintainer()
    assert maintainer.run()["heartbeats deleted"] == 0
    world.clock.advance(CLEAN_UP_GRACE_S)
    assert maintainer.run()["heartbeats deleted"] == 1
    assert world.heartbeats() == []


def test_a_slow_listing_makes_no_heartbeat_object_older_than_it_was_seen(world):
    world.beat("waiting")
    slow = Rule("list", "groups/g/_members/*", Fault.slow(CLEAN_UP_GRACE_S), times=1)
    maintainer = world.maintainer(FaultyStore(world.store, slow, clock=world.clock))
    maintainer.run()
    assert maintainer.run()["heartbeats deleted"] == 0
    world.clock.advance(CLEAN_UP_GRACE_S)
    assert maintainer.run()["heartbeats deleted"] == 1


def test_a_second_scan_is_awaited_only_if_it_may_matter(world):
    maintainer = world.maintainer()
    maintainer.run()
    assert not maintainer.is_waiting(), "there is no group"
    world.beat("a")
    join(world.log(), "a")
    maintainer.run()
    assert not maintainer.is_waiting(), "the heart of a member that is well"
    world.clock.advance(8 * DAY_S)
    maintainer = world.maintainer()
    maintainer.run()
    assert maintainer.is_waiting(), (
        "a member that is perhaps dead, of a group that would then be forgotten"
    )
    world.beat("a", b"2")
    maintainer.run()
    assert not maintainer.is_waiting(), "it lives"
    world.beat("b")
    maintainer.run()
    assert maintainer.is_waiting(), "without a member"
    world.clock.advance(CLEAN_UP_GRACE_S)
    assert maintainer.finish()["heartbeats deleted"] == 1
    assert not maintainer.is_waiting()
    assert world.heartbeats() == ["a"]


# --- the log ---


def commit_many(world: World, log: GroupLog, count: int) -> None:
    for number in range(count):
        log.commit(None, [offset(number), offset(number, 1, f"note {number}")], FOREVER)
        world.clock.advance(60)


def kept_short(world: World, count: int, settings: MaintenanceSettings = SMALL) -> None:
    """Commits, with maintenance now and then."""
    maintainer, log = world.maintainer(settings=settings), world.log()
    for _ in range(0, count, 50):
        commit_many(world, log, 50)
        maintainer.run()
        world.clock.advance(CLEAN_UP_GRACE_S)
        maintainer.finish()


def test_log_clean_up_keeps_the_state_of_a_group(world):
    join(world.log(), "a")
    leave(world.log(), "a")
    kept_short(world, 300)
    assert len(world.entries()) <= 300
    world.clock.advance(DAY_S)
    before = world.log().state()
    maintainer = world.maintainer()
    maintainer.run()
    assert maintainer.is_waiting()
    world.clock.advance(CLEAN_UP_GRACE_S)
    assert maintainer.finish()["log objects deleted"] > 0
    assert world.entries()[0] >= 200
    assert world.log().state() == before
    assert world.log().committed([("t", "id", 1)]) == [offset(49, 1, "note 49")]
    assert world.log().head().generation == 2


def test_a_failed_checkpoint_does_not_stop_the_other_work(world, monkeypatch):
    kept_short(world, 100)
    commit_many(world, world.log(), 50)
    world.clock.advance(DAY_S)
    monkeypatch.setattr(checkpoint_columns, "encode_actions", lambda _: b"no checkpoint")
    lines: list[str] = []
    maintainer = GroupPass(world.store, "g", world.clock, SMALL, WEEK_MS, lines.append)
    done = maintainer.run()
    assert (done["failures"], done["checkpoints"]) == (1, 0)
    assert any("no checkpoint could be made" in line for line in lines)
    world.clock.advance(CLEAN_UP_GRACE_S)
    assert maintainer.finish()["log objects deleted"] > 0


@pytest.mark.fault("D3")
@pytest.mark.slow
def test_opening_a_group_costs_no_more_after_a_thousand_commits(world):
    costs = []
    for _ in range(2):
        kept_short(world, 500)
        world.clock.advance(2 * DAY_S)
        kept_short(world, 50)
        commit_many(world, world.log(), 5)
        counting = FaultyStore(world.store)
        assert world.log(counting).committed([("t", "id", 0)]) == [offset(4)]
        costs.append(counting.operations.total())
        assert counting.operations["get"] <= 2 + 10 + 1
        assert counting.operations["list"] == 2
    assert abs(costs[1] - costs[0]) <= 10, "how many entries there are since the last checkpoint"
    assert len(world.entries()) < 400


@pytest.mark.fault("M7", "C4")
def test_a_consumer_suspended_for_forty_days_commits_after_the_newest_offsets(world):
    commit_many(world, world.log(), 5)
    sleeper = world.log()
    assert sleeper.committed([("t", "id", 0)]) == [offset(4)]
    world.clock.suspend(40 * DAY_S)
    kept_short(world, 150)
    world.clock.suspend(2 * DAY_S)
    kept_short(world, 50)
    assert world.entries()[0] > 5, "the slot that the sleeper would try is open again"
    sleeper.commit(None, [offset(1000)], FOREVER)
    assert world.committed() == 1000
    assert world.entries()[-1] == 205
    assert sleeper.committed([("t", "id", 1)]) == [offset(49, 1, "note 49")]


@pytest.mark.fault("M7", "C4")
def test_a_member_suspended_for_forty_days_is_fenced_in_a_reopened_slot(world):
    sleeper = world.log()
    join(sleeper, "a")
    join(world.log(), "b", gone=["a"])
    leave(world.log(), "b")
    world.clock.suspend(40 * DAY_S)
    kept_short(world, 150)
    world.clock.suspend(2 * DAY_S)
    kept_short(world, 50)
    assert world.entries()[0] > 1
    with pytest.raises(Fenced):
        sleeper.commit(MemberIdentity("a", 1), [offset(1000)], FOREVER)
    assert world.committed() == 49


# --- beside a consumer ---


class Patient(ManualClock):
    """Remembers its threads."""

    def __init__(self) -> None:
        super().__init__(auto_advance=True)
        self.threads: list[tuple[str, Thread]] = []

    def start_thread(self, target: Callable[[], None], name: str) -> Thread:
        thread = super().start_thread(target, name)
        self.threads.append((name, thread))
        return thread


@pytest.fixture
def patient(world: World) -> Patient:
    world.clock = Patient()
    world.store = MemoryStore("test", world.clock)
    return world.clock


def checkpointed(store: Store) -> int | None:
    found = read_newest_checkpoint(store, LOG)
    return None if found is None else found.version


def test_the_commit_that_lands_on_a_multiple_writes_the_checkpoint_of_that_moment(world, patient):
    background = BackgroundLogMaintenance(world.store, "group", "g", patient, SMALL)
    log = world.log(background=background)
    commit_many(world, log, 10)
    assert patient.threads == []
    for number in range(5):
        log.commit(None, [offset(100 + number)], FOREVER)
    background.close(20)
    assert [name for name, _ in patient.threads] == ["deltaq-maintenance-g"]
    assert checkpointed(world.store) == 10
    found = DeltaLog(world.store, FOLDER, patient)
    found.load()
    assert found.state == log.state()


def test_an_offset_commit_succeeds_if_no_maintenance_thread_can_start(world, patient, monkeypatch):
    def refuse(target: Callable[[], None], name: str) -> Thread:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    monkeypatch.setattr(patient, "start_thread", refuse)
    log = world.log(background=BackgroundLogMaintenance(world.store, "group", "g", patient, SMALL))
    commit_many(world, log, 12)
    assert checkpointed(world.store) is None, "the tenth asked for one"
    assert world.committed() == 11


@pytest.mark.slow
def test_a_group_in_use_cleans_its_own_log(world, patient):
    background = BackgroundLogMaintenance(world.store, "group", "g", patient, SMALL)
    log = world.log(background=background)
    most = 0
    for _ in range(40):
        commit_many(world, log, 10)
        for _, thread in patient.threads:
            thread.join()
        most = max(most, len(world.entries()))
        # Not before: what is old enough for a round would depend on when it begins.
        patient.advance(DAY_S / 4)
    assert most <= 100, (
        "of 400: those of a day, of a step of clean-up, and of the rounds until the next one"
    )
    assert world.committed() == 9


@pytest.mark.slow
def test_a_busy_group_keeps_its_log_short_in_small_steps(world, patient, monkeypatch):
    monkeypatch.setattr(log_maintenance, "REMOVALS_MAX", 20)
    settings = replace(
        SMALL, log_retention_ms=120_000, keep_entries_max=100_000, clean_up_interval_s=90.0
    )
    counting = FaultyStore(world.store, clock=patient)
    log = world.log(background=BackgroundLogMaintenance(counting, "group", "g", patient, settings))
    lengths, deletes = [], []
    for number in range(700):  # one each second
        deleted = counting.operations["delete"]
        log.commit(None, [offset(number)], FOREVER)
        patient.advance(1)
        for _, thread in patient.threads:
            thread.join()
        patient.threads.clear()
        deletes.append(counting.operations["delete"] - deleted)
        if number % 10 == 0:
            lengths.append(len(world.entries()))
    assert max(deletes) == log_maintenance.REMOVALS_MAX
    # What is too young, and what comes between two marks: a wait, and the removal of some hundred
    # in small batches.
    assert max(lengths) <= 120 + 2 * (90 + 100)
    assert world.committed() == number


def in_the_middle(
    world: World, patient: Patient
) -> tuple[FaultyStore, BackgroundLogMaintenance, GroupLog]:
    """What looks after a group, at a checkpoint that the store keeps waiting; and the group's
    log.
    """
    stuck = FaultyStore(
        world.store, Rule("create", "*.checkpoint.parquet", Fault.slow()), clock=SYSTEM_CLOCK
    )
    background = BackgroundLogMaintenance(stuck, "group", "g", patient, SMALL)
    log = world.log(background=background)
    commit_many(world, log, 11)
    eventually(lambda: stuck.blocked == 1)
    return stuck, background, log


def test_one_thread_at_most_runs_and_close_waits_for_it(world, patient):
    stuck, background, log = in_the_middle(world, patient)
    commit_many(world, log, 30)
    assert len(patient.threads) == 1
    background.close(0.01)
    assert patient.threads[0][1].is_alive(), "closing does not wait for ever"
    stuck.release()
    background.close(20)
    assert not patient.threads[0][1].is_alive()
    assert checkpointed(world.store) == 10
    commit_many(world, log, 30)
    assert len(patient.threads) == 1


def test_a_dropped_consumer_ends_its_maintenance_and_begins_none(world, patient):
    stuck, background, log = in_the_middle(world, patient)
    with background._tasks._lock:  # a finalizer may run in the thread that holds it
        ending = background.abandon()
    assert ending is not None
    assert ending.is_alive()
    stuck.release()
    ending.join(20)
    assert checkpointed(world.store) == 10
    commit_many(world, log, 30)
    assert len(patient.threads) == 1


@pytest.mark.parametrize("fault", [Fault.refused(), Fault.error_before(), Fault.crash_before()])
def test_failed_maintenance_has_no_effect_and_the_next_one_succeeds(fault, world, patient, caplog):
    faulty = FaultyStore(world.store, Rule("create", "*.checkpoint.parquet", fault))
    background = BackgroundLogMaintenance(faulty, "group", "g", patient, SMALL)
    log = world.log(background=background)
    with caplog.at_level(logging.WARNING, "deltaq.maintenance"):
        commit_many(world, log, 11)
        background.close(20)
    assert faulty.effects.total() == 1
    assert world.committed() == 10
    assert checkpointed(world.store) is None
    if fault.name != "crash_before":
        assert "maintenance of group 'g' failed" in caplog.text
        assert faulty.effects[Effect.CRASHED_BEFORE] == 0
    other = BackgroundLogMaintenance(world.store, "group", "g", patient, SMALL)
    commit_many(world, world.log(background=other), 10)
    other.close(20)
    assert checkpointed(world.store) == 20


@pytest.fixture
def root() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield f"memory://{name}"
    forget_memory_store(name)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_consumer_keeps_the_log_of_its_group_short_unless_disabled(enabled, root):
    Topic("t", partitions=1, conf={"bootstrap.servers": root}).create()
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", b"v")
    conf = {
        "bootstrap.servers": root,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    with Consumer(conf, maintenance_enable=enabled) as reader:
        reader.subscribe(["t"])
        drain(reader, 1)
        for number in range(105):
            reader.commit(offsets=[TopicPartition("t", 0, number)], asynchronous=False)
    assert checkpointed(open_store(root)) == (100 if enabled else None)


def test_a_machine_crash_leaves_nothing_that_breaks_the_next_maintenance(world):
    for _ in range(3):
        commit_many(world, world.log(), 10)
        world.maintainer().run()
    world.clock.advance(2 * DAY_S)
    before = world.log().state()
    for nth in range(1, 200):
        dying = FaultyStore(world.store, Rule("*", "*", Fault.crash_after(), nth=nth))
        maintainer = world.maintainer(dying)
        try:
            maintainer.run()
            world.clock.advance(CLEAN_UP_GRACE_S)
            maintainer.finish()
        except Crash:
            assert dying.effects[Effect.CRASHED_AFTER] == 1
        else:
            break
        assert world.log().state() == before
    assert nth > 20
    assert world.entries() == list(range(9, 30))
