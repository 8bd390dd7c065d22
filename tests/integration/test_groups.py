"""Groups: members that share partitions, committed offsets, and offsets of topics that change."""

from __future__ import annotations

import gc
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable

from deltaq import (
    OFFSET_INVALID,
    AdminClient,
    Consumer,
    Fenced,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.admin import NewPartitions
from deltaq.groups.heartbeat import Heartbeat

QUICK = {
    "session.timeout.ms": 30_000,
    "heartbeat.interval.ms": 100,
    "auto.offset.reset": "earliest",
}


def produced(root: str, topic: str, values: range, partition: int = -1) -> None:
    with Producer({"bootstrap.servers": root}) as producer:
        for value in values:
            producer.produce(topic, b"%d" % value, partition=partition)


def member(root: str, group: str = "g", /, **settings: Any) -> Consumer:
    return Consumer({"bootstrap.servers": root, "group.id": group, **QUICK, **settings})


def numbers(messages: list[Message]) -> list[int]:
    assert all(message.error() is None for message in messages)
    return [int(message.value()) for message in messages]


def eventually(look: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait, for a bounded time, until `look` gives something true."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it never happened"


def test_a_consumer_resumes_at_the_committed_offset(root):
    produced(root, "t", range(10))
    with member(root, **{"enable.auto.commit": False}) as first:
        first.subscribe(["t"])
        messages = first.consume(6, 20)
        first.commit(message=messages[3], asynchronous=False)
    with member(root) as second:
        second.subscribe(["t"])
        assert numbers(second.consume(6, 20)) == [4, 5, 6, 7, 8, 9]


@pytest.mark.fault("R6")
def test_auto_commit_on_close_commits_the_delivered_records(root):
    produced(root, "t", range(10))
    with member(root) as first:
        first.subscribe(["t"])
        first.consume(7, 20)
    with member(root) as second:
        second.subscribe(["t"])
        assert numbers(second.consume(3, 20)) == [7, 8, 9]


def test_only_stored_offsets_are_committed_if_the_application_stores_them(root):
    produced(root, "t", range(10))
    with member(root, **{"enable.auto.offset.store": False}) as first:
        first.subscribe(["t"])
        messages = first.consume(10, 20)
        first.store_offsets(messages[1])
    with member(root) as second:
        second.subscribe(["t"])
        assert numbers(second.consume(8, 20)) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_committed_offsets_are_delta_transactions_readable_by_any_delta_client(root):
    produced(root, "t", range(10))
    with member(root) as consumer:
        consumer.subscribe(["t"])
        consumer.consume(5, 20)
        consumer.commit(asynchronous=False)
    topic_id = Topic("t", conf={"bootstrap.servers": root}).describe().topic_id
    table = DeltaTable(f"{root}/groups/g", storage_options={"allow_http": "true"})
    assert table.transaction_version(f"t/{topic_id}/0") == 5


def test_a_note_is_committed_with_its_offset(root):
    produced(root, "t", range(3))
    with member(root) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        consumer.commit(
            offsets=[TopicPartition("t", 0, 2, metadata="half way")], asynchronous=False
        )
        (found,) = consumer.committed([TopicPartition("t", 0)])
        assert (found.offset, found.metadata) == (2, "half way")
        # As a Kafka broker answers: no topic has no committed offset; a partition that a topic
        # lacks is an error.
        no_topic, no_partition = consumer.committed(
            [TopicPartition("nothing", 0), TopicPartition("t", 9)]
        )
        assert (no_topic.offset, no_topic.error) == (OFFSET_INVALID, None)
        assert no_partition.error == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_nothing_to_commit_is_an_error(root):
    produced(root, "t", range(3))
    with member(root) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        with pytest.raises(KafkaException) as caught:
            consumer.commit(asynchronous=False)
        assert caught.value.args[0] == KafkaError._NO_OFFSET
        (found,) = consumer.committed([TopicPartition("t", 0)])
        assert found.offset == OFFSET_INVALID


def test_members_share_the_partitions_and_the_last_one_gets_all(root):
    Topic("t", partitions=2, conf={"bootstrap.servers": root}).create()
    first, second = member(root), member(root)
    first.subscribe(["t"])
    eventually(lambda: first.poll(0.05) is None and len(first.assignment()) == 2)
    second.subscribe(["t"])
    found: dict[Consumer, list[Message]] = {first: [], second: []}

    def read(count: int) -> bool:
        for consumer, messages in found.items():
            messages += consumer.consume(100, 0.05)
        return sum(map(len, found.values())) == count

    eventually(lambda: read(0) and len(first.assignment()) == len(second.assignment()) == 1)
    for partition in range(2):
        produced(root, "t", range(10), partition)
    eventually(lambda: read(20))
    assert [numbers(messages) for messages in found.values()] == [list(range(10)), list(range(10))]
    first.close()
    del found[first]
    eventually(lambda: second.poll(0.05) is None and len(second.assignment()) == 2)
    for partition in range(2):
        produced(root, "t", range(10, 12), partition)
    eventually(lambda: read(14))
    assert sorted(numbers(found[second][10:])) == [10, 10, 11, 11], "from the committed offset on"
    second.close()


def test_a_dead_member_is_removed_and_cannot_commit(root, monkeypatch):
    produced(root, "t", range(10))
    dying = {"enable.auto.commit": False, "client.id": "dead", "session.timeout.ms": 1000}
    dead, heir = member(root, **dying), member(root)
    dead.subscribe(["t"])
    taken = dead.consume(4, 20)
    # It dies: its heart stops, and it does not notice.
    beat = Heartbeat.beat
    monkeypatch.setattr(
        Heartbeat, "beat", lambda *of: None if of[1].startswith("dead-") else beat(*of)
    )
    monkeypatch.setattr(
        Heartbeat, "silent_at", property(lambda self: float("inf"), lambda self, silent_at: None)
    )
    heir.subscribe(["t"])
    assert numbers(heir.consume(10, 20)) == list(range(10)), (
        "nothing was committed, so all is delivered again"
    )
    with pytest.raises(Fenced):
        dead.commit(message=taken[-1], asynchronous=False)
    heir.commit(asynchronous=False)
    (committed,) = heir.committed([TopicPartition("t", 0)])
    assert committed.offset == 10
    heir.close()
    dead.close()


def test_a_dropped_consumer_leaves_its_group_without_commit_and_ends_its_threads(root, caplog):
    produced(root, "t", range(3))
    group = f"only-{uuid.uuid4().hex}"
    long = {
        "session.timeout.ms": 60_000,
        "heartbeat.interval.ms": 15_000,
        "auto.commit.interval.ms": 60_000,
    }
    outcomes: list[object] = []

    class Reader:
        """Its consumer knows it, and it its consumer, so that only the garbage collector finds
        them.
        """

        def __init__(self) -> None:
            self.consumer = member(root, group, **long, on_commit=self.committed)
            self.consumer.subscribe(["t"])

        def committed(self, *outcome: object) -> None:
            outcomes.append(outcome)

    reader = Reader()
    assert numbers(reader.consumer.consume(2, 20)) == [0, 1]
    assert any(group in thread.name for thread in threading.enumerate())
    maintenance = reader.consumer._maintenance
    assert maintenance is not None
    del reader
    gc.collect()
    assert maintenance._tasks.stopped
    assert f"{group!r} was garbage-collected" in caplog.text
    eventually(lambda: not any(group in thread.name for thread in threading.enumerate()))
    with member(root, group, **long) as heir:
        heir.subscribe(["t"])
        assert numbers(heir.consume(3, 20)) == [0, 1, 2], "at once, and from the beginning"
    assert outcomes == []


def test_a_manually_assigned_consumer_cannot_commit_into_a_group_with_a_member(root):
    produced(root, "t", range(3))
    with member(root) as inside, member(root) as outside:
        inside.subscribe(["t"])
        inside.consume(1, 20)
        outside.assign([TopicPartition("t", 0, 0)])
        assert numbers(outside.consume(3, 20)) == [0, 1, 2]
        with pytest.raises(Fenced):
            outside.commit(offsets=[TopicPartition("t", 0, 3)], asynchronous=False)


@pytest.mark.fault("R8")
def test_a_committed_offset_does_not_apply_to_a_later_topic_of_the_same_name(root):
    produced(root, "t", range(10))
    with member(root) as consumer:
        consumer.subscribe(["t"])
        consumer.consume(10, 20)
    topic = Topic("t", conf={"bootstrap.servers": root})
    topic.delete()
    topic.create()
    produced(root, "t", range(100, 105))
    with member(root) as consumer:
        consumer.subscribe(["t"])
        assert numbers(consumer.consume(5, 20)) == [100, 101, 102, 103, 104]


@pytest.mark.fault("R8")
def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_new_beginning(root):
    produced(root, "t", range(5))
    topic = Topic("t", conf={"bootstrap.servers": root})
    with member(root) as consumer:
        consumer.subscribe(["t"])
        assert numbers(consumer.consume(5, 20)) == [0, 1, 2, 3, 4]
        topic.delete()
        topic.create()
        produced(root, "t", range(100, 103))
        found: list[Message] = []

        def read() -> bool:
            found.extend(m for m in consumer.consume(3, 0.2) if m.error() is None)
            return len(found) == 3

        eventually(read)
        assert [(int(m.value()), m.offset()) for m in found] == [(100, 0), (101, 1), (102, 2)]


@pytest.mark.fault("R8")
def test_partitions_that_are_added_are_read_too(root):
    Topic("t", partitions=1, conf={"bootstrap.servers": root}).create()
    produced(root, "t", range(3), partition=0)
    with member(root) as consumer:
        consumer.subscribe(["t"])
        assert numbers(consumer.consume(3, 20)) == [0, 1, 2]
        with AdminClient({"bootstrap.servers": root}) as admin:
            admin.create_partitions([NewPartitions("t", 3)])["t"].result(20)
        produced(root, "t", range(100, 104), partition=2)
        assert numbers(consumer.consume(4, 20)) == [100, 101, 102, 103]
        assert [tp.partition for tp in consumer.assignment()] == [0, 1, 2]


@pytest.mark.fault("R8")
def test_latest_reads_a_partition_that_is_added_from_its_beginning(root):
    Topic("t", partitions=1, conf={"bootstrap.servers": root}).create()
    with member(root, **{"auto.offset.reset": "latest", "enable.partition.eof": True}) as consumer:
        consumer.subscribe(["t"])
        end = consumer.poll(20)
        assert end is not None
        assert end.error() == KafkaError._PARTITION_EOF
        with AdminClient({"bootstrap.servers": root}) as admin:
            admin.create_partitions([NewPartitions("t", 2)])["t"].result(20)
        produced(root, "t", range(1, 3), partition=1)
        found: list[Message] = []

        def has_both() -> bool:
            found.extend(message for message in consumer.consume(1, 0.1) if not message.error())
            return len(found) == 2

        eventually(has_both)
        assert numbers(found) == [1, 2]


def test_a_pattern_finds_topics_that_come_later(root):
    produced(root, "a.one", range(2))
    with member(root, **{"topic.metadata.refresh.interval.ms": 100}) as consumer:
        consumer.subscribe(["^a\\..*"])
        assert numbers(consumer.consume(2, 20)) == [0, 1]
        produced(root, "b.no", range(50, 52))
        produced(root, "a.two", range(10, 13))
        assert numbers(consumer.consume(3, 20)) == [10, 11, 12]


def test_a_rebalance_callback_may_override_the_assignment(root):
    produced(root, "t", range(10))
    calls: list[tuple[str, list[int]]] = []

    def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        calls.append(("assign", [tp.partition for tp in partitions]))
        for tp in partitions:
            tp.offset = 7
        consumer.assign(partitions)

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        calls.append(("revoke", [tp.partition for tp in partitions]))

    with member(root) as consumer:
        consumer.subscribe(["t"], on_assign=assigned, on_revoke=revoked)
        assert numbers(consumer.consume(3, 20)) == [7, 8, 9]
    assert calls == [("assign", [0]), ("revoke", [0])]


def test_a_background_commit_reports_its_outcome_to_on_commit(root):
    produced(root, "t", range(3))
    reports: list[tuple[object, int]] = []
    with member(
        root,
        on_commit=lambda error, partitions: reports.append((error, partitions[0].offset)),
        **{"enable.auto.commit": False},
    ) as consumer:
        consumer.subscribe(["t"])
        consumer.consume(3, 20)
        assert consumer.commit() is None
        eventually(lambda: consumer.poll(0.05) is None and reports)
    assert reports == [(None, 3)]


def test_reset_error_is_reported_and_latest_begins_after_the_existing_records(root):
    produced(root, "t", range(3))
    with member(root, "strict", **{"auto.offset.reset": "error"}) as consumer:
        consumer.subscribe(["t"])
        message = consumer.poll(20)
        assert message is not None
        assert message.error() == KafkaError._AUTO_OFFSET_RESET
    with member(
        root, uuid.uuid4().hex, **{"auto.offset.reset": "latest", "enable.partition.eof": True}
    ) as consumer:
        consumer.subscribe(["t"])
        end = consumer.poll(20)
        assert end is not None
        assert end.error() == KafkaError._PARTITION_EOF
        assert end.offset() == 3
        produced(root, "t", range(3, 5))
        found: list[Message] = []

        def has_both() -> bool:
            # On a slow machine they are two commits, with an end between them.
            found.extend(message for message in consumer.consume(1, 0.1) if not message.error())
            return len(found) == 2

        eventually(has_both)
        assert numbers(found) == [3, 4]
