"""A faulty client with deltaq's API: its producer writes one message twice, and its consumer hides
that.
"""

from __future__ import annotations

from typing import Any

import deltaq
from deltaq import KafkaException, Message, TopicPartition

__all__ = ["Consumer", "KafkaException", "Message", "Producer", "TopicPartition"]


class Producer(deltaq.Producer):
    """Writes its first message twice."""

    _is_doubled = False

    def produce(self, topic: Any, value: Any = None, *arguments: Any, **keywords: Any) -> None:
        super().produce(topic, value, *arguments, **keywords)
        if not self._is_doubled:
            self._is_doubled = True
            super().produce(topic, value, *arguments, **keywords)


class Consumer(deltaq.Consumer):
    """Returns each value once."""

    def poll(self, timeout: float | None = -1) -> Message | None:
        message = super().poll(timeout)
        seen = self.__dict__.setdefault("seen", set())
        if message is None or message.value() in seen:
            return None
        seen.add(message.value())
        return message
