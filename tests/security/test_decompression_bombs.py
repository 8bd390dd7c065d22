"""Data files of a few bytes that stand for very many: refused before the memory is spent, whatever
their footer says.

The limit is lowered, so that each file would take many times of it and yet little, and Arrow's own
pool counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from deltaq import Corrupt, KafkaError, Topic
from deltaq.parquet import bounded_decoding, segment_file
from deltaq.parquet.tables import read_table
from deltaq.store import MemoryStore
from tests.security.forged import as_parquet, as_segment, refusal, replace_file, topic_of_three

pytestmark = pytest.mark.fault("X4")

LIMIT = 4_000_000
ROWS = 2000
LONG = b"x" * 20_000  # in every row: ten times the limit


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_decoding, "DECODED_BYTES_MAX", LIMIT)


@pytest.fixture
def store() -> MemoryStore:
    return topic_of_three()


_POOLS: list[pa.MemoryPool] = []
"""They have to outlive all that was allocated from them, until the process ends."""


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Arrow takes no more than `limit` bytes meanwhile."""
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    _POOLS.append(counted)
    pa.set_memory_pool(counted)
    try:
        yield
    finally:
        pa.set_memory_pool(usual)
    assert counted.max_memory() < limit, f"{counted.max_memory()} bytes were taken"


def varint(number: int) -> bytes:
    """As Thrift writes a number without sign."""
    low = number & 127
    return bytes([low]) if number < 128 else bytes([low | 128]) + varint(number >> 7)


def in_footer(data: bytes, old: bytes, new: bytes) -> bytes:
    """Another footer of the same length. `old` must be in it."""
    at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert len(old) == len(new)
    assert data.count(old, at) >= 1
    return data[:at] + data[at:].replace(old, new)


def long_values(**options: object) -> bytes:
    return as_segment(
        pa.table({"value": pa.array([LONG] * ROWS)}), ROWS, use_dictionary=False, **options
    )


def prefixes() -> bytes:
    return long_values(column_encoding={"value": "DELTA_BYTE_ARRAY"}, compression="zstd")


def prefixes_called_plain() -> bytes:
    """The footer says PLAIN; the pages, by which Arrow goes, say DELTA_BYTE_ARRAY."""
    return in_footer(prefixes(), b"\x19\x25\x06\x0e", b"\x19\x25\x06\x00")


def pages_called_small() -> bytes:
    """Compressed pages of which the footer says that they decompress to very little."""
    data = long_values(compression="zstd", write_statistics=False)
    size = (
        bounded_decoding.open_footer(data).metadata.row_group(0).column(6).total_uncompressed_size
    )
    return in_footer(
        data, varint(2 * size), varint(2 * size % 128 + (1 << (7 * (len(varint(2 * size)) - 1))))
    )


def lengths_without_values() -> bytes:
    """A page of DELTA_LENGTH_BYTE_ARRAY with one value, whose body says that 33 million lengths
    follow, all of them 0 and stored in no bits at all.
    """
    column = pa.schema([pa.field("value", pa.binary(), nullable=False)])
    table = pa.table({"value": [b"x" * 64]}, schema=column)
    encoding = {"value": "DELTA_LENGTH_BYTE_ARRAY"}
    data = as_parquet(
        table,
        use_dictionary=False,
        column_encoding=encoding,
        compression="none",
        write_statistics=False,
    )
    # Values in a block, blocks in it, values, the first.
    lengths = varint(128) + varint(4) + varint(1) + varint(128)
    start = data.index(lengths + b"x" * 64)
    forged = varint(128 * 2**18) + varint(1) + varint(2**25) + bytes(3)
    return data[:start] + forged.ljust(len(lengths) + 64, b"\0") + data[start + len(lengths) + 64 :]


def fixed_lengths() -> bytes:
    values = pa.array([LONG] * ROWS, pa.binary(len(LONG)))
    return as_parquet(pa.table({"value": values}), use_dictionary=True)


def many_nulls() -> bytes:
    return as_segment(pa.table({"value": pa.nulls(1_000_000, pa.binary())}), 1_000_000)


def many_booleans() -> bytes:
    column = pa.array([True]).take(pa.array([0] * 10_000_000, pa.int32()))
    return as_parquet(
        pa.table({"value": column}), column_encoding={"value": "RLE"}, use_dictionary=False
    )


def many_empty_lists() -> bytes:
    empty = pa.array([[[[]]]], pa.list_(pa.list_(pa.list_(pa.int8()))))
    return as_parquet(pa.table({"value": empty.take(pa.array([0] * 300_000, pa.int32()))}))


def many_short_list_elements() -> bytes:
    element = pa.ListArray.from_arrays(
        pa.array([0, 3_000_000], pa.int32()), pa.nulls(3_000_000, pa.int8())
    )
    return as_parquet(pa.table({"value": element}))


