"""Maintenance of transactions: what a crashed producer has left is published or dropped, logs stay
short, and unused ids expire without letting a suspended producer of them commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from deltaq import Fenced, KafkaError, KafkaException, Producer, Topic, TopicPartition, metrics
from deltaq.clock import SystemClock
from deltaq.delta.checkpoint import read_newest_checkpoint
from deltaq.groups.log import GroupLog
from deltaq.maintenance.run import Maintenance
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.names import TransactionKey, entry_version, transaction_folder
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule
from deltaq.topics.log import TopicLog
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.publication import Publisher
from deltaq.transactions.resolution import resolve_transaction
from deltaq.transactions.state import (
    QUERY_TIMEOUT_MS,
    TIMEOUT_MS_MAX,
    AbortReason,
    Application,
    Decision,
    TransactionHead,
)

FOREVER = float("inf")
DAY_S = 24 * 60 * 60
FOLDER = transaction_folder("t")
NO_MEMBER = b"CGMDv2:\xff\xff\xff\xffg\x00\x00\x01"
"""What `consumer_group_metadata` of a consumer with `assign()` in group g returns."""


class LaterClock(SystemClock):
    """The clock of the machine, `ahead_s` later."""

    ahead_s = 0.0

    def time_ms(self) -> int:
        return super().time_ms() + round(self.ahead_s * 1000)

    def monotonic(self) -> float:
        return SystemClock.monotonic() + self.ahead_s

    def uptime(self) -> float:
        return SystemClock.uptime() + self.ahead_s


class World:
    """A store, its producers, and maintenance of the root."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.clock = LaterClock()
        self.store = FaultyStore(store or MemoryStore("test", self.clock), clock=self.clock)
        self.lines: list[str] = []
        self.made: list[Producer] = []

    def producer(self, transactional_id: str = "t", **settings: Any) -> Producer:
        found = Producer(
            {"bootstrap.servers": "memory://unused", "linger.ms": 0},
            transactional_id=transactional_id,
            store=self.store,
            clock=self.clock,
            **settings,
        )
        self.made.append(found)
        found.init_transactions()
        return found

    def maintenance(self, settings: MaintenanceSettings = DEFAULT_SETTINGS) -> Maintenance:
        return Maintenance(self.store, self.clock, settings, notify=self.lines.append)

    def round(self) -> Counter[str]:
        return self.maintenance().round()

    def log(self) -> TransactionLog:
        return TransactionLog(self.store, "t", self.clock)

    def head(self) -> TransactionHead:
        found = self.log().head()
        assert found is not None
        return found

    def values(self, topic: str) -> list[bytes]:
        column = Topic(topic, store=self.store.inner).to_arrow()["value"]
        return [bytes(value) for value in column.to_pylist()]

    def committed(self) -> list[int | None]:
        log = GroupLog(self.store, "g", self.clock)
        topic_id = Topic("in", store=self.store, clock=self.clock).describe().topic_id
        found = log.committed([("in", topic_id, 0)])
        return [None if offset is None else offset.offset for offset in found]

    def pending(self) -> int:
        return len(GroupLog(self.store, "g", self.clock).pending())

    def decided(self, **settings: Any) -> Producer:
        """A producer that has decided a transaction and published nothing of it."""
        producer = self.begun(**settings)
        for log in ("topics/*_delta_log/*", "groups/*_delta_log/*"):
            self.store.add(Rule("create", log, Fault.error_before(), None))
        with pytest.raises(KafkaException):
            producer.commit_transaction(0.3)
        self.store.clear()
        assert self.head().decision is not None
        assert (self.values("out"), self.committed()) == ([], [None])
        return producer

    def begun(self, **settings: Any) -> Producer:
        """A producer in a transaction with a message and an offset."""
        for topic in ("in", "out"):
            about = Topic(topic, store=self.store, clock=self.clock, config={"retention.ms": -1})
            about.create(exist_ok=True)
        producer = self.producer(**settings)
        producer.begin_transaction()
        producer.produce("out", b"1")
        producer.flush(10)
        producer.send_offsets_to_transaction([TopicPartition("in", 0, 7)], NO_MEMBER)
        return producer


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.store.clear()
    for producer in made.made:
        producer.close()


# --- what crashed producers leave ---


