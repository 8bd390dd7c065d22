"""A service that reads orders in batches, writes invoices, and stores offsets once these are
delivered: at least once.

Usage: python transform_orders.py BOOTSTRAP_SERVERS
"""

from __future__ import annotations

import json
import sys
from typing import Any

import confluent_kafka as kafka

ORDERS, INVOICES, GROUP = "orders", "invoices", "invoicing"


def main(servers: str) -> None:
    """Write an invoice for each of the 300 orders."""
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 1000,
        }
    )
    producer = kafka.Producer({"bootstrap.servers": servers, "linger.ms": 5})
    consumer.subscribe([ORDERS])
    written = 0
    while written < 300:
        batch: Any = consumer.consume(100, timeout=1.0)
        for message in batch:
            if message.error():
                raise kafka.KafkaException(message.error())
            invoice = json.dumps(
                {"for": message.value().decode(), "trace": message.headers()[0][1].decode()}
            )
            producer.produce(INVOICES, invoice, key=message.key())
        if producer.flush(30):
            raise TimeoutError("invoices were not delivered")
        for message in batch:
            consumer.store_offsets(message)
        written += len(batch)
    places = [kafka.TopicPartition(ORDERS, partition) for partition in range(3)]
    print("positions:", [place.offset for place in consumer.position(places)])
    consumer.close()

    after = kafka.Consumer({"bootstrap.servers": servers, "group.id": GROUP})
    print("committed:", [place.offset for place in after.committed(places, timeout=30)])
    after.close()


if __name__ == "__main__":
    main(sys.argv[1])
