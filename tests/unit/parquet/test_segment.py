"""Segments: Parquet both ways, and no damaged byte ever comes back as a value."""

from __future__ import annotations

import os
import random
import threading
import zlib
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaq.errors import Corrupt, InvalidConfig
from deltaq.parquet import bounded_decoding, segment_file
from deltaq.parquet.file_parts import FileParts
from deltaq.parquet.segment import (
    COMPACTED_ROW_GROUP_BYTES,
    COMPRESSIONS,
    EncodedSegment,
    RowRange,
    encode_segment,
    read_layout,
    read_rows,
)
from deltaq.parquet.segment_file import SegmentFile
from deltaq.topics.columns import PLACES, VALUE_SCHEMA, by_partition, columns_of_rows, table_schema

COLUMNS = table_schema(None)


def batch_of(rows_per_partition: dict[int, int], value_bytes: int = 100, seed: int = 0):
    """A sorted batch with random values, and its shares."""
    chance = random.Random(seed)
    partitions = [p for p, n in rows_per_partition.items() for _ in range(n)]
    chance.shuffle(partitions)
    values = [chance.randbytes(value_bytes) for _ in partitions]
    times = pa.array([1_700_000_000_000] * len(values), pa.int64())
    return by_partition(
        columns_of_rows(partitions, times, [b"k"] * len(values), [None] * len(values), values, None)
    )


def described(encoded: EncodedSegment) -> SegmentFile:
    return SegmentFile(
        "topics/t/x.parquet",
        7,
        len(encoded.data),
        encoded.rows,
        encoded.crc32,
        encoded.footer_bytes,
        encoded.footer_crc32,
    )


def read(data: bytes, file: SegmentFile, *wanted: RowRange) -> pa.RecordBatch:
    return read_rows(
        file, wanted, COLUMNS, lambda: data, lambda start, length: data[start : start + length]
    )


def rows_of(batch: pa.RecordBatch, wanted: list[RowRange]) -> pa.RecordBatch:
    return pa.concat_batches([batch.slice(part.first, part.count) for part in wanted])


def outcome_of(data: bytes, file: SegmentFile, wanted: RowRange) -> pa.RecordBatch | Corrupt:
    """The rows, or why there are none."""
    try:
        return read(data, file, wanted)
    except Corrupt as error:
        return error


@pytest.fixture
def large_segments(monkeypatch):
    """Treat every file as too large to be read whole."""
    monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 0)


@pytest.mark.parametrize("compression", sorted(COMPRESSIONS))
def test_rows_round_trip_with_every_compression(compression):
    batch, partition_rows = batch_of({0: 100, 3: 50, 4: 1})
    encoded = encode_segment(batch, [n for _, n in partition_rows], compression)
    assert read(bytes(encoded.data), described(encoded), RowRange(0, 151)).equals(batch)
    found = (
        pq.ParquetFile(pa.BufferReader(encoded.data)).metadata.row_group(0).column(5).compression
    )
    assert found in {"none": ("UNCOMPRESSED",), "lz4": ("LZ4", "LZ4_RAW")}.get(
        compression, (compression.upper(),)
    )


def test_shares_are_the_runs_of_the_sorted_partitions():
    batch, partition_rows = batch_of({5: 3, 0: 7, 2: 1})
    assert partition_rows == ((0, 7), (2, 1), (5, 3))
    assert batch.column("_partition").to_pylist() == [0] * 7 + [2] + [5] * 3


def test_an_unknown_compression_or_level_is_refused_by_name():
    batch, _ = batch_of({0: 1})
    with pytest.raises(InvalidConfig, match='"brotli"'):
        encode_segment(batch, [1], "brotli")
    with pytest.raises(InvalidConfig, match='"99"'):
        encode_segment(batch, [1], "gzip", 99)


