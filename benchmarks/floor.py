"""The floor: what the bare store takes for the two writes that a commit cannot do without."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from uuid import uuid4

from deltaq.store import Store

__all__ = ["Floor", "measure_floor"]

ENTRY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Floor:
    """Medians, in milliseconds: `put` of a data file of `file_bytes`, `create` of a log entry of 1 KB. Both synced."""

    file_bytes: int
    rounds: int
    put_ms: float
    create_ms: float

    @property
    def total_ms(self) -> float:
        """One after the other, as a commit needs them."""
        return self.put_ms + self.create_ms


def measure_floor(store: Store, file_bytes: int, rounds: int) -> Floor:
    """Write `rounds` data files and log entries of random bytes in turns, and delete them afterwards."""
    folder = f"floor/{uuid4().hex}/"
    data, entry = os.urandom(file_bytes), os.urandom(ENTRY_BYTES)
    puts, creates = [], []
    try:
        for number in range(rounds):
            puts.append(_timed_ms(store.put, f"{folder}{number}.parquet", data))
            creates.append(_timed_ms(store.create, f"{folder}log/{number}.json", entry))
    finally:
        for found in list(store.list(folder)):
            store.delete(found.key)
    return Floor(file_bytes, rounds, statistics.median(puts), statistics.median(creates))


def _timed_ms(write: Callable[[str, bytes], None], key: str, data: bytes) -> float:
    start = perf_counter()
    write(key, data)
    return (perf_counter() - start) * 1000
