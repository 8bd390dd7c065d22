"""What an assignor is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

TopicPartition: TypeAlias = "tuple[str, int]"
"""A topic's name and a partition's number."""

TopicPartitions: TypeAlias = "Mapping[str, int]"
"""The number of partitions of each existing topic."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """One member as an assignor sees it.

    `owned` are the partitions that the member had in `generation`; -1 if it had none. `instance_id`
    is its `group.instance.id`.
    """

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None


Assignment: TypeAlias = "dict[str, list[TopicPartition]]"
"""The partitions of each member, by member id. It names each member, also one without
partitions.
"""

Assignor: TypeAlias = "Callable[[TopicPartitions, Sequence[MemberSubscription]], Assignment]"


def in_member_order(members: Iterable[MemberSubscription]) -> list[MemberSubscription]:
    """Members in Kafka's order: static members first, by instance id, then the others by member id.

    Rule: `MemberInfo.compareTo` of Kafka's `AbstractPartitionAssignor`.
    """
    return sorted(
        members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id, m.member_id)
    )


def eligible_topics(
    partitions: TopicPartitions, members: Iterable[MemberSubscription]
) -> list[str]:
    """The existing topics with at least one subscriber, sorted by name."""
    return sorted({topic for member in members for topic in member.topics if partitions.get(topic)})
