"""Who looks after a whole root: each hour one of those who write to it, and nobody needs to know who."""

from __future__ import annotations

import pytest

from deltaq import AdminClient, Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.log.topic_log import TopicLog
from deltaq.log.topic_state import TopicChange
from deltaq.maintenance.background import TopicCaretaker, checkpoint_if_due, take_duty
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.names import checkpoint_file, duty_folder, topic_log
from deltaq.store import MemoryStore, StoreUnavailable
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from tests.doubles.reading import eventually

HOUR_S = 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock) -> MemoryStore:
    return MemoryStore("root", clock)


def notes(store: MemoryStore) -> int:
    return len(list(store.list(duty_folder())))


def test_of_many_who_ask_in_one_hour_it_falls_to_the_first(store, clock):
    assert [take_duty(store, clock) for _ in range(5)] == [True, False, False, False, False]
    clock.advance(HOUR_S)
    assert [take_duty(store, clock) for _ in range(3)] == [True, False, False]


def test_notes_of_earlier_hours_do_not_pile_up(store, clock):
    for _ in range(10):
        take_duty(store, clock)
        clock.advance(HOUR_S)
    assert notes(store) == 1


def test_a_note_whose_answer_was_lost_costs_one_turn_and_nothing_else(store, clock):
    lossy = FaultyStore(store, Rule("create", "_deltaq/maintenance/*", Fault.error_after()), clock=clock)
    with pytest.raises(StoreUnavailable):
        take_duty(lossy, clock)
    assert not take_duty(lossy, clock)
    clock.advance(HOUR_S)
    assert take_duty(lossy, clock)


def test_a_producer_of_one_topic_looks_after_a_deleted_one_too():
    store = MemoryStore("duty")
    for topic in ("mine", "gone"):
        Topic(topic, store=store).create()
    with Producer({"bootstrap.servers": "memory://duty"}, store=store) as producer:
        producer.produce("gone", b"x")
        producer.flush()
    with AdminClient({"bootstrap.servers": "memory://duty"}, store=store) as admin:
        admin.delete_topics(["gone"])["gone"].result(30)
    caretaker = TopicCaretaker(store, "mine", SYSTEM_CLOCK)
    caretaker.look_after()
    # What the deleted topic has left is noted, to be deleted when its time has come.
    eventually(lambda: list(store.list("topics/gone/_deltaq/unreferenced/")), "the files of the deleted topic")
    caretaker.stop(30)


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_a_checkpoint_comes_with_the_commit_whose_version_asks_for_one(store, clock, interval):
    Topic("t", store=store, clock=clock).create()
    log = TopicLog(store, "t", clock)
    log.load()
    for number in range(1, 7):
        log.change(lambda head, _: TopicChange(head.partitions, {}), clock.monotonic() + 60)
        checkpoint_if_due(store, log, MaintenanceSettings(checkpoint_interval=interval))
        written = checkpoint_file(topic_log("t"), number) in [entry.key for entry in store.list(topic_log("t"))]
        assert written == (number % interval == 0)