def test_large_shares_get_row_groups_of_their_own_and_small_ones_are_packed():
    batch, partition_rows = batch_of({0: 10, 1: 10, 2: 2000, 3: 2000, 4: 10})
    encoded = encode_segment(batch, [n for _, n in partition_rows], "none")
    metadata = pq.ParquetFile(pa.BufferReader(encoded.data)).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [
        20,
        2000,
        2000,
        10,
    ]


def test_only_the_footer_and_the_needed_row_groups_of_a_large_file_are_read(large_segments):
    batch, partition_rows = batch_of(dict.fromkeys(range(8), 4000))
    encoded = encode_segment(batch, [n for _, n in partition_rows], "none")
    data = bytes(encoded.data)
    requests = []

    def get_range(start: int, length: int) -> bytes:
        requests.append(length)
        return data[start : start + length]

    def get() -> bytes:
        raise AssertionError("the whole file is not needed")

    wanted = [RowRange(2 * 4000 + 17, 100), RowRange(5 * 4000, 4000)]
    assert read_rows(described(encoded), wanted, COLUMNS, get, get_range).equals(
        rows_of(batch, wanted)
    )
    assert len(requests) == 3
    assert sum(requests) < 0.3 * len(data)


def with_offsets(batch: pa.RecordBatch, offsets: list[int], times_us: list[int]) -> pa.RecordBatch:
    """The rows of `batch` as compaction writes them."""
    columns = {
        "_offset": pa.array(offsets, pa.int64()),
        "_timestamp": pa.array(times_us, pa.int64()).cast(batch.schema.field("_timestamp").type),
    }
    for name, column in columns.items():
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, batch.schema.field(at), column)
    return batch


