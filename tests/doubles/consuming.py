"""A topic `t`, records in it, and a consumer of it."""

from __future__ import annotations

import uuid

from deltaq import (
    OFFSET_INVALID,
    Consumer,
    Producer,
    Topic,
    TopicPartition,
)

T0 = 1_700_000_000_000


def topic(root: str, name: str = "t", partitions: int = 1) -> Topic:
    return Topic(name, partitions=partitions, conf={"bootstrap.servers": root}).create()


def fill(root: str, count: int, name: str = "t", partition: int = 0, start: int = 0) -> None:
    # One commit, however slow the machine is.
    with Producer(bootstrap_servers=root, linger_ms=60_000) as producer:
        for number in range(start, start + count):
            producer.produce(
                name, f"v{number}", f"k{number}", partition, timestamp=T0 + number * 1000
            )


def consumer(root: str, group: str | None = None, **conf: object) -> Consumer:
    base: dict[str, object] = {"bootstrap.servers": root, "group.id": group or uuid.uuid4().hex}
    base |= {"auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer(base | {key.replace("__", "."): value for key, value in conf.items()})


def tp(partition: int = 0, offset: int = OFFSET_INVALID, name: str = "t") -> TopicPartition:
    return TopicPartition(name, partition, offset)
