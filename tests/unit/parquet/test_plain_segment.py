"""Segments encoded without Arrow: the same rows, schema, statistics and checksums as those that
Arrow encodes.
"""

from __future__ import annotations

import uuid
import zlib
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.consumer.decoding import DecodedRecords
from deltaq.errors import Corrupt
from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.parquet.plain_segment import PlainRows, decode_plain, encode_plain, in_ms
from deltaq.parquet.segment import EncodedSegment, RowRange, encode_segment, read_rows
from deltaq.parquet.segment_file import SegmentFile
from deltaq.producer.encoding import produced_ms
from deltaq.store.memory import MemoryStore
from deltaq.topics.columns import (
    by_partition,
    columns_of_rows,
    plain_batch,
    rows_by_partition,
    table_schema,
)
from deltaq.topics.scan import FEW_ROWS, FileRead, read_file, rows_of
from deltaq.topics.state import Batch, DataFile

VALUES = st.one_of(st.binary(max_size=3), st.binary(min_size=125, max_size=135))


@st.composite
def plain_rows(draw: st.DrawFn) -> PlainRows:
    partitions = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=300, unique=True))
    most = draw(st.sampled_from([1, 2, 300]))
    partition_rows = tuple(
        (partition, draw(st.integers(1, 150))) for partition in sorted(partitions[:most])
    )
    count = sum(rows for _, rows in partition_rows)
    chance = draw(st.randoms(use_true_random=False))
    some = draw(st.lists(VALUES, min_size=1, max_size=4))
    values = [chance.choice(some) for _ in range(count)]
    keys = [chance.choice(some) for _ in range(count)] if draw(st.booleans()) else None
    # Of a busy producer, many records have the same time.
    span = draw(st.sampled_from([0, 2, TIMESTAMP_MS_MAX]))
    first = chance.randint(0, TIMESTAMP_MS_MAX - span)
    times = [first + chance.randint(0, span) for _ in range(count)]
    if draw(st.booleans()):
        times.sort()
    return PlainRows(values, keys, times, partition_rows, timed=draw(st.booleans()))


def by_arrow(rows: PlainRows) -> tuple[pa.RecordBatch, EncodedSegment]:
    count, times = len(rows), pa.array(rows.times_ms, pa.int64())
    partitions = [partition for partition, share in rows.partition_rows for _ in range(share)]
    columns = columns_of_rows(
        partitions, times, rows.keys or [None] * count, [None] * count, rows.values, None
    )
    assert rows_by_partition(columns) == rows_by_partition(rows)
    batch, partition_rows = by_partition(columns, timed=rows.timed)
    assert batch.equals(plain_batch(rows))
    return batch, encode_segment(batch, [share for _, share in partition_rows], "none")


def described(encoded: EncodedSegment) -> SegmentFile:
    size = len(encoded.data)
    return SegmentFile(
        "t/x", 1, size, encoded.rows, encoded.crc32, encoded.footer_bytes, encoded.footer_crc32
    )


def read(encoded: EncodedSegment, data: bytes, first: int, count: int) -> pa.RecordBatch:
    # The checksums inside the file are in question.
    file = replace(described(encoded), crc32=zlib.crc32(data))
    wanted = [RowRange(first, count)]
    return read_rows(
        file, wanted, table_schema(None), lambda: data, lambda at, size: data[at : at + size]
    )


@given(plain_rows())
def test_what_is_encoded_by_hand_is_what_arrow_encodes(rows: PlainRows) -> None:
    mine, (batch, arrows) = encode_plain(rows), by_arrow(rows)
    file, other = (
        pq.ParquetFile(pa.BufferReader(each.data), page_checksum_verification=True)
        for each in (mine, arrows)
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


@given(
    st.lists(st.floats(0, 1, allow_nan=False), min_size=1, max_size=200),
    st.sampled_from([0.001, 0.01, 1, 1e6]),
    st.booleans(),
    st.floats(0, TIMESTAMP_MS_MAX / 2),
)
def test_times_are_converted_together_as_each_by_itself(
    within: list[float], span_s: float, ordered: bool, epoch_ms: float
) -> None:
    times = [span_s * each for each in (sorted(within) if ordered else within)]
    ms_of = partial(produced_ms, epoch_ms=epoch_ms)
    assert in_ms(times, ms_of) == [ms_of(time) for time in times]


@given(plain_rows(), st.data())
def test_a_reader_finds_any_range_of_the_rows(rows: PlainRows, data: st.DataObject) -> None:
    encoded = encode_plain(rows)
    first = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - first))
    batch, _ = by_arrow(rows)
    assert read(encoded, bytes(encoded.data), first, count).equals(batch.slice(first, count))


