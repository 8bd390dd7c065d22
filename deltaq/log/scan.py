"""Reading a topic's records by offset: which files and rows, and those rows as Arrow with their offsets filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.clock import Clock
from deltaq.errors import Corrupt
from deltaq.log.backoff import error_pause_s
from deltaq.log.offset_index import OffsetIndex
from deltaq.log.records import TIMESTAMP
from deltaq.log.segment import RowRange, read_rows
from deltaq.log.store_errors import unavailable
from deltaq.log.topic_state import Batch, DataFile
from deltaq.store import ObjectMissing, Store, StoreError

__all__ = ["Fetched", "FileGone", "FileRead", "is_lost", "next_read", "plan_reads", "read_file"]


LOOKS_FOR_LOST_FILE = 5


class FileGone(Exception):
    """A data file is no longer there: compacted or deleted since the log was read. Load the log again."""

    def __init__(self, file: DataFile) -> None:
        super().__init__(file.segment.key)
        self.file = file


@dataclass(frozen=True, slots=True)
class FileRead:
    """Batches of one file to be read, each from `start` and up to `end` (an offset) only."""

    file: DataFile
    wanted: tuple[tuple[Batch, int, int], ...]


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of one partition, in offset order, verified.

    `rows` has the columns of the topic's table with `_offset` and `_timestamp` filled in. Offsets are
    `first_offset, first_offset + 1, ...` unless `sparse`. `next_offset` is where to read on: after a sparse batch
    it may be more than the last record's offset + 1.
    """

    partition: int
    first_offset: int
    next_offset: int
    sparse: bool
    log_append_time: bool
    rows: pa.RecordBatch


def is_lost(store: Store, clock: Clock, file: DataFile) -> bool:
    """Whether a data file that the newest log names is not there. Takes a while: a store may be late to show it.

    Raises Unavailable.
    """
    for attempt in range(1, LOOKS_FOR_LOST_FILE + 1):
        try:
            store.get_range(file.segment.key, 0, 0)
        except ObjectMissing:
            clock.sleep(error_pause_s(attempt, clock.random()))
        except StoreError as error:
            raise unavailable(error) from error
        else:
            return False
    return True


def plan_reads(index: OffsetIndex, ranges: Mapping[int, tuple[int, int]]) -> list[FileRead]:
    """The reads for `ranges` (partition -> [start, end) offsets), each file once, oldest records first."""
    positions = {partition: start for partition, (start, end) in ranges.items() if start < end}
    ends = {partition: end for partition, (_, end) in ranges.items()}
    reads = []
    while (read := next_read(index, positions, ends)) is not None:
        reads.append(read)
        for batch, _, end in read.wanted:
            positions[batch.partition] = max(end, batch.next_offset)
    return reads


def next_read(
    index: OffsetIndex, positions: Mapping[int, int], ends: Mapping[int, int] | None = None
) -> FileRead | None:
    """The next file to read for consumers at `positions` (partition -> offset); None if there is nothing (yet).

    Of the files that some partition needs next, the oldest: its records for all partitions that need just this file.
    """
    needed: dict[str, list[tuple[Batch, int, int]]] = {}
    for partition, position in positions.items():
        end = 2**63 if ends is None else ends[partition]
        batch = index.find(partition, position)
        if batch is not None and (start := max(position, batch.base_offset)) < end:
            needed.setdefault(batch.path, []).append((batch, start, min(end, batch.next_offset)))
    if not needed:
        return None
    path = min(needed, key=lambda path: index.files[path].segment.version)
    return FileRead(index.files[path], tuple(sorted(needed[path], key=lambda want: want[0].first_row)))


def read_file(store: Store, read: FileRead) -> list[Fetched]:
    """Read and verify; what is damaged is fetched once more. Raises FileGone, Corrupt, Unavailable."""
    try:
        return _read_once(store, read)
    except Corrupt:
        return _read_once(store, read)  # the damage may have happened on the way, or in a cache


def _read_once(store: Store, read: FileRead) -> list[Fetched]:
    key = read.file.segment.key
    ranges = [_row_range(batch, start, end) for batch, start, end in read.wanted]
    try:
        batches = read_rows(
            read.file.segment, ranges, lambda: store.get(key), lambda start, length: store.get_range(key, start, length)
        )
    except ObjectMissing:
        raise FileGone(read.file) from None
    except StoreError as error:
        raise unavailable(error) from error
    return [
        _fetched(read.file, batch, start, end, rows)
        for (batch, start, end), rows in zip(read.wanted, batches, strict=True)
    ]


def _row_range(batch: Batch, start: int, end: int) -> RowRange:
    if batch.sparse:  # only the rows themselves tell their offsets
        return RowRange(batch.first_row, batch.rows)
    return RowRange(batch.first_row + start - batch.base_offset, end - start)


def _fetched(file: DataFile, batch: Batch, start: int, end: int, rows: pa.RecordBatch) -> Fetched:
    partitions = pc.min_max(rows.column("_partition"))
    if rows.num_rows and (partitions["min"].as_py(), partitions["max"].as_py()) != (batch.partition, batch.partition):
        raise _contradiction(file, "partitions")
    if batch.sparse:
        offsets = rows.column("_offset")
        if offsets.null_count:
            raise _contradiction(file, "offsets")
        chosen = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
        rows = rows.filter(chosen)
    else:
        expected = pa.arange(start, end)
        stored = rows.column("_offset")
        if stored.null_count != len(stored) and not stored.equals(expected):
            raise _contradiction(file, "offsets")
        rows = _with_column(rows, "_offset", expected)
    if file.append_time_ms is not None:
        stamps = pa.repeat(pa.scalar(file.append_time_ms * 1000, pa.int64()).cast(TIMESTAMP), rows.num_rows)
        rows = _with_column(rows, "_timestamp", stamps)
    return Fetched(batch.partition, start, max(end, start), batch.sparse, file.append_time_ms is not None, rows)


def _with_column(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(at), column)


def _contradiction(file: DataFile, what: str) -> Corrupt:
    return Corrupt(
        f"data file is damaged: its {what} contradict the log", path=file.segment.key, version=file.segment.version
    )
