"""A consumer with manual commits: a first run is interrupted after a commit, a second one goes on
from there.

Usage: python consume_orders.py BOOTSTRAP_SERVERS
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import confluent_kafka as kafka

TOPIC = "orders"
GROUP = "billing"


def consume(servers: str, count: int, uncommitted: int) -> list[str]:
    """Read `count` orders. All but the last `uncommitted` ones are committed."""
    consumer = kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
    )
    assigned: list[int] = []

    def on_assign(_: Any, partitions: Any) -> None:
        assigned.extend(sorted(each.partition for each in partitions))

    consumer.subscribe([TOPIC], on_assign=on_assign)
    orders: list[str] = []
    try:
        while len(orders) < count:
            message: Any = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                raise kafka.KafkaException(message.error())
            orders.append(f"{message.key().decode()} {message.value().decode()}")
            if len(orders) == count - uncommitted:
                consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    print(f"assigned {assigned}, read {len(orders)}")
    return orders


def main(servers: str) -> None:
    """Read all orders in two runs, of which the first one does not commit its last ten orders."""
    first = consume(servers, count=150, uncommitted=10)
    second = consume(servers, count=160, uncommitted=0)
    print("read twice:", sum((Counter(first) & Counter(second)).values()))
    print("orders:", len({*first, *second}))
    customer = "customer-7 "
    orders = [
        order.removeprefix(customer)
        for order in dict.fromkeys([*first, *second])
        if order.startswith(customer)
    ]
    print("the first orders of customer-7, in order:", orders[:3])


if __name__ == "__main__":
    main(sys.argv[1])
