"""The names of topics and groups of queues and exchanges, which messages of an exchange a queue
takes, and what is delivered. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deltaq.names import is_name
from deltaq.share_groups.bindings import Binding

_KEPT_CHARS = 180

_WILDCARDS = {"*": r"[^.]+", "#": ".*"}


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


def takes(bindings: Collection[Binding], topic: str, routing_key: str) -> bool:
    """Whether a queue with these bindings takes a message of the topic of an exchange."""
    return any(each.topic == topic and _fits(each, routing_key) for each in bindings)


def _fits(binding: Binding, routing_key: str) -> bool:
    if binding.type == "fanout":
        return True
    if binding.type == "topic":
        return _pattern(binding.routing_key).fullmatch(routing_key) is not None
    return routing_key == binding.routing_key


@lru_cache(maxsize=1_024)
def _pattern(routing_key: str) -> re.Pattern[str]:
    """The keys that fit the key of a binding, by the rule of kombu's own transports."""
    words = (_WILDCARDS.get(word) or re.escape(word) for word in routing_key.split("."))
    return re.compile(r"\.".join(words), re.DOTALL)