@pytest.mark.fault("T5")
def test_a_round_publishes_what_a_crashed_producer_has_decided(world: World):
    producer = world.decided()
    totals = metrics.Totals()
    assert world.maintenance().plan()["actions planned"] >= 1
    assert "transactional id t: publish a transaction to out, group g" in world.lines
    assert world.values("out") == [], "a plan changes nothing"
    with metrics.listening(totals):
        assert world.round()["transactions published"] == 1
    counted = {sample.metric.name: sample.value for sample in totals.samples()}
    assert counted["deltaq_transactions_published_by_others_total"] == 1
    assert (world.values("out"), world.committed(), world.pending()) == ([b"1"], [7], 0)
    producer.commit_transaction()
    assert (world.values("out"), world.committed()) == ([b"1"], [7])


def test_what_was_found_published_is_not_read_again(world: World):
    world.decided()
    maintenance = world.maintenance()
    assert maintenance.round()["transactions published"] == 1
    done = maintenance._transactions["t"]
    before = world.store.operations.copy()
    assert not done.run()["transactions published"]
    read = world.store.operations - before
    assert read["list"] + read["create"] == 0
    assert read["get"] <= 3, "the end of its own log, and the pointer to its checkpoint"


@pytest.mark.fault("T5")
@pytest.mark.parametrize("before", [1, 2, 4])
@pytest.mark.parametrize("after", [1, 2, 4])
def test_rounds_go_on_in_the_new_log_of_an_id_whose_log_was_removed(
    world: World, before: int, after: int
):
    """The new log may be shorter than what they have read of the removed one, or go beyond it."""
    Topic("out", store=world.store, clock=world.clock).create()
    maintenance = world.maintenance()
    commit(world.producer(), before)
    maintenance.round()
    for entry in list(world.store.inner.list(FOLDER)):
        world.store.inner.delete(entry.key)
    producer = world.producer()
    commit(producer, after)
    commit_undone(world, producer)
    assert maintenance.round()["transactions published"] == 1
    assert not maintenance.round()["transactions published"]
    assert len(world.values("out")) == before + after + 1


class RemoteStore(MemoryStore):
    is_remote = True


@pytest.mark.fault("T5")
def test_a_round_that_began_at_a_checkpoint_does_not_go_on_in_a_new_log():
    """On an object store, the token of the entry below a checkpoint is not read."""
    world = World(RemoteStore("test"))
    Topic("out", store=world.store, clock=world.clock).create()
    settings = MaintenanceSettings(checkpoint_interval=4)
    commit(world.producer(maintenance_enable=False), 4)
    world.maintenance(settings).round()
    restarted, zombie = world.maintenance(settings), world.log()
    restarted.round()
    assert restarted._transactions["t"]._log._log.state.txn_id is None
    before = zombie.head()
    assert before is not None
    for entry in list(world.store.inner.list(FOLDER)):
        world.store.inner.delete(entry.key)
    producer = world.producer(maintenance_enable=False)
    commit(producer, 6)
    commit_undone(world, producer)
    assert restarted.round()["transactions published"] == 1
    assert len(world.values("out")) == 11
    with pytest.raises(Fenced):
        decide_many(zombie, before.epoch, 5, 1)


@pytest.mark.fault("T5")
def test_a_decision_is_published_under_its_own_log(world: World):
    """The folder of the id may be removed, and a producer begin anew, during the publication."""
    world.decided()
    log = world.log()
    head = log.head()
    assert head is not None
    assert head.decision is not None
    for entry in list(world.store.inner.list(FOLDER)):
        world.store.inner.delete(entry.key)
    commit(world.producer(), 1)
    assert log.head() != head
    Publisher.of(log, world.store, world.clock).publish(head.decision, FOREVER)
    written = TopicLog(world.store, "out", world.clock)
    written.catch_up()
    lives = {app_id.split("/")[1] for app_id in written.state.txns}
    assert lives == {head.life, world.head().life}
    assert len(world.values("out")) == 2


def commit_undone(world: World, producer: Producer) -> None:
    """Decide a transaction with a message, and publish nothing of it."""
    producer.begin_transaction()
    producer.produce("out", b"1")
    world.store.add(Rule("create", "topics/*_delta_log/*", Fault.error_before(), None))
    with pytest.raises(KafkaException):
        producer.commit_transaction(0.3)
    world.store.clear()


