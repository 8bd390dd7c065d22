"""Members of one group, each on a thread of this process with a connection of its own, as if on its
own machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from time import monotonic, sleep
from typing import Any

from deltaq import Consumer
from deltaq.store import Store

__all__ = ["START_S", "Members", "is_even", "wait_until"]

START_S = 90.0
"""Seconds within which all members of a group must have their partitions; after that the benchmark
fails.
"""


def is_even(owned: Sequence[int], partitions: int) -> bool:
    """Whether the members have all partitions between them, and none two more than another.
    Pure.
    """
    return sum(owned) == partitions and max(owned) - min(owned) <= 1


class Members:
    """`records` and `owned` are those of each member; a thread writes only its own."""

    def __init__(self, stores: Sequence[Store], topic: str, conf: dict[str, Any]) -> None:
        self.records = [0] * len(stores)
        self.owned = [0] * len(stores)
        self._stores = stores
        self._topic = topic
        self._conf = conf
        self._stop = Event()

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Poll with all members until the end of the block. Raises what one of them raised."""
        with ThreadPoolExecutor(len(self._stores)) as pool:
            running = [pool.submit(self._poll, number) for number in range(len(self._stores))]
            try:
                yield
            finally:
                self._stop.set()
            for one in running:
                one.result()

    def await_all(self, partitions: int) -> float:
        """Wait until the partitions are shared evenly; the seconds that took. Raises
        TimeoutError.
        """
        begun_at = monotonic()
        wait_until(
            lambda: is_even(self.owned, partitions),
            f"{self.owned} of {partitions} partitions are assigned",
        )
        return monotonic() - begun_at

    def _poll(self, number: int) -> None:
        store = self._stores[number]
        conf = {"bootstrap.servers": store.url, "client.id": f"member-{number}", **self._conf}
        with Consumer(conf, store=store) as consumer:
            consumer.subscribe([self._topic])
            while not self._stop.is_set():
                message = consumer.poll(0.2)
                self.records[number] += message is not None and message.error() is None
                self.owned[number] = len(consumer.assignment())


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    """Wait for a condition. Raises TimeoutError."""
    give_up_at = monotonic() + timeout_s
    while not condition():
        if monotonic() > give_up_at:
            raise TimeoutError(f"after {timeout_s:g} s {what}")
        sleep(0.02)
