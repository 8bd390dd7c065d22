"""The names of topics and groups of queues and exchanges, which messages of an exchange a queue
takes, and what is delivered. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from deltaq.names import is_name

Matches: TypeAlias = Callable[[str], bool]
"""Whether a queue takes the messages with this routing key."""

_KEPT_CHARS = 180


def queue_topic(queue: str) -> str:
    """The topic of what is sent to a queue itself; also the name of the queue's share group."""
    return _named("queue", queue)


def exchange_topic(exchange: str) -> str:
    """The topic of what is sent to an exchange."""
    return _named("exchange", exchange)


def _named(kind: str, name: str) -> str:
    """A name for a topic. Two names that are not allowed for topics get different ones."""
    found = f"{kind}.{name}"
    if is_name(found):
        return found
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{re.sub(r'[^a-zA-Z0-9._-]', '-', found)[:_KEPT_CHARS]}-{digest}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that was taken, in its delivery of this number. `tag` is different for each
    delivery.
    """

    tag: str
    payload: dict[str, Any]
    deliveries: int


@dataclass(slots=True)
class Route:
    """Where the messages of a queue come from: topics of exchanges, each with the bindings of the
    queue.
    """

    bindings: dict[str, list[Matches]] = field(default_factory=dict)

    def takes(self, topic: str, routing_key: str) -> bool:
        """Whether the queue takes a message of this topic with this key. It takes all of its own
        topic, which has no bindings.
        """
        bound = self.bindings.get(topic)
        return bound is None or any(matches(routing_key) for matches in bound)
