"""What a transaction costs on an object store, where each request counts."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from functools import partial

import pytest

from deltaq import Consumer, Producer, Topic, TopicPartition
from deltaq.producer.sender import FRESH_S
from deltaq.store import MemoryStore
from tests.doubles.reading import eventually
from tests.unit.transactions.test_maintenance import LaterClock


class CountedStore(MemoryStore):
    """A remote store that counts the requests by folder, but those of the threads of consumers."""

    is_remote = True

    def __init__(self) -> None:
        super().__init__("test")
        self.counts: Counter[str] = Counter()
        self._counting = threading.Lock()

    def count(self, operation: str, key: str) -> None:
        if not threading.current_thread().name.startswith(("deltaq-fetch", "deltaq-group")):
            with self._counting:
                self.counts[f"{operation} {key.partition('/')[0]}"] += 1

    def get(self, key, size_max=None):
        self.count("get", key)
        return super().get(key, size_max)

    def get_range(self, key, start, length):
        self.count("get", key)
        return super().get_range(key, start, length)

    def put(self, key, data):
        self.count("put", key)
        super().put(key, data)

    def create(self, key, data, after=""):
        self.count("create", key)
        super().create(key, data, after)

    def list(self, prefix, start_after=""):
        self.count("list", prefix)
        return super().list(prefix, start_after)

    def list_some(self, prefix, start_after=""):
        self.count("list", prefix)
        return super().list_some(prefix, start_after)

    def delete(self, key):
        self.count("delete", key)
        super().delete(key)


def has_partitions(consumer: Consumer) -> bool:
    consumer.poll(0.01)
    return bool(consumer.assignment())


@pytest.mark.parametrize(("topics", "groups"), [(1, 0), (1, 1), (4, 1), (3, 2), (1, 3)])
def test_a_transaction_takes_one_request_one_for_each_topic_and_two_for_each_group(topics, groups):
    """Beside the upload of each topic's records."""
    store = CountedStore()
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0}
    names = [f"t{number}" for number in range(topics)]
    for name in ("in", *names):
        Topic(name, store=store).create()
    metadata = []
    with ExitStack() as clients:
        for number in range(groups):
            consumer = Consumer({**conf, "group.id": f"g{number}"}, store=store)
            clients.enter_context(consumer).subscribe(["in"])
            eventually(partial(has_partitions, consumer))
            metadata.append(consumer.consumer_group_metadata())
        producer = Producer(conf, transactional_id="t", store=store)
        clients.enter_context(producer).init_transactions()

        def transact() -> None:
            producer.begin_transaction()
            for name in names:
                producer.produce(name, b"1")
            for of in metadata:
                producer.send_offsets_to_transaction([TopicPartition("in", 0, 1)], of)
            producer.commit_transaction()

        transact()
        transact()
        store.counts.clear()
        transact()
        assert store.counts["put topics"] == topics
        beside = store.counts.total() - topics
        assert beside == 1 + topics + 2 * groups, store.counts


def test_a_topic_that_was_read_long_ago_is_read_before_the_upload_and_not_again():
    store, clock = CountedStore(), LaterClock()
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0}
    with Producer(conf, transactional_id="t", store=store, clock=clock) as producer:
        producer.init_transactions()
        for _ in range(3):
            store.counts.clear()
            clock.ahead_s += 2 * FRESH_S
            with producer.transaction():
                producer.produce("a", b"1")
        assert store.counts["get topics"] == 1


def test_a_transaction_without_messages_and_offsets_takes_no_request():
    store = CountedStore()
    conf = {"bootstrap.servers": "memory://unused"}
    with Producer(conf, transactional_id="t", store=store) as producer:
        producer.init_transactions()
        store.counts.clear()
        with producer.transaction():
            pass
        assert store.counts == {}
