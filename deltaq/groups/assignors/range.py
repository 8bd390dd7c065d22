"""The range assignor: of each topic, each member gets one range of adjacent partitions."""

from __future__ import annotations

from collections.abc import Sequence

from deltaq.groups.assignors.subscription import (
    Assignment,
    MemberSubscription,
    TopicPartitions,
    eligible_topics,
    in_member_order,
)


def assign_range(partitions: TopicPartitions, members: Sequence[MemberSubscription]) -> Assignment:
    """Share each topic on its own among its subscribers: equal ranges, the first members get one
    partition more.

    Members with the same subscription get the same partition numbers of topics with as many
    partitions. Rule: Kafka's `RangeAssignor` without racks.
    """
    assignment: Assignment = {member.member_id: [] for member in members}
    ordered = in_member_order(members)
    for topic in eligible_topics(partitions, members):
        subscribers = [member for member in ordered if topic in member.topics]
        each, remainder = divmod(partitions[topic], len(subscribers))
        start = 0
        for number, member in enumerate(subscribers):
            end = start + each + (number < remainder)
            assignment[member.member_id] += [(topic, partition) for partition in range(start, end)]
            start = end
    return assignment
