"""Statistics of files: bounds that hold for every value, of all columns or of none."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.parquet.column_bounds import (
    STATISTICS_PROPERTY,
    ColumnStatistics,
    file_stats,
    indexed_columns,
)
from deltaq.parquet.file_statistics import (
    INDEXED_COLUMNS_MAX,
    TEXT_CHARS_MAX,
    float_statistics,
    indexable_fields,
    integer_statistics,
    statistics_property,
    text_statistics,
)
from deltaq.parquet.segment import encode_segment
from deltaq.serde.source import schema_of
from deltaq.topics.columns import table_schema

TEXTS = st.text(
    st.sampled_from(
        ["a", "b", "\x00", "\ud7ff", "\ue000", "\U0001ffff", "\U00020000", "\U0010ffff"]
    ),
    max_size=40,
)
TIME = pa.field("at", pa.timestamp("us", tz="UTC"))


@given(st.lists(TEXTS, min_size=1))
def test_every_string_lies_between_bounds_that_are_short(texts: list[str]) -> None:
    stored = sorted(text.encode() for text in texts)  # engines compare strings by their bytes
    found = text_statistics("c", 0, stored[0], stored[-1])
    if found.low is None:
        assert max(texts)[0] > "\U0001fffe", "only such a string has no short one above it"
        return
    low, high = found.low, found.high
    assert isinstance(low, str)
    assert isinstance(high, str)
    assert low.encode() <= stored[0]
    assert stored[-1] <= high.encode()
    assert max(len(low), len(high)) <= TEXT_CHARS_MAX
    assert max(low + high, default="") <= "\U0001ffff", (
        "what Arrow's JSON reader in Rust decodes rightly"
    )


@given(
    st.lists(st.floats(width=32) | st.none(), min_size=1),
    st.sampled_from([pa.float32(), pa.float64()]),
)
def test_float_bounds_keep_the_sign_of_zero_and_are_omitted_if_not_json(
    values: list[float | None], kind: pa.DataType
) -> None:
    found = float_statistics("c", pa.array(values, kind))
    numbers = [value for value in values if value is not None]
    assert found.nulls == len(values) - len(numbers)
    if not numbers or not all(map(math.isfinite, numbers)):
        assert (found.low, found.high) == (None, None)
    else:
        ordered = sorted(numbers, key=lambda number: (number, math.copysign(1, number)))
        assert [struct.pack("d", bound) for bound in (found.low, found.high)] == [
            struct.pack("d", ordered[place]) for place in (0, -1)
        ]


def test_bounds_of_times_are_whole_milliseconds_around_every_microsecond() -> None:
    found = integer_statistics(TIME, 0, -1, 1_000_001)
    assert (found.low, found.high) == ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:01.001Z")


def test_times_and_dates_that_delta_cannot_write_have_no_bounds() -> None:
    last = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 10**6
    assert integer_statistics(TIME, 0, last, last + 999_000).high == "9999-12-31T23:59:59.999Z"
    assert integer_statistics(TIME, 0, last, last + 999_001).high is None
    assert integer_statistics(pa.field("day", pa.date32()), 0, 0, 10**7).low is None


@pytest.mark.parametrize(
    "values",
    [
        # Nothing is known of `b`, as of a file that another process has uploaded.
        [ColumnStatistics("a", 0, 1, 2)],
        # It has values that no bounds can be told of.
        [ColumnStatistics("a", 0, 1, 2), ColumnStatistics("b", 1)],
    ],
)
def test_a_file_with_one_unknown_bound_has_no_bounds(values: list[ColumnStatistics]) -> None:
    own = [ColumnStatistics("_partition", 0, 0, 1), ColumnStatistics("_offset", 3)]
    stats = json.loads(file_stats(3, own, values, ("a", "b")))
    assert stats == {
        "numRecords": 3,
        "nullCount": {"_partition": 0, "_offset": 3, **{c.name: c.nulls for c in values}},
    }


def test_a_column_of_nulls_needs_no_bounds_and_others_keep_theirs() -> None:
    values = [
        ColumnStatistics("a", 0, 1, 2),
        ColumnStatistics("b", 3),
        ColumnStatistics("c", 0, 7, 8),
    ]
    stats = json.loads(file_stats(3, [], values, ("a", "b")))
    assert stats["minValues"] == {"a": 1}
    assert stats["maxValues"] == {"a": 2}
    assert stats["nullCount"] == {"a": 0, "b": 3}, "the table does not name the third column"


def test_a_wide_table_has_statistics_of_its_first_columns_only() -> None:
    schema = table_schema(
        schema_of(pa.schema([(f"c{number}", pa.int64()) for number in range(1000)]))
    )
    named = statistics_property(schema).split(",")
    assert named == [
        "_partition",
        "_offset",
        "_timestamp",
        *(f"c{n}" for n in range(INDEXED_COLUMNS_MAX - 3)),
    ]
    assert indexed_columns({STATISTICS_PROPERTY: ",".join(named)}) == tuple(named[3:])


def test_ambiguously_quoted_names_and_unordered_types_have_no_statistics() -> None:
    fields = [
        ("größe", pa.int64()),
        ("a b", pa.int64()),
        ("raw", pa.binary()),
        ("list", pa.list_(pa.int64())),
    ]
    assert indexable_fields(
        pa.schema([*fields, ("price", pa.decimal128(4, 2)), ("id", pa.int8())])
    ) == [pa.field("id", pa.int8())]


def statistics_of(column: pa.Array, groups: int = 1) -> ColumnStatistics:
    """Those of a file with this column, in several row groups."""
    rows = pa.table({"_partition": pa.array(range(len(column)), pa.int32()), "c": column})
    (found,) = encode_segment(
        rows, [1] * len(column), "none", row_group_bytes=rows.nbytes // groups
    ).statistics
    return found


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(
    ("values", "kind", "low", "high"),
    [
        ([3, None, -5, 4], pa.int8(), -5, 4),
        ([None, None, 2**62, -(2**63)], pa.int64(), -(2**63), 2**62),
        ([None, None, None, None], pa.int64(), None, None),
        ([True, None, False, True], pa.bool_(), False, True),
        (["b", None, "a", "ä"], pa.string(), "a", "ä"),
        (["b" * 5000, "a", None, "c" * 5000], pa.string(), "a", "c" * 31 + "d"),
        ([None, None, None, None], pa.string(), None, None),
        ([1.5, None, -2.0, 0.0], pa.float64(), -2.0, 1.5),
        ([0, None, 19_782, 3], pa.date32(), "1970-01-01", "2024-02-29"),
    ],
)
def test_an_encoded_file_has_the_bounds_of_all_its_row_groups(
    groups: int, values: list[Any], kind: pa.DataType, low: Any, high: Any
) -> None:
    found = statistics_of(pa.array(values, kind), groups)
    assert found == ColumnStatistics("c", values.count(None), low, high)


def test_strings_that_are_not_utf8_have_no_bounds_and_no_error() -> None:
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"], pa.binary()).buffers())
    assert statistics_of(text) == ColumnStatistics("c", 0)
