"""A producer with delivery callbacks: counts what was delivered, and prints what was refused.

Usage: python produce_orders.py BOOTSTRAP_SERVERS
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

import confluent_kafka as kafka

TOPIC = "orders"


def main(servers: str) -> None:
    """Produce 300 orders of ten customers, and one that is too large."""
    delivered: Counter[int] = Counter()
    refused: list[str] = []

    def report(error: Any, message: Any) -> None:
        if error is not None:
            refused.append(f"{message.key().decode()}: {error.name()}")
        else:
            delivered[message.partition()] += 1

    producer = kafka.Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 20,
            "compression.type": "lz4",
            "enable.idempotence": True,
            "message.max.bytes": 2_000_000,
        }
    )
    for number in range(300):
        customer = f"customer-{number % 10}"
        headers: Any = [("trace", f"{number:04d}".encode())]
        producer.produce(
            TOPIC, f"order {number}", key=customer, headers=headers, on_delivery=report
        )
        producer.poll(0)
    left = producer.flush(30)
    # More than the topic's `max.message.bytes`, also when it is compressed.
    producer.produce(
        TOPIC, random.Random(7).randbytes(1_500_000), key="too large", on_delivery=report
    )
    left += producer.flush(30)

    print("not delivered:", left)
    print("delivered by partition:", sorted(delivered.items()))
    print("refused:", refused)


if __name__ == "__main__":
    main(sys.argv[1])
