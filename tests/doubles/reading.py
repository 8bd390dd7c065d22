"""Reading in tests: bounded waiting instead of sleeping for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

from deltaq import Consumer, Message

__all__ = ["drain", "eventually", "next_message"]

PATIENCE_S = 20.0


def eventually(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait until `condition()` is true; AssertionError after a time that no healthy machine needs."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {PATIENCE_S} s"
        time.sleep(0.002)


def next_message(consumer: Consumer) -> Message:
    """The next message or event."""
    message = consumer.poll(PATIENCE_S)
    assert message is not None, f"no message within {PATIENCE_S} s"
    return message


def drain(consumer: Consumer, count: int) -> list[Message]:
    """Exactly `count` messages or events."""
    messages = [next_message(consumer) for _ in range(count)]
    return messages
