"""Segments: the Parquet files that hold a topic's records. The only module that knows `pyarrow.parquet`.

A segment's rows are sorted by partition. A partition whose share is worth a request of its own gets its own row groups;
small shares are packed together. Every page carries a checksum; the footer, which Parquet does not protect, and the
file
as a whole are covered by CRC-32 sums in the log entry. So no flipped bit is ever returned as a value.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltaq.errors import Corrupt, InvalidConfig

__all__ = ["COMPRESSIONS", "EncodedSegment", "RowRange", "SegmentFile", "encode_segment", "read_rows", "read_table"]

COMPRESSIONS = {"none": "NONE", "gzip": "GZIP", "snappy": "SNAPPY", "lz4": "LZ4", "zstd": "ZSTD"}
"""Kafka's `compression.type` values and Parquet's names for them. Parquet's LZ4 here is LZ4_RAW, as the format
demands."""

ROW_GROUP_SHARE_BYTES = 64 * 1024
"""A partition's share of a segment from which on it gets row groups of its own: about what one request costs to
transfer."""

ROW_GROUP_ROWS_MAX = 256 * 1024
DECODED_BYTES_MAX = 2**31 - 1
"""No segment decodes to more: a bound on what a damaged or hostile file can make a reader allocate."""

VALUE_BYTES = 8
"""What a value counts for at least: a number, or where a text ends."""

WHOLE_FILE_BYTES = 1024 * 1024
"""Files up to this size are read in one request, whatever part of them is needed."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `[first, first + count)` of a segment."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """A segment ready for upload. `footer_bytes` counts the Parquet footer with its length and magic number."""

    data: memoryview
    rows: int
    crc32: int
    footer_bytes: int
    footer_crc32: int


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """What the log says about a segment: where it is and how to verify it."""

    key: str
    version: int
    size: int
    rows: int
    crc32: int
    footer_bytes: int
    footer_crc32: int


def encode_segment(
    batch: pa.RecordBatch, shares: Sequence[int], compression: str, level: int | None = None
) -> EncodedSegment:
    """Encode `batch`, whose rows are sorted by partition, as Parquet.

    `shares` are the row counts of the partitions in order (their sum is the number of rows). InvalidConfig for an
    unknown
    compression or a level the codec does not have.
    """
    sink = pa.BufferOutputStream()
    with _writer(sink, batch.schema, compression, level) as writer:
        for first, count in _row_groups(shares, batch.nbytes / max(1, batch.num_rows)):
            writer.write_batch(batch.slice(first, count), row_group_size=count)
    data = memoryview(sink.getvalue())
    footer_bytes = int.from_bytes(data[-8:-4], "little") + 8
    return EncodedSegment(data, batch.num_rows, zlib.crc32(data), footer_bytes, zlib.crc32(data[-footer_bytes:]))


def _writer(sink: pa.NativeFile, schema: pa.Schema, compression: str, level: int | None) -> pq.ParquetWriter:
    if compression not in COMPRESSIONS:
        known = ", ".join(COMPRESSIONS)
        raise InvalidConfig(
            f'Invalid value "{compression}" for configuration property "compression.type": expected one of {known}',
            key="compression.type",
        )
    return pq.ParquetWriter(
        sink,
        schema,
        version="2.6",
        compression=COMPRESSIONS[compression],
        compression_level=_checked_level(compression, level),
        use_dictionary=_dictionary_columns(schema),
        write_statistics=["_partition", "_offset", "_timestamp"],
        write_page_checksum=True,
        store_schema=False,
    )


def _checked_level(compression: str, level: int | None) -> int | None:
    """The level for a codec that has levels; None, and so the codec's own choice, for -1 as in librdkafka."""
    if level is None or level < 0 or compression not in ("gzip", "zstd"):
        return None
    lowest, highest = pa.Codec.minimum_compression_level(compression), pa.Codec.maximum_compression_level(compression)
    if not lowest <= level <= highest:
        raise InvalidConfig(
            f'Invalid value "{level}" for configuration property "compression.level": '
            f"{compression} has {lowest} to {highest}",
            key="compression.level",
        )
    return level


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    # Payloads rarely repeat, and building a dictionary for them costs more than it saves; typed text columns often do.
    return [field.name for field in schema if field.name == "_partition" or pa.types.is_string(field.type)]


