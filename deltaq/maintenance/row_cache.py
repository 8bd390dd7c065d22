"""Cache of the rows that a producer has just written, for background maintenance in the same
process.

Reading small files back would be most of the cost of merging them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.parquet.plain_segment import PlainRows
from deltaq.topics.columns import plain_batch

FILE_BYTES_MAX = 256 * 1024
"""Maximum memory of one file's rows. Reading a larger file costs little compared with the rest of
its merge.
"""

BYTES_MAX = 32 * 1024 * 1024
"""Maximum memory of one topic's rows. The oldest are dropped first."""

COLUMN_BYTES = 1024
"""Memory of a column apart from its values, in Arrow and in Python; in a small batch it is nearly
all.
"""


PLAIN_ROW_BYTES = 160
"""Memory of a plain row apart from its bytes: three Python objects and the references to them."""


class RowCache:
    """The rows of a topic's newest files. Thread-safe."""

    def __init__(self, clock: Clock, bytes_max: int = BYTES_MAX) -> None:
        self._lock = clock.lock()
        self._bytes_max = bytes_max
        self._bytes = 0
        self._rows: dict[str, tuple[pa.RecordBatch | PlainRows, int]] = {}

    def keep(self, path: str, rows: pa.RecordBatch | PlainRows) -> None:
        """Add the `rows` that were written to file `path`, unless they are larger than
        `FILE_BYTES_MAX`.
        """
        if isinstance(rows, PlainRows):
            size = sum(map(len, (*rows.values, *(rows.keys or ()))))
            beside = PLAIN_ROW_BYTES * len(rows)
        else:
            # A slice keeps the whole buffer alive that it is a part of.
            size = rows.get_total_buffer_size()
            beside = COLUMN_BYTES * (1 + rows.num_columns)
        if size > FILE_BYTES_MAX:
            return
        size += beside
        with self._lock:
            self._rows[path] = rows, size
            self._bytes += size
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._rows)))

    def rows(self, path: str) -> pa.RecordBatch | None:
        """The rows of file `path`; None if they are not in the cache."""
        with self._lock:
            found = self._rows.get(path)
        if found is None:
            return None
        rows, _ = found
        return plain_batch(rows) if isinstance(rows, PlainRows) else rows

    def forget(self, paths: Iterable[str]) -> None:
        """Drop the rows of these files."""
        with self._lock:
            for path in paths:
                self._drop(path)

    def forget_all_but(self, paths: Container[str]) -> None:
        """Drop the rows of all files but these."""
        with self._lock:
            for path in [path for path in self._rows if path not in paths]:
                self._drop(path)

    def _drop(self, path: str) -> None:
        _, size = self._rows.pop(path, (None, 0))
        self._bytes -= size
