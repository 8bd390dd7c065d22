"""An admin script that reports how far a group is behind, moves it back, and deletes it.

Usage: python report_lag.py BOOTSTRAP_SERVERS
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
    admin,
)

TOPIC, GROUP = "orders", "billing"


def lag(client: Any) -> dict[int, int]:
    """The lag of each partition for which the group has committed an offset."""
    asked = ConsumerGroupTopicPartitions(GROUP)
    committed = client.list_consumer_group_offsets([asked])[GROUP].result(30).topic_partitions
    spec: Any = admin.OffsetSpec
    latest = {TopicPartition(each.topic, each.partition): spec.latest() for each in committed}
    ends = {
        place.partition: future.result(30).offset
        for place, future in client.list_offsets(latest).items()
    }
    return {each.partition: ends[each.partition] - each.offset for each in sorted(committed)}


def main(servers: str) -> None:
    """Report, move, report again."""
    client = admin.AdminClient({"bootstrap.servers": servers})
    described = client.describe_consumer_groups([GROUP])[GROUP].result(30)
    print("group:", described.group_id, described.state.name, "members:", len(described.members))
    print("lag:", lag(client))

    back = [TopicPartition(TOPIC, 1, 10)]
    moved = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP, back)])[
        GROUP
    ].result(30)
    print(
        "moved:", [(place.partition, place.offset, place.error) for place in moved.topic_partitions]
    )
    print("lag:", lag(client))

    listed = client.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(30)
    print(
        "empty groups:",
        sorted(group.group_id for group in listed.valid if group.group_id in (GROUP, "invoicing")),
    )
    print("deleted:", client.delete_consumer_groups([GROUP])[GROUP].result(30))
    try:
        client.delete_consumer_groups([GROUP])[GROUP].result(30)
    except KafkaException as error:
        print("deleted again:", error.args[0].name())


if __name__ == "__main__":
    main(sys.argv[1])
