"""Checks of what the application passes."""

from __future__ import annotations

from deltaq.errors import InvalidConfig
from deltaq.message import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    OFFSET_TAIL_BASE,
    TopicPartition,
)
from deltaq.names import check_topic
from deltaq.topic import Topic

_CONSUME_MAX = 1_000_000
_LOGICAL = (OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, OFFSET_INVALID)


def topic_name(topic: object, *, deserializes: bool) -> str:
    """The name of a topic that is given by name or handle. Raises TypeError, and InvalidConfig for
    a handle with deserializers unless the consumer `deserializes`.
    """
    if isinstance(topic, str):
        return topic
    if not isinstance(topic, Topic):
        raise TypeError(f"a topic must be str or Topic, not {type(topic).__name__}")
    if topic.deserializers and not deserializes:
        raise InvalidConfig(
            f"{topic!r} has deserializers: use a DeserializingConsumer", key="value_deserializer"
        )
    return topic.name


def check_count(num_messages: int) -> None:
    """Raise ValueError for a number of messages that `consume` does not take."""
    if not 0 <= num_messages <= _CONSUME_MAX:
        raise ValueError(f"num_messages must be between 0 and {_CONSUME_MAX} (1M)")


def partition_list(partitions: object) -> list[TopicPartition]:
    """`partitions` if it is a list of TopicPartition. Raises TypeError."""
    if not isinstance(partitions, list) or not all(
        isinstance(tp, TopicPartition) for tp in partitions
    ):
        raise TypeError("expected a list of TopicPartition")
    return partitions


def check_place(tp: TopicPartition) -> None:
    """Raise InvalidConfig for an invalid topic name, an offset of 2^63-1 or more, and a negative
    partition.
    """
    check_topic(tp.topic)
    if tp.offset >= 2**63 - 1:
        reason = (
            f"offset {tp.offset} of {tp.topic}[{tp.partition}] is beyond the last that there can be"
        )
        raise InvalidConfig(reason, key="offset")
    if tp.partition < 0:
        raise InvalidConfig(
            f"partition {tp.partition} of topic {tp.topic!r} is negative", key="partition"
        )


def assignable(partitions: object) -> list[TopicPartition]:
    """`partitions` if they can be assigned: valid offsets, no duplicates. Raises TypeError,
    InvalidConfig.
    """
    listed = partition_list(partitions)
    for tp in listed:
        check_place(tp)
        if tp.offset < 0 and tp.offset not in _LOGICAL and tp.offset > OFFSET_TAIL_BASE:
            reason = (
                f"offset {tp.offset} of {tp.topic}[{tp.partition}] is neither an offset nor an "
                "OFFSET_ constant"
            )
            raise InvalidConfig(reason, key="offset")
    if len(set(listed)) < len(listed):
        raise InvalidConfig("the list names a partition twice", key="partitions")
    return listed