def commit(producer: Producer, transactions: int) -> None:
    for _ in range(transactions):
        with producer.transaction():
            producer.produce("out", b"1")


def test_an_open_transaction_is_left_alone_until_its_time_out(world: World):
    producer = world.begun(transaction_timeout_ms=60_000)
    world.clock.ahead_s += 50
    assert not world.round()["pending offsets resolved"]
    assert world.pending() == 1
    producer.commit_transaction()
    assert (world.values("out"), world.committed()) == ([b"1"], [7])


def test_offsets_of_a_transaction_that_timed_out_are_dropped_and_it_is_refused(world: World):
    producer = world.begun(transaction_timeout_ms=60_000)
    world.clock.ahead_s += 61
    assert world.maintenance().plan()["actions planned"] >= 1
    assert "group g: end 1 transactions that have offsets" in world.lines
    assert world.round()["pending offsets resolved"] == 1
    assert (world.pending(), world.committed()) == (0, [None])
    assert world.head().number == 1
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction()
    assert raised.value.error.txn_requires_abort()


def test_a_producer_learns_that_maintenance_found_its_time_out_over(world: World):
    """Before the producer did: it begins to count later than the age of its files."""
    producer = world.begun(transaction_timeout_ms=60_000)
    world.clock.ahead_s += 61
    world.round()
    world.clock.ahead_s -= 61
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction()
    reason = "another process has aborted the transaction: it lasted longer than transaction.time"
    assert raised.value.error.str().startswith(reason)


def test_offsets_of_an_ended_transaction_are_dropped_at_once(world: World):
    world.begun()
    world.producer()  # fences the first one, and does not know of the group
    assert world.pending() == 1
    assert world.round()["pending offsets resolved"] == 1
    assert (world.pending(), world.committed()) == (0, [None])


def resolve(world: World) -> None:
    key = TransactionKey("t", world.head().epoch, 1)
    resolve_transaction(world.store, key, AbortReason.READER, world.clock, FOREVER)


