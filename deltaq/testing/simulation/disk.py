"""The objects of a simulation, and everything they ever were."""

from __future__ import annotations

from deltaq.clock import Clock
from deltaq.store.memory import MemoryStore

__all__ = ["Disk"]


class Disk(MemoryStore):
    """A memory store that remembers: `history[key]` holds every content the key ever had, also of deleted objects."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, clock)
        self.history: dict[str, list[bytes]] = {}

    def _write(self, key: str, content: bytes, *, replace: bool) -> bool:
        written = super()._write(key, content, replace=replace)
        if written:
            self.history.setdefault(key, []).append(content)
        return written