class Parts:
    """Ranges of a file, and how much of it was asked for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.requests: list[tuple[int, int]] = []

    @property
    def fetched(self) -> int:
        return sum(length for _, length in self.requests)

    def get_range(self, start: int, length: int) -> bytes:
        self.requests.append((start, length))
        return self.data[start : start + length]

    def get(self) -> bytes:
        raise AssertionError("the whole file is not needed")


def test_row_groups_of_a_compacted_file_have_the_requested_size_and_all_rows():
    batch, partition_rows = batch_of({0: 3000, 1: 40, 2: 40, 3: 3000}, value_bytes=500)
    encoded = encode_segment(batch, [n for _, n in partition_rows], "none", row_group_bytes=100_000)
    parquet = pq.ParquetFile(pa.BufferReader(encoded.data))
    sizes = [parquet.read_row_group(i).nbytes for i in range(parquet.num_row_groups)]
    assert max(sizes) <= 110_000
    assert len(sizes) < 1.2 * batch.nbytes / 100_000 + 3
    assert parquet.read().equals(pa.Table.from_batches([batch]))


def test_unusually_large_rows_get_smaller_row_groups():
    small, _ = batch_of({0: 5000}, value_bytes=10)
    large, _ = batch_of({0: 100}, value_bytes=20_000)
    batch = pa.Table.from_batches([small, large]).combine_chunks().to_batches()[0]
    encoded = encode_segment(batch, [5100], "none", row_group_bytes=100_000)
    parquet = pq.ParquetFile(pa.BufferReader(encoded.data))
    assert max(parquet.read_row_group(i).nbytes for i in range(parquet.num_row_groups)) <= 220_000
    assert parquet.read().equals(pa.Table.from_batches([batch]))


def test_the_row_groups_of_compacted_files_cost_less_than_a_hundredth_of_the_file():
    batch, _ = batch_of({0: 60_000}, value_bytes=100)
    plain, compacted = (
        encode_segment(batch, [60_000], "none", row_group_bytes=size)
        for size in (None, COMPACTED_ROW_GROUP_BYTES)
    )
    assert (
        read_layout(
            described(compacted), Parts(bytes(compacted.data)).get_range
        ).metadata.num_row_groups
        > 5
    )
    assert len(compacted.data) < 1.01 * len(plain.data)


def test_the_cost_of_a_range_does_not_depend_on_the_file_size(large_segments):
    costs = []
    for rows in (4000, 40_000):
        batch, _ = batch_of({0: rows})
        encoded = encode_segment(batch, [rows], "none", row_group_bytes=100_000)
        file, parts = described(encoded), Parts(bytes(encoded.data))
        layout = read_layout(file, parts.get_range)
        assert parts.fetched == file.footer_bytes
        wanted = RowRange(rows // 2, 10)
        found = read_rows(file, [wanted], COLUMNS, parts.get, parts.get_range, layout=layout)
        assert found.equals(batch.slice(rows // 2, 10))
        costs.append(parts.fetched - file.footer_bytes)
        assert len(parts.requests) == 2
        most = read_rows(
            file, [RowRange(0, rows - 1000)], COLUMNS, parts.get, parts.get_range, layout=layout
        )
        assert most.equals(batch.slice(0, rows - 1000)), (
            "the reader of a layout chose how much to fetch"
        )
    assert costs[0] < 120_000
    assert abs(costs[0] - costs[1]) < 0.02 * costs[0]


def test_only_the_named_columns_are_fetched(large_segments):
    batch, _ = batch_of({0: 20_000})
    batch = with_offsets(batch, list(range(20_000)), list(range(20_000)))
    encoded = encode_segment(batch, [20_000], "none", row_group_bytes=200_000)
    file, parts = described(encoded), Parts(bytes(encoded.data))
    columns = PLACES
    found = read_rows(file, [RowRange(7000, 5000)], columns, parts.get, parts.get_range)
    assert found.equals(batch.slice(7000, 5000).select(columns.names))
    assert parts.fetched - file.footer_bytes < 0.15 * 0.35 * file.size
    small = read_rows(
        replace(file), [RowRange(0, 20_000)], columns, lambda: parts.data, parts.get_range
    )
    assert small.equals(batch.select(columns.names))


def test_the_layout_has_the_row_ranges_and_their_numeric_bounds():
    chance = random.Random(3)
    offsets = sorted(chance.sample(range(10_000), 1000))
    times = [chance.randrange(10**15) for _ in offsets]
    batch, _ = batch_of({0: 1000})
    encoded = encode_segment(
        with_offsets(batch, offsets, times), [1000], "none", row_group_bytes=8000
    )
    layout = read_layout(described(encoded), Parts(bytes(encoded.data)).get_range)
    parquet = pq.ParquetFile(pa.BufferReader(encoded.data))
    rows = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
    assert len(rows) > 10
    for group, (first, after) in enumerate(zip(layout.firsts, layout.firsts[1:], strict=False)):
        assert after - first == rows[group]
        assert layout.bounds(group, "_offset") == (offsets[first], offsets[after - 1])
        assert layout.bounds(group, "_timestamp") == (
            min(times[first:after]),
            max(times[first:after]),
        )
        assert layout.bounds(group, "_key") is None
        assert layout.bounds(group, "no such column") is None
    for first in range(0, 1000, 37):
        for count in (0, 1, min(50, 1000 - first), 1000 - first):
            holding = [
                g
                for g in range(len(rows))
                if layout.firsts[g] < first + count and first < layout.firsts[g + 1]
            ]
            assert list(layout.groups(RowRange(first, count))) == (holding if count else [])


def test_columns_without_statistics_have_no_bounds():
    batch, _ = batch_of({0: 100})
    encoded = encode_segment(batch, [100], "none")
    layout = read_layout(described(encoded), Parts(bytes(encoded.data)).get_range)
    assert layout.bounds(0, "_offset") is None


@pytest.mark.parametrize("whole_bytes", [0, 1024 * 1024], ids=["in parts", "whole"])
def test_a_few_rows_of_a_file_do_not_keep_the_rest_of_it_in_memory(whole_bytes, monkeypatch):
    monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", whole_bytes)
    batch, partition_rows = batch_of(dict.fromkeys(range(100), 50))
    encoded = encode_segment(batch, [n for _, n in partition_rows], "none")
    data, before = bytes(encoded.data), pa.total_allocated_bytes()
    wanted = [RowRange(1000, 50), RowRange(2000, 50)]
    kept = read(data, described(encoded), *wanted)
    assert kept.equals(rows_of(batch, wanted))
    assert pa.total_allocated_bytes() - before < 2 * kept.nbytes


def test_a_range_without_rows_is_empty_and_fetches_nothing(large_segments):
    batch, _ = batch_of({0: 4000, 1: 4000})
    encoded = encode_segment(batch, [4000, 4000], "none")
    file, parts = described(encoded), Parts(bytes(encoded.data))
    found = read_rows(
        file, [RowRange(4000, 0), RowRange(4000, 3)], COLUMNS, parts.get, parts.get_range
    )
    assert found.equals(batch.slice(4000, 3))
    nothing = read_rows(file, [RowRange(4000, 0)], COLUMNS, parts.get, parts.get_range)
    assert (nothing.num_rows, nothing.schema) == (0, batch.schema)


def test_ranges_are_read_on_the_calling_thread_without_the_gaps_between(
    large_segments, monkeypatch
):
    """A thread of Arrow that holds Python's bytes when Python ends would abort the process."""
    reads: list[tuple[int, int, int]] = []
    read = FileParts.read

    def noted(self: FileParts, length: int) -> memoryview:
        reads.append((threading.get_ident(), self.tell(), length))
        return read(self, length)

    monkeypatch.setattr(FileParts, "read", noted)
    batch, _ = batch_of({0: 4000})
    encoded = encode_segment(batch, [4000], "none", row_group_bytes=2000)
    file, parts = described(encoded), Parts(bytes(encoded.data))
    wanted = [RowRange(0, 1), RowRange(900, 1), RowRange(1800, 1)]
    assert read_rows(file, wanted, COLUMNS, parts.get, parts.get_range).equals(
        rows_of(batch, wanted)
    )
    assert len(reads) >= 3 * 6
    assert {thread for thread, _, _ in reads} == {threading.get_ident()}
    assert max(length for _, _, length in reads) < 3000


