"""Typed keys and values, a compacted topic, tombstones, batches with a refused message.

Usage: python publish_states.py BOOTSTRAP_SERVERS
"""

from __future__ import annotations

import sys
from typing import Any

from confluent_kafka import DeserializingConsumer, Producer, SerializingProducer, admin

TOPIC = "states"


def text(value: Any, _: Any) -> bytes | None:
    """A serializer."""
    return None if value is None else str(value).encode()


def number(data: bytes | None, _: Any) -> int | None:
    """A deserializer."""
    return None if data is None else int(data)


def main(servers: str) -> None:
    """Publish the states of five devices, remove one, and rebuild the table from the topic."""
    client = admin.AdminClient({"bootstrap.servers": servers})
    compacted = admin.NewTopic(TOPIC, 1, 1, config={"cleanup.policy": "compact"})
    client.create_topics([compacted])[TOPIC].result(30)

    refused: list[str] = []
    plain = Producer({"bootstrap.servers": servers})

    def report(error: Any, _: Any) -> None:
        refused.append(error.name())

    plain.produce(TOPIC, "7", on_delivery=report)
    plain.flush(30)
    print("without a key:", refused)

    producer: Any = SerializingProducer(
        {"bootstrap.servers": servers, "key.serializer": text, "value.serializer": text}
    )
    for round_ in range(3):
        for device in range(5):
            producer.produce(TOPIC, key=f"device-{device}", value=10 * round_ + device)
    producer.produce(TOPIC, key="device-3", value=None)
    print("not delivered:", producer.flush(30))

    consumer: Any = DeserializingConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": "table",
            "auto.offset.reset": "earliest",
            "value.deserializer": number,
        }
    )
    consumer.subscribe([TOPIC])
    table: dict[str, int] = {}
    for _ in range(16):
        message = None
        while message is None:
            message = consumer.poll(1.0)
        key = message.key().decode()
        if message.value() is None:
            del table[key]
        else:
            table[key] = message.value()
    consumer.close()
    print("table:", table)


if __name__ == "__main__":
    main(sys.argv[1])
