"""What a writer has just written, kept for whoever looks after the topic beside it.

A writer that commits often makes small files. Merging them soon is most of what maintenance does there, and reading
them again was most of what that took.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import pyarrow as pa

from deltaq.clock import Clock

__all__ = ["RowCache"]

FILE_BYTES_MAX = 256 * 1024
"""Rows that take more memory are not kept: of a larger file, reading costs little beside the rest of a merge."""

BYTES_MAX = 32 * 1024 * 1024
"""Memory that the rows of one topic take at most. The oldest go first: they may not be merged in time."""

COLUMN_BYTES = 1024
"""What a column of a few rows takes beside its values, in Arrow and in Python: of small batches nearly all."""


class RowCache:
    """The rows of a topic's newest files. Thread-safe."""

    def __init__(self, clock: Clock, bytes_max: int = BYTES_MAX) -> None:
        self._lock = clock.lock()
        self._bytes_max = bytes_max
        self._bytes = 0
        self._rows: dict[str, tuple[pa.RecordBatch, int]] = {}

    def keep(self, path: str, rows: pa.RecordBatch) -> None:
        """File `path` was written with `rows`."""
        size = rows.get_total_buffer_size()  # a few rows may hold on to all the memory that they are a part of
        if size > FILE_BYTES_MAX:
            return
        size += COLUMN_BYTES * (1 + rows.num_columns)
        with self._lock:
            self._rows[path] = rows, size
            self._bytes += size
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._rows)))

    def rows(self, path: str) -> pa.RecordBatch | None:
        """What is in file `path`, if that is still known."""
        with self._lock:
            found = self._rows.get(path)
            return None if found is None else found[0]

    def forget(self, paths: Iterable[str]) -> None:
        """Nobody will ask for the rows of these files any more."""
        with self._lock:
            for path in paths:
                self._drop(path)

    def forget_all_but(self, paths: Container[str]) -> None:
        """As `forget`, for all files but these."""
        with self._lock:
            for path in [path for path in self._rows if path not in paths]:
                self._drop(path)

    def _drop(self, path: str) -> None:
        _, size = self._rows.pop(path, (None, 0))
        self._bytes -= size