def test_reading_unfetched_bytes_raises():
    file = FileParts(100, [(10, b"0123456789"), (50, b"abc")])
    assert (file.readable(), file.seekable()) == (True, True)
    for place, length, expected in ((10, 10, b"0123456789"), (13, 2, b"34"), (50, 3, b"abc")):
        file.seek(place)
        assert bytes(file.read(length)) == expected
        assert file.tell() == place + length
    assert (file.seek(-1, 2), file.seek(-4, 1)) == (99, 95)
    for place, length in ((9, 2), (19, 2), (49, 1), (52, 2), (0, 1), (97, 3)):
        file.seek(place)
        with pytest.raises(OSError, match="not among those"):
            file.read(length)


@pytest.mark.slow
@pytest.mark.fault("B2")
def test_no_flipped_bit_is_returned_when_only_some_columns_of_some_row_groups_are_read(
    large_segments,
):
    batch, _ = batch_of({0: 2000})
    batch = with_offsets(batch, list(range(2000)), list(range(0, 4000, 2)))
    encoded = encode_segment(batch, [2000], "none", row_group_bytes=20_000)
    file, columns = (
        described(encoded),
        pa.schema([COLUMNS.field("_offset"), COLUMNS.field("_timestamp")]),
    )
    wanted = [RowRange(500, 100), RowRange(1500, 100)]
    parts = Parts(bytes(encoded.data))
    clean = read_rows(file, wanted, columns, parts.get, parts.get_range)
    touched = [start + place for start, length in parts.requests for place in range(0, length, 7)]
    caught = 0
    for place in touched:
        damaged = bytearray(encoded.data)
        damaged[place] ^= 1 << place % 8
        parts = Parts(bytes(damaged))
        try:
            found = read_rows(file, wanted, columns, parts.get, parts.get_range)
        except Corrupt:
            caught += 1
        else:
            assert found == clean, "only bytes between the columns do not matter"
    assert caught > 0.9 * len(touched)