def _row_groups(shares: Iterable[int], row_bytes: float) -> Iterator[tuple[int, int]]:
    """(first row, rows) of each row group: large shares alone, runs of small ones together."""
    first = packed = 0
    for share in shares:
        large = share * row_bytes >= ROW_GROUP_SHARE_BYTES
        if large and packed:
            yield first, packed
            first, packed = first + packed, 0
        packed += share
        while packed > ROW_GROUP_ROWS_MAX:
            yield first, ROW_GROUP_ROWS_MAX
            first, packed = first + ROW_GROUP_ROWS_MAX, packed - ROW_GROUP_ROWS_MAX
        if large and packed:
            yield first, packed
            first, packed = first + packed, 0
    if packed:
        yield first, packed


def read_rows(
    file: SegmentFile, wanted: Sequence[RowRange], get: Callable[[], bytes], get_range: Callable[[int, int], bytes]
) -> list[pa.RecordBatch]:
    """The wanted row ranges of a segment, each as one record batch, verified.

    `get()` fetches the whole file, `get_range(start, length)` a part. A small file, or one of which most is wanted, is
    fetched whole; of a large one the footer and the row groups that hold the wanted rows.
    Raises Corrupt; whatever the two callbacks raise passes through.
    """
    share = sum(part.count for part in wanted) / max(1, file.rows)
    if file.size <= WHOLE_FILE_BYTES or share > 0.5:
        table, first = _read_whole(file, get()), 0
        return [_one_batch(table.slice(part.first - first, part.count)) for part in wanted]
    return _read_parts(file, wanted, get_range)


def _read_whole(file: SegmentFile, data: bytes) -> pa.Table:
    if len(data) != file.size:
        raise _corrupt(file, f"it has {len(data)} bytes instead of {file.size}")
    if zlib.crc32(data) != file.crc32:
        raise _corrupt(file, "it does not match its checksum")
    parquet = _decoding(file, lambda: _checked(file, _open(pa.py_buffer(data))))
    return _decoding(file, lambda: _decoded(parquet, pa.py_buffer(data)))


def _read_parts(
    file: SegmentFile, wanted: Sequence[RowRange], get_range: Callable[[int, int], bytes]
) -> list[pa.RecordBatch]:
    # An image of the file with only the needed parts filled in; untouched zero pages cost no memory.
    image = bytearray(file.size)

    def fill(start: int, length: int) -> None:
        part = get_range(start, length)
        if len(part) != length:
            raise _corrupt(file, f"it ends at byte {start + len(part)} instead of {file.size}")
        image[start : start + length] = part

    fill(file.size - file.footer_bytes, file.footer_bytes)
    if zlib.crc32(memoryview(image)[-file.footer_bytes :]) != file.footer_crc32:
        raise _corrupt(file, "its footer does not match its checksum")
    metadata = _decoding(file, lambda: _checked(file, _open(pa.py_buffer(image)))).metadata
    firsts = [0]
    for group in range(metadata.num_row_groups):
        firsts.append(firsts[-1] + metadata.row_group(group).num_rows)
    needed = [
        group
        for group in range(metadata.num_row_groups)
        if any(part.first < firsts[group + 1] and part.first + part.count > firsts[group] for part in wanted)
    ]
    for start, length in _merged(_extent(metadata.row_group(group)) for group in needed):
        fill(start, length)
    table = _decoding(file, lambda: _decoded(_open(pa.py_buffer(image)), pa.py_buffer(image), needed))
    at: dict[int, int] = {}
    rows = 0
    for group in needed:
        at[group] = rows - firsts[group]
        rows += firsts[group + 1] - firsts[group]
    return [_one_batch(table.slice(part.first + _shift(at, firsts, part.first), part.count)) for part in wanted]


def _shift(at: dict[int, int], firsts: list[int], row: int) -> int:
    """What to add to a row number of the file to get its number in the table of the row groups that were read."""
    return next(shift for group, shift in at.items() if firsts[group] <= row < firsts[group + 1])


