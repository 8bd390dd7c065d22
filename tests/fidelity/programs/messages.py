"""Messages as the answers of programs show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["in_full", "offsets", "places"]


def in_full(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """Partition, offset and value of messages; the name, topic, partition and offset of events."""
    return [_event(message) if message.error() else _message(message) for message in messages]


def _event(message: Any) -> dict[str, Any]:
    return {
        "event": message.error().name(),
        "t": message.topic(),
        "p": message.partition(),
        "o": message.offset(),
    }


def _message(message: Any) -> dict[str, Any]:
    return {"p": message.partition(), "o": message.offset(), "v": message.value()}


def offsets(messages: Iterable[Any]) -> list[Any]:
    """The offsets of messages, and the names of events."""
    return [message.error().name() if message.error() else message.offset() for message in messages]


def places(messages: Iterable[Any]) -> list[Any]:
    """Partition and offset of messages."""
    return [(message.partition(), message.offset()) for message in messages]
