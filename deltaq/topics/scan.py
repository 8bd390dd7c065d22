"""Reads of a topic by offset: selects files and rows, and returns them as Arrow with their offsets
filled in.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.delta.store_errors import unavailable
from deltaq.errors import Corrupt
from deltaq.parquet.plain_segment import PlainRows, decode_plain, joined_plain
from deltaq.parquet.segment import RowRange, SegmentLayout, read_layout, read_rows
from deltaq.store import ObjectMissing, ObjectTooLarge, Store, StoreError
from deltaq.topics.columns import TIMESTAMP, plain_batch, table_schema
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.state import Batch, DataFile

T = TypeVar("T")

FEW_ROWS = 256
"""Most rows of a file that is decoded without Arrow. That takes a third of the time for one row,
and as much as with Arrow for some 350.
"""

_PLAIN_COLUMNS = frozenset(table_schema(None))


class FileGone(Exception):
    """A data file is no longer there: compacted or deleted since the log was read. Load the log
    again.
    """

    def __init__(self, file: DataFile) -> None:
        super().__init__(file.segment.key)
        self.file = file


@dataclass(frozen=True, slots=True)
class FileRead:
    """Batches of one file to be read, as (batch, start, end), each for the offsets `[start, end)`
    only.

    With the `layout` of the file, only the row groups that hold them are fetched.
    """

    file: DataFile
    wanted: tuple[tuple[Batch, int, int], ...]
    layout: SegmentLayout | None = None

    @property
    def bytes(self) -> int:
        """Approximate size of the wanted records in the file; at least 1."""
        rows = sum(min(batch.rows, end - start) for batch, start, end in self.wanted)
        return max(1, self.file.segment.size * rows // max(1, self.file.segment.rows))


@dataclass(frozen=True, slots=True)
class Part:
    """Offsets `[start, end)` of a batch, whose records are among `rows`, in the row groups
    `groups`.
    """

    start: int
    end: int
    rows: RowRange
    groups: range


@dataclass(frozen=True, slots=True)
class Fetched:
    """Verified records of one partition, in offset order.

    `rows` has the columns of the topic's table with `_offset` and `_timestamp` filled in. Offsets
    are `first_offset, first_offset + 1, ...` unless `sparse`. `next_offset` is where to continue:
    after a sparse batch it can exceed the last record's offset + 1. `bytes` is about what the rows
    take in memory. Records that were decoded without Arrow are `plain`, and not `arrow`; they
    become `rows` at each access.
    """

    partition: int
    first_offset: int
    next_offset: int
    sparse: bool
    log_append_time: bool
    arrow: pa.RecordBatch
    bytes: int
    plain: PlainRows | None = None

    def __len__(self) -> int:
        return len(self.arrow) if self.plain is None else len(self.plain)

    @property
    def rows(self) -> pa.RecordBatch:
        return self.arrow if self.plain is None else _plain_rows([self])


def rows_of(parts: Iterable[Fetched], bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The rows of all parts, in order. Plain records that follow each other are in one batch,
    because each conversion costs more than hundreds of rows; parts of more than `bytes_max` bytes
    together are not joined, to save memory.
    """
    for form, run in groupby(parts, _form):
        if form is None:
            yield from (part.arrow for part in run)
        else:
            yield from map(_plain_rows, _within(run, bytes_max))


def _within(parts: Iterable[Fetched], bytes_max: int) -> Iterator[list[Fetched]]:
    """The parts in groups of at most `bytes_max` bytes, or of one larger part."""
    group: list[Fetched] = []
    size = 0
    for part in parts:
        if group and size + part.bytes > bytes_max:
            yield group
            group, size = [], 0
        group.append(part)
        size += part.bytes
    if group:
        yield group


def _form(part: Fetched) -> tuple[bool, ...] | None:
    """None for Arrow, otherwise what plain records must have in common for one batch."""
    return None if part.plain is None else (part.plain.keys is None, part.plain.timed)


def _plain_rows(parts: Sequence[Fetched]) -> pa.RecordBatch:
    offsets = [pa.arange(part.first_offset, part.first_offset + len(part)) for part in parts]
    whole = joined_plain([part.plain for part in parts if part.plain is not None])
    return _with_column(plain_batch(whole), "_offset", pa.concat_arrays(offsets))


