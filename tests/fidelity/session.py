"""What a program uses: the classes of a client library, clients that end with the program, and
topics of its own.
"""

from __future__ import annotations

import importlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType
from typing import Any

from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule
from tests.fidelity.answers import Answer, normalised

__all__ = ["READ_S", "T0", "ProgramRun", "Target", "attempt", "deltaq_at", "kafka_at", "play"]

T0 = 1_700_000_000_000
"""The timestamp, in milliseconds since 1970 UTC, of the first message that `ProgramRun.fill`
writes.
"""

READ_S = 20.0
"""Longest wait, in seconds, for a message that must come."""


@dataclass(frozen=True)
class Target:
    """A client library, and the topics that it reaches at `address`.

    A program takes it that nothing more comes after `quiet_s` seconds without a message.
    `propagation_s` seconds after a change of topics, all requests see it, and `expiry_s` seconds
    after the time-out of a transaction it has expired. A share consumer is a member of its group
    `join_s` seconds after its first poll, and `lock_s` is the shortest lock of a record.
    """

    library: ModuleType
    address: str
    quiet_s: float
    propagation_s: float
    expiry_s: float
    join_s: float
    lock_s: float

    @property
    def admin(self) -> ModuleType:
        return importlib.import_module(f"{self.library.__name__}.admin")


def deltaq_at(root: str) -> Target:
    """`deltaq.compat.confluent` on a root."""
    return Target(
        importlib.import_module("deltaq.compat.confluent"),
        root,
        quiet_s=0.3,
        propagation_s=0.0,
        expiry_s=0.1,
        join_s=0.0,
        lock_s=1.0,
    )


def kafka_at(address: str) -> Target:
    """confluent-kafka with a broker."""
    return Target(
        importlib.import_module("confluent_kafka"),
        address,
        quiet_s=1.5,
        propagation_s=1.0,
        expiry_s=12.0,
        join_s=8.0,
        lock_s=15.0,
    )


