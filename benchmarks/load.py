"""A load: messages at a steady rate, each sent when it is due, and none lost unnoticed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic, monotonic_ns
from typing import Any

TICK_S = 0.001
"""How often a producer looks which messages are due: at 100,000 a second, 100 at a time."""

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent: `rate` messages of 100 bytes a second, for `seconds` after `warmup_s` that do
    not count.
    """

    rate: int
    linger_ms: float
    seconds: float
    warmup_s: float

    @property
    def total(self) -> int:
        """All messages, those of the warm-up included."""
        return round(self.rate * (self.warmup_s + self.seconds))

    @property
    def warmup(self) -> int:
        """Messages of the warm-up."""
        return round(self.rate * self.warmup_s)

    def due_ns(self, sequence: int) -> int:
        """When a message is to be sent, counted from the first."""
        return sequence * _SECOND_NS // self.rate

    def achieved_rate(self, start_ns: int, end_ns: int) -> float:
        """Messages a second, if all of them took from `start_ns` to `end_ns`."""
        return self.total / ((end_ns - start_ns) / _SECOND_NS)

    def __str__(self) -> str:
        return f"{self.rate:,}/s, linger {self.linger_ms:g} ms"


def due_messages(load: Load, start_ns: int) -> Iterator[range]:
    """About every millisecond the messages that have become due, the first at `start_ns` of the
    monotonic clock.
    """
    sent = 0
    while sent < load.total:
        tick = monotonic()
        due = min(load.total, (monotonic_ns() - start_ns) * load.rate // _SECOND_NS + 1)
        yield range(sent, due)
        sent = due
        time.sleep(max(0.0, tick + TICK_S - monotonic()))


def send_steadily(
    load: Load, send: Callable[[int], object], poll: Callable[[], object]
) -> tuple[int, int]:
    """Call `send(n)` for each message n of a load when it is due, and `poll` every millisecond;
    when the first message was due and when the last had been sent, in ns of the monotonic clock.
    """
    start_ns = monotonic_ns()
    for due in due_messages(load, start_ns):
        for sequence in due:
            send(sequence)
        poll()
    return start_ns, monotonic_ns()


def send_patiently(
    producer: Any, topic: str, payload: bytes, key: bytes | None = None, partition: int = -1
) -> int:
    """Produce one message, however long the queue is full; how often that was the case. With a
    partition of -1, the key decides.
    """
    waits = 0
    while True:
        try:
            producer.produce(topic, payload, key, partition)
        except BufferError:
            waits += 1
            producer.poll(TICK_S)
        else:
            return waits


class DeliveryFailures(list[object]):
    """The errors of messages that were not delivered."""

    @property
    def conf(self) -> dict[str, object]:
        """For a producer that tells of these only: it adds them."""
        return {"delivery.report.only.error": True, "on_delivery": self._report}

    def _report(self, error: object, _: object) -> None:
        if error is not None:
            self.append(error)

    def check(self) -> None:
        """RuntimeError if there is one."""
        if self:
            raise RuntimeError(f"{len(self)} messages were not delivered; the first: {self[0]}")
