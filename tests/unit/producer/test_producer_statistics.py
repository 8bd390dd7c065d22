"""`stats_cb` of a producer: librdkafka's names and units, one call per interval, in `poll`."""

from __future__ import annotations

import gc
import json
import threading
from typing import Any

import confluent_kafka
import pytest

from deltaq import Consumer, Producer
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from tests.doubles.reading import eventually


def names(statistics: dict[str, Any]) -> set[str]:
    """The names of all fields, those of topics and partitions among them."""
    found = set(statistics)
    for topic in statistics["topics"].values():
        found |= {f"topics.{name}" for name in topic}
        found |= {
            f"partitions.{name}" for partition in topic["partitions"].values() for name in partition
        }
    return found | {f"cgrp.{name}" for name in statistics.get("cgrp", ())}


@pytest.fixture(scope="module")
def of_kafka() -> set[str]:
    """The names of the fields that confluent-kafka emits, without a broker."""
    emitted: list[dict[str, Any]] = []
    settings = {
        "bootstrap.servers": "127.0.0.1:1",
        "group.id": "g",
        "statistics.interval.ms": 1,
        "stats_cb": lambda text: emitted.append(json.loads(text)),
        "log_level": 0,
        "error_cb": lambda error: None,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    while not any("t" in each["topics"] for each in emitted):
        consumer.poll(0.1)
    consumer.close()
    return set().union(*map(names, emitted))


class Emitted:
    """A producer whose clock the test moves, and the statistics that it has emitted."""

    def __init__(self, store: MemoryStore | FaultyStore, **settings: Any) -> None:
        self.clock, self.texts = ManualClock(), list[str]()
        conf = {
            "bootstrap.servers": "memory://unused",
            "client.id": "app",
            "statistics.interval.ms": 1000,
        }
        self.producer = Producer(
            {**conf, "stats_cb": self.texts.append, "maintenance.enable": False},
            store=store,
            clock=self.clock,
            **settings,
        )

    def next(self) -> dict[str, Any]:
        """The statistics of the next interval."""
        count = len(self.texts)
        self.clock.advance(1)
        eventually(lambda: (self.producer.poll(0), len(self.texts) > count)[1], "the call")
        found: dict[str, Any] = json.loads(self.texts[-1])
        return found


def test_a_producer_emits_what_waits_and_what_was_written(of_kafka):
    store = FaultyStore(MemoryStore("test"))
    emitted = Emitted(store, linger_ms=0, queue_buffering_max_kbytes=10)
    for n in range(4):
        emitted.producer.produce("t", b"12345", partition=0)
        assert emitted.producer.flush(20) == 0, n
    store.add(Rule("put", "*", Fault.slow(), times=None))
    emitted.producer.produce("t", b"abc")
    eventually(lambda: store.blocked, "the upload")
    emitted.producer.produce("t", b"defg")
    found = emitted.next()
    assert (found["type"], found["client_id"], found["name"].split("-")[0]) == (
        "producer",
        "app",
        "app#producer",
    )
    assert (found["txmsgs"], found["txmsg_bytes"], found["msg_cnt"], found["msg_size"]) == (
        4,
        20,
        2,
        7,
    )
    assert (found["msg_max"], found["msg_size_max"]) == (100_000, 10 * 1024)
    assert found["ts"] == 1_000_000 == found["age"]
    assert found["time"] == emitted.clock.time_ms() // 1000
    partitions = found["topics"]["t"]["partitions"]
    assert partitions["0"] == {"partition": 0, "txmsgs": 4}
    assert partitions["-1"] == {"partition": -1, "msgq_cnt": 1, "msgq_bytes": 4, "msgs_inflight": 1}
    assert names(found) <= of_kafka
    store.clear()
    store.release()
    emitted.producer.close()


def test_a_late_program_gets_the_newest_statistics_once():
    emitted = Emitted(MemoryStore("test"))
    for second in range(1, 4):
        emitted.clock.until_waiting(1)
        emitted.clock.advance(1)
        eventually(lambda: emitted.producer._callbacks.due, f"statistics {second}")
    emitted.clock.until_waiting(1)
    emitted.producer.poll(0)
    assert [json.loads(text)["ts"] for text in emitted.texts] == [3_000_000]
    emitted.producer.close()


@pytest.mark.parametrize("end", ["close", "drop"])
def test_the_thread_ends_with_the_client(end):
    def threads() -> list[str]:
        return [
            thread.name
            for thread in threading.enumerate()
            if thread.name == f"deltaq-statistics-{end}"
        ]

    conf = {
        "bootstrap.servers": "memory://unused",
        "statistics.interval.ms": 1,
        "stats_cb": lambda text: None,
    }
    clients: list[Any] = [Producer({**conf, "client.id": end}), Consumer({**conf, "group.id": end})]
    assert len(threads()) == 2
    if end == "close":
        _ = [client.close() for client in clients]
    clients.clear()
    gc.collect()
    eventually(lambda: not threads(), "the end of the threads")


def test_without_a_callback_or_an_interval_there_is_no_thread():
    conf = {"bootstrap.servers": "memory://unused", "client.id": "silent"}
    with Producer({**conf, "stats_cb": print}), Producer({**conf, "statistics.interval.ms": 1}):
        names_of_threads = [thread.name for thread in threading.enumerate()]
    assert "deltaq-statistics-silent" not in names_of_threads