def plan_reads(index: OffsetIndex, ranges: Mapping[int, tuple[int, int]]) -> list[FileRead]:
    """The reads for `ranges` (partition -> [start, end) offsets), each file once, oldest first."""
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
    """The next file to read for consumers at `positions` (partition -> offset); None if there is
    nothing to read (yet).

    It is the oldest of the files that the partitions need next, with the records of all partitions
    that need it next.
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
    return FileRead(
        index.files[path], tuple(sorted(needed[path], key=lambda want: want[0].first_row))
    )


def parts_of(layout: SegmentLayout, batch: Batch, start: int, end: int) -> Iterator[Part]:
    """Split offsets `[start, end)` of a batch into the smallest parts that can be read separately,
    in order.

    A part is usually one row group; several in a sparse batch whose statistics do not separate
    them.
    """
    parts = (
        _sparse_parts(layout, batch, start)
        if batch.sparse
        else _dense_parts(layout, batch, start, end)
    )
    for part in parts:
        if part.start >= end:
            return
        low, high = max(start, part.start), min(end, part.end)
        if low < high:
            yield Part(low, high, part.rows, part.groups)


def _dense_parts(layout: SegmentLayout, batch: Batch, start: int, end: int) -> Iterator[Part]:
    first = batch.base_offset - batch.first_row  # the offset that row 0 would have
    for group in layout.groups(RowRange(start - first, max(0, end - start))):
        low, high = (first + row for row in layout.firsts[group : group + 2])
        low, high = max(low, batch.base_offset), min(high, batch.next_offset)
        yield Part(low, high, RowRange(low - first, high - low), range(group, group + 1))


def _sparse_parts(layout: SegmentLayout, batch: Batch, start: int) -> Iterator[Part]:
    """The parts of a sparse batch, from the one that holds `start` on."""
    last_row = batch.first_row + batch.rows
    groups = layout.groups(RowRange(batch.first_row, batch.rows))
    begin, at, row = groups.start, batch.base_offset, batch.first_row
    low, high = groups.start + 1, groups.stop
    while low < high:
        middle = (low + high) // 2
        border = _border(layout, middle)
        if border is None or border > start:
            high = middle
        else:
            begin, at, row = middle, border, layout.firsts[middle]
            low = middle + 1
    for group in range(begin + 1, groups.stop):
        border = _border(layout, group)
        if border is not None and at < border < batch.next_offset:
            row_after = layout.firsts[group]
            yield Part(at, border, RowRange(row, row_after - row), range(begin, group))
            at, row, begin = border, row_after, group
    yield Part(at, batch.next_offset, RowRange(row, last_row - row), range(begin, groups.stop))


def _border(layout: SegmentLayout, group: int) -> int | None:
    """The offset that separates the records of a batch before row group `group` from those in and
    after it; None if the statistics do not show one.

    Statistics of a row group with several partitions are wider, but a border that they show is
    still valid.
    """
    before, after = layout.bounds(group - 1, "_offset"), layout.bounds(group, "_offset")
    return after[0] if before is not None and after is not None and before[1] < after[0] else None


def first_parts(read: FileRead, layout: SegmentLayout, bytes_max: int) -> FileRead:
    """The beginning of a read of about `bytes_max` bytes: equally much of each batch, but at
    least one row group.

    Once `bytes_max` is used up, the remaining batches are left out, except for what is in the same
    row groups: a file of many partitions is not to be fetched and decoded again for each of them.
    """
    wanted: list[tuple[Batch, int, int]] = []
    fetched: set[int] = set()  # row groups
    left = bytes_max
    for batch, start, end in read.wanted:
        pro_rata, until = bytes_max // len(read.wanted), start
        for part in parts_of(layout, batch, start, end):
            size = sum(layout.size(group) for group in part.groups if group not in fetched)
            if size and (left <= 0 or (until > start and size > pro_rata)):
                break
            pro_rata, left, until = pro_rata - size, left - size, part.end
            fetched.update(part.groups)
        if until > start:
            wanted.append((batch, start, until))
    return FileRead(read.file, tuple(wanted), layout)


def layout_of(store: Store, file: DataFile) -> SegmentLayout | None:
    """Fetch the layout of a large file; None for one that is small enough to be read whole.

    Raises FileGone, Corrupt, Unavailable.
    """
    key = file.segment.key
    if file.segment.is_small:
        return None
    return _reading(
        file,
        lambda: read_layout(
            file.segment, lambda start, length: store.get_range(key, start, length)
        ),
    )


def read_known(known: Sequence[tuple[FileRead, pa.RecordBatch]]) -> list[Fetched]:
    """What `read_file` would return for each read, from the rows that this process wrote to the
    file.

    Consecutive batches are joined, so that many small files cost about as much as one. Raises
    Corrupt.
    """
    runs: dict[int, list[tuple[DataFile, Batch, int, int, pa.RecordBatch]]] = {}
    fetched = []
    for read, rows in known:
        for batch, start, end in read.wanted:
            part = _row_range(None, batch, start, end)
            run = runs.setdefault(batch.partition, [])
            if run and not (
                run[-1][3] == start and _is_alike(run[-1][0], run[-1][1], read.file, batch)
            ):
                fetched.append(_joined(run))
                run.clear()
            run.append((read.file, batch, start, end, rows.slice(part.first, part.count)))
    return fetched + [_joined(run) for run in runs.values()]


def _is_alike(file: DataFile, batch: Batch, other_file: DataFile, other: Batch) -> bool:
    """Whether consecutive batches can be joined."""
    is_dense = not (batch.sparse or other.sparse)
    return is_dense and file.append_time_ms == other_file.append_time_ms


def _joined(run: Sequence[tuple[DataFile, Batch, int, int, pa.RecordBatch]]) -> Fetched:
    file, batch, start, _, first = run[0]
    if len(run) == 1:
        return _fetched(file, batch, start, run[0][3], first)
    end = run[-1][3]
    whole = Batch(batch.partition, start, end, 0, end - start, False, file.path)
    return _fetched(file, whole, start, end, pa.concat_batches([rows for *_, rows in run]))


def read_file(
    store: Store,
    read: FileRead,
    columns: pa.Schema,
    *,
    plain: bool = False,
    decoded_max: int | None = None,
) -> list[Fetched]:
    """Read and verify records; damaged data is fetched once more. Raises FileGone, Corrupt,
    Unavailable, and DecodedTooLarge for records that take more than `decoded_max` bytes of memory.

    `columns` are the columns of the result: all of the topic's table (`TopicDefinition.columns`),
    or some that include `PLACES`. With `plain`, records are `Fetched.plain`, with all columns,
    where Arrow would take longer.
    """
    layout = read.layout
    if layout is None and any(
        batch.sparse and (start, end) != _whole(batch) for batch, start, end in read.wanted
    ):
        layout = layout_of(store, read.file)
    key = read.file.segment.key
    ranges = [_row_range(layout, batch, start, end) for batch, start, end in read.wanted]
    is_few = read.file.segment.is_small and read.file.segment.rows <= FEW_ROWS
    is_plain = plain and is_few and _PLAIN_COLUMNS.issuperset(columns)

    def whole() -> bytes:
        try:
            return store.get(key, read.file.segment.size)
        except ObjectTooLarge as error:
            raise Corrupt(error.reason, path=key, version=read.file.segment.version) from None

    def once() -> list[Fetched]:
        data = whole() if is_plain else b""
        found = _plain_fetched(read, data) if is_plain else None
        if found is not None:
            return found
        rows = read_rows(
            read.file.segment,
            ranges,
            columns,
            lambda: data or whole(),
            lambda start, length: store.get_range(key, start, length),
            layout=layout,
            decoded_max=decoded_max,
        )
        return _all_fetched(read, rows, [part.count for part in ranges])

    return _reading(read.file, once)


def _reading(file: DataFile, once: Callable[[], T]) -> T:
    try:
        try:
            return once()
        except Corrupt:
            return once()  # the damage may be in the transfer or in a cache
    except ObjectMissing:
        raise FileGone(file) from None
    except StoreError as error:
        raise unavailable(error) from error


def _whole(batch: Batch) -> tuple[int, int]:
    return batch.base_offset, batch.next_offset


def _row_range(layout: SegmentLayout | None, batch: Batch, start: int, end: int) -> RowRange:
    """The rows that hold the offsets. Of a sparse batch more than these, since only the rows have
    their offsets.
    """
    if not batch.sparse:
        return RowRange(batch.first_row + start - batch.base_offset, end - start)
    if layout is None:
        return RowRange(batch.first_row, batch.rows)
    parts = [part.rows for part in parts_of(layout, batch, start, end)]
    return (
        RowRange(parts[0].first, sum(part.count for part in parts))
        if parts
        else RowRange(batch.first_row, 0)
    )


def _plain_fetched(read: FileRead, data: bytes) -> list[Fetched] | None:
    """The records of a read, decoded without Arrow; None if that does not suit the file, or finds
    damage.
    """
    file, segment = read.file, read.file.segment
    is_sound = len(data) == segment.size and zlib.crc32(data) == segment.crc32
    if not is_sound or any(batch.sparse for batch in file.batches):
        return None
    rows = decode_plain(data, tuple((batch.partition, batch.rows) for batch in file.batches))
    if rows is None or not (rows.timed or file.append_time_ms is not None):
        return None
    if file.append_time_ms is not None:
        rows = replace(rows, times_ms=[file.append_time_ms] * len(rows), timed=True)
    return [
        Fetched(
            batch.partition,
            start,
            max(end, start),
            False,
            file.log_append_time,
            None,
            segment.size * (end - start) // len(rows),
            rows.of_partition(
                batch.first_row + start - batch.base_offset, batch.partition, end - start
            ),
        )
        for batch, start, end in read.wanted
    ]


def _all_fetched(read: FileRead, rows: pa.RecordBatch, counts: Sequence[int]) -> list[Fetched]:
    """The records of a read. `rows` has `counts` rows for each of its batches.

    Those of dense batches are checked and filled in together: each step costs more than thousands
    of rows.
    """
    file, firsts = read.file, accumulate(counts, initial=0)
    if any(batch.sparse for batch, _, _ in read.wanted):
        return [
            _fetched(file, batch, start, end, rows.slice(first, count))
            for (batch, start, end), first, count in zip(read.wanted, firsts, counts, strict=False)
        ]
    rows, is_log_time = _with_places(file, read.wanted, rows), file.log_append_time
    row_bytes = rows.nbytes / max(1, len(rows))
    return [
        Fetched(
            batch.partition,
            start,
            max(end, start),
            False,
            is_log_time,
            rows.slice(first, count),
            int(row_bytes * count),
        )
        for (batch, start, end), first, count in zip(read.wanted, firsts, counts, strict=False)
    ]


def _fetched(file: DataFile, batch: Batch, start: int, end: int, rows: pa.RecordBatch) -> Fetched:
    if not batch.sparse:
        rows = _with_places(file, [(batch, start, end)], rows)
        return Fetched(
            batch.partition, start, max(end, start), False, file.log_append_time, rows, rows.nbytes
        )
    _check_partitions(file, rows, _repeated([batch.partition], [len(rows)], pa.int32()))
    offsets = rows.column("_offset")
    if offsets.null_count or not _rise(offsets, batch.base_offset, batch.next_offset):
        raise _contradiction(file, "offsets")
    before, until = (pc.sum(pc.less(offsets, offset)).as_py() or 0 for offset in (start, end))
    rows = _with_times(file, rows.slice(before, until - before))
    return Fetched(
        batch.partition, start, max(end, start), True, file.log_append_time, rows, rows.nbytes
    )


def _with_places(
    file: DataFile, wanted: Sequence[tuple[Batch, int, int]], rows: pa.RecordBatch
) -> pa.RecordBatch:
    """The rows of dense batches, one after the other, with their offsets and times filled in.
    Raises Corrupt.
    """
    counts = [max(0, end - start) for _, start, end in wanted]
    _check_partitions(
        file, rows, _repeated([batch.partition for batch, _, _ in wanted], counts, pa.int32())
    )
    if len(wanted) == 1:
        offsets = pa.arange(wanted[0][1], wanted[0][1] + counts[0])
    else:
        firsts = accumulate(counts, initial=0)
        before = [start - first for (_, start, _), first in zip(wanted, firsts, strict=False)]
        offsets = pc.add(pa.arange(0, len(rows)), _repeated(before, counts, pa.int64()))
    stored = rows.column("_offset")
    if stored.null_count != len(stored) and not stored.equals(offsets):
        raise _contradiction(file, "offsets")
    return _with_times(file, _with_column(rows, "_offset", offsets))


def _repeated(values: Sequence[int], counts: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Each value as often as its count says."""
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], kind), counts[0])
    runs = [
        (value, end)
        for value, count, end in zip(values, counts, accumulate(counts), strict=True)
        if count
    ]
    ends = pa.array([end for _, end in runs], pa.int32())
    return pc.run_end_decode(
        pa.RunEndEncodedArray.from_arrays(ends, pa.array([value for value, _ in runs], kind))
    )


