"""Copies a topic of Kafka to deltaq, with keys, partitions, timestamps and headers, and the offsets
of a group.

Usage: python copy_topic.py BOOTSTRAP_SERVERS ROOT TOPIC [GROUP]

Stop the topic's producers and the group before. Offsets begin at 0 in the copy, and have no gaps:
the group goes on at the record that follows those that it has committed.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import confluent_kafka as kafka

from deltaq import AdminClient, KafkaException, Producer, Topic, TopicPartition
from deltaq.admin import ConsumerGroupTopicPartitions


def copy(servers: str, root: str, topic: str, group: str | None) -> int:
    """Copy the records and the offsets. Returns the number of records. Raises KafkaException."""
    conf = {
        "bootstrap.servers": servers,
        "group.id": group or "copy-topic",
        "enable.auto.commit": False,
    }
    source = kafka.Consumer({**conf, "auto.offset.reset": "earliest", "enable.partition.eof": True})
    found = source.list_topics(topic, timeout=30).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    partitions = sorted(found.partitions)
    places = [
        kafka.TopicPartition(topic, partition, kafka.OFFSET_BEGINNING) for partition in partitions
    ]
    committed = {place.partition: place.offset for place in source.committed(places, timeout=30)}
    source.assign(places)

    target = {"bootstrap.servers": root}
    Topic(topic, partitions=len(partitions), conf=target).create()
    copied, done = copy_records(source, target, topic, committed)
    source.close()
    if group is not None:
        offsets = [
            TopicPartition(topic, partition, done[partition])
            for partition in partitions
            if committed[partition] >= 0
        ]
        if offsets:
            asked = ConsumerGroupTopicPartitions(group, offsets)
            AdminClient(target).alter_consumer_group_offsets([asked])[group].result(60)
    return copied


def copy_records(
    source: Any, target: dict[str, Any], topic: str, committed: dict[int, int]
) -> tuple[int, Counter[int]]:
    """Copy all records up to the end of each partition. Returns their number, and how many of each
    partition are before its committed offset.
    """
    copied, done, ended = 0, Counter[int](), set[int]()
    failed: list[Any] = []

    def report(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    with Producer(target, max_block_ms=60_000, on_delivery=report) as producer:
        while ended < committed.keys() and not failed:
            message = source.poll(1.0)
            producer.poll(0)
            if message is None:
                continue
            error, partition = message.error(), message.partition()
            if error is not None:
                if error.code() != kafka.KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                ended.add(partition)
                continue
            _, timestamp = message.timestamp()
            producer.produce(
                topic,
                message.value(),
                message.key(),
                partition,
                timestamp=max(0, timestamp),
                headers=message.headers(),
            )
            copied += 1
            done[partition] += message.offset() < committed[partition]
    if failed:
        raise KafkaException(failed[0])
    return copied, done


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        raise SystemExit("usage: python copy_topic.py BOOTSTRAP_SERVERS ROOT TOPIC [GROUP]")
    servers, root, topic, *group = sys.argv[1:]
    print("copied", copy(servers, root, topic, group[0] if group else None), "records")
