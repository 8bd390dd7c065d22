"""A cut splits no transaction, wherever its publication stops."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import deltaq
from deltaq import Producer, Topic, UnknownTopic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import Unavailable
from deltaq.spark.sink_transactions import BatchTransaction, staged_path
from deltaq.store import MemoryStore
from deltaq.testing import ManualClock
from deltaq.topics.log import TopicLog
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.publication import Publisher
from deltaq.transactions.state import Application

TOPICS = ("a", "b", "c")


@pytest.fixture
def store() -> MemoryStore:
    found = MemoryStore("test")
    for topic in TOPICS:
        Topic(topic, partitions=2, store=found).create()
    return found


def producer(store: MemoryStore, transactional_id: str) -> Producer:
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0}
    found = Producer(conf, transactional_id=transactional_id, store=store)
    found.init_transactions()
    return found


def contents(store: MemoryStore, at: dict[str, dict[int, int]]) -> dict[str, set[bytes]]:
    return {
        topic: {
            bytes(value)
            for value in Topic(topic, store=store).to_arrow(end=at[topic])["value"].to_pylist()
        }
        for topic in at
    }


def stops_before(monkeypatch: pytest.MonkeyPatch, topics: set[str]) -> None:
    """The producer's process ends after its decision, before it publishes in these topics."""
    append = Publisher._append

    def stopped(self, staged, decision, deadline):
        if staged.topic in topics:
            raise Unavailable("the process has ended")
        append(self, staged, decision, deadline)

    monkeypatch.setattr(Publisher, "_append", stopped)


def test_a_transaction_that_is_published_in_one_topic_is_in_the_cut_of_both(store, monkeypatch):
    writer = producer(store, "t")
    with monkeypatch.context() as patch:
        stops_before(patch, {"b"})
        writer.begin_transaction()
        writer.produce("a", b"1", partition=0)
        writer.produce("b", b"1", partition=1)
        with pytest.raises(deltaq.KafkaException):
            writer.commit_transaction(0.2)
    assert Topic("a", store=store).to_arrow().num_rows == 1
    assert Topic("b", store=store).to_arrow().num_rows == 0
    at = deltaq.cut(["a", "b"], store=store)
    assert at == {"a": {0: 1, 1: 0}, "b": {0: 0, 1: 1}}
    assert contents(store, at) == {"a": {b"1"}, "b": {b"1"}}


@pytest.mark.parametrize("app_id", ["spark:8a7b", "etl", "etl/orders", "a b"])
def test_a_batch_of_a_query_is_whole_in_the_cut_whatever_its_application(
    store, monkeypatch, app_id
):
    application = Application(app_id, 7)
    writer = producer(store, "t")
    writer.begin_transaction()
    for topic in ("a", "b"):
        writer.produce(topic, b"1", partition=0)
    writer.flush()
    transactions, records = writer._transactions, []
    assert transactions is not None
    for of in transactions._staging.records():
        (segment,) = of.segments
        staged = replace(segment, path=segment.path.rpartition("-")[2])
        staged = replace(staged, path=staged_path(application, staged))
        folder = f"topics/{of.topic}/"
        store.put(folder + staged.path, store.get(folder + segment.path))
        records.append(replace(of, segments=(staged,)))
    with monkeypatch.context() as patch:
        stops_before(patch, {"b"})
        batch = BatchTransaction(
            store, SYSTEM_CLOCK, app_id, "c", lambda topic: TopicLog(store, topic, SYSTEM_CLOCK)
        )
        with pytest.raises(Unavailable):
            batch.commit(7, records, SYSTEM_CLOCK.monotonic() + 5)
    assert deltaq.cut(["a", "b"], store=store) == {"a": {0: 1, 1: 0}, "b": {0: 1, 1: 0}}


def test_a_cut_ends_at_its_time_out_though_many_ids_are_to_be_read(store, monkeypatch):
    clock = ManualClock()
    for number in range(4):
        with (writer := producer(store, f"t{number}")).transaction():
            writer.produce("a", b"1")
    head, read = TransactionLog.head, []

    def slow(self: TransactionLog):
        read.append(self)
        clock.advance(1.0)
        return head(self)

    monkeypatch.setattr(TransactionLog, "head", slow)
    with pytest.raises(Unavailable, match="time-out"):
        deltaq.cut(["a", "b"], store=store, clock=clock, timeout=2.5)
    assert len(read) == 3


def test_a_topic_is_read_on_only_as_far_as_a_transaction_needs(store, monkeypatch):
    """A plain record that follows the transaction is not part of the cut."""
    writer = producer(store, "t")
    plain = Producer({"bootstrap.servers": "memory://unused"}, store=store)
    load = TopicLog.catch_up

    def late(self: TopicLog, **keywords):
        found = load(self, **keywords)
        # After the cut has read b, and before it reads the other topics.
        if self.topic == "b" and not done:
            done.append(True)
            with writer.transaction():
                for topic in ("a", "b"):
                    writer.produce(topic, b"1", partition=0)
            plain.produce("b", b"plain", partition=0)
            plain.flush(10)
        return found

    done: list[bool] = []
    monkeypatch.setattr(TopicLog, "catch_up", late)
    at = deltaq.cut(["b", "a"], store=store)
    assert at == {"b": {0: 1, 1: 0}, "a": {0: 1, 1: 0}}


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_between_any_two_steps_is_whole(store, monkeypatch, seed):
    chance = random.Random(seed)
    writers = [producer(store, f"t{number}") for number in range(3)]
    written = dict.fromkeys(TOPICS, 0)
    members: dict[bytes, frozenset[str]] = {}
    append = Publisher._append
    looking: list[bool] = []

    def looked_at(self, staged, decision, deadline):
        # The cut publishes, too.
        if not looking and chance.random() < 0.4:
            looking.append(True)
            check(deltaq.cut(TOPICS, store=store))
            looking.clear()
        append(self, staged, decision, deadline)

    def check(at):
        found = contents(store, at)
        for value, topics in members.items():
            has = {topic for topic in TOPICS if value in found[topic]}
            assert has in (set(), topics), (value, has, topics)

    monkeypatch.setattr(Publisher, "_append", looked_at)
    for number in range(20):
        writer, value = chance.choice(writers), b"%d" % number
        topics = frozenset(chance.sample(TOPICS, chance.randint(1, 3)))
        members[value] = topics
        with writer.transaction():
            for topic in topics:
                written[topic] += 1
                writer.produce(topic, value, partition=chance.randrange(2))
    at = deltaq.cut(TOPICS, store=store, clock=SYSTEM_CLOCK)
    assert {topic: sum(of.values()) for topic, of in at.items()} == written
    check(at)


def test_a_cut_of_a_topic_that_does_not_exist_is_refused(store):
    with pytest.raises(UnknownTopic):
        deltaq.cut(["a", "missing"], store=store)