BOMBS: dict[str, tuple[Callable[[], bytes], int, str]] = {
    "prefixes of the value before": (prefixes, ROWS, "encoding number 7"),
    "prefixes that the footer does not tell of": (prefixes_called_plain, ROWS, "encoding number 7"),
    "pages larger than the footer says": (pages_called_small, ROWS, "bytes of memory"),
    "rows of nulls": (many_nulls, 1_000_000, "bytes of memory"),
}


@pytest.mark.parametrize(("build", "rows", "reason"), BOMBS.values(), ids=BOMBS.keys())
def test_a_data_file_that_decodes_beyond_the_limit_is_corrupt_before_decoding(
    store, build, rows, reason
):
    data = build()
    assert len(data) < LIMIT / 20
    replace_file(store, data, rows)
    with at_most(LIMIT):
        raised, error = refusal(store)
    assert isinstance(raised, Corrupt)
    assert re.search(reason, str(raised))
    assert (raised.path.endswith(".parquet"), raised.version) == (True, 3)
    assert error.code() == KafkaError._BAD_MSG


ANY_FILE = {
    "lengths without values": (lengths_without_values, "encoding number 6"),
    "references to a value of fixed length": (fixed_lengths, "bytes of memory"),
    "runs of one boolean": (many_booleans, "bytes of memory"),
    "empty lists in lists": (many_empty_lists, "bytes of memory"),
    "a list of nulls": (many_short_list_elements, "bytes of memory"),
}


@pytest.mark.parametrize(("build", "reason"), ANY_FILE.values(), ids=ANY_FILE.keys())
def test_no_column_of_any_type_decodes_to_more_than_the_limit(build, reason):
    """Read as a checkpoint is, whose columns may be of any type."""
    data = build()
    assert len(data) < LIMIT / 20
    with at_most(LIMIT), pytest.raises(Corrupt, match=reason):
        read_table(data, "topics/t/_delta_log/00000000000000000003.checkpoint.parquet")


def with_long_values_in(name: str) -> bytes:
    table = pa.table({"value": pa.array([b"v"] * ROWS), name: pa.array([LONG] * ROWS)})
    return as_segment(table, ROWS, use_dictionary=False, compression="zstd")


@pytest.mark.parametrize("whole", [True, False], ids=["read whole", "read in parts"])
def test_columns_that_the_table_does_not_have_are_not_decoded(store, monkeypatch, whole):
    replace_file(store, with_long_values_in("more"), ROWS)
    if not whole:
        monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 0)
    with at_most(LIMIT):
        found = Topic("t", store=store).to_arrow()
    assert found["value"].to_pylist()[2:] == [b"v"] * ROWS
    assert found.column_names == [
        "_partition",
        "_offset",
        "_timestamp",
        "_key",
        "_headers",
        "value",
    ]


@pytest.mark.parametrize("name", ["value.more", "_partition.more"])
def test_columns_that_arrow_reads_as_subcolumns_are_counted(store, name):
    replace_file(store, with_long_values_in(name), ROWS)
    with at_most(LIMIT), pytest.raises(Corrupt, match="bytes of memory"):
        Topic("t", store=store).to_arrow()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"store_schema": True},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"use_dictionary": False, "column_encoding": {"_offset": "DELTA_BINARY_PACKED"}},
        {"use_dictionary": False, "column_encoding": {"_timestamp": "BYTE_STREAM_SPLIT"}},
        {
            "data_page_size": 100,
            "row_group_size": 7,
            "write_page_index": True,
            "write_page_checksum": True,
        },
    ],
    ids=str,
)
def test_files_of_other_writers_are_read_with_any_page_layout(store, options):
    values = [None if number % 7 == 0 else b"value %d" % number for number in range(300)]
    table = pa.table({"value": pa.array(values, pa.large_binary())})
    replace_file(store, as_segment(table, 300, **options), 300)
    found = Topic("t", store=store).to_arrow()
    assert found["value"].to_pylist()[2:] == values
    assert found.schema.field("value").type == pa.binary()


def test_a_footer_with_very_many_columns_is_corrupt_before_it_is_parsed(store):
    """Arrow takes some 700 bytes for a column chunk of three."""
    chunks = 30_000
    schema = b"\x48\x01a\x15\x02\x00" + b"\x15\x02\x25\x02\x18\x01a\x00"
    row_group = b"\x19\xfc" + varint(chunks) + b"\x26\x00\x00" * chunks + b"\x16\x00\x16\x02\x00"
    footer = b"\x15\x04\x19\x2c" + schema + b"\x16\x02\x19\x1c" + row_group + b"\x00"
    replace_file(store, b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1", 1)
    raised, error = refusal(store)
    assert isinstance(raised, Corrupt)
    assert "footer would take more memory" in str(raised)
    assert error.code() == KafkaError._BAD_MSG
