"""Consumers of one group in one thread: they are polled in a fixed order, and their rebalance
callbacks recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from deltaq import Consumer, Message, Producer, Topic, TopicPartition
from deltaq.groups.log import GroupLog
from deltaq.store import open_store
from tests.doubles.reading import eventually

__all__ = ["ConsumerGroup", "numbers"]

Call = tuple[str, str, list[tuple[str, int]]]
"""The client id of a consumer, the name of the callback without `on_`, and its partitions."""

CONF: dict[str, Any] = {
    "group.id": "g",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "heartbeat.interval.ms": 50,
    "session.timeout.ms": 60_000,
}


class ConsumerGroup:
    """A group of consumers, known by their client ids."""

    def __init__(self, root: str, **conf: Any) -> None:
        self.root = root
        self.consumers: dict[str, Consumer] = {}
        self.calls: list[Call] = []
        self.messages: list[tuple[str, Message]] = []
        self.log = GroupLog(open_store(root), "g")
        self._conf = conf

    def topic(self, name: str, partitions: int = 1) -> Topic:
        """Create a topic."""
        return Topic(name, partitions=partitions, conf={"bootstrap.servers": self.root}).create()

    def fill(self, topic: str, count: int, partition: int = 0, start: int = 0) -> None:
        """Produce `count` messages v0, v1 ..."""
        with Producer({"bootstrap.servers": self.root}, linger_ms=60_000) as producer:  # one commit
            for number in range(start, start + count):
                producer.produce(topic, f"v{number}", partition=partition)

    def consumer(self, name: str, **conf: Any) -> Consumer:
        """A consumer that has not subscribed."""
        settings = {key.replace("__", "."): value for key, value in (self._conf | conf).items()}
        made = Consumer({"bootstrap.servers": self.root, "client.id": name, **CONF, **settings})
        self.consumers[name] = made
        return made

    def callbacks(self, name: str) -> dict[str, Callable[[Consumer, list[TopicPartition]], None]]:
        """Rebalance callbacks that record what they get."""

        def recorder(event: str) -> Callable[[Consumer, list[TopicPartition]], None]:
            return lambda _, partitions: self.calls.append(
                (name, event, [(p.topic, p.partition) for p in partitions])
            )

        return {f"on_{event}": recorder(event) for event in ("assign", "revoke", "lost")}

    def join(self, name: str, topics: list[str], **conf: Any) -> Consumer:
        """A consumer that subscribes to these topics, with callbacks that record."""
        made = self.consumer(name, **conf)
        made.subscribe(topics, **self.callbacks(name))
        return made

    def close(self, name: str) -> None:
        """Close a consumer."""
        self.consumers.pop(name).close()

    def close_all(self) -> None:
        """Close all consumers."""
        while self.consumers:
            self.consumers.popitem()[1].close()

    def follow(self) -> None:
        """Poll until all consumers own what they shall have. The newest is polled first, until it
        has seen the newest generation, so that each consumer sees each generation.
        """

        def has_followed(reader: Consumer) -> bool:
            self.poll(reader)
            return generation(reader) >= self.log.head().generation

        def is_stable() -> bool:
            for reader in reversed(self.consumers.values()):
                eventually(lambda reader=reader: has_followed(reader), "the newest generation")  # type: ignore[misc]
                self.poll(reader)
            head = self.log.head()
            return head.is_stable() and all(
                keys(reader) == head.owned(reader.memberid() or "")
                for reader in self.consumers.values()
            )

        eventually(is_stable, "a stable group")

    def poll(self, reader: Consumer, timeout: float = 0.005) -> None:
        """Poll a consumer once, and keep what it returns."""
        message = reader.poll(timeout)
        if message is not None:
            name = next(name for name, other in self.consumers.items() if other is reader)
            self.messages.append((name, message))

    def poll_until(self, condition: Callable[[], object], what: str = "the condition") -> None:
        """Poll all consumers until `condition()` is true."""

        def is_met() -> bool:
            for reader in tuple(self.consumers.values()):
                self.poll(reader)
            return bool(condition())

        eventually(is_met, what)

    def take_calls(self) -> list[Call]:
        """The callbacks since the last call."""
        calls, self.calls = self.calls, []
        return calls

    def events(self) -> dict[str, list[list[Any]]]:
        """The callbacks since the last call by client id, with the numbers of their partitions."""
        by_name: dict[str, list[list[Any]]] = {}
        for name, event, partitions in self.take_calls():
            by_name.setdefault(name, []).append([event, sorted(number for _, number in partitions)])
        return by_name

    def assignment(self) -> dict[str, list[int]]:
        """The numbers of the assigned partitions by client id."""
        return {name: numbers(reader.assignment()) for name, reader in self.consumers.items()}


def generation(reader: Consumer) -> int:
    """The newest generation that a consumer knows of; -1 if it is not a member."""
    view = reader._view()
    return -1 if view is None else view.generation


def keys(reader: Consumer) -> set[tuple[str, int]]:
    """The topics and numbers of the assigned partitions."""
    return {(tp.topic, tp.partition) for tp in reader.assignment()}


def numbers(partitions: Iterable[TopicPartition]) -> list[int]:
    """The numbers of partitions, sorted."""
    return sorted(tp.partition for tp in partitions)
