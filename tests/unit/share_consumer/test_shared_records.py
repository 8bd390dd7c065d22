"""What share consumers read: gaps, many files, models, deserializers; and who may call them."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pydantic import BaseModel

from deltaq import (
    ConcurrentModificationException,
    DeserializingShareConsumer,
    IllegalStateException,
    KafkaError,
    Messages,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.admin import NewTopic
from deltaq.maintenance.run import Maintenance
from deltaq.share_consumer import topics
from deltaq.share_consumer.calls import SingleThread, _refuse_forked
from deltaq.testing import ManualClock
from tests.doubles.sharing import ACCEPT, RELEASE, ShareWorld, places

CONF = {"bootstrap.servers": "memory://shared", "group.id": "g"}


class Errand(BaseModel):
    """A value of a typed topic."""

    id: int


def test_offsets_that_compaction_has_removed_are_passed() -> None:
    shared = ShareWorld()
    with shared.admin() as admin:
        config = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.bytes": "1048576",
        }
        admin.create_topics([NewTopic("k", 1, config=config)])["k"].result(20)
    producer = Producer(
        bootstrap_servers="memory://shared", store=shared.store, maintenance_enable=False
    )
    with producer:
        for number in range(10):
            producer.produce("k", f"v{number}", key=f"k{number % 2}")
            producer.flush()
    shared.clock.advance(3600)
    Maintenance(shared.store, shared.clock).round()
    with shared.consumer("k") as consumer:
        assert places(consumer.poll(0)) == [(8, 1), (9, 1)]
        consumer.poll(0)
        consumer.poll(0)
        assert [(state.start, state.end) for state in shared.states()] == [(10, 10)]


def test_released_records_of_many_files_come_in_order() -> None:
    shared = ShareWorld()
    for number in range(6):
        shared.fill(100, start=100 * number)
    with shared.consumer(explicit=True, max_poll_records=600) as consumer:
        messages = consumer.poll(0)
        for message in messages:
            offset = message.offset() or 0
            consumer.acknowledge(message, RELEASE if offset in (0, 5, 599) else ACCEPT)
        again = consumer.poll(0)
        assert places(again) == [(0, 2), (5, 2), (599, 2)]
        assert [message.value() for message in again] == [b"v0", b"v5", b"v599"]


def test_files_that_are_kept_decoded_take_a_limited_space(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ShareWorld(partitions=4)
    for partition in range(4):
        shared.fill(4, partition=partition)
    sizes = [each.size for each in shared.store.list("topics/t/") if "parquet" in each.key]
    monkeypatch.setattr(topics, "_KEPT_BYTES_MAX", (max(sizes), 2 * max(sizes)))
    with shared.consumer(max_poll_records=1) as consumer:
        found = []
        for _ in range(16):
            found += [(each.partition(), each.offset()) for each in consumer.poll(0)]
            assert 1 <= len(consumer._topics._kept) <= 2
    assert sorted(found) == [(partition, at) for partition in range(4) for at in range(4)]


def test_a_large_file_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_KEPT_BYTES_MAX", (10, 1000))
    shared = ShareWorld()
    shared.fill(2)
    with shared.consumer(max_poll_records=1) as consumer:
        assert [places(consumer.poll(0)) for _ in range(2)] == [[(0, 1)], [(1, 1)]]
        assert not consumer._topics._kept


def test_values_are_instances_of_the_model_of_a_topic() -> None:
    shared = ShareWorld()
    conf = {"bootstrap.servers": "memory://shared"}
    topic = Topic("tasks", Errand, conf=conf, store=shared.store, clock=shared.clock).create()
    with Producer(conf, store=shared.store) as producer:
        producer.produce(topic, Errand(id=7))
    with shared.consumer() as consumer:
        consumer.subscribe([topic])
        assert [message.value() for message in consumer.poll(0)] == [Errand(id=7)]


def test_a_record_that_cannot_be_deserialized_has_an_error_and_its_bytes() -> None:
    shared = ShareWorld()
    shared.fill(2)

    def refuses_the_first(value: bytes, _: object) -> str:
        if value == b"v0":
            raise ValueError("bad")
        return value.decode()

    consumer = DeserializingShareConsumer(
        CONF | {"value.deserializer": refuses_the_first}, store=shared.store, clock=shared.clock
    )
    with consumer:
        consumer.subscribe(["t"])
        first, second = consumer.poll(0)
        assert first.error() == KafkaError._VALUE_DESERIALIZATION
        assert (first.value(), second.value()) == (b"v0", "v1")
        assert consumer.commit_sync() == {TopicPartition("t", 0): None}


def test_messages_are_a_sequence() -> None:
    shared = ShareWorld()
    shared.fill(3)
    with shared.consumer() as consumer:
        messages = consumer.poll(0)
    assert (len(messages), messages.count(), messages.is_empty()) == (3, 3, False)
    assert messages[1].value() == b"v1"
    assert isinstance(messages[1:], Messages)
    assert [message.value() for message in messages[1:]] == [b"v1", b"v2"]
    records = messages.records()
    records.clear()
    assert len(messages) == 3
    assert repr(messages[:1]) == "Messages([<Message t[0]@0>])"
    assert not Messages()


def test_another_thread_is_refused_while_one_polls() -> None:
    clock = ManualClock()
    shared = ShareWorld(clock)
    consumer = shared.consumer()
    polling = threading.Thread(target=lambda: consumer.poll(10))
    polling.start()
    clock.until_waiting()
    calls: list[Any] = [
        lambda: consumer.poll(0),
        consumer.commit_sync,
        consumer.subscription,
        consumer.close,
    ]
    for call in calls:
        with pytest.raises(ConcurrentModificationException, match="not safe for multi-threaded"):
            call()
    clock.advance(10)
    polling.join()
    assert consumer.subscription() == ["t"]
    consumer.close()


def test_a_consumer_of_a_parent_process_is_refused_in_the_child() -> None:
    calls = SingleThread()
    _refuse_forked()
    with pytest.raises(IllegalStateException, match="create one in the child"):
        calls.run(lambda: None)
