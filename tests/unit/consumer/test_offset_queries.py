"""Queries of a consumer: watermarks, offsets by time, topics, and their time limits."""

from __future__ import annotations

import builtins
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import deltaq.topics.time_lookup
from deltaq import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    InvalidConfig,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
    UnknownTopic,
)
from deltaq.consumer.tail import ENTRIES_AT_ONCE
from deltaq.names import last_checkpoint, topic_log
from deltaq.store import MemoryStore, ObjectEntry, open_store
from deltaq.testing import FaultyStore
from deltaq.topics.follower import topic_reader
from deltaq.topics.log import TopicLog
from tests.doubles.consuming import consumer, fill, topic, tp
from tests.doubles.reading import TIMEOUT_S, drain, next_message

T0 = 1_700_000_000_000


def test_watermarks_are_read_or_cached(root):
    topic(root)
    with consumer(root) as reader:
        assert reader.get_watermark_offsets(tp()) == (0, 0)
        fill(root, 10)
        assert reader.get_watermark_offsets(tp(), timeout=5) == (0, 10)
        assert reader.get_watermark_offsets(tp(), cached=True) == (OFFSET_INVALID, OFFSET_INVALID)
        reader.assign([tp(0, 4)])
        drain(reader, 6)
        assert reader.get_watermark_offsets(tp(), cached=True) == (0, 10)
        for unknown in (tp(7), tp(name="nope")):
            with pytest.raises(UnknownTopic) as caught:
                reader.get_watermark_offsets(unknown)
            assert caught.value.args[0] == KafkaError._UNKNOWN_PARTITION


class Loads(FaultyStore):
    """Counts how often the newest checkpoint of topic `t` is asked for: once for each time that its
    log is loaded.
    """

    loads = 0

    def get(self, key: str, size_max: int | None = None) -> bytes:
        self.loads += key == last_checkpoint(topic_log("t"))
        return super().get(key, size_max)


def test_a_topic_that_is_queried_and_then_read_is_loaded_once(root, monkeypatch):
    """Opening at a time is a question and an assignment; of a topic with a long log, loading it is
    most of both.
    """
    # However slow a server is beside other tests.
    monkeypatch.setattr("deltaq.topics.follower.RECENT_S", 60.0)
    topic(root)
    fill(root, 3)
    store = Loads(open_store(root))
    with Consumer(
        {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "error"}, store=store
    ) as reader:
        found = reader.offsets_for_times([tp(0, T0 + 1000)])
        reader.assign(found)
        assert [message.value() for message in drain(reader, 2)] == [b"v1", b"v2"]
    assert store.loads == 1


@pytest.mark.slow
def test_the_end_is_current_although_the_topic_was_queried_before(root):
    """Many commits may have come since, more than are read at a time while a log is followed."""
    topic(root)
    store = open_store(root)
    with Consumer(
        {"bootstrap.servers": root, "group.id": "g", "enable.partition.eof": True}, store=store
    ) as reader:
        with Producer({"bootstrap.servers": root, "linger.ms": 0}, store=store) as producer:
            producer.produce("t", b"first")
            producer.flush()
            log = TopicLog(store, "t", indexed=True)
            log.load()
            for number in range(ENTRIES_AT_ONCE + 5):
                producer.produce("t", b"%d" % number)
                producer.flush()
        reader.get_watermark_offsets(tp(0))
        follower = topic_reader(store, "t")._follower
        # A moment ago.
        follower._log, follower.progress = log, replace(follower.progress, view=log.view)
        reader.assign([tp(0, OFFSET_END)])
        end = next_message(reader)
        assert (end.error(), end.offset()) == (KafkaError._PARTITION_EOF, ENTRIES_AT_ONCE + 6)


def test_offsets_are_found_by_time(root):
    topic(root)
    topic(root, "empty")
    fill(root, 5)
    with consumer(root) as reader:
        for time_ms, expected in (
            (T0 - 5, 0),
            (T0, 0),
            (T0 + 2000, 2),
            (T0 + 2001, 3),
            (T0 + 4000, 4),
            (T0 + 4001, OFFSET_END),
            (0, 0),
            (OFFSET_END, 5),
            (OFFSET_BEGINNING, 0),
        ):
            assert reader.offsets_for_times([tp(0, time_ms)], timeout=5)[0].offset == expected, (
                time_ms
            )
        assert reader.offsets_for_times([tp(0, T0, "empty")])[0].offset == OFFSET_END
        with pytest.raises(KafkaException) as caught:
            reader.offsets_for_times([tp(9, T0)])
        assert caught.value.args[0] == KafkaError._UNKNOWN_PARTITION
        known, unknown = reader.offsets_for_times([tp(0, T0), tp(9, T0)])
        assert (known.offset, known.error) == (0, None)
        assert unknown.error == KafkaError._UNKNOWN_PARTITION
        with pytest.raises(InvalidConfig, match="-7"):
            reader.offsets_for_times([tp(0, -7)])
        known, missing = reader.offsets_for_times([tp(0, T0), tp(0, T0, "missing")])
        assert (known.offset, known.error) == (0, None)
        assert missing.error == KafkaError._UNKNOWN_PARTITION
        with pytest.raises(UnknownTopic) as caught:
            reader.offsets_for_times([tp(0, T0, "missing"), tp(1, OFFSET_END, "missing")])
        assert caught.value.args[0] == KafkaError._UNKNOWN_PARTITION