@given(plain_rows(), st.integers(0, TIMESTAMP_MS_MAX) | st.none(), st.data())
def test_records_decoded_without_arrow_are_those_that_arrow_decodes(
    rows: PlainRows, append_time_ms: int | None, data: st.DataObject
) -> None:
    encoded = encode_plain(rows)
    found = decode_plain(bytes(encoded.data), rows.partition_rows)
    assert found == (rows if rows.timed else replace(rows, times_ms=[0] * len(rows)))
    store, batches, first = MemoryStore(uuid.uuid4().hex), [], 0
    store.put("t/x", encoded.data)
    for partition, count in rows.partition_rows:
        batches.append(
            Batch(partition, base := 7 * partition % 1000, base + count, first, count, False, "x")
        )
        first += count
    append_time_ms = append_time_ms if rows.timed else append_time_ms or 0
    file = DataFile(
        "x",
        described(encoded),
        tuple(batches),
        0,
        0,
        0,
        append_time_ms,
        append_time_ms is not None,
        None,
    )
    wanted = []
    for batch in data.draw(st.lists(st.sampled_from(batches), min_size=1, unique_by=id)):
        start = data.draw(st.integers(batch.base_offset, batch.next_offset - 1))
        wanted.append((batch, start, data.draw(st.integers(start + 1, batch.next_offset))))
    read = FileRead(file, tuple(wanted))
    plain, arrow = (
        read_file(store, read, table_schema(None), plain=each) for each in (True, False)
    )
    assert all((part.plain is not None) == (len(rows) <= FEW_ROWS) for part in plain)
    joined = rows_of(plain, data.draw(st.integers(1, 2_000)))
    assert pa.Table.from_batches(joined) == pa.Table.from_batches([part.rows for part in arrow])
    for mine, other in zip(plain, arrow, strict=True):
        assert (len(mine), mine.rows) == (len(other), other.rows)
        assert replace(mine, arrow=None, plain=None, bytes=0) == replace(other, arrow=None, bytes=0)
        records, expected = (DecodedRecords("t", "id", each, None) for each in (mine, other))
        for row in range(len(mine)):
            for field in (
                "value_at",
                "key_at",
                "headers_at",
                "timestamp_at",
                "offset_at",
                "position_after",
            ):
                assert getattr(records, field)(row) == getattr(expected, field)(row)


def test_no_other_file_is_decoded_without_arrow() -> None:
    rows = PlainRows([b"one", b"two", b"three"], [b"k", b"", b"key"], [1, 2, 3], ((0, 1), (4, 2)))
    sound = bytes(encode_plain(rows).data)
    for place in range(len(sound)):
        for bit in range(8):
            damaged = bytearray(sound)
            damaged[place] ^= 1 << bit
            assert decode_plain(bytes(damaged), rows.partition_rows) is None, (place, bit)
        assert decode_plain(sound[:place], rows.partition_rows) is None
    assert decode_plain(bytes(by_arrow(rows)[1].data), rows.partition_rows) is None
    for partition_rows in (
        (),
        ((0, 1), (4, 1)),
        ((0, 2), (4, 1)),
        ((1, 1), (4, 2)),
        ((0, 1), (4, 2**40)),
    ):
        assert decode_plain(sound, partition_rows) is None


@pytest.mark.parametrize("keys", [None, [b"k", b"", b"key"]])
def test_no_flipped_bit_changes_a_row(keys: list[bytes] | None) -> None:
    rows = PlainRows([b"one", b"two", b"three"], keys, [1, 2, 3], ((0, 1), (4, 2)))
    encoded = encode_plain(rows)
    sound = read(encoded, bytes(encoded.data), 0, 3)
    refused = 0
    # The footer has a checksum of its own in the log.
    for place in range(4, len(encoded.data) - encoded.footer_bytes):
        for bit in range(8):
            damaged = bytearray(encoded.data)
            damaged[place] ^= 1 << bit
            try:
                assert read(encoded, bytes(damaged), 0, 3).equals(sound), (place, bit)
            except Corrupt:
                refused += 1
    assert refused > 1000
