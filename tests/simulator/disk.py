"""The objects of a simulation, with their history."""

from __future__ import annotations

from contextlib import suppress

from deltaq.clock import Clock
from deltaq.store import ObjectMissing
from deltaq.store.memory import MemoryStore

__all__ = ["Disk"]


class Disk(MemoryStore):
    """A memory store in which `history[key]` holds all contents that the key ever had, even if it
    was deleted.

    `written[key]` has the time of each of them, and `deleted[key]` when the key was deleted, in
    seconds of the clock.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self._now = clock.monotonic
        self.history: dict[str, list[bytes]] = {}
        self.written: dict[str, list[float]] = {}
        self.deleted: dict[str, list[float]] = {}

    def put(self, key: str, data: bytes | memoryview) -> None:
        super().put(key, data)
        self._note_written(key, data)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        super().create(key, data, after)
        self._note_written(key, data)

    def link(self, key: str, to: str) -> None:
        super().link(key, to)
        self._note_written(to, self.get(to))

    def delete(self, key: str) -> None:
        with suppress(ObjectMissing):
            self.get(key)
            self.deleted.setdefault(key, []).append(self._now())
        super().delete(key)

    def _note_written(self, key: str, data: bytes | memoryview) -> None:
        self.history.setdefault(key, []).append(bytes(data))
        self.written.setdefault(key, []).append(self._now())
