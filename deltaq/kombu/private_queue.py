"""A queue of one process: it has what comes to its topics from its first binding on, while it
lives. Nothing of it is stored.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from deltaq.clock import Clock
from deltaq.consumer import Consumer
from deltaq.kombu.routes import Delivery, takes
from deltaq.message import AcknowledgeType, TopicPartition
from deltaq.share_groups.bindings import Binding
from deltaq.share_groups.exchange import PartitionId

READ_AT_ONCE = 100
"""Messages that are read at once."""


class PrivateQueue:
    """Messages for one process, such as calls of `celery inspect` and their answers. For one
    thread, but `acknowledge` may be called by any.
    """

    def __init__(self, conf: Mapping[str, Any], clock: Clock, topic: str) -> None:
        self._clock = clock
        self._topic = topic  # what is sent to the queue itself
        self._bindings: set[Binding] = set()
        self._ready: deque[Delivery] = deque()
        self._held: dict[str, Delivery] = {}
        # It joins no group: it assigns partitions, and commits nothing.
        settings = {"group.id": "kombu-private", "enable.auto.commit": False}
        self._consumer: Consumer[bytes, bytes] = Consumer({**conf, **settings})
        self.reads_nothing = True

    def bind(self, binding: Binding, ends: Mapping[PartitionId, int]) -> None:
        """Take what fits a binding, too, from these ends on."""
        self._bindings.add(binding)
        self._assign(ends)

    def unbind(self, topic: str, routing_key: str) -> None:
        """Take no longer what fits a binding."""
        place = topic, routing_key
        self._bindings = {of for of in self._bindings if (of.topic, of.routing_key) != place}

    def read_own(self, partitions: Iterable[PartitionId]) -> None:
        """Take all that was sent to the queue itself, whose topic has these partitions."""
        self._assign(dict.fromkeys(partitions, 0))

    def _assign(self, ends: Mapping[PartitionId, int]) -> None:
        known = {(at.topic, at.partition) for at in self._consumer.assignment()}
        new = [
            TopicPartition(key.topic, key.partition, end)
            for key, end in ends.items()
            if (key.topic, key.partition) not in known
        ]
        self._consumer.incremental_assign(new)
        self.reads_nothing = False

    def take(self, most: int) -> Delivery | None:
        """The next message; None if there is none now. Raises KafkaException."""
        if not self._ready:
            self._read()
        if not self._ready:
            return None
        delivery = self._ready.popleft()
        self._held[delivery.tag] = delivery
        return delivery

    def _read(self) -> None:
        if not self.reads_nothing:
            for message in self._consumer.consume(READ_AT_ONCE, 0):
                payload = json.loads(message.value() or b"")
                routing_key = payload["properties"]["delivery_info"]["routing_key"]
                topic = message.topic() or ""
                if topic == self._topic or takes(self._bindings, topic, routing_key):
                    self._ready.append(Delivery(self._clock.unique_id(), payload, 1))

    def keep(self) -> None:
        """Does nothing: there are no locks."""

    def acknowledge(self, tag: str, decided: AcknowledgeType) -> None:
        """Decide a message: one that is released is returned by a later `take`."""
        delivery = self._held.pop(tag)
        if decided is AcknowledgeType.RELEASE:
            again = Delivery(self._clock.unique_id(), delivery.payload, delivery.deliveries + 1)
            self._ready.append(again)

    def size(self) -> int:
        """The number of messages that wait."""
        self._read()
        return len(self._ready)

    def purge(self) -> int:
        """Remove the messages that wait, and return their number."""
        count = self.size()
        self._ready.clear()
        return count

    def close(self) -> None:
        """End the reader. What was not taken is lost."""
        self._consumer.close()
