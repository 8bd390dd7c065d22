"""Futures of delivered messages: they end without `poll`, beside messages with callbacks."""

from __future__ import annotations

import threading
from concurrent.futures import as_completed

import pytest

import deltaq.compat.confluent
from deltaq import KafkaError, KafkaException, Producer, SerializingProducer, Topic
from deltaq.store import MemoryStore
from tests.doubles.reading import TIMEOUT_S

CONF = {"bootstrap.servers": "memory://unused", "linger.ms": 0}


class WaitingStore(MemoryStore):
    """Creates objects only while the test lets it."""

    def __init__(self) -> None:
        super().__init__("test")
        self.may_write = threading.Event()
        self.may_write.set()

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        assert self.may_write.wait(TIMEOUT_S)
        super().create(key, data, after)


def test_a_future_returns_the_delivered_message_without_poll():
    with Producer(CONF, store=MemoryStore("test")) as producer:
        futures = [producer.produce_future("t", b"%d" % n, headers={"h": b"1"}) for n in range(100)]
        messages = [future.result(TIMEOUT_S) for future in futures]
        assert [(message.offset(), message.value()) for message in messages] == [
            (n, b"%d" % n) for n in range(100)
        ]
        assert messages[0].headers() == [("h", b"1")]
        assert len(producer) == 0
        assert [producer.poll(0), producer.poll(0)] == [100, 0]


def test_messages_with_futures_callbacks_and_neither_share_a_batch():
    reported = []
    with Producer(CONF, store=MemoryStore("test"), linger_ms=60_000) as producer:
        producer.produce(
            "t", b"0", on_delivery=lambda error, message: reported.append(message.offset())
        )
        first = producer.produce_future("t", b"1")
        producer.produce("t", b"2")
        second = producer.produce_future("t", b"3")
        assert len(producer) == 4
        assert producer.flush(TIMEOUT_S) == 0
        assert [future.result(0).offset() for future in (first, second)] == [1, 3]
    assert reported == [0]


def test_a_future_raises_why_its_message_was_not_written():
    with Producer(CONF, store=MemoryStore("test"), linger_ms=60_000) as producer:
        purged = producer.produce_future("t", b"x")
        cancelled = producer.produce_future("t", b"y")
        assert cancelled.cancel()
        producer.purge()
        with pytest.raises(KafkaException) as raised:
            purged.result(TIMEOUT_S)
        assert raised.value.args[0].code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        assert cancelled.cancelled()


def test_a_future_raises_what_a_broker_would_refuse():
    with deltaq.compat.confluent.Producer(CONF, store=MemoryStore("test")) as producer:
        refused = producer.produce_future("not a topic", b"x")
        with pytest.raises(KafkaException, match="TOPIC_EXCEPTION"):
            refused.result(TIMEOUT_S)


def test_a_future_and_its_done_callbacks_end_while_the_producer_does_nothing():
    done, threads = threading.Event(), []

    def note(future):
        threads.append(threading.current_thread().name)
        done.set()

    store = WaitingStore()
    Topic("t", store=store).create()
    store.may_write.clear()  # until the future has its callback
    with Producer(CONF, store=store) as producer:
        producer.produce_future("t", b"x").add_done_callback(note)
        store.may_write.set()
        assert done.wait(TIMEOUT_S)
    assert threads == ["deltaq-sender"]


def test_only_errors_are_reported_to_callbacks_and_futures_still_end():
    settings = {**CONF, "delivery.report.only.error": True}
    with SerializingProducer(settings, store=MemoryStore("test")) as producer:
        futures = [producer.produce_future("t", value=b"v", key=b"k") for _ in range(3)]
        assert sorted(
            future.result().offset() or 0 for future in as_completed(futures, TIMEOUT_S)
        ) == [0, 1, 2]
        assert futures[0].result().key() == b"k"
