"""Requests of the admin client that create, grow and describe topics. Values and pure functions, no
I/O.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import SupportsIndex

from deltaq.config import TOPIC_SETTINGS, check_topic_properties
from deltaq.errors import InvalidConfig, KafkaError, printable
from deltaq.topic import checked_partitions, checked_properties
from deltaq.topics.metadata import NewTopicPlan
from deltaq.topics.state import TopicChange, TopicHead

REPLICATION_FACTOR_MAX = 10_000  # librdkafka's limit


@dataclass(slots=True)
class NewTopic:
    """A topic to create. `num_partitions` -1 means the client's `num.partitions`; `config` holds
    topic settings.

    `replication_factor` and `replica_assignment` are accepted for compatibility and have no effect:
    the store replicates its objects.
    """

    topic: str
    num_partitions: int = -1
    replication_factor: int = -1
    replica_assignment: Sequence[Sequence[int]] | None = None
    config: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str):
            raise TypeError(f"topic must be str, not {type(self.topic).__name__}")
        self.num_partitions = _integer(self.num_partitions, "num_partitions")
        self.replication_factor = _integer(self.replication_factor, "replication_factor")
        if not isinstance(self.config, Mapping | None):
            raise TypeError(f"config must be a dict, not {type(self.config).__name__}")

    def __hash__(self) -> int:
        return hash(self.topic)

    def __str__(self) -> str:
        return f"NewTopic(topic={printable(self.topic)},num_partitions={self.num_partitions})"

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.topic

    def check(self) -> None:
        """Raise ValueError for numbers outside the limits of Kafka clients."""
        limit = TOPIC_SETTINGS["partitions"].high
        invalid = f"Invalid NewTopic({printable(self.topic)})"
        if not -1 <= self.num_partitions <= limit:
            raise ValueError(
                f"{invalid}: num_partitions {self.num_partitions} out of expected range "
                f"1..{limit:.0f}, or -1 for the default"
            )
        if not -1 <= self.replication_factor <= REPLICATION_FACTOR_MAX:
            raise ValueError(
                f"{invalid}: replication_factor {self.replication_factor} out of expected range "
                f"-1..{REPLICATION_FACTOR_MAX}"
            )
        if (
            self.replica_assignment is not None
            and len(self.replica_assignment) != self.num_partitions
        ):
            raise ValueError(
                "replica_assignment must be a list of int lists with an outer size of "
                "num_partitions"
            )

    def plan(self, default_partitions: int) -> NewTopicPlan:
        """How to create the topic.

        Raises InvalidConfig (INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG).
        """
        count = (
            default_partitions
            if self.num_partitions == -1
            else checked_partitions(self.num_partitions)
        )
        if self.replication_factor == 0:
            raise InvalidConfig(
                "Replication factor must be larger than 0, or -1 to use the default value.",
                key="replication_factor",
                code=KafkaError.INVALID_REPLICATION_FACTOR,
            )
        properties = checked_properties(self.config)
        check_topic_properties(properties)
        return NewTopicPlan(count, None, properties)


@dataclass(slots=True)
class NewPartitions:
    """A request to increase a topic's number of partitions to `new_total_count`, existing ones
    included.
    """

    topic: str
    new_total_count: int
    replica_assignment: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        self.new_total_count = _integer(self.new_total_count, "new_total_count")

    def __hash__(self) -> int:
        return hash(self.topic)

    def __str__(self) -> str:
        return (
            f"NewPartitions(topic={printable(self.topic)},new_total_count={self.new_total_count})"
        )

    def check(self) -> None:
        """Raise ValueError for a number of partitions that no topic can have."""
        limit = TOPIC_SETTINGS["partitions"].high
        if not 1 <= self.new_total_count <= limit:
            raise ValueError(
                f"Invalid NewPartitions({printable(self.topic)}): new_total_count "
                f"{self.new_total_count} out of expected range 1..{limit:.0f}"
            )


def _integer(number: SupportsIndex, name: str) -> int:
    """A number, of numpy for example, as int. Raises TypeError."""
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{name} must be int, not {type(number).__name__}") from None


@dataclass(frozen=True, slots=True)
class TopicCollection:
    """The names of topics to describe."""

    topic_names: Sequence[str]


def grown(head: TopicHead, count: int) -> TopicChange:
    """The change to `count` partitions. Raises InvalidConfig (INVALID_PARTITIONS) if that is not an
    increase.
    """
    if count <= head.partitions:
        reason = (
            f"The topic already has {count} partition(s)."
            if count == head.partitions
            else (
                f"The topic currently has {head.partitions} partition(s); {count} would not be an "
                "increase."
            )
        )
        raise InvalidConfig(reason, key="new_total_count", code=KafkaError.INVALID_PARTITIONS)
    return TopicChange(count, {})
