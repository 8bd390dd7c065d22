"""Parquet files that are no data files of topics: those that people load into topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_AT_ONCE = 65_536


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a file, a part at a time. Raises OSError, pa.ArrowException."""
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(ROWS_AT_ONCE)
