"""`max.block.ms`: a full queue lets `produce` wait, and the callbacks that are due run
meanwhile.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import deltaq.compat.confluent
from deltaq import Producer, QueueFull, Topic
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from tests.doubles.reading import TIMEOUT_S, eventually


def make(**settings: Any) -> Producer:
    conf = {
        "bootstrap.servers": "memory://unused",
        "linger.ms": 60_000,
        "queue.buffering.max.messages": 3,
    }
    return Producer(conf, **{"store": MemoryStore("test"), "max_block_ms": 20_000, **settings})


def test_produce_waits_for_room_and_runs_callbacks_meanwhile():
    reported = []
    with make() as producer:
        for n in range(20):
            producer.produce(
                "t",
                b"%d" % n,
                on_delivery=lambda _, m: reported.append((m.offset(), threading.get_ident())),
            )
        assert len(reported) >= 17
        assert producer.flush(TIMEOUT_S) == 0
    assert reported == [(n, threading.get_ident()) for n in range(20)]


def test_messages_without_callbacks_and_tables_wait_for_room_too():
    store = MemoryStore("test")
    with make(store=store) as producer:
        for n in range(10):
            producer.produce("t", b"%d" % n)
        assert producer.produce_arrow("t", pa.table({"value": [b"a"] * 3})) == 3
        producer.produce("t", b"last")
    assert Topic("t", store=store).to_arrow().num_rows == 14


def test_the_wait_ends_after_max_block_ms_and_what_waited_is_not_queued():
    clock, store = ManualClock(), FaultyStore(MemoryStore("test"))
    Topic("t", store=store).create()
    store.add(Rule("put", "*", Fault.slow(), times=None))
    producer = make(store=store, clock=clock)
    for _ in range(3):
        producer.produce("t", b"v")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(producer.produce, "t", b"v")
        clock.until_waiting(1)
        assert not waiting.done()

        def is_over() -> bool:
            clock.advance(1)
            return waiting.done()

        eventually(is_over, "the end of the wait")
        with pytest.raises(QueueFull, match="Local: Queue full"):
            waiting.result()
        assert clock.monotonic() >= 20
    assert len(producer) == 3
    store.clear()
    store.release()
    producer.close()


def test_inside_a_callback_a_full_queue_is_an_error_at_once():
    raised: list[QueueFull] = []
    store = FaultyStore(MemoryStore("test"))

    def again(error, message):
        store.add(Rule("put", "*", Fault.slow(), times=None))  # none of them leaves meanwhile
        try:
            for _ in range(4):
                producer.produce("t", b"more")
        except QueueFull as full:
            raised.append(full)
        store.clear()
        store.release()

    with make(store=store) as producer:
        producer.produce("t", b"first", on_delivery=again)
        producer.flush(TIMEOUT_S)
    assert len(raised) == 1


def test_an_error_of_a_callback_is_raised_and_the_message_is_not_queued():
    def fail(error, message):
        raise LookupError("in the callback")

    store = MemoryStore("test")
    with make(store=store) as producer:
        for _ in range(3):
            producer.produce("t", b"v", on_delivery=fail)
        with pytest.raises(LookupError, match="in the callback"):
            producer.produce("t", b"refused")
        producer.produce("t", b"accepted")
    assert Topic("t", store=store).to_arrow()["value"].to_pylist() == [
        b"v",
        b"v",
        b"v",
        b"accepted",
    ]


def test_the_producer_of_confluent_kafka_raises_a_buffer_error_by_default():
    conf = {
        "bootstrap.servers": "memory://unused",
        "linger.ms": 60_000,
        "queue.buffering.max.messages": 1,
    }
    with deltaq.compat.confluent.Producer(conf, store=MemoryStore("test")) as producer:
        producer.produce("t", b"v")
        with pytest.raises(BufferError, match="Local: Queue full"):
            producer.produce("t", b"v")
