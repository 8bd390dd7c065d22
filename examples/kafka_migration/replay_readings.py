"""Replays a topic from a time, without a group: watermarks, offsets by time, `assign`, `seek`, end
of partition.

Usage: python replay_readings.py BOOTSTRAP_SERVERS
"""

from __future__ import annotations

import sys
from typing import Any

import confluent_kafka as kafka

TOPIC = "readings"
T0 = 1_700_000_000_000


def main(servers: str) -> None:
    """Write 60 readings, one a second, and read the last 20 seconds of them."""
    producer = kafka.Producer({"bootstrap.servers": servers})
    for second in range(60):
        producer.produce(TOPIC, str(second), partition=0, timestamp=T0 + 1000 * second)
    print("not delivered:", producer.flush(30))

    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "group.id": "replay",
        "enable.auto.commit": False,
    }
    consumer = kafka.Consumer({**settings, "enable.partition.eof": True})
    place = kafka.TopicPartition(TOPIC, 0)
    print("watermarks:", consumer.get_watermark_offsets(place, timeout=30))
    (start,) = consumer.offsets_for_times([kafka.TopicPartition(TOPIC, 0, T0 + 40_000)], timeout=30)
    (late,) = consumer.offsets_for_times(
        [kafka.TopicPartition(TOPIC, 0, T0 + 3_600_000)], timeout=30
    )
    print("offset of the time:", start.offset, "of a later one:", late.offset)

    consumer.assign([start])
    seen: list[str] = []
    while True:
        message: Any = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            print("event:", message.error().name(), "at", message.offset())
            break
        seen.append(message.value().decode())
    print("seen:", seen[0], "to", seen[-1])
    print("time of the last:", message_time(consumer, 59))
    try:
        consumer.seek(kafka.TopicPartition(TOPIC, 1, 0))
    except kafka.KafkaException as error:
        print("seek of a partition that is not assigned:", error.args[0].code() < 0)
    consumer.close()
    try:
        consumer.poll(0)
    except RuntimeError as error:
        print("closed:", error)


def message_time(consumer: Any, offset: int) -> Any:
    """The timestamp of the record with this offset."""
    consumer.seek(kafka.TopicPartition(TOPIC, 0, offset))
    while True:
        message = consumer.poll(1.0)
        if message is not None and not message.error():
            return message.timestamp()


if __name__ == "__main__":
    main(sys.argv[1])
