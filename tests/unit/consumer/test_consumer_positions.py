"""Positions of a consumer: after any calls between two polls it delivers the records of a model
list, in order.
"""

from __future__ import annotations

import uuid

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from deltaq import OFFSET_INVALID, Consumer, Producer, Topic, TopicPartition
from tests.depth import depth
from tests.doubles.compaction import compact
from tests.doubles.reading import TIMEOUT_S

PARTITIONS = 3
partitions = st.integers(0, PARTITIONS - 1)


class ConsumerAgainstList(RuleBasedStateMachine):
    """The model: a list of values per partition, the position in each, and which are paused."""

    @initialize()
    def start(self) -> None:
        root = f"memory://{uuid.uuid4().hex}"
        topic = Topic("t", partitions=PARTITIONS, conf={"bootstrap.servers": root}).create()
        self.store = topic.store
        self.producer = Producer({"bootstrap.servers": root, "linger.ms": 0})
        self.consumer = Consumer(
            {"bootstrap.servers": root, "group.id": "g", "enable.partition.eof": False}
        )
        self.values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.position = [0] * PARTITIONS
        self.handed_out = [False] * PARTITIONS
        self.paused: set[int] = set()
        self.count = 0
        self.consumer.assign([TopicPartition("t", partition, 0) for partition in range(PARTITIONS)])

    def teardown(self) -> None:
        if hasattr(self, "consumer"):
            self.consumer.close()
            self.producer.close()

    @rule(where=st.lists(partitions, min_size=1, max_size=6))
    def produce(self, where: list[int]) -> None:
        for partition in where:
            value = b"%d" % self.count
            self.count += 1
            self.values[partition].append(value)
            self.producer.produce("t", value, partition=partition)
        assert self.producer.flush(TIMEOUT_S) == 0

    def waiting(self) -> int:
        """Records that the consumer has to hand out now."""
        active = set(range(PARTITIONS)) - self.paused
        return sum(len(self.values[partition]) - self.position[partition] for partition in active)

    def took(self, message) -> None:
        assert message.error() is None
        partition = message.partition()
        assert partition not in self.paused
        assert message.offset() == self.position[partition]
        assert message.value() == self.values[partition][self.position[partition]]
        self.position[partition] += 1
        self.handed_out[partition] = True

    # Which partition comes first is a matter of threads: so no rule may depend on it, or examples
    # cannot be repeated.

    @rule()
    def poll(self) -> None:
        if self.waiting():
            self.took(self.consumer.poll(TIMEOUT_S))
        else:
            assert self.consumer.poll(0.002) is None

    @rule(count=st.integers(1, 6))
    def consume(self, count: int) -> None:
        count = min(count, self.waiting())
        messages = self.consumer.consume(count, TIMEOUT_S)
        assert len(messages) == count
        for message in messages:
            self.took(message)

    @rule(partition=partitions, back=st.integers(0, 20))
    def seek(self, partition: int, back: int) -> None:
        offset = max(0, len(self.values[partition]) - back)
        self.consumer.seek(TopicPartition("t", partition, offset))
        self.position[partition] = offset
        self.handed_out[partition] = False

    @rule(partition=partitions)
    def pause(self, partition: int) -> None:
        self.consumer.pause([TopicPartition("t", partition)])
        self.paused.add(partition)

    @rule(partition=partitions)
    def resume(self, partition: int) -> None:
        self.consumer.resume([TopicPartition("t", partition)])
        self.paused.discard(partition)

    @rule(partition=partitions)
    def assign_anew(self, partition: int) -> None:
        self.consumer.incremental_unassign([TopicPartition("t", partition)])
        self.consumer.incremental_assign([TopicPartition("t", partition, self.position[partition])])
        self.handed_out[partition] = False

    @rule()
    def compact(self) -> None:
        if self.count:
            compact(self.store, "t")

    @invariant()
    def positions_agree(self) -> None:
        if hasattr(self, "consumer"):
            found = self.consumer.position(
                [TopicPartition("t", partition) for partition in range(PARTITIONS)]
            )
            expected = [
                position if handed_out else OFFSET_INVALID
                for position, handed_out in zip(self.position, self.handed_out, strict=True)
            ]
            assert [tp.offset for tp in found] == expected


TestConsumerAgainstList = pytest.mark.slow(ConsumerAgainstList.TestCase)
TestConsumerAgainstList.settings = settings(
    max_examples=depth(15, 40), stateful_step_count=30, deadline=None
)
