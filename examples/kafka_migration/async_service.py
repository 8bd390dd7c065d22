"""An asyncio service: many tasks produce, one consumes.

Usage: python async_service.py BOOTSTRAP_SERVERS
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import confluent_kafka.aio as kafka

TOPIC = "events"


async def produce(producer: Any, name: str) -> list[int]:
    """Produce ten events and wait for their delivery. Returns their offsets."""
    deliveries = [
        await producer.produce(TOPIC, value=f"{name} {number}", key=name) for number in range(10)
    ]
    await producer.flush()
    return [(await delivery).offset() for delivery in deliveries]


async def consume(servers: str, count: int) -> list[str]:
    """Read so many events."""
    conf = {"bootstrap.servers": servers, "group.id": "async", "auto.offset.reset": "earliest"}
    consumer: Any = kafka.AIOConsumer(conf)
    assigned: list[int] = []

    async def on_assign(given: Any, partitions: Any) -> None:
        await given.assign(partitions)
        assigned.extend(place.partition for place in partitions)

    await consumer.subscribe([TOPIC], on_assign=on_assign)
    events: list[str] = []
    while len(events) < count:
        events += [
            message.value().decode()
            for message in await consumer.consume(num_messages=10, timeout=0.5)
        ]
    await consumer.commit(asynchronous=False)
    await consumer.close()
    print("assigned:", assigned)
    return events


async def main_async(servers: str) -> None:
    """Produce in three tasks, then consume."""
    producer = kafka.AIOProducer({"bootstrap.servers": servers})
    offsets = await asyncio.gather(
        *(produce(producer, name) for name in ("ada", "grace", "barbara"))
    )
    await producer.close()
    print("offsets:", sorted(offset for some in offsets for offset in some) == list(range(30)))
    events = await consume(servers, 30)
    print("of one producer, in order:", [event for event in events if event.startswith("ada ")][:3])


def main(servers: str) -> None:
    """Run it."""
    asyncio.run(main_async(servers))


if __name__ == "__main__":
    main(sys.argv[1])