@pytest.mark.fault("B2")
@pytest.mark.parametrize("whole", [True, False])
def test_no_flipped_bit_is_ever_returned_as_a_value(whole, monkeypatch):
    monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 2**40 if whole else 0)
    batch, partition_rows = batch_of({0: 700, 1: 700, 2: 700, 3: 700})
    encoded = encode_segment(batch, [n for _, n in partition_rows], "zstd")
    file = described(encoded)
    wanted = RowRange(700, 700)
    clean = batch.slice(700, 700)
    chance = random.Random(1)
    places = [chance.randrange(file.size) for _ in range(300)] + list(
        range(file.size - 60, file.size)
    )
    caught = 0
    for place in places:
        data = bytearray(encoded.data)
        data[place] ^= 1 << chance.randrange(8)
        outcome = outcome_of(bytes(data), file, wanted)
        if isinstance(outcome, Corrupt):
            assert (outcome.path, outcome.version) == (file.key, 7)
            caught += 1
        else:
            assert not whole, "a file that is read whole is checked as a whole"
            assert outcome.equals(clean), (
                "what was read must be right when the damage is elsewhere in the file"
            )
    assert caught == len(places) if whole else caught > len(places) / 8


@pytest.mark.fault("B2")
@pytest.mark.parametrize("cut", [1, 8, 100, 1000])
@pytest.mark.parametrize("whole", [True, False])
def test_a_truncated_file_is_corrupt(cut, whole, monkeypatch):
    monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 2**40 if whole else 0)
    batch, partition_rows = batch_of({0: 100, 1: 100, 2: 100})
    encoded = encode_segment(batch, [n for _, n in partition_rows], "none")
    with pytest.raises(Corrupt, match="instead of"):
        read(bytes(encoded.data)[:-cut], described(encoded), RowRange(0, 100))


@pytest.mark.fault("B2")
def test_a_row_count_that_contradicts_the_log_is_corrupt():
    batch, partition_rows = batch_of({0: 10})
    encoded = encode_segment(batch, [n for _, n in partition_rows], "none")
    with pytest.raises(Corrupt, match="10 rows instead of 11"):
        read(bytes(encoded.data), replace(described(encoded), rows=11), RowRange(0, 10))


@pytest.mark.fault("X4")
def test_a_file_that_would_decode_to_too_much_memory_is_refused(monkeypatch):
    table = pa.table({"value": pa.array([b"\0" * 1000] * 5000)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    data = sink.getvalue().to_pybytes()
    file = SegmentFile(
        "topics/t/x.parquet", 1, len(data), 5000, zlib.crc32(data), 8, zlib.crc32(data[-8:])
    )
    monkeypatch.setattr(bounded_decoding, "DECODED_BYTES_MAX", 1_000_000)
    with pytest.raises(Corrupt, match="bytes of memory"):
        read_rows(file, [RowRange(0, 5000)], VALUE_SCHEMA, lambda: data, lambda start, length: b"")
    assert len(data) < 20_000


@pytest.mark.fault("B2")
def test_pages_carry_checksums_that_another_reader_verifies():
    batch, partition_rows = batch_of({0: 1000}, value_bytes=200)
    encoded = encode_segment(batch, [n for _, n in partition_rows], "none")
    data = bytearray(encoded.data)
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(OSError, match="CRC"):
        pq.ParquetFile(pa.BufferReader(bytes(data)), page_checksum_verification=True).read()


@pytest.mark.fault("B2")
def test_random_bytes_are_never_a_segment():
    data = os.urandom(500)
    file = SegmentFile("topics/t/x.parquet", 1, 500, 1, zlib.crc32(data), 8, zlib.crc32(data[-8:]))
    with pytest.raises(Corrupt, match="cannot be decoded"):
        read(data, file, RowRange(0, 1))
