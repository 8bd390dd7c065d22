"""How long `poll` waits: until messages were reported, whether or not they have a callback."""

from __future__ import annotations

import threading

import pytest

from deltaq import Consumer, Message, Producer, SerializingProducer, Topic, TopicPartition
from deltaq.compat.confluent import Producer as CompatibleProducer
from deltaq.store import MemoryStore
from deltaq.testing import ManualClock
from tests.doubles.reading import drain


def topic(root: str) -> None:
    Topic("t", conf={"bootstrap.servers": root}).create()


def read(root: str, count: int) -> list[Message]:
    with Consumer({"bootstrap.servers": root, "group.id": "reader"}) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        return drain(consumer, count)


@pytest.mark.parametrize(
    "make",
    [Producer, CompatibleProducer, SerializingProducer],
    ids=["native", "compatible", "serializing"],
)
@pytest.mark.parametrize("only_errors", [False, True])
def test_poll_returns_once_messages_without_a_callback_were_delivered(root, make, only_errors):
    topic(root)
    callback = {"on_delivery": lambda *_: None} if only_errors else {}
    with make(bootstrap_servers=root, delivery_report_only_error=only_errors) as producer:
        for _ in range(3):
            producer.produce("t", value=b"v", **callback)
            assert producer.poll() == 1, "it would wait for ever"
            assert producer.poll(0) == 0
            assert len(producer) == 0
        producer.produce("t", value=b"v", **callback)
        producer.flush()
        assert producer.poll(0) == 0, "`flush` has served it"
    assert len(read(root, 4)) == 4


def test_a_full_queue_that_is_polled_for_room_is_emptied_without_callbacks(root):
    topic(root)
    waits = 0
    with Producer(bootstrap_servers=root, queue_buffering_max_messages=10) as producer:
        for number in range(100):
            while True:
                try:
                    producer.produce("t", b"%d" % number)
                except BufferError:
                    waits += 1
                    assert producer.poll(-1) > 0, "it would wait for ever"
                else:
                    break
    assert 0 < waits <= 100
    assert [message.value() for message in read(root, 100)] == [
        b"%d" % number for number in range(100)
    ]


def test_poll_without_messages_under_way_waits_its_whole_time():
    clock = ManualClock()
    store = MemoryStore("idle")
    with Producer({"bootstrap.servers": "memory://unused"}, store=store, clock=clock) as producer:
        found: list[int] = []
        polling = threading.Thread(target=lambda: found.append(producer.poll(0.1)))
        polling.start()
        clock.until_waiting(1)
        assert not found
        clock.advance(0.1)
        polling.join(60)
    assert found == [0]


def test_a_closed_producer_may_stand_in_a_with_block(root):
    producer = Producer(bootstrap_servers=root)
    producer.close()
    with producer as same:
        assert same is producer
        with pytest.raises(RuntimeError, match="closed"):
            producer.produce("t", b"")
