"""Two members of a group with cooperative rebalancing: partitions move one by one, and nothing is
read twice.

Usage: python share_work.py BOOTSTRAP_SERVERS
"""

from __future__ import annotations

import sys
import time
from typing import Any

from confluent_kafka import Consumer, Producer, admin

TOPIC, GROUP = "tasks", "workers"


class GroupWorker:
    """A member that remembers what it was assigned and what it has read."""

    def __init__(self, servers: str, name: str) -> None:
        self.name = name
        self.mine: set[int] = set()
        self.read: list[str] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": GROUP,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 200,
            }
        )
        self.consumer.subscribe([TOPIC], on_assign=self.assigned, on_revoke=self.revoked)

    def assigned(self, _: Any, partitions: Any) -> None:
        """Partitions came."""
        self.mine |= {place.partition for place in partitions}

    def revoked(self, _: Any, partitions: Any) -> None:
        """Partitions go."""
        self.mine -= {place.partition for place in partitions}

    def work(self) -> None:
        """Read one message, if there is one."""
        message: Any = self.consumer.poll(0.05)
        if message is not None and not message.error():
            self.read.append(message.value().decode())


def until(condition: Any, *workers: GroupWorker) -> None:
    """Let the workers work until something is true."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        for worker in workers:
            worker.work()


def produce(servers: str, first: int, last: int) -> None:
    """Write tasks to all partitions."""
    producer = Producer({"bootstrap.servers": servers})
    for number in range(first, last):
        producer.produce(TOPIC, f"task {number}", partition=number % 4)
    if producer.flush(30):
        raise TimeoutError


def main(servers: str) -> None:
    """One worker, then two, then one."""
    client = admin.AdminClient({"bootstrap.servers": servers})
    client.create_topics([admin.NewTopic(TOPIC, 4, 1)])[TOPIC].result(30)
    produce(servers, 0, 40)
    one = GroupWorker(servers, "one")
    until(lambda: len(one.read) == 40, one)
    print("one has", sorted(one.mine))

    two = GroupWorker(servers, "two")
    until(lambda: len(one.mine) == len(two.mine) == 2, one, two)
    print(
        "of 4 partitions each has",
        len(one.mine),
        len(two.mine),
        "and none is shared:",
        not one.mine & two.mine,
    )
    produce(servers, 40, 80)
    until(lambda: len(one.read) + len(two.read) == 80, one, two)
    print("read by two:", len(two.read))

    one.consumer.close()
    until(lambda: len(two.mine) == 4, two)
    produce(servers, 80, 100)
    until(lambda: len(two.read) == 40, two)
    two.consumer.close()
    print("read:", len(one.read) + len(two.read), "different:", len({*one.read, *two.read}))


if __name__ == "__main__":
    main(sys.argv[1])
