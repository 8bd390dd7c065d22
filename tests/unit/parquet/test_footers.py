"""Footers as Arrow writes them are passed, and those that stand for far more than they hold are
not.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.parquet.footers import GROWTH, STRUCT_BYTES, check_footer, footer_of

pytestmark = pytest.mark.fault("X4")

CHUNK = b"\x26\x00\x00"  # a column chunk that has nothing but its place


def footer_with(*fields: bytes) -> memoryview:
    return memoryview(b"\x15\x04" + b"".join(fields) + b"\x00")


def checked(footer: memoryview) -> None:
    """With the highest limit at which it is looked through."""
    check_footer(footer, len(footer) * GROWTH - 1)


@given(
    st.integers(1, 20),
    st.integers(0, 60),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.booleans(),
)
def test_footers_of_arrow_are_read_to_their_end(columns, rows, notes, store_schema):
    kinds = [
        pa.int32(),
        pa.string(),
        pa.bool_(),
        pa.list_(pa.struct([("a", pa.binary())])),
        pa.decimal128(5, 2),
    ]
    arrays = {f"c{number}": pa.nulls(rows, kinds[number % len(kinds)]) for number in range(columns)}
    table = pa.table(arrays).replace_schema_metadata(notes)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=7, store_schema=store_schema, write_page_index=True)
    footer = footer_of(sink.getvalue().to_pybytes())
    checked(footer)
    if rows:
        with pytest.raises(ValueError, match="is cut"):
            checked(footer[:-1])
        with pytest.raises(ValueError, match="more memory"):
            check_footer(footer, 2 * STRUCT_BYTES)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (b"\x19\xfc\xe8\x07" + CHUNK * 1000, "more memory"),
        (b"\x19\xf8\xff\xff\xff\xff\x0f", "more memory"),
        (b"\x18\xff\xff\xff\xff\x0f", "more memory"),
        (b"\x1b\xff\xff\xff\xff\x0f\x88", "more memory"),
        (b"\x1c" * 200, "nested too deeply"),
        (b"\x19\x19" * 200, "nested too deeply"),
        (b"\x1e", "type 14"),
        (b"\x16" + b"\xff" * 11, "more than 64 bits"),
    ],
    ids=[
        "structs",
        "texts",
        "a text",
        "a map",
        "structs in structs",
        "lists in lists",
        "an unknown type",
        "a number",
    ],
)
def test_an_oversized_or_unreadable_footer_is_refused(field, reason):
    # Large enough to be looked through.
    footer = memoryview(bytes(footer_with(field)).ljust(4000, b"\0"))
    with pytest.raises(ValueError, match=reason):
        check_footer(footer, 600 * STRUCT_BYTES)


def test_every_thrift_type_is_skipped_correctly():
    values = [
        b"\x11\x12",  # two truths
        b"\x13\x07\x14\x02\x15\x80\x01\x16\x02",  # numbers
        b"\x17" + bytes(8),
        b"\x18\x03abc",
        b"\x19\x31\x01\x02\x01",  # a list of truths
        b"\x1a\x25\x02\x04",
        b"\x1b\x01\x85\x01k\x02\x1b\x00",  # a map, and an empty one
        b"\x1c\x15\x02\x00",
        b"\x05\x28\x02",  # its number written out
        b"\x1d" + bytes(16),
    ]
    checked(footer_with(*values))
    with pytest.raises(ValueError, match="is cut"):
        checked(footer_with(*values)[:-1])


def test_a_small_footer_is_parsed_by_arrow_alone():
    check_footer(memoryview(b"\xff" * 10), 10 * GROWTH)
    assert not footer_of(b"PAR1")
    assert bytes(footer_of(b"PAR1abc\x03\0\0\0PAR1")) == b"abc"
