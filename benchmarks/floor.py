"""The floor: what the bare store takes for the two writes and two reads that a message cannot do
without.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from uuid import uuid4

from deltaq.store import Store

FLOOR_ROUNDS = 50
"""Of a floor that is measured after each of many loads."""

ENTRY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Floor:
    """Medians, in milliseconds: `put` of a data file of `file_bytes`, `create` of a log entry of 1
    KB, both synced, and `get` of either.
    """

    file_bytes: int
    rounds: int
    put_ms: float
    create_ms: float
    get_entry_ms: float
    get_data_ms: float

    @property
    def total_ms(self) -> float:
        """One after the other: nothing can be read before it is written, nor the file before the
        entry that names it.
        """
        return self.put_ms + self.create_ms + self.get_entry_ms + self.get_data_ms


def against_floor(p50_ms: float, floor: Floor | None) -> tuple[str, str]:
    """For a table: the floor in milliseconds, and how many times as much the median of a load is.
    Pure.
    """
    return (
        ("-", "-") if floor is None else (f"{floor.total_ms:.2f}", f"{p50_ms / floor.total_ms:.1f}")
    )


def measure_floor(
    store: Store, file_bytes: int, rounds: int, pause: Callable[[], object] = lambda: None
) -> Floor:
    """Write and read `rounds` data files and log entries of random bytes alternately, and delete
    them afterwards.

    `pause` is called before each round: to a disk, and to a processor, it makes a difference
    whether they were idle.
    """
    folder = f"floor/{uuid4().hex}/"
    data, entry = os.urandom(file_bytes), os.urandom(ENTRY_BYTES)
    puts, creates, entry_gets, data_gets = [], [], [], []
    try:
        for number in range(rounds):
            pause()
            data_key, entry_key = f"{folder}{number}.parquet", f"{folder}log/{number}.json"
            puts.append(_timed_ms(partial(store.put, data_key, data)))
            creates.append(_timed_ms(partial(store.create, entry_key, entry)))
            entry_gets.append(_timed_ms(partial(store.get, entry_key)))
            data_gets.append(_timed_ms(partial(store.get, data_key)))
    finally:
        for found in list(store.list(folder)):
            store.delete(found.key)
    return Floor(
        file_bytes, rounds, *map(statistics.median, (puts, creates, entry_gets, data_gets))
    )


def _timed_ms(request: Callable[[], object]) -> float:
    start = perf_counter()
    request()
    return (perf_counter() - start) * 1000
