"""The round-robin assignor: all partitions of all topics are dealt out one by one."""

from __future__ import annotations

from collections.abc import Sequence

from deltaq.groups.assignors.subscription import (
    Assignment,
    MemberSubscription,
    TopicPartitions,
    eligible_topics,
    in_member_order,
)


def assign_roundrobin(
    partitions: TopicPartitions, members: Sequence[MemberSubscription]
) -> Assignment:
    """Deal the partitions, sorted by topic and number, to the members in turn. Only subscribers
    count.

    Rule: Kafka's `RoundRobinAssignor`.
    """
    assignment: Assignment = {member.member_id: [] for member in members}
    ordered = in_member_order(members)
    place = 0
    for topic in eligible_topics(partitions, members):
        for partition in range(partitions[topic]):
            while topic not in ordered[place].topics:
                place = (place + 1) % len(ordered)
            assignment[ordered[place].member_id].append((topic, partition))
            place = (place + 1) % len(ordered)
    return assignment
