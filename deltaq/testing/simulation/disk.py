"""The objects of a simulation, with their history."""

from __future__ import annotations

from deltaq.clock import Clock
from deltaq.store.memory import MemoryStore

__all__ = ["Disk"]


class Disk(MemoryStore):
    """A memory store in which `history[key]` holds all contents that the key ever had, even if it was deleted.

    `written[key]` has the time of each of them, and `deleted[key]` when the key was deleted, in seconds of the clock.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self.history: dict[str, list[bytes]] = {}
        self.written: dict[str, list[float]] = {}
        self.deleted: dict[str, list[float]] = {}

    def delete(self, key: str) -> None:
        if key in self._objects:
            self.deleted.setdefault(key, []).append(self._clock.monotonic())
        super().delete(key)

    def _write(self, key: str, content: bytes, *, replace: bool) -> bool:
        written = super()._write(key, content, replace=replace)
        if written:
            self.history.setdefault(key, []).append(content)
            self.written.setdefault(key, []).append(self._clock.monotonic())
        return written
