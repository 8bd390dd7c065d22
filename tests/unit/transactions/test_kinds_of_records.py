"""Tables, typed values, large messages and compacted topics inside transactions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

from deltaq import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    InvalidConfig,
    KafkaException,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.admin import AdminClient, NewPartitions
from deltaq.store import MemoryStore
from deltaq.testing import messages_of
from tests.doubles.reading import drain


class Order(BaseModel):
    item: str


class OrderWithNote(Order):
    note: str | None = None


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("test")


def ready(store: MemoryStore, transactional_id: str = "t", **settings: Any) -> Producer:
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0}
    producer = Producer(conf, transactional_id=transactional_id, store=store, **settings)
    producer.init_transactions()
    return producer


def values(store: MemoryStore, topic: str) -> list[Any]:
    found: list[Any] = Topic(topic, store=store).to_arrow()["value"].to_pylist()
    return found


def test_tables_and_messages_keep_their_order(store):
    reports: list[list[TopicPartition]] = []
    with ready(store) as producer:
        with producer.transaction():
            producer.produce("a", b"1")
            producer.produce_arrow(
                "a", pa.table({"value": [b"2", b"3"]}), lambda _, places: reports.append(places)
            )
            producer.produce("a", b"4")
            producer.flush(10)
            assert values(store, "a") == []
        producer.begin_transaction()
        producer.produce_arrow("a", pa.table({"value": [b"dropped"]}))
        producer.flush(10)
        producer.abort_transaction()
    assert values(store, "a") == [b"1", b"2", b"3", b"4"]
    (place,) = reports[0]
    assert place.offset < 0, "its offset is not known before the commit"


def test_futures_and_batches_belong_to_the_transaction(store):
    with ready(store) as producer, producer.transaction():
        future = producer.produce_future("a", b"1")
        assert future.result(10).offset() is None
        assert producer.produce_batch("a", [{"value": b"2"}, {"value": b"3"}]) == 2
    assert values(store, "a") == [b"1", b"2", b"3"]


def test_typed_values_are_committed_and_aborted(store):
    orders = Topic("orders", schema=Order, store=store)
    with ready(store) as producer:
        with producer.transaction():
            producer.produce(orders, Order(item="tea"))
        producer.begin_transaction()
        producer.produce(orders, {"item": "dropped"})
        producer.abort_transaction()
    assert orders.to_arrow()["item"].to_pylist() == ["tea"]


def test_a_transaction_changes_no_schema(store):
    Topic("orders", schema=Order, store=store).create()
    evolved = Topic("orders", schema=OrderWithNote, store=store)
    with ready(store) as producer:
        producer.begin_transaction()
        with pytest.raises(InvalidConfig, match=r"Topic\.evolve\(\) first"):
            producer.produce(evolved, OrderWithNote(item="tea"))
        producer.abort_transaction()
        assert "note" not in Topic("orders", store=store).to_arrow().column_names
        evolved.evolve()
        with producer.transaction():
            producer.produce(evolved, OrderWithNote(item="tea", note="green"))
    assert evolved.to_arrow()["note"].to_pylist() == ["green"]


def test_a_large_message_is_committed_whole(store):
    large = bytes(range(256)) * 8192
    with ready(store, large_message_enabled=True) as producer:
        with producer.transaction():
            producer.produce("a", large)
            producer.produce("a", b"small")
        producer.begin_transaction()
        producer.produce("a", large)
        producer.flush(10)
        producer.abort_transaction()
    conf = {"bootstrap.servers": "memory://unused", "group.id": "g"}
    conf |= {"large.message.enabled": "true", "auto.offset.reset": "earliest"}
    with Consumer(conf, store=store) as consumer:
        consumer.subscribe(["a"])
        assert [message.value() for message in drain(consumer, 2)] == [large, b"small"]


def test_a_compacted_topic_takes_keys_only(store):
    Topic("a", config={"cleanup.policy": "compact"}, store=store).create()
    with ready(store) as producer:
        producer.begin_transaction()
        with pytest.raises(KafkaException):
            producer.produce("a", b"1")
        producer.produce("a", b"2", key=b"k")
        producer.commit_transaction()
    assert values(store, "a") == [b"2"]


def test_the_time_of_log_append_time_is_that_of_the_commit(store, monkeypatch):
    Topic("a", config={"message.timestamp.type": "LogAppendTime"}, store=store).create()
    with ready(store) as producer:
        producer.begin_transaction()
        producer.produce("a", b"1", timestamp=5)
        producer.flush(10)
        producer.commit_transaction()
    (message,) = messages_of(store, "a")
    kind, time_ms = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert time_ms > 5


def test_transactions_of_several_producers_of_a_process_do_not_mix(store):
    with ready(store, "first") as first, ready(store, "second") as second:
        first.begin_transaction()
        second.begin_transaction()
        for number in range(4):
            (first if number % 2 else second).produce("a", b"%d" % number)
        first.flush(10)
        second.flush(10)
        first.abort_transaction()
        second.commit_transaction()
    assert values(store, "a") == [b"0", b"2"]


def test_partitions_that_are_added_inside_a_transaction_can_be_written(store):
    Topic("a", store=store).create()
    with ready(store) as producer, producer.transaction():
        producer.produce("a", b"0", partition=0)
        producer.flush(10)
        admin = AdminClient({"bootstrap.servers": "memory://unused"}, store=store)
        admin.create_partitions([NewPartitions("a", 3)])["a"].result(10)
        producer.produce("a", b"2", partition=2)
    assert sorted(values(store, "a")) == [b"0", b"2"]