def attempt(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """What a call returns or raises."""
    try:
        return call(*arguments, **keywords)
    except Exception as raised:  # noqa: BLE001 - it is the answer
        return raised


@dataclass
class ProgramRun:
    """The run of one program."""

    target: Target
    prefix: str = field(default_factory=lambda: f"run{uuid.uuid4().hex[:8]}-")
    _clients: list[Any] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.kafka: Any = self.target.library
        self.admin_names: Any = self.target.admin
        self.admin = self.admin_names.AdminClient(self._config({}))

    # --- clients ---

    def producer(self, **settings: Any) -> Any:
        """A producer that does not linger. The names of settings have `_` for `.`."""
        return self._kept(self.kafka.Producer(self._config({"linger.ms": 0} | _dotted(settings))))

    def consumer(self, group: str | None = None, **settings: Any) -> Any:
        """A consumer that begins with the earliest record and commits only when it is told to."""
        defaults = {
            "group.id": group or self.name("g"),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 200,
            "session.timeout.ms": 6000,
        }
        return self._kept(self.kafka.Consumer(self._config(defaults | _dotted(settings))))

    def share_consumer(self, group: str | None = None, **settings: Any) -> Any:
        """A share consumer. The names of settings have `_` for `.`."""
        conf = {"group.id": group or self.name("g")} | _dotted(settings)
        return self._kept(self.kafka.ShareConsumer(self._config(conf)))

    def producer_cut_off(self, topic: str, **settings: Any) -> Any:
        """A producer none of whose messages gets through: to a broker that is not there, or with a
        store that fails.
        """
        if self.kafka.__name__ == "confluent_kafka":
            return self.producer(bootstrap_servers="127.0.0.1:1", **settings)
        store = MemoryStore(self.prefix)
        made = self.admin_names.AdminClient(self._config({}), store=store)
        made.create_topics([self.admin_names.NewTopic(topic, 1)])[topic].result(READ_S)
        failing = FaultyStore(store, Rule("write", "*", Fault.error_before(), times=None))
        settings = self._config({"linger.ms": 0} | _dotted(settings))
        return self._kept(self.kafka.Producer(settings, store=failing))

    def _config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        quiet: dict[str, Any] = {"error_cb": lambda error: None}
        if self.kafka.__name__ == "confluent_kafka":
            quiet["log_level"] = 0
        return {"bootstrap.servers": self.target.address} | quiet | dict(settings)

    def _kept(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Close the clients and remove the topics."""
        for client in self._clients:
            if isinstance(client, self.kafka.Consumer | self.kafka.ShareConsumer):
                attempt(client.close)
            else:
                attempt(client.purge)
                attempt(client.close)
        topics = [
            name for name in self.admin.list_topics(timeout=READ_S).topics if self.prefix in name
        ]
        for removed in self.admin.delete_topics(topics).values() if topics else ():
            removed.exception(READ_S)

    # --- topics ---

    def name(self, what: str) -> str:
        """A new name for a topic or a group. Answers show it as `what`."""
        return f"{self.prefix}{next(self._names)}-{what}"

    def topic(self, name: str = "t", partitions: int = 1, **settings: object) -> str:
        """A new topic, which all clients can use."""
        topic = self.name(name)
        self.create(topic, partitions, **settings)
        return topic

    def create(self, topic: str, partitions: int = 1, **settings: object) -> None:
        """Create a topic of which nothing expires, and wait until all clients can use it."""
        config = {"retention.ms": "-1"} | {
            name: str(value) for name, value in _dotted(settings).items()
        }
        self.admin.create_topics([self.admin_names.NewTopic(topic, partitions, 1, config=config)])[
            topic
        ].result(READ_S)
        self.await_partitions(topic, partitions)

    def await_partitions(self, topic: str, partitions: int) -> None:
        """Wait until all partitions of a topic can be used."""
        deadline = time.monotonic() + READ_S
        while time.monotonic() < deadline:
            found = self.admin.list_topics(topic, timeout=READ_S).topics[topic]
            if len(found.partitions) == partitions and all(
                each.leader >= 0 for each in found.partitions.values()
            ):
                return
            time.sleep(0.05)
        raise TimeoutError(f"{topic} did not get {partitions} partitions")

    def exists(self, topic: str) -> bool:
        """Whether a topic is listed, after earlier requests have had the time to create or delete
        it.
        """
        time.sleep(self.target.propagation_s)
        return topic in self.admin.list_topics(timeout=READ_S).topics

    def fill(self, topic: str, number: int, partition: int = 0, start: int = 0) -> None:
        """Write messages with the key `k<n>`, the value `v<n>` and a timestamp n seconds after
        `T0`.
        """
        producer = self.producer()
        for n in range(start, start + number):
            producer.produce(topic, f"v{n}", f"k{n}", partition, timestamp=T0 + n * 1000)
        assert producer.flush(READ_S) == 0

    def place(self, topic: str, partition: int = 0, *offset_and_metadata: Any) -> Any:
        """A TopicPartition."""
        return self.kafka.TopicPartition(topic, partition, *offset_and_metadata)

    # --- what clients answer ---

    def result(self, futures: Mapping[Any, Any]) -> Any:
        """What the only future of an administrative call returns or raises."""
        (future,) = futures.values()
        return attempt(future.result, READ_S)

    def read(self, consumer: Any, number: int) -> list[Any]:
        """The next `number` messages and events; fewer if no more come."""
        found: list[Any] = []
        while len(found) < number and (message := consumer.poll(READ_S)) is not None:
            found.append(message)
        return found

    def read_all(self, consumer: Any, expected: int = 0) -> list[Any]:
        """`expected` messages and events, and what else comes until nothing more does."""
        found = self.read(consumer, expected)
        while (message := consumer.poll(self.target.quiet_s)) is not None:
            found.append(message)
        return found


_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb", "on_delivery", "on_commit")


def _dotted(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name if name in _CALLBACKS else name.replace("_", "."): value
        for name, value in settings.items()
    }


def play(program: Callable[[ProgramRun], Any], target: Target) -> Answer:
    """What a program finds."""
    session = ProgramRun(target)
    try:
        return normalised(program(session), session.prefix)
    finally:
        session.close()
