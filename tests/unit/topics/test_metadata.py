"""Metadata of a root: its topics, also while some of them are damaged or deleted."""

from __future__ import annotations

import re

import pytest

from deltaq import KafkaError, Topic, Unavailable
from deltaq.clock import SYSTEM_CLOCK
from deltaq.metadata import BrokerMetadata, PartitionMetadata, cluster_id, list_topics
from deltaq.names import log_entry, topic_log
from deltaq.store import LocalStore, MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule
from deltaq.topics.listing import topic_names


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("metadata")


def test_topics_are_listed_with_their_partitions_and_one_broker(store):
    Topic("a", partitions=2, store=store).create()
    Topic("b", store=store).create()
    metadata = list_topics(store)
    assert {name: list(topic.partitions) for name, topic in metadata.topics.items()} == {
        "a": [0, 1],
        "b": [0],
    }
    assert metadata.topics["a"].partitions[1] == PartitionMetadata(
        1, leader=0, replicas=[0], isrs=[0], error=None
    )
    assert metadata.brokers == {0: BrokerMetadata(0, "memory://metadata", 0)}
    assert (metadata.controller_id, metadata.orig_broker_id) == (0, 0)
    assert metadata.orig_broker_name == "memory://metadata:0/0"
    assert [str(metadata), str(metadata.topics["a"]), str(metadata.topics["a"].partitions[1])] == [
        metadata.cluster_id,
        "a",
        "1",
    ]


def test_many_topics_are_all_there_and_in_order(store):
    names = [f"t{number:03d}" for number in range(60)]
    for name in names:
        Topic(name, store=store).create()
    assert list(list_topics(store, timeout=60).topics) == names


def test_an_empty_root_has_no_topics(tmp_path):
    assert list_topics(LocalStore(str(tmp_path / "not" / "yet"))).topics == {}


def test_deleted_topics_and_folders_that_are_no_topics_are_not_shown(store):
    Topic("gone", store=store).create().delete()
    store.put("topics/no topic/x", b"")
    store.put("topics/empty/x", b"")
    store.put("topics/file", b"")
    assert list_topics(store).topics == {}
    assert topic_names(store) == ["empty", "gone"]


def test_a_requested_topic_is_listed_with_its_error(store):
    for name, code in (
        ("nope", KafkaError.UNKNOWN_TOPIC_OR_PART),
        ("a/b", KafkaError.TOPIC_EXCEPTION),
    ):
        (topic,) = list_topics(store, topic=name).topics.values()
        assert topic.error is not None
        assert (topic.topic, topic.error.code(), topic.partitions) == (name, code, {})


def test_a_damaged_topic_does_not_hide_the_others(store):
    for name in ("good", "bad"):
        Topic(name, store=store).create()
    store.put(log_entry(topic_log("bad"), 0), b"{")
    topics = list_topics(store).topics
    assert topics["good"].error is None
    assert topics["bad"].error == KafkaError._BAD_MSG


def test_a_root_that_cannot_be_listed_is_unavailable():
    store = FaultyStore(MemoryStore("x"), Rule("list_folders", "*", Fault.refused()))
    with pytest.raises(Unavailable, match="access denied") as refusal:
        list_topics(store, SYSTEM_CLOCK)
    assert not refusal.value.args[0].retriable()


def test_the_id_of_a_root_is_stable_and_unique():
    first = cluster_id(MemoryStore("a"))
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", first)
    assert first == cluster_id(MemoryStore("a"))
    assert first != cluster_id(MemoryStore("b"))
