"""Page headers as Thrift writes them, told the same way as Arrow does; anything else is a
ValueError.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.parquet.page_headers import ColumnContent

pytestmark = pytest.mark.fault("X4", "B2")

# Type, uncompressed and compressed size, and the header of a data page: values, encoding, encodings
# of the levels.
HEADER = bytes.fromhex("150015c80115062c15141500150615060000")
PAGE = HEADER + b"abc"


def content(chunk: bytes) -> ColumnContent:
    found = ColumnContent()
    found.add(memoryview(chunk))
    return found


@given(
    st.lists(st.one_of(st.none(), st.binary(max_size=300)), min_size=1, max_size=50),
    st.sampled_from(["none", "zstd", "snappy"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["1.0", "2.0"]),
    st.integers(1, 400),
)
def test_a_chunk_has_the_values_that_arrow_counts(
    values, codec, dictionary, statistics, version, page_bytes
):
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({"value": pa.array(values, pa.binary())}),
        sink,
        compression=codec,
        use_dictionary=dictionary,
        write_statistics=statistics,
        data_page_version=version,
        data_page_size=page_bytes,
        dictionary_pagesize_limit=page_bytes,
        write_page_checksum=page_bytes % 2 == 0,
    )
    data = sink.getvalue().to_pybytes()
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    stored = data[start : start + chunk.total_compressed_size]
    found = content(stored)
    assert found.values == chunk.num_values == len(values)
    assert sum(len(value) for value in {*values} - {None} if dictionary) <= found.page_bytes
    assert found.page_bytes < chunk.total_uncompressed_size, (
        "the footer's number has the headers too"
    )
    assert bool(found.dictionary_values) == (
        chunk.has_dictionary_page and any(value is not None for value in values)
    )
    assert found.dictionary_values <= len({*values} - {None})
    if codec == "none":
        assert found.page_bytes < len(stored)
    with pytest.raises(ValueError, match="does not end"):
        content(stored[:-1])


def test_a_page_header_gives_its_decoded_size():
    found = content(PAGE + PAGE)
    assert (found.values, found.page_bytes, found.dictionary_values, found.expanded_bytes) == (
        20,
        200,
        0,
        0,
    )


def test_dictionary_references_are_counted_at_the_largest_value():
    dictionary = bytes.fromhex("150415c80115064c150415000000") + b"abc"
    found = content(dictionary + PAGE[:11] + b"\x10" + PAGE[12:] + PAGE)
    assert (found.values, found.dictionary_values, found.expanded_bytes) == (20, 2, 10 * 100)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (HEADER[:11] + b"\x0e" + HEADER[12:], "encoding number 7; only PLAIN"),
        (HEADER[:11] + b"\x01" + HEADER[12:], "field 2"),
        (b"\x15\x02" + HEADER[2:7] + b"\x00", "does not end"),
        (b"\x15\x08" + HEADER[2:], "kind 4 has no description"),
        (b"\x15\x04" + HEADER[2:], "kind 2 has no description"),
        (b"\x00", "field 1"),
        (b"\x15\x00\x15\xc7\x01\x15\x06\x00", "field 2"),
        (b"\x15\x00\x15" + b"\xff" * 4 + b"\x1f" + HEADER[5:], "more than 32 bits"),
        (b"\x15\x00\x15" + b"\x80" * 5 + b"\x01" + HEADER[5:], "more than 32 bits"),
        (b"\x05\x02" + HEADER[2:], "out of order"),
        (b"\x16" + HEADER[1:], "field 1"),
        (HEADER[:7] + b"\x2c" + b"\x1c" * 5, "nested too deeply"),
        (HEADER[:7] + b"\x29\x15", "field of the type 9"),
        (HEADER[:7] + b"\x28\xff\xff\xff\xff\x0f", "does not end"),
    ],
    ids=[
        "an encoding that can lie",
        "a negative encoding",
        "an index page without its body",
        "an unknown kind of page",
        "a header of another kind of page",
        "an empty header",
        "a negative size",
        "a size beyond 32 bits",
        "a number that does not end",
        "a field number written out, as for a repeated field",
        "a number of another type",
        "structs without end",
        "a list",
        "text longer than the file",
    ],
)
def test_a_header_that_arrow_might_read_differently_is_refused(header, reason):
    with pytest.raises(ValueError, match=reason):
        content(header)


@given(st.binary(max_size=60))
def test_random_bytes_are_no_pages(noise):
    try:
        found = content(PAGE + noise)
    except ValueError:
        return
    assert found.values >= 10


def test_a_chunk_cut_anywhere_is_refused():
    for length in range(1, len(PAGE)):
        with pytest.raises(ValueError, match="does not end"):
            content(PAGE[:length])
    assert content(b"") == ColumnContent()