def test_a_topic_deleted_during_its_time_lookup_is_unknown(root, monkeypatch):
    for name in ("stays", "goes"):
        topic(root, name)
    found = deltaq.topics.time_lookup.offsets_for_times

    def look(store, log, *arguments):
        if log.topic == "goes":
            raise UnknownTopic("goes")
        return found(store, log, *arguments)

    monkeypatch.setattr("deltaq.topics.lookup.offsets_for_times", look)
    with consumer(root) as reader:
        places = [tp(0, T0, "goes"), tp(0, T0, "stays"), tp(0, OFFSET_END, "goes")]
        gone, stays, end = reader.offsets_for_times(places)
    assert gone.error == KafkaError._UNKNOWN_PARTITION
    assert (stays.offset, stays.error) == (OFFSET_END, None)
    assert (end.offset, end.error) == (0, None)


def test_times_need_not_rise_with_offsets(root):
    topic(root)
    with Producer(bootstrap_servers=root) as producer:
        for time_ms in (5000, 1000, 9000, 2000):
            producer.produce("t", "v", timestamp=T0 + time_ms)
            producer.flush(20)
    with consumer(root) as reader:
        found = {
            t: reader.offsets_for_times([tp(0, T0 + t)])[0].offset
            for t in (500, 1500, 5000, 5500, 9500)
        }
    assert found == {500: 0, 1500: 0, 5000: 0, 5500: 2, 9500: -1}


def test_topics_can_be_listed(root):
    topic(root, partitions=2)
    with consumer(root) as reader:
        metadata = reader.list_topics(timeout=5)
        assert sorted(metadata.topics["t"].partitions) == [0, 1]
        assert reader.list_topics("nope").topics["nope"].error == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert metadata.cluster_id == reader.cluster_id()
        reader.set_sasl_credentials("user", "PLANTED")
        assert "PLANTED" not in repr(reader)


class SilentStore(MemoryStore):
    """Answers no question until it `speaks`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.speaks = threading.Event()

    def get(self, key: str, size_max: int | None = None) -> bytes:
        self.speaks.wait(TIMEOUT_S)
        return super().get(key, size_max)

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        self.speaks.wait(TIMEOUT_S)
        return super().get_impatient(key, size_max)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        self.speaks.wait(TIMEOUT_S)
        return super().list(prefix, start_after)

    def list_folders(self, prefix: str) -> builtins.list[str]:
        self.speaks.wait(TIMEOUT_S)
        return super().list_folders(prefix)


QUESTIONS: dict[str, tuple[Callable[[Consumer, Any], object], object]] = {
    "watermarks": (
        lambda consumer, limit: consumer.get_watermark_offsets(TopicPartition("t", 0), limit),
        (0, 1),
    ),
    "times": (
        lambda consumer, limit: [
            tp.offset for tp in consumer.offsets_for_times([TopicPartition("t", 0, 1)], limit)
        ],
        [0],
    ),
    "committed": (
        lambda consumer, limit: [
            tp.offset for tp in consumer.committed([TopicPartition("t", 0)], limit)
        ],
        [OFFSET_INVALID],
    ),
    "topics": (lambda consumer, limit: list(consumer.list_topics(timeout=limit).topics), ["t"]),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_query_with_a_timeout_ends_on_a_silent_store_and_can_be_repeated(question):
    ask, expected = QUESTIONS[question]
    store = SilentStore(uuid.uuid4().hex)
    store.speaks.set()
    with Producer({"bootstrap.servers": "memory://unused"}, store=store) as producer:
        producer.produce("t", "v")
    store.speaks.clear()
    with Consumer(
        {"bootstrap.servers": "memory://unused", "group.id": "g"}, store=store
    ) as consumer:
        with pytest.raises(KafkaException) as late:
            ask(consumer, 0.01)
        assert late.value.args[0].code() == KafkaError._TIMED_OUT
        with pytest.raises(TypeError, match="timeout"):
            ask(consumer, "soon")
        store.speaks.set()
        assert ask(consumer, TIMEOUT_S) == expected
        assert ask(consumer, -1) == expected