def _check_partitions(file: DataFile, rows: pa.RecordBatch, expected: pa.Array) -> None:
    if not rows.column("_partition").equals(expected):
        raise _contradiction(file, "partitions")


def _with_times(file: DataFile, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the append time of the log, where that counts. Raises Corrupt for rows without
    one.
    """
    if file.append_time_ms is not None:
        stamps = pa.repeat(
            pa.scalar(file.append_time_ms * 1000, pa.int64()).cast(TIMESTAMP), rows.num_rows
        )
        rows = _with_column(rows, "_timestamp", stamps)
    if rows.column("_timestamp").null_count:
        raise _damaged(
            file, "column '_timestamp' has nulls, and the log has no append time for its rows"
        )
    return rows


def _rise(offsets: pa.Array, low: int, high: int) -> bool:
    """Whether the offsets strictly increase and are all in `[low, high)`."""
    if not len(offsets):
        return True
    within = low <= offsets[0].as_py() and offsets[-1].as_py() < high
    return within and pc.all(pc.less(offsets[:-1], offsets[1:]), min_count=0).as_py() is True


def _with_column(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(at), column)


def _contradiction(file: DataFile, what: str) -> Corrupt:
    return _damaged(file, f"its {what} contradict the log")


def _damaged(file: DataFile, what: str) -> Corrupt:
    return Corrupt(
        f"data file is damaged: {what}", path=file.segment.key, version=file.segment.version
    )
