"""Segments: Parquet both ways, and no damaged byte ever comes back as a value."""

from __future__ import annotations

import os
import random
import zlib
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaq.errors import Corrupt, InvalidConfig
from deltaq.log import segment as segment_module
from deltaq.log.records import by_partition, columns_of_rows
from deltaq.log.segment import COMPRESSIONS, EncodedSegment, RowRange, SegmentFile, encode_segment, read_rows


def batch_of(rows_per_partition: dict[int, int], value_bytes: int = 100, seed: int = 0):
    """A sorted batch with random values, and its shares."""
    chance = random.Random(seed)
    partitions = [p for p, n in rows_per_partition.items() for _ in range(n)]
    chance.shuffle(partitions)
    values = [chance.randbytes(value_bytes) for _ in partitions]
    times = pa.array([1_700_000_000_000] * len(values), pa.int64())
    return by_partition(columns_of_rows(partitions, times, [b"k"] * len(values), [None] * len(values), values, None))


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


def read(data: bytes, file: SegmentFile, *wanted: RowRange) -> list[pa.RecordBatch]:
    return read_rows(file, wanted, lambda: data, lambda start, length: data[start : start + length])


def outcome_of(data: bytes, file: SegmentFile, wanted: RowRange) -> pa.RecordBatch | Corrupt:
    """The rows, or why there are none."""
    try:
        return read(data, file, wanted)[0]
    except Corrupt as error:
        return error


@pytest.fixture
def large_segments(monkeypatch):
    """Treat every file as too large to be read whole."""
    monkeypatch.setattr(segment_module, "WHOLE_FILE_BYTES", 0)


@pytest.mark.parametrize("compression", sorted(COMPRESSIONS))
def test_every_compression_brings_the_same_rows_back(compression):
    batch, shares = batch_of({0: 100, 3: 50, 4: 1})
    encoded = encode_segment(batch, [n for _, n in shares], compression)
    assert read(bytes(encoded.data), described(encoded), RowRange(0, 151))[0].equals(batch)
    found = pq.ParquetFile(pa.BufferReader(encoded.data)).metadata.row_group(0).column(5).compression
    assert found in {"none": ("UNCOMPRESSED",), "lz4": ("LZ4", "LZ4_RAW")}.get(compression, (compression.upper(),))


def test_shares_are_the_runs_of_the_sorted_partitions():
    batch, shares = batch_of({5: 3, 0: 7, 2: 1})
    assert shares == ((0, 7), (2, 1), (5, 3))
    assert batch.column("_partition").to_pylist() == [0] * 7 + [2] + [5] * 3


def test_an_unknown_compression_or_level_is_refused_by_name():
    batch, _ = batch_of({0: 1})
    with pytest.raises(InvalidConfig, match='"brotli"'):
        encode_segment(batch, [1], "brotli")
    with pytest.raises(InvalidConfig, match='"99"'):
        encode_segment(batch, [1], "gzip", 99)


def test_large_shares_get_row_groups_of_their_own_and_small_ones_are_packed():
    batch, shares = batch_of({0: 10, 1: 10, 2: 2000, 3: 2000, 4: 10})
    encoded = encode_segment(batch, [n for _, n in shares], "none")
    metadata = pq.ParquetFile(pa.BufferReader(encoded.data)).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [20, 2000, 2000, 10]


def test_of_a_large_file_only_the_footer_and_the_needed_row_groups_are_read(large_segments):
    batch, shares = batch_of(dict.fromkeys(range(8), 4000))
    encoded = encode_segment(batch, [n for _, n in shares], "none")
    data = bytes(encoded.data)
    requests = []

    def get_range(start: int, length: int) -> bytes:
        requests.append(length)
        return data[start : start + length]

    def get() -> bytes:
        raise AssertionError("the whole file is not needed")

    wanted = [RowRange(2 * 4000 + 17, 100), RowRange(5 * 4000, 4000)]
    found = read_rows(described(encoded), wanted, get, get_range)
    assert [rows.equals(batch.slice(part.first, part.count)) for rows, part in zip(found, wanted, strict=True)] == [
        True,
        True,
    ]
    assert len(requests) == 3
    assert sum(requests) < 0.3 * len(data)


@pytest.mark.fault("B2")
@pytest.mark.parametrize("whole", [True, False])
def test_no_flipped_bit_anywhere_is_ever_returned_as_a_value(whole, monkeypatch):
    monkeypatch.setattr(segment_module, "WHOLE_FILE_BYTES", 2**40 if whole else 0)
    batch, shares = batch_of({0: 700, 1: 700, 2: 700, 3: 700})
    encoded = encode_segment(batch, [n for _, n in shares], "zstd")
    file = described(encoded)
    wanted = RowRange(700, 700)
    clean = batch.slice(700, 700)
    chance = random.Random(1)
    places = [chance.randrange(file.size) for _ in range(300)] + list(range(file.size - 60, file.size))
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
            assert outcome.equals(clean), "what was read must be right when the damage is elsewhere in the file"
    assert caught == len(places) if whole else caught > len(places) / 8


@pytest.mark.fault("B2")
@pytest.mark.parametrize("cut", [1, 8, 100, 1000])
@pytest.mark.parametrize("whole", [True, False])
def test_a_truncated_file_is_corrupt(cut, whole, monkeypatch):
    monkeypatch.setattr(segment_module, "WHOLE_FILE_BYTES", 2**40 if whole else 0)
    batch, shares = batch_of({0: 100, 1: 100, 2: 100})
    encoded = encode_segment(batch, [n for _, n in shares], "none")
    with pytest.raises(Corrupt, match="instead of"):
        read(bytes(encoded.data)[:-cut], described(encoded), RowRange(0, 100))


@pytest.mark.fault("B2")
def test_a_row_count_that_contradicts_the_log_is_corrupt():
    batch, shares = batch_of({0: 10})
    encoded = encode_segment(batch, [n for _, n in shares], "none")
    with pytest.raises(Corrupt, match="10 rows instead of 11"):
        read(bytes(encoded.data), replace(described(encoded), rows=11), RowRange(0, 10))


@pytest.mark.fault("X4")
def test_a_file_that_would_decode_to_too_much_memory_is_refused(monkeypatch):
    table = pa.table({"value": pa.array([b"\0" * 1000] * 5000)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    data = sink.getvalue().to_pybytes()
    file = SegmentFile("topics/t/x.parquet", 1, len(data), 5000, zlib.crc32(data), 8, zlib.crc32(data[-8:]))
    monkeypatch.setattr(segment_module, "DECODED_BYTES_MAX", 1_000_000)
    with pytest.raises(Corrupt, match="bytes of memory"):
        read(data, file, RowRange(0, 5000))
    assert len(data) < 20_000


@pytest.mark.fault("B2")
def test_pages_carry_checksums_that_another_reader_verifies():
    batch, shares = batch_of({0: 1000}, value_bytes=200)
    encoded = encode_segment(batch, [n for _, n in shares], "none")
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
