"""Reading in tests, with bounded waits instead of fixed sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from deltaq import Consumer

__all__ = ["TIMEOUT_S", "drain", "eventually", "next_message", "poll_until_raised", "taken"]

TIMEOUT_S = 20.0


def eventually(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait until `condition()` is true. Raises AssertionError after a timeout that is generous for
    any machine.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {TIMEOUT_S} s"
        time.sleep(0.002)


def next_message(consumer: Consumer) -> Any:
    """The next message or event; typed so that tests can look at it without first proving that it
    is what it is.
    """
    message = consumer.poll(TIMEOUT_S)
    assert message is not None, f"no message within {TIMEOUT_S} s"
    return message


def drain(consumer: Consumer, count: int) -> list[Any]:
    """Exactly `count` messages or events."""
    return [next_message(consumer) for _ in range(count)]


def poll_until_raised(consumer: Consumer) -> None:
    """Poll until something is raised; the test's own timeout bounds it."""
    while True:
        consumer.poll(0.01)


def taken(consumer: Consumer) -> int:
    """How far the `consume` that is under way has come in what is in hand: messages taken, and not
    returned yet.
    """
    reader = consumer._reader
    batches = [] if reader is None else reader.accepted._batches
    return sum(batch.taken[1] for batch in batches if batch.taken is not None)