def test_a_decision_that_may_not_be_durable_is_synced_before_it_is_published(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    world.decided()
    synced: list[str] = []
    monkeypatch.setattr(world.store.inner, "sync", synced.append)
    resolve(world)
    assert synced[0] == FOLDER + "_delta_log/"
    synced.clear()
    resolve(world)
    logs = {FOLDER, "topics/out/", "groups/g/"}
    assert {*synced} == {log + "_delta_log/" for log in logs}, "what others have published, too"


# --- short logs ---


def decide_many(log: TransactionLog, epoch: int, first: int, count: int) -> None:
    for number in range(first, first + count):
        log.commit(Decision(TransactionKey("t", epoch, number), 0, (), ()), FOREVER)


def entries(world: World) -> list[int]:
    found = [entry_version(entry.key) for entry in world.store.list(FOLDER + "_delta_log/")]
    return [version for version in found if version is not None]


def test_the_producer_writes_checkpoints_of_its_id_and_of_the_groups(world: World):
    Topic("in", store=world.store, clock=world.clock).create()
    producer = world.producer()
    for number in range(101):
        with producer.transaction():
            producer.send_offsets_to_transaction([TopicPartition("in", 0, number)], NO_MEMBER)
    producer.close()
    for folder in (FOLDER, "groups/g/"):
        found = read_newest_checkpoint(world.store, folder + "_delta_log/")
        assert found is not None
        assert found.version >= 100


def test_without_maintenance_the_producer_writes_no_checkpoints(world: World):
    Topic("in", store=world.store, clock=world.clock).create()
    producer = world.producer(maintenance_enable=False)
    for number in range(101):
        with producer.transaction():
            producer.send_offsets_to_transaction([TopicPartition("in", 0, number)], NO_MEMBER)
    producer.close()
    assert read_newest_checkpoint(world.store, FOLDER + "_delta_log/") is None


def test_a_round_keeps_the_log_of_an_id_short(world: World):
    settings = MaintenanceSettings(
        checkpoint_interval=4, log_retention_ms=1000, keep_entries_min=2, clean_up_grace_s=60
    )
    log = world.log()
    epoch = log.begin(60_000, None, FOREVER).epoch
    decide_many(log, epoch, 1, 8)
    maintenance = world.maintenance(settings)
    world.clock.ahead_s += 10
    assert maintenance.round()["checkpoints"] == 1
    decide_many(log, epoch, 9, 2)
    for _ in range(3):
        world.clock.ahead_s += 3600
        maintenance.round()
    assert len(entries(world)) <= 3
    assert world.head().number == 10
    decide_many(log, epoch, 11, 1)
    assert log.state().version == 11


# --- expiration ---


@pytest.mark.fault("T3")
def test_an_unused_id_expires_after_a_week_and_its_producer_is_fenced(world: World):
    zombie = world.producer()
    epoch = world.head().epoch
    zombie.begin_transaction()
    zombie.produce("out", b"1")
    zombie.flush(10)
    world.clock.ahead_s += 7 * DAY_S - 60
    assert not world.round()["transactional ids expired"]
    world.clock.ahead_s += 120
    assert world.round()["transactional ids expired"] == 1
    assert (world.head().epoch, world.head().is_expired) == (epoch + 1, True)
    assert not world.round()["transactional ids expired"]
    with pytest.raises(KafkaException):
        zombie.commit_transaction()
    with pytest.raises(KafkaException) as raised:
        zombie.abort_transaction()
    assert (raised.value.error.code(), raised.value.error.fatal()) == (KafkaError._FENCED, True)
    assert "'t' has expired" in raised.value.error.str()
    assert world.values("out") == []
    with world.producer().transaction():
        pass
    assert (world.head().epoch, world.head().is_expired) == (epoch + 2, False)


def test_an_id_in_use_does_not_expire(world: World):
    Topic("out", store=world.store, clock=world.clock).create()
    producer = world.producer(maintenance_enable=False)
    for _ in range(3):
        world.clock.ahead_s += 6 * DAY_S
        assert not world.round()["transactional ids expired"]
        with producer.transaction():
            producer.produce("out", b"1")
    assert world.head().number == 3


@pytest.mark.fault("T5")
def test_what_an_expiring_id_has_decided_is_published_before(world: World):
    producer = world.decided()
    world.clock.ahead_s += 8 * DAY_S
    done = world.round()
    assert (done["transactions published"], done["transactional ids expired"]) == (1, 1)
    assert (world.values("out"), world.committed()) == ([b"1"], [7])
    producer.commit_transaction()
    assert (world.values("out"), world.committed()) == ([b"1"], [7])


@pytest.mark.fault("T3")
def test_the_log_of_an_expired_id_is_cleaned_up_to_a_checkpoint_and_goes_on(world: World):
    zombie = world.log()
    epoch = zombie.begin(60_000, None, FOREVER).epoch
    decide_many(zombie, epoch, 1, 20)
    settings = MaintenanceSettings(clean_up_grace_s=60)
    maintenance = world.maintenance(settings)
    for _ in range(4):
        world.clock.ahead_s += 8 * DAY_S
        maintenance.round()
    assert entries(world) == [21]
    with pytest.raises(Fenced):
        decide_many(zombie, epoch, 21, 1)
    assert world.log().begin(60_000, None, FOREVER).epoch == epoch + 2


def test_an_id_that_is_used_meanwhile_does_not_expire(world: World):
    log = world.log()
    seen = log.begin(60_000, None, FOREVER)
    decide_many(log, seen.epoch, 1, 1)
    assert not world.log().expire(seen, FOREVER)
    assert world.head().number == 1


@pytest.mark.parametrize("has_committed", [True, False])
@pytest.mark.parametrize("is_query", [True, False])
def test_the_id_of_a_spark_query_does_not_expire_and_a_producers_does(
    world: World, is_query: bool, has_committed: bool
):
    """Whatever the id is. A query that has taken over the id of a producer keeps its time-out."""
    log = TransactionLog(world.store, "spark-1f", world.clock)
    is_first = is_query and not has_committed
    epoch = log.begin(QUERY_TIMEOUT_MS if is_first else TIMEOUT_MS_MAX, None, FOREVER).epoch
    assert (epoch == 0) == is_first
    if has_committed:
        application = Application("spark:1f", 0) if is_query else None
        key = TransactionKey("spark-1f", epoch, 1)
        log.commit(Decision(key, 0, (), (), application), FOREVER)
    world.clock.ahead_s += 30 * DAY_S
    assert world.round()["transactional ids expired"] == int(not is_query)
    head = log.head()
    assert head is not None
    assert (head.epoch, head.is_expired) == ((epoch, False) if is_query else (epoch + 1, True))
