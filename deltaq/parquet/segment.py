"""Segments: the Parquet files that hold a topic's records.

A segment's rows are sorted by partition. A partition with many bytes gets row groups of its own;
small ones are packed together. Every page has a checksum. The log entry has CRC-32 checksums of
the footer, which Parquet does not protect, and of the whole file. So a flipped bit is never
returned as a value.

A reader of a part of a file fetches the footer, and then the columns it needs of the row groups it
needs.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltaq.errors import Corrupt, InvalidConfig
from deltaq.parquet.bounded_decoding import chunk_place, decode_row_groups, open_footer, open_parts
from deltaq.parquet.column_bounds import ColumnStatistics
from deltaq.parquet.file_columns import check_columns
from deltaq.parquet.file_parts import FileParts
from deltaq.parquet.file_statistics import (
    float_statistics,
    indexable_fields,
    integer_statistics,
    text_statistics,
)
from deltaq.parquet.segment_file import SegmentFile
from deltaq.serde.widening import conformed
from deltaq.work import Work, finish

COMPRESSIONS = {"none": "NONE", "gzip": "GZIP", "snappy": "SNAPPY", "lz4": "LZ4", "zstd": "ZSTD"}
"""Kafka's `compression.type` values and Parquet's names for them. pyarrow writes "LZ4" as LZ4_RAW,
which the Parquet format requires.
"""

ROW_GROUP_PARTITION_BYTES = 64 * 1024
"""Minimum bytes of a partition in a file for row groups of its own: its transfer takes about as
long as a request.
"""

ROW_GROUP_ROWS_MAX = 256 * 1024

COMPACTED_ROW_GROUP_BYTES = 1024 * 1024
"""Approximate decoded size of a row group of a compacted file. A reader of one record in a file of
128 MiB parses the footer, which grows with the number of row groups, and decodes one row group. At
this size both take equally long.
"""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `[first, first + count)` of a segment."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """A segment ready for upload, with the statistics of its value columns.

    `footer_bytes` counts the Parquet footer with its length and magic number.
    """

    data: memoryview
    rows: int
    crc32: int
    footer_bytes: int
    footer_crc32: int
    statistics: tuple[ColumnStatistics, ...]


class SegmentLayout:
    """The positions of a segment's rows, from its verified footer. Row groups count from 0.

    `firsts` holds the number of each row group's first row, followed by the total number of rows.
    """

    def __init__(self, metadata: pq.FileMetaData) -> None:
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        self.metadata = metadata
        self.firsts: tuple[int, ...] = tuple(
            accumulate((group.num_rows for group in groups), initial=0)
        )
        self._columns = {
            metadata.schema.column(number).path: number for number in range(metadata.num_columns)
        }
        self._bounds: dict[tuple[int, str], tuple[int, int] | None] = {}

    def groups(self, rows: RowRange) -> range:
        """The row groups that contain any of the rows."""
        if not rows.count:
            return range(0)
        return range(
            bisect_right(self.firsts, rows.first) - 1,
            bisect_left(self.firsts, rows.first + rows.count),
        )

    def size(self, group: int) -> int:
        """Bytes to fetch for a row group."""
        return _extent(self.metadata.row_group(group))[1]

    def bounds(self, group: int, column: str) -> tuple[int, int] | None:
        """The lowest and highest value of a column in a row group, times in microseconds; None
        without statistics.
        """
        if (group, column) not in self._bounds:
            number, columns = self._columns.get(column), self.metadata.row_group(group)
            found = None if number is None else columns.column(number).statistics
            bounds = None
            if found is not None and found.has_min_max and isinstance(found.min_raw, int):
                bounds = found.min_raw, found.max_raw
            self._bounds[group, column] = bounds
        return self._bounds[group, column]


def encode_segment(
    batch: pa.RecordBatch | pa.Table,
    partition_rows: Sequence[int],
    compression: str,
    level: int | None = None,
    *,
    row_group_bytes: int | None = None,
) -> EncodedSegment:
    """Encode `batch`, whose rows are sorted by partition, as Parquet. The chunks of a table are
    joined per row group.

    `partition_rows` are the row counts of the partitions in order. With `row_group_bytes` each row
    group decodes to about that many bytes, so that small parts of a large file can be read; without
    it, only the number of rows per row group is limited. InvalidConfig for an unknown compression,
    or a level that the codec does not have.
    """
    return finish(
        encode_by_row_groups(
            batch, partition_rows, compression, level, row_group_bytes=row_group_bytes
        )
    )


def encode_by_row_groups(
    batch: pa.RecordBatch | pa.Table,
    partition_rows: Sequence[int],
    compression: str,
    level: int | None = None,
    *,
    row_group_bytes: int | None = None,
) -> Work[EncodedSegment]:
    """As `encode_segment`, as work in pieces of one row group."""
    codec, codec_level = _codec(compression, level)
    # The size of the rows of a single partition is not needed: without `row_group_bytes`, only
    # their number counts.
    is_simple = len(partition_rows) == 1 and row_group_bytes is None
    row_bytes = 0.0 if is_simple else batch.nbytes / max(1, batch.num_rows)
    rows_max = ROW_GROUP_ROWS_MAX
    if row_group_bytes is not None:
        rows_max = min(rows_max, max(1, int(row_group_bytes / max(1, row_bytes))))
    indexed = indexable_fields(batch.schema)
    # Floating-point columns have no bounds in the footer: these exclude NaN, so that a reader could
    # not tell whether NaN occurs. Typed string columns get a dictionary, since they often repeat
    # values; for payloads it costs more than it saves.
    in_footer = [field.name for field in indexed if not pa.types.is_floating(field.type)]
    repeating = [
        field.name
        for field in batch.schema
        if field.name == "_partition" or pa.types.is_string(field.type)
    ]
    sink = pa.BufferOutputStream()
    footer: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        sink,
        batch.schema,
        version="2.6",
        compression=codec,
        compression_level=codec_level,
        use_dictionary=repeating,
        write_statistics=["_partition", "_offset", "_timestamp", *in_footer],
        write_page_checksum=True,
        store_schema=False,
        metadata_collector=footer,
    ) as writer:
        for first, count in _row_groups(partition_rows, row_bytes, rows_max):
            part = batch.slice(first, count)
            for rows in _halved(
                _one_batch(part) if isinstance(part, pa.Table) else part, row_group_bytes
            ):
                writer.write_batch(rows, row_group_size=rows.num_rows)
                yield
    data = memoryview(sink.getvalue())
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    return EncodedSegment(
        data,
        batch.num_rows,
        zlib.crc32(data),
        footer_bytes,
        zlib.crc32(data[-footer_bytes:]),
        tuple(_column_statistics(footer[0], batch, indexed)) if batch.num_rows else (),
    )


def _codec(compression: str, level: int | None) -> tuple[str, int | None]:
    """Parquet's name of the codec, and its level. None is the default level, as is -1 in
    librdkafka.
    """
    if compression not in COMPRESSIONS:
        known = ", ".join(COMPRESSIONS)
        raise InvalidConfig(
            f'Invalid value "{compression}" for configuration property "compression.type": expected'
            f" one of {known}",
            key="compression.type",
        )
    if level is None or level < 0 or compression not in ("gzip", "zstd"):
        return COMPRESSIONS[compression], None
    lowest = pa.Codec.minimum_compression_level(compression)
    highest = pa.Codec.maximum_compression_level(compression)
    if not lowest <= level <= highest:
        raise InvalidConfig(
            f'Invalid value "{level}" for configuration property "compression.level": '
            f"{compression} has {lowest} to {highest}",
            key="compression.level",
        )
    return COMPRESSIONS[compression], level


def _column_statistics(
    footer: pq.FileMetaData, rows: pa.RecordBatch | pa.Table, indexed: Sequence[pa.Field]
) -> Iterator[ColumnStatistics]:
    """Statistics of the columns `indexed` for the whole file, taken from the footer where it has
    them.
    """
    if not indexed:
        return
    numbers = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for field in indexed:
        if pa.types.is_floating(field.type):
            yield float_statistics(field.name, rows.column(field.name))
            continue
        found = [group.column(numbers[field.name]).statistics for group in groups]
        nulls = sum(statistics.null_count for statistics in found)
        bounds = [
            (statistics.min_raw, statistics.max_raw)
            for statistics in found
            if statistics.has_min_max
        ]
        low = min((low for low, _ in bounds), default=None)
        high = max((high for _, high in bounds), default=None)
        if not pa.types.is_string(field.type):
            yield integer_statistics(field, nulls, low, high)
        # Arrow omits bounds of more than 4 KiB.
        elif any(not s.has_min_max and s.num_values for s in found):
            ends = pc.min_max(rows.column(field.name).cast(pa.binary()))
            yield text_statistics(field.name, nulls, ends["min"].as_py(), ends["max"].as_py())
        else:
            yield text_statistics(field.name, nulls, low, high)


def _row_groups(
    partition_rows: Iterable[int], row_bytes: float, rows_max: int
) -> Iterator[tuple[int, int]]:
    """(first row, number of rows) of each row group: large partitions separately, consecutive
    small ones together.
    """
    first = packed = 0
    for rows in partition_rows:
        large = rows * row_bytes >= ROW_GROUP_PARTITION_BYTES
        if large and packed:
            yield first, packed
            first, packed = first + packed, 0
        packed += rows
        while packed > rows_max:
            yield first, rows_max
            first, packed = first + rows_max, packed - rows_max
        if large and packed:
            yield first, packed
            first, packed = first + packed, 0
    if packed:
        yield first, packed


def _halved(rows: pa.RecordBatch, bytes_max: int | None) -> Iterator[pa.RecordBatch]:
    """The rows, split in halves until a piece takes at most twice `bytes_max`: some rows are larger
    than average.
    """
    if bytes_max is None or rows.num_rows < 2 or rows.nbytes <= 2 * bytes_max:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _halved(rows.slice(0, half), bytes_max)
    yield from _halved(rows.slice(half), bytes_max)


def read_layout(file: SegmentFile, get_range: Callable[[int, int], bytes]) -> SegmentLayout:
    """The layout of a segment. Fetches only the footer. Raises Corrupt, and what `get_range`
    raises.
    """
    footer = _fetched(file, file.size - file.footer_bytes, file.footer_bytes, get_range)
    if zlib.crc32(footer) != file.footer_crc32:
        raise _corrupt(file, "its footer does not match its checksum")
    # The footer can be parsed without the file: its positions are used only when rows are read.
    with _decoding(file):
        layout = SegmentLayout(_checked(file, open_footer(footer)).metadata)
    if layout.firsts[-1] != file.rows:
        raise _corrupt(file, f"its row groups have {layout.firsts[-1]} rows instead of {file.rows}")
    return layout


def read_rows(
    file: SegmentFile,
    wanted: Sequence[RowRange],
    columns: pa.Schema,
    get: Callable[[], bytes],
    get_range: Callable[[int, int], bytes],
    *,
    layout: SegmentLayout | None = None,
    decoded_max: int | None = None,
) -> pa.RecordBatch:
    """The wanted row ranges of a segment, verified, one after the other, with only these columns of
    the table.

    `get()` fetches the whole file, `get_range(start, length)` a part. A small file is fetched
    whole, and so is a file of which more than half is wanted, unless `layout` is given. Of other
    files, the needed row groups are fetched, and without `layout` the footer. Raises Corrupt,
    DecodedTooLarge, and what the callbacks raise.
    """
    wanted_rows = sum(part.count for part in wanted)
    if file.is_small or (layout is None and wanted_rows > file.rows / 2):
        return _taken(_read_whole(file, get(), columns, decoded_max), wanted)
    return _read_parts(
        file, wanted, get_range, layout or read_layout(file, get_range), columns, decoded_max
    )


def codec_of(file: SegmentFile, get_range: Callable[[int, int], bytes]) -> str:
    """The `compression.type` of a segment; "none" if it has no rows. Raises Corrupt, and what
    `get_range` raises.
    """
    metadata = read_layout(file, get_range).metadata
    if not metadata.num_row_groups:
        return "none"
    parquets = {"UNCOMPRESSED": "none", "LZ4_RAW": "lz4"}
    codec = metadata.row_group(0).column(0).compression
    return str(parquets.get(codec, codec.lower()))


def _read_whole(
    file: SegmentFile, data: bytes, columns: pa.Schema, decoded_max: int | None
) -> pa.Table:
    if len(data) != file.size:
        raise _corrupt(file, f"it has {len(data)} bytes instead of {file.size}")
    if zlib.crc32(data) != file.crc32:
        raise _corrupt(file, "it does not match its checksum")

    with _decoding(file):
        parquet = _checked(file, open_footer(data))
        leaves = _leaves(parquet.metadata, columns)
        groups = range(parquet.metadata.num_row_groups)
        whole = FileParts(len(data), [(0, data)])
        return conformed(decode_row_groups(parquet, whole, groups, leaves, decoded_max), columns)


def _read_parts(
    file: SegmentFile,
    wanted: Sequence[RowRange],
    get_range: Callable[[int, int], bytes],
    layout: SegmentLayout,
    columns: pa.Schema,
    decoded_max: int | None,
) -> pa.RecordBatch:
    needed = sorted({group for part in wanted for group in layout.groups(part)})
    with _decoding(file):
        leaves = _leaves(layout.metadata, columns)
    extents = _merged(
        place for group in needed for place in _places(layout.metadata.row_group(group), leaves)
    )
    parts = FileParts(
        file.size, [(start, _fetched(file, start, length, get_range)) for start, length in extents]
    )
    with _decoding(file):
        parquet = open_parts(parts, layout.metadata)
        table = conformed(decode_row_groups(parquet, parts, needed, leaves, decoded_max), columns)
    sizes = [layout.firsts[group + 1] - layout.firsts[group] for group in needed]
    # Row group -> its first row in the table.
    at = dict(zip(needed, accumulate(sizes, initial=0), strict=False))
    ranges = []
    for part in wanted:
        groups = layout.groups(part)
        first = at[groups[0]] + part.first - layout.firsts[groups[0]] if groups else 0
        ranges.append(RowRange(first, part.count))
    return _taken(table, ranges)


def _taken(table: pa.Table, wanted: Sequence[RowRange]) -> pa.RecordBatch:
    """Row ranges of a table one after the other. Copied if they are less than half of it: a slice
    would keep the whole table in memory.
    """
    rows, count = _one_batch(table), sum(part.count for part in wanted)
    first = wanted[0].first if wanted else 0
    ends = accumulate((part.count for part in wanted), initial=first)
    if 2 * count >= len(rows) and all(
        part.first == end for part, end in zip(wanted, ends, strict=False)
    ):
        return rows.slice(first, count)
    if wanted:
        return pa.concat_batches([rows.slice(part.first, part.count) for part in wanted])
    return rows.slice(0, 0)


def _fetched(
    file: SegmentFile, start: int, length: int, get_range: Callable[[int, int], bytes]
) -> bytes:
    part = get_range(start, length)
    if len(part) != length:
        raise _corrupt(file, f"it ends at byte {start + len(part)} instead of {file.size}")
    return part


def _leaves(metadata: pq.FileMetaData, columns: pa.Schema) -> Sequence[int]:
    """The numbers of the Parquet columns to read for these columns of a table. ValueError if they
    do not match.
    """
    found = metadata.schema.to_arrow_schema()
    if found.equals(columns):
        return range(metadata.num_columns)
    ends = list(accumulate((_leaf_count(column.type) for column in found), initial=0))
    if ends[-1] != metadata.num_columns:
        raise ValueError(f"it has {metadata.num_columns} columns that Arrow reads as {ends[-1]}")
    names = {
        metadata.schema.column(leaf).path
        for number in check_columns(found, columns)
        for leaf in range(ends[number], ends[number + 1])
    }
    paths = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)]
    # Arrow selects a named column and all columns nested in it; it cannot tell a dot in a name from
    # nesting.
    return [leaf for leaf, path in enumerate(paths) if not names.isdisjoint(_prefixes(path))]


def _leaf_count(kind: pa.DataType) -> int:
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaf_count(kind.field(number).type) for number in range(kind.num_fields))


def _prefixes(path: str) -> Iterator[str]:
    return accumulate(path.split("."), lambda upper, name: f"{upper}.{name}")


def _extent(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """(start, length) of the part of the file that contains the row group."""
    places = _places(group, range(group.num_columns))
    first = min((start for start, _ in places), default=0)
    return first, max((start + length for start, length in places), default=0) - first


def _places(group: pq.RowGroupMetaData, leaves: Iterable[int]) -> list[tuple[int, int]]:
    """(start, length) of the parts of the file that contain these columns of the row group."""
    return [chunk_place(group.column(leaf)) for leaf in leaves]


def _merged(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The extents with neighbouring ones merged into one request."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(extents):
        if merged and start <= merged[-1][0] + merged[-1][1] + ROW_GROUP_PARTITION_BYTES:
            before = merged[-1][0]
            merged[-1] = (before, max(merged[-1][1], start + length - before))
        else:
            merged.append((start, length))
    return merged


def _checked(file: SegmentFile, parquet: pq.ParquetFile) -> pq.ParquetFile:
    if parquet.metadata.num_rows != file.rows:
        raise _corrupt(file, f"it has {parquet.metadata.num_rows} rows instead of {file.rows}")
    return parquet


@contextmanager
def _decoding(file: SegmentFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _corrupt(file, f"it cannot be decoded: {error}") from error


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    # Impossible: DECODED_BYTES_MAX keeps every column below Arrow's limit for one array.
    if len(batches) > 1:
        raise ValueError(f"{len(batches)} record batches where one was expected")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _corrupt(file: SegmentFile, what: str) -> Corrupt:
    return Corrupt(f"data file is damaged: {what}", path=file.key, version=file.version)
