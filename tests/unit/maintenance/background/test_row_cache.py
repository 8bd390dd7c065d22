"""The row cache of a writer for maintenance: bounded in memory, and never a source of lost or
repeated records.
"""

from __future__ import annotations

import pyarrow as pa

from deltaq.maintenance import row_cache
from deltaq.maintenance.row_cache import RowCache
from deltaq.testing import ManualClock


def rows(size: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"x" * (size - 8)], pa.binary())})


def memory(batch: pa.RecordBatch) -> int:
    return sum(
        buffer.size for column in batch.columns for buffer in column.buffers() if buffer is not None
    )


def test_the_oldest_rows_go_once_all_take_too_much_memory() -> None:
    batch = rows(1000)
    kept = RowCache(ManualClock(), bytes_max=3 * (memory(batch) + 2 * row_cache.COLUMN_BYTES))
    for number in range(5):
        kept.keep(f"{number}", batch)
    assert [number for number in range(5) if kept.rows(f"{number}") is not None] == [2, 3, 4]
    kept.forget(["3", "0", "3", "unknown"])
    kept.keep("5", batch)
    assert [number for number in range(6) if kept.rows(f"{number}") is not None] == [2, 4, 5]


def test_rows_of_a_large_file_are_not_kept() -> None:
    kept = RowCache(ManualClock())
    kept.keep("large", rows(row_cache.FILE_BYTES_MAX + 1))
    kept.keep("small", rows(row_cache.FILE_BYTES_MAX // 2))
    assert kept.rows("large") is None
    assert kept.rows("small") is not None


def test_a_slice_counts_for_all_the_memory_that_it_keeps_alive() -> None:
    kept = RowCache(ManualClock())
    block = pa.record_batch({"value": pa.array([b"x" * 100] * 100_000, pa.binary())})
    kept.keep("of a large block", block.slice(5, 2))
    assert kept.rows("of a large block") is None


def test_very_small_files_count_with_their_overhead() -> None:
    tiny = rows(10)
    kept = RowCache(ManualClock(), bytes_max=100_000)
    for number in range(10_000):
        kept.keep(f"{number}", tiny)
    left = [number for number in range(10_000) if kept.rows(f"{number}") is not None]
    assert 10 < len(left) <= 100, "a batch of one row and column takes above 1 KB"
    assert left[-1] == 9_999


def test_rows_of_removed_files_leave_the_cache() -> None:
    kept = RowCache(ManualClock())
    for name in "abc":
        kept.keep(name, rows(100))
    kept.forget_all_but({"b": "a live file"})
    assert [name for name in "abc" if kept.rows(name) is not None] == ["b"]