def _extent(group: pq.RowGroupMetaData) -> tuple[int, int]:
    columns = [group.column(i) for i in range(group.num_columns)]
    starts = [
        min(c.data_page_offset, c.dictionary_page_offset) if c.dictionary_page_offset else c.data_page_offset
        for c in columns
    ]
    ends = [start + c.total_compressed_size for start, c in zip(starts, columns, strict=True)]
    return min(starts), max(ends) - min(starts)


def _merged(extents: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring extents as one request."""
    merged: list[tuple[int, int]] = []
    for start, length in sorted(extents):
        if merged and start <= merged[-1][0] + merged[-1][1] + ROW_GROUP_SHARE_BYTES:
            before = merged[-1][0]
            merged[-1] = (before, max(merged[-1][1], start + length - before))
        else:
            merged.append((start, length))
    return merged


def read_table(data: bytes, key: str) -> pa.Table:
    """A whole Parquet file that is not a segment, such as a checkpoint. Raises Corrupt."""
    try:
        buffer = pa.py_buffer(data)
        return _decoded(_open(buffer), buffer)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Corrupt(f"cannot be read as Parquet: {error}", path=key) from error


def _open(buffer: pa.Buffer, dictionaries: Iterable[str] = ()) -> pq.ParquetFile:
    # To be read without Arrow's threads: one that still holds Python's bytes when Python finalizes aborts the process.
    return pq.ParquetFile(
        pa.BufferReader(buffer), page_checksum_verification=True, read_dictionary=list(dictionaries) or None
    )


def _checked(file: SegmentFile, parquet: pq.ParquetFile) -> pq.ParquetFile:
    if parquet.metadata.num_rows != file.rows:
        raise _corrupt(file, f"it has {parquet.metadata.num_rows} rows instead of {file.rows}")
    return parquet


def _decoded(parquet: pq.ParquetFile, buffer: pa.Buffer, groups: Sequence[int] | None = None) -> pa.Table:
    """Row groups as Arrow, all or those named. ValueError, before the memory is spent, if they would take too much.

    A few bytes can stand for very many: compressed pages, runs of one value, one long value of a dictionary that every
    row refers to. The footer tells all but the last; where that might be too much, the references are counted.
    """
    metadata = parquet.metadata
    groups = range(metadata.num_row_groups) if groups is None else groups
    size, worst = 0, 0
    dictionaries = set()
    for group in map(metadata.row_group, groups):
        for column in map(group.column, range(group.num_columns)):
            size += max(column.total_uncompressed_size, column.num_values * VALUE_BYTES)
            if column.has_dictionary_page and column.physical_type == "BYTE_ARRAY":
                worst += column.total_uncompressed_size * column.num_values
                dictionaries.add(column.path_in_schema)
    if size <= DECODED_BYTES_MAX < size + worst:
        references = _open(buffer, dictionaries).read_row_groups(groups, sorted(dictionaries), use_threads=False)
        size += sum(_expanded(chunk) for column in references.columns for chunk in column.chunks)
    if size > DECODED_BYTES_MAX:
        raise ValueError(f"it would take {size} bytes of memory, more than any file of a table may")
    return parquet.read_row_groups(groups, use_threads=False)


def _expanded(array: pa.Array) -> int:
    """Bytes that the array takes once every reference into a dictionary is replaced by the value."""
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary)
        return (pc.sum(lengths.take(array.indices)).as_py() or 0) + len(array) * VALUE_BYTES
    if pa.types.is_struct(array.type):
        return sum(map(_expanded, array.flatten()))
    if pa.types.is_list(array.type) or pa.types.is_map(array.type):
        return _expanded(array.values)
    return int(array.nbytes)


def _decoding(file: SegmentFile, decode: Callable[[], pa.Table]) -> pa.Table:
    try:
        return decode()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _corrupt(file, f"it cannot be decoded: {error}") from error


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if len(batches) > 1:  # cannot be: DECODED_BYTES_MAX keeps every column below Arrow's limit for one array
        raise ValueError(f"{len(batches)} record batches where one was expected")
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _corrupt(file: SegmentFile, what: str) -> Corrupt:
    return Corrupt(f"data file is damaged: {what}", path=file.key, version=file.version)
