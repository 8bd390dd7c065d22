"""Messages and topic partitions behave as those of the real client, which is asked where it can be
asked.
"""

from __future__ import annotations

import pickle
from typing import Any

import confluent_kafka
import pytest

import deltaq
from deltaq import KafkaError, Message, TopicPartition

FIELDS = (
    "topic",
    "partition",
    "offset",
    "key",
    "value",
    "headers",
    "error",
    "timestamp",
    "latency",
    "leader_epoch",
)
SAMPLES: list[tuple[Any, ...]] = [
    (),
    ("t", 1, 5, b"k", b"v", [("a", b"1"), ("a", None)], None, (1, 1_700_000_000_000), 1.5, 3),
    ("t", -1, -1001, None, b""),
]


def fields(message: object) -> list[object]:
    return [getattr(message, name)() for name in FIELDS]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_a_message_has_the_fields_of_the_real_clients_in_the_same_order(sample):
    ours, theirs = Message(*sample), confluent_kafka.Message(*sample)
    assert fields(ours) == fields(theirs)
    assert len(ours) == len(theirs)


def test_a_message_has_every_method_of_the_real_client():
    theirs = {name for name in dir(confluent_kafka.Message) if not name.startswith("_")}
    assert theirs <= set(dir(Message))
    assert [
        Message().delivery_count(),
        Message().deserialized_key(),
        Message().deserialized_value(),
    ] == [None] * 3


def test_a_message_with_an_empty_value_is_true_unlike_the_real_clients():
    assert len(Message(value=b"")) == 0
    assert Message(value=b"")
    assert Message()
    assert not confluent_kafka.Message(value=b"")


def test_messages_are_equal_by_content_and_cannot_be_hashed():
    sample = SAMPLES[1]
    assert Message(*sample) == Message(*sample)
    other = Message(*sample)
    other.set_value(b"other")
    assert Message(*sample) != other
    assert Message() != 5
    with pytest.raises(TypeError, match="unhashable"):
        hash(Message())


def test_a_message_survives_pickling():
    message = Message(*SAMPLES[1])
    assert pickle.loads(pickle.dumps(message)) == message


def test_fields_that_a_deserializer_replaces_are_replaced():
    message = Message("t", 0, 1, b"k", b"v")
    message.set_key("key")
    message.set_value({"a": 1})
    message.set_headers([("h", b"1")])
    message.set_topic("u")
    message.set_error(KafkaError(KafkaError._PARTITION_EOF))
    assert fields(message)[:6] == ["u", 0, 1, "key", {"a": 1}, [("h", b"1")]]
    assert message.error() == KafkaError._PARTITION_EOF
    assert "_PARTITION_EOF" in repr(message)


def test_the_repr_of_a_message_shows_its_position_and_not_its_content():
    assert repr(Message("orders", 3, 17, b"key", b"secret")) == "<Message orders[3]@17>"


def test_topic_partitions_print_and_compare_like_the_real_clients():
    for arguments in (("t",), ("t", 1), ("t", 1, 5), ("t", 1, 5, "note"), ("t", 1, 5, "", 7)):
        ours, theirs = TopicPartition(*arguments), confluent_kafka.TopicPartition(*arguments)
        assert str(ours) == str(theirs)
        assert [ours.partition, ours.offset, ours.metadata, ours.error] == [
            theirs.partition,
            theirs.offset,
            theirs.metadata,
            theirs.error,
        ]
    assert TopicPartition("a", 1, 3) == TopicPartition("a", 1, 9)
    assert hash(TopicPartition("a", 1, 3)) == hash(TopicPartition("a", 1, 9))
    assert TopicPartition("a", 2) < TopicPartition("b", 0) < TopicPartition("b", 1)


def test_a_topic_partition_can_be_compared_with_anything():
    # The real client raises here.
    assert TopicPartition("t", 1) != 5
    with pytest.raises(TypeError):
        assert TopicPartition("t", 1) < 5


@pytest.mark.parametrize("arguments", [(5,), ("t", "1"), ("t", None), ("t", 1, "2")])
def test_a_topic_partition_of_wrong_types_is_refused(arguments):
    with pytest.raises(TypeError):
        confluent_kafka.TopicPartition(*arguments)
    with pytest.raises(TypeError):
        TopicPartition(*arguments)


@pytest.mark.parametrize("arguments", [("a\0b",), ("t", 1, 5, "a\0b")])
@pytest.mark.parametrize(
    "made", [confluent_kafka.TopicPartition, TopicPartition], ids=["kafka", "deltaq"]
)
def test_a_topic_partition_with_a_null_character_is_refused(made, arguments):
    with pytest.raises(ValueError, match="embedded null character"):
        made(*arguments)


@pytest.mark.parametrize(
    "name",
    [
        "OFFSET_BEGINNING",
        "OFFSET_END",
        "OFFSET_INVALID",
        "OFFSET_STORED",
        "TIMESTAMP_CREATE_TIME",
        "TIMESTAMP_LOG_APPEND_TIME",
        "TIMESTAMP_NOT_AVAILABLE",
    ],
)
def test_constants_are_those_of_the_real_client(name):
    assert getattr(deltaq, name) == getattr(confluent_kafka, name)
