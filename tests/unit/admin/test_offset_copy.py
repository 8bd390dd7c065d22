"""Copying the offsets of a group: the target resumes at the same record, or nothing is copied."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from deltaq import KafkaError, KafkaException, Producer, TopicPartition, UnknownTopic
from deltaq.admin import AdminClient, ConsumerGroupTopicPartitions
from deltaq.store import forget_memory_store, open_store
from tests.doubles.consuming import consumer, fill, topic, tp
from tests.doubles.reading import drain


@pytest.fixture
def other() -> Iterator[str]:
    """A second root."""
    name = uuid.uuid4().hex
    yield f"memory://{name}"
    forget_memory_store(name)


def client(root: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": root})


def commit(
    root: str, offset: int, group: str = "g", partition: int = 0, metadata: str | None = None
) -> None:
    """Set the committed offset of a group that has no members."""
    request = [
        ConsumerGroupTopicPartitions(group, [TopicPartition("t", partition, offset, metadata)])
    ]
    with client(root) as admin:
        (result,) = (
            admin.alter_consumer_group_offsets(request)[group].result(30).topic_partitions or []
        )
        assert result.error is None


def committed(root: str, group: str) -> list[tuple[str, int, int, str | None]]:
    with client(root) as admin:
        found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[
            group
        ].result(30)
        return [
            (entry.topic, entry.partition, entry.offset, entry.metadata)
            for entry in found.topic_partitions or []
        ]


def copied(root: str, other: str | None = None, target: str = "h") -> int | None:
    """Copy the offsets of group `g`. Returns the error's code, None if they were copied."""
    with client(root) as admin, client(other or root) as there:
        error = admin.copy_consumer_group_offsets(
            "g", target, to=there if other else None
        ).exception(30)
        if error is None:
            return None
        assert isinstance(error, KafkaException)
        return int(error.args[0].code())


def first_read(root: str, group: str) -> tuple[int, bytes]:
    with consumer(root, group) as reader:
        reader.assign([tp()])
        (message,) = drain(reader, 1)
        return message.offset(), message.value()


def test_a_group_in_the_same_root_resumes_at_the_same_record(root):
    topic(root, partitions=2)
    fill(root, 5)
    commit(root, 3, metadata="note")
    commit(root, 0, partition=1)
    commit(root, 1, group="h", partition=1)
    with client(root) as admin:
        result = admin.copy_consumer_group_offsets("g", "h").result(30)
    assert [(entry.partition, entry.offset) for entry in result.topic_partitions or []] == [
        (0, 3),
        (1, 0),
    ]
    assert result.group_id == "h"
    assert committed(root, "h") == committed(root, "g") == [("t", 0, 3, "note"), ("t", 1, 0, None)]
    assert first_read(root, "h") == first_read(root, "g") == (3, b"v3")


def test_a_group_that_does_not_exist_is_not_copied(root):
    assert copied(root) == KafkaError.GROUP_ID_NOT_FOUND


def test_the_offsets_of_a_group_with_members_are_not_overwritten(root):
    topic(root)
    fill(root, 2)
    commit(root, 1)
    with consumer(root, "h", heartbeat__interval__ms=50, session__timeout__ms=6000) as member:
        member.subscribe(["t"])
        drain(member, 1)
        assert copied(root) == KafkaError.UNKNOWN_MEMBER_ID


def test_a_group_is_copied_while_its_members_read(root):
    topic(root)
    fill(root, 2)
    with consumer(root, "g") as member:
        member.subscribe(["t"])
        drain(member, 2)
        member.commit(asynchronous=False)
        assert copied(root) is None
    assert committed(root, "h") == [("t", 0, 2, None)]


@pytest.mark.parametrize("offset", [0, 1, 4, 5])
def test_a_group_in_another_root_resumes_at_the_same_record(root, other, offset):
    for place in (root, other):
        topic(place)
        fill(place, 5)
    commit(root, offset, metadata="note")
    assert copied(root, other, "g") is None
    assert committed(other, "g") == [("t", 0, offset, "note")]
    fill(other, 1, start=5)
    assert first_read(other, "g") == (offset, b"v%d" % offset)


def test_a_copy_of_the_folder_is_another_root(root, other):
    topic(root)
    fill(root, 5)
    source, target = open_store(root), open_store(other)
    for entry in list(source.list("topics/")):
        target.put(entry.key, source.get(entry.key))
    commit(root, 5)
    assert copied(root, other) is None
    fill(root, 1, start=5)
    fill(other, 1, start=6)
    commit(root, 5)
    assert copied(root, other, "i") == KafkaError._LOG_TRUNCATION


def test_a_copy_that_ends_at_the_offset_is_compared_by_the_record_before(root, other):
    for place, count in ((root, 9), (other, 5)):
        topic(place)
        fill(place, count)
    commit(root, 5)
    assert copied(root, other) is None
    commit(root, 6)
    assert copied(root, other, "i") == KafkaError.OFFSET_OUT_OF_RANGE
    assert committed(other, "i") == []


@pytest.mark.parametrize("offset", [0, 2])
def test_an_offset_whose_record_was_removed_from_the_copy_is_not_copied(root, other, offset):
    for place in (root, other):
        topic(place)
        fill(place, 5)
    with client(other) as admin:
        admin.delete_records([tp(0, 3)])[tp()].result(30)
    commit(root, offset)
    assert copied(root, other) == KafkaError.OFFSET_OUT_OF_RANGE


def test_a_copy_without_the_topic_or_the_partition_is_refused(root, other):
    topic(root, partitions=2)
    commit(root, 0, partition=1)
    assert copied(root, other) == KafkaError.UNKNOWN_TOPIC_OR_PART
    topic(other)
    assert copied(root, other) == KafkaError.UNKNOWN_TOPIC_OR_PART


RECORD: dict[str, Any] = {
    "value": b"v",
    "key": b"k",
    "timestamp": 1_700_000_000_000,
    "headers": [("h", b"1")],
}


@pytest.mark.parametrize(
    "change",
    [{"value": b"w"}, {"key": b"l"}, {"timestamp": 1_700_000_000_001}, {"headers": [("h", b"2")]}],
)
def test_an_offset_before_another_record_is_not_copied_nor_are_the_others(root, other, change):
    for place, second in ((root, RECORD), (other, RECORD | change)):
        topic(place, partitions=2)
        with Producer(bootstrap_servers=place) as producer:
            producer.produce("t", partition=0, **RECORD)
            producer.produce("t", partition=1, **second)
    commit(root, 0, partition=0)
    assert copied(root, other, "i") is None
    commit(root, 0, partition=1)
    assert copied(root, other) == KafkaError._LOG_TRUNCATION
    assert committed(other, "h") == []


def test_an_offset_with_no_record_to_compare_is_not_copied(root, other):
    for place in (root, other):
        topic(place)
        fill(place, 4)
        with client(place) as admin:
            admin.delete_records([tp(0, 4)])[tp()].result(30)
    commit(root, 4)
    assert copied(root, other) == KafkaError._LOG_TRUNCATION


def test_an_error_names_the_partitions_and_the_reasons(root, other):
    topic(root, partitions=5)
    topic(other)
    for partition in range(1, 5):
        commit(root, 0, partition=partition)
    with client(root) as admin, client(other) as there:
        error = admin.copy_consumer_group_offsets("g", "g", to=there).exception(30)
    assert isinstance(error, KafkaException)
    text = error.error.str()
    assert text.startswith(
        f"no offset was copied to {other}: t[1]: {UnknownTopic('t', partition=1).error.str()}; "
        "t[2]: "
    )
    assert text.endswith("; and 1 more")
