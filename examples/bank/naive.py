"""A consumer that adds up the balances of the bank as any consumer of two topics would: it reads
credits and debits each on its own. They are of different moments, so it sees money that does not
exist.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from time import time

from deltaq import Consumer, Message, TopicPartition
from examples.bank.layout import ACCOUNTS

WAIT_S = 0.1
SIDES = ("credits", "debits")


@dataclass
class NaiveTotal:
    """The newest row of each account on both sides, and what they add up to."""

    sides: dict[str, dict[bytes, int]] = field(default_factory=lambda: {of: {} for of in SIDES})

    def add(self, side: str, messages: Iterable[Message]) -> None:
        """Take in messages. Raises SystemExit for an error."""
        for message in messages:
            if (error := message.error()) is not None:
                raise SystemExit(f"cannot read {side}: {error.str()}")
            row, key = message.value(), message.key()
            self.sides[side][key] = int(row[side])

    @property
    def total(self) -> int | None:
        """Credits less debits; None until all accounts are on both sides, and it must be 0."""
        if any(len(amounts) < ACCOUNTS for amounts in self.sides.values()):
            return None
        received, paid = (sum(self.sides[side].values()) for side in SIDES)
        return received - paid


class NaiveConsumer:
    """Reads both topics in a thread of its own until `close`."""

    def __init__(self, root: str, keep: int) -> None:
        self._root = root
        self._stopping = threading.Event()
        self.points = deque[tuple[float, int]](maxlen=keep)
        self.looks = self.wrong = self.worst = 0
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._running: Future[None] = self._pool.submit(self._read)

    def _read(self) -> None:
        naive = NaiveTotal()
        with ExitStack() as stack:
            of_side = {side: stack.enter_context(closing(self._consumer(side))) for side in SIDES}
            while not self._stopping.is_set():
                for side, consumer in of_side.items():
                    naive.add(side, consumer.consume(1000, WAIT_S))
                if (total := naive.total) is not None:
                    self.note(total)

    def _consumer(self, side: str) -> Consumer:
        consumer = Consumer({"bootstrap.servers": self._root, "group.id": f"naive-{side}"})
        consumer.assign([TopicPartition(f"bank.{side}", 0, 0)])
        return consumer

    def note(self, total: int) -> None:
        """Note what a look has shown."""
        self.points.append((time(), total))
        self.looks += 1
        self.wrong += total != 0
        self.worst = max(self.worst, abs(total))

    def check(self) -> None:
        """Raise what reading has raised."""
        if self._running.done():
            self._running.result()

    def close(self) -> None:
        """Stop reading. Raises what reading has raised."""
        self._stopping.set()
        self._running.result()
        self._pool.shutdown()
