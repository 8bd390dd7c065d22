"""Maintenance of a whole root: one of its writers claims it each hour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deltaq import AdminClient, Producer, Topic
from deltaq.clock import SYSTEM_CLOCK, Thread
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.maintenance.background import (
    BackgroundTopicMaintenance,
    checkpoint_if_due,
    claim_root_maintenance,
)
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.maintenance.throttle import Stopped, Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.names import (
    checkpoint_file,
    entry_version,
    member_folder,
    member_key,
    root_claims_folder,
    topic_log,
)
from deltaq.store import MemoryStore, StoreUnavailable
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.log import TopicLog
from deltaq.topics.state import TopicChange
from tests.doubles.groups import commit, join, new_member, partition_counts
from tests.doubles.reading import eventually

HOUR_S = 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock) -> MemoryStore:
    return MemoryStore("root", clock)


def notes(store: MemoryStore) -> int:
    return len(list(store.list(root_claims_folder())))


def test_the_first_process_of_an_hour_claims_the_root(store, clock):
    assert [claim_root_maintenance(store, clock) for _ in range(5)] == [
        True,
        False,
        False,
        False,
        False,
    ]
    clock.advance(HOUR_S)
    assert [claim_root_maintenance(store, clock) for _ in range(3)] == [True, False, False]


def test_claims_of_earlier_hours_are_removed(store, clock):
    for _ in range(10):
        claim_root_maintenance(store, clock)
        clock.advance(HOUR_S)
    assert notes(store) == 1


def test_a_claim_with_a_lost_answer_costs_one_hour_only(store, clock):
    lossy = FaultyStore(
        store, Rule("create", "_deltaq/maintenance/*", Fault.error_after()), clock=clock
    )
    with pytest.raises(StoreUnavailable):
        claim_root_maintenance(lossy, clock)
    assert not claim_root_maintenance(lossy, clock)
    clock.advance(HOUR_S)
    assert claim_root_maintenance(lossy, clock)


def test_a_producer_of_one_topic_maintains_a_deleted_one():
    store = MemoryStore("claims")
    for topic in ("mine", "gone"):
        Topic(topic, store=store).create()
    with Producer({"bootstrap.servers": "memory://claims"}, store=store) as producer:
        producer.produce("gone", b"x")
        producer.flush()
    with AdminClient({"bootstrap.servers": "memory://claims"}, store=store) as admin:
        admin.delete_topics(["gone"])["gone"].result(30)
    background = BackgroundTopicMaintenance(store, "mine", SYSTEM_CLOCK)
    background.start_due()
    # What the deleted topic has left is noted, to be deleted when its time has come.
    eventually(
        lambda: list(store.list("topics/gone/_deltaq/unreferenced/")),
        "the files of the deleted topic",
    )
    background.stop(30)


class OneThread(ManualClock):
    """What is begun on a thread of its own is done at once."""

    def __init__(self) -> None:
        super().__init__(auto_advance=True)

    def start_thread(self, target: Callable[[], None], name: str) -> Thread:
        target()
        return EndedThread()


class EndedThread:
    """A thread that is over."""

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return False


def days_of_maintenance(store: MemoryStore, clock: OneThread, days: int) -> None:
    """Each hour another process is the first that asks."""
    for _ in range(24 * days):
        clock.advance(HOUR_S)
        BackgroundTopicMaintenance(store, "mine", clock).start_due()


@pytest.mark.slow
def test_a_deleted_topics_log_is_removed_although_the_claimant_changes_hourly():
    clock = OneThread()
    store = MemoryStore("root", clock)
    for topic in ("mine", "gone"):
        Topic(topic, store=store, clock=clock).create()
    log = TopicLog(store, "gone", clock)
    log.load()
    for _ in range(50):
        log.change(lambda head, _: TopicChange(head.partitions, {}), clock.monotonic() + 60)
    log.delete(clock.monotonic() + 60)
    days_of_maintenance(store, clock, 2)
    assert [
        entry_version(e.key)
        for e in store.list(topic_log("gone"))
        if entry_version(e.key) is not None
    ] == [51]


def test_a_dead_group_is_forgotten_although_the_claimant_changes_hourly():
    clock = OneThread()
    store = MemoryStore("root", clock)
    Topic("mine", store=store, clock=clock).create()
    log = GroupLog(store, "g", clock, "client")
    store.put(member_key("g", "dead"), b"1")
    store.put(member_key("g", "stray"), b"1")
    join(log, "dead", new_member(topics=("mine",)), known=partition_counts(mine=1))
    commit(log, "dead", CommittedOffset("mine", "id", 0, 5))
    days_of_maintenance(store, clock, 1)
    assert [entry.key for entry in store.list(member_folder("g"))] == [member_key("g", "dead")]
    days_of_maintenance(store, clock, 7)
    assert log.head().members == {}
    assert log.state().txns == {}
    assert list(store.list(member_folder("g"))) == []


def test_root_and_topic_maintenance_have_separate_intervals(monkeypatch):
    clock = OneThread()
    store = MemoryStore("root", clock)
    Topic("mine", store=store, clock=clock).create()
    throttles: list[Throttle] = []
    made = TopicPass.__init__

    def watched(self: TopicPass, *given: Any, **named: Any) -> None:
        throttles.extend(one for one in given if isinstance(one, Throttle))
        made(self, *given, **named)

    monkeypatch.setattr(TopicPass, "__init__", watched)
    care = BackgroundTopicMaintenance(store, "mine", clock)
    care.start_due()
    own, of_root = throttles
    assert own is not of_root
    care.stop(0)
    for throttle in throttles:
        with pytest.raises(Stopped):
            throttle.step()


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_a_commit_on_a_multiple_of_the_interval_makes_a_checkpoint(store, clock, interval):
    Topic("t", store=store, clock=clock).create()
    log = TopicLog(store, "t", clock)
    log.load()
    for number in range(1, 7):
        log.change(lambda head, _: TopicChange(head.partitions, {}), clock.monotonic() + 60)
        checkpoint_if_due(store, log, MaintenanceSettings(checkpoint_interval=interval))
        written = checkpoint_file(topic_log("t"), number) in [
            entry.key for entry in store.list(topic_log("t"))
        ]
        assert written == (number % interval == 0)
