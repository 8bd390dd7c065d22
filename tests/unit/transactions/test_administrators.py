"""What administrators, and commits outside of transactions, do to the offsets of a transaction, as
Kafka's clients show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deltaq import Consumer, KafkaError, KafkaException, Producer, Topic, TopicPartition
from deltaq.admin import AdminClient, ConsumerGroupState, ConsumerGroupTopicPartitions
from deltaq.clock import SYSTEM_CLOCK
from deltaq.groups.log import GroupLog
from deltaq.store import MemoryStore
from deltaq.tools import transactions
from tests.doubles.reading import drain

CONF = {"bootstrap.servers": "memory://unused"}


class Group:
    """The group `g` of a topic with two partitions, and a transaction that is open."""

    def __init__(self) -> None:
        self.store = MemoryStore("test")
        self.topic = Topic("in", partitions=2, store=self.store)
        self.topic.create()
        self.admin = AdminClient(CONF, store=self.store)
        self.producer = Producer(CONF, transactional_id="t", linger_ms=0, store=self.store)
        self.producer.init_transactions()
        self.producer.begin_transaction()
        self.producer.produce("out", b"1")
        self.made: list[Any] = [self.producer]

    def consumer(self) -> Consumer:
        settings = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        found = Consumer({**CONF, **settings}, store=self.store)
        self.made.append(found)
        return found

    def send(self, *offsets: int) -> None:
        """Send the offset of each partition to the transaction."""
        positions = [TopicPartition("in", number, offset) for number, offset in enumerate(offsets)]
        metadata = self.consumer().consumer_group_metadata()
        self.producer.send_offsets_to_transaction(positions, metadata)

    def alter(self, *offsets: int) -> None:
        positions = [TopicPartition("in", number, offset) for number, offset in enumerate(offsets)]
        request = [ConsumerGroupTopicPartitions("g", positions)]
        result = self.admin.alter_consumer_group_offsets(request)["g"].result()
        assert [tp.error for tp in result.topic_partitions or []] == [None] * len(offsets)

    def delete_offsets(self, partition: int) -> None:
        request = [ConsumerGroupTopicPartitions("g", [TopicPartition("in", partition)])]
        result = self.admin.delete_consumer_group_offsets(request)["g"].result()
        assert [tp.error for tp in result.topic_partitions or []] == [None]

    def delete(self) -> None:
        self.admin.delete_consumer_groups(["g"])["g"].result()

    def state(self) -> ConsumerGroupState:
        return self.admin.describe_consumer_groups(["g"])["g"].result().state

    def offsets(self) -> dict[int, int]:
        request = [ConsumerGroupTopicPartitions("g")]
        result = self.admin.list_consumer_group_offsets(request, require_stable=True)["g"].result()
        return {tp.partition: tp.offset for tp in result.topic_partitions or []}

    def pending(self) -> int:
        return len(GroupLog(self.store, "g").pending())


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    for client in made.made:
        client.close()


def test_a_group_with_nothing_but_offsets_of_a_transaction_is_empty_and_lists_none(group):
    assert group.state() is ConsumerGroupState.DEAD
    group.send(5)
    assert group.state() is ConsumerGroupState.EMPTY
    assert group.offsets() == {}
    group.producer.abort_transaction()
    assert group.state() is ConsumerGroupState.DEAD


def test_an_offset_that_is_altered_after_it_was_sent_stays(group):
    group.alter(1, 1)
    group.send(5, 6)
    group.alter(2)
    assert group.offsets() == {0: 2, 1: 1}
    group.producer.commit_transaction()
    assert group.offsets() == {0: 2, 1: 6}
    assert group.pending() == 0


def test_an_offset_that_is_sent_after_it_was_altered_counts(group):
    group.send(5)
    group.alter(2)
    group.send(4)
    group.producer.commit_transaction()
    assert group.offsets() == {0: 4}


def test_an_abort_leaves_what_was_altered(group):
    group.send(5)
    group.alter(2)
    group.producer.abort_transaction()
    assert group.offsets() == {0: 2}
    assert group.pending() == 0


def test_a_later_commit_of_the_consumer_itself_stays(group):
    with Producer(CONF, linger_ms=0, store=group.store) as plain:
        for _ in range(3):
            plain.produce("in", b"x", partition=0)
    consumer = group.consumer()
    consumer.subscribe(["in"])
    drain(consumer, 3)
    group.producer.send_offsets_to_transaction(
        [TopicPartition("in", 0, 2)], consumer.consumer_group_metadata()
    )
    consumer.commit(offsets=[TopicPartition("in", 0, 3)], asynchronous=False)
    group.producer.commit_transaction()
    assert group.offsets() == {0: 3}


def test_what_is_altered_stays_pending_so_that_the_next_owner_asks_for_the_outcome(group):
    member = group.consumer()
    member.subscribe(["in"])
    member.poll(0.1)
    group.producer.send_offsets_to_transaction(
        [TopicPartition("in", 0, 2)], member.consumer_group_metadata()
    )
    member.close()
    group.alter(0)
    after = group.consumer()
    after.subscribe(["in"])
    after.poll(0.5)
    with pytest.raises(KafkaException) as refused:
        group.producer.commit_transaction()
    assert refused.value.error.txn_requires_abort()
    group.producer.abort_transaction()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_group_is_deleted_with_the_offsets_of_a_transaction_that_still_commits(group, is_new):
    if not is_new:
        group.alter(1)
    group.send(5)
    group.delete()
    assert group.state() is ConsumerGroupState.DEAD
    group.producer.commit_transaction()
    assert group.offsets() == {}
    assert group.state() is ConsumerGroupState.DEAD
    assert Topic("out", store=group.store).to_arrow().num_rows == 1
    with pytest.raises(KafkaException) as refused:
        group.delete()
    assert refused.value.error.code() == KafkaError.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("is_new", [True, False])
def test_an_offset_is_deleted_that_only_a_transaction_has(group, is_new):
    if not is_new:
        group.alter(1, 1)
    group.send(5, 6)
    group.delete_offsets(0)
    assert group.offsets() == ({} if is_new else {1: 1})
    group.producer.commit_transaction()
    assert group.offsets() == {1: 6}


def test_offsets_of_a_partition_that_does_not_exist_require_an_abort(group):
    metadata = group.consumer().consumer_group_metadata()
    for topic, number in (("in", 7), ("in", -1), ("nope", 0), ("bad/name", 0)):
        positions = [TopicPartition(topic, number, 1)]
        with pytest.raises(KafkaException) as refused:
            group.producer.send_offsets_to_transaction(positions, metadata)
        assert refused.value.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert refused.value.error.txn_requires_abort()
        group.producer.abort_transaction()
        group.producer.begin_transaction()


def test_an_abort_by_an_operator_leaves_the_offsets_of_the_next_producer(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    """That begins while the operator's process still looks through the groups."""
    look, before = transactions._pending, group.producer

    def look_later(*arguments: Any) -> Any:
        group.producer = Producer(CONF, transactional_id="t", store=group.store)
        group.made.append(group.producer)
        group.producer.init_transactions()
        group.producer.begin_transaction()
        group.send(3)
        return look(*arguments)

    monkeypatch.setattr(transactions, "_pending", look_later)
    transactions.abort(group.store, SYSTEM_CLOCK, "t", SYSTEM_CLOCK.monotonic() + 20)
    assert group.producer is not before
    group.producer.commit_transaction()
    assert group.offsets() == {0: 3}
