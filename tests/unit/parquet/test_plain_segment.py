"""Segments encoded without Arrow: the same rows, schema, statistics and checksums as those that Arrow encodes."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.errors import Corrupt
from deltaq.parquet.plain_segment import PlainRows, encode_plain
from deltaq.parquet.segment import EncodedSegment, RowRange, SegmentFile, encode_segment, read_rows
from deltaq.topics.columns import TIMESTAMP_MS_MAX, by_partition, columns_of_plain, rows_by_partition, table_schema

VALUES = st.one_of(st.binary(max_size=3), st.binary(min_size=125, max_size=135))


@st.composite
def plain_rows(draw: st.DrawFn) -> PlainRows:
    partitions = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=300, unique=True))
    most = draw(st.sampled_from([1, 2, 300]))
    shares = tuple((partition, draw(st.integers(1, 150))) for partition in sorted(partitions[:most]))
    count = sum(rows for _, rows in shares)
    chance = draw(st.randoms(use_true_random=False))
    some = draw(st.lists(VALUES, min_size=1, max_size=4))
    values = [chance.choice(some) for _ in range(count)]
    keys = [chance.choice(some) for _ in range(count)] if draw(st.booleans()) else None
    times = [chance.randint(0, TIMESTAMP_MS_MAX) for _ in range(count)]
    return PlainRows(values, keys, times, shares, timed=draw(st.booleans()))


def by_arrow(rows: PlainRows) -> tuple[pa.RecordBatch, EncodedSegment]:
    batch, shares = by_partition(columns_of_plain(rows), timed=rows.timed)
    return batch, encode_segment(batch, [share for _, share in shares], "none")


def described(encoded: EncodedSegment) -> SegmentFile:
    size = len(encoded.data)
    return SegmentFile("t/x", 1, size, encoded.rows, encoded.crc32, encoded.footer_bytes, encoded.footer_crc32)


def read(encoded: EncodedSegment, data: bytes, first: int, count: int) -> pa.RecordBatch:
    file = replace(described(encoded), crc32=zlib.crc32(data))  # the checksums inside the file are in question
    wanted = [RowRange(first, count)]
    return read_rows(file, wanted, table_schema(None), lambda: data, lambda at, size: data[at : at + size])[0]


@given(plain_rows())
def test_what_is_encoded_by_hand_is_what_arrow_encodes(rows: PlainRows) -> None:
    mine, (batch, arrows) = encode_plain(rows), by_arrow(rows)
    assert rows_by_partition(rows) == rows_by_partition(columns_of_plain(rows))
    file, other = (
        pq.ParquetFile(pa.BufferReader(each.data), page_checksum_verification=True) for each in (mine, arrows)
    )
    assert pa.Table.from_batches([batch]).equals(file.read())
    assert file.schema.equals(other.schema)
    assert file.metadata.num_row_groups == other.metadata.num_row_groups == 1
    for number in range(file.metadata.num_columns):
        found, expected = (each.metadata.row_group(0).column(number) for each in (file, other))
        assert (found.compression, found.num_values) == ("UNCOMPRESSED", len(rows))
        assert set(found.encodings) <= set(expected.encodings) | {"RLE_DICTIONARY"}
        assert (found.statistics is None) == (expected.statistics is None)
        if found.statistics is not None:
            assert found.statistics.to_dict() == expected.statistics.to_dict()
    assert (mine.rows, mine.statistics) == (arrows.rows, arrows.statistics)


@given(plain_rows(), st.data())
def test_a_reader_finds_any_range_of_the_rows(rows: PlainRows, data: st.DataObject) -> None:
    encoded = encode_plain(rows)
    first = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - first))
    batch, _ = by_arrow(rows)
    assert read(encoded, bytes(encoded.data), first, count).equals(batch.slice(first, count))


@pytest.mark.parametrize("keys", [None, [b"k", b"", b"key"]])
def test_no_flipped_bit_changes_a_row(keys: list[bytes] | None) -> None:
    rows = PlainRows([b"one", b"two", b"three"], keys, [1, 2, 3], ((0, 1), (4, 2)))
    encoded = encode_plain(rows)
    sound = read(encoded, bytes(encoded.data), 0, 3)
    refused = 0
    for place in range(4, len(encoded.data) - encoded.footer_bytes):  # the footer has a checksum of its own in the log
        for bit in range(8):
            damaged = bytearray(encoded.data)
            damaged[place] ^= 1 << bit
            try:
                assert read(encoded, bytes(damaged), 0, 3).equals(sound), (place, bit)
            except Corrupt:
                refused += 1
    assert refused > 1000
