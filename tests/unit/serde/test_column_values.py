"""Which values a column may hold, against what plain Python makes of each of them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.serde.column_values import as_stored, faults
from tests.doubles.unsound import text_of

EDGES_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
EDGES_DAYS = (-719_162, 2_932_896)
EPOCH = dt.datetime(1970, 1, 1)


def is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_time(us: int) -> bool:
    try:
        EPOCH + dt.timedelta(microseconds=us)
    except OverflowError:
        return False
    return True


def is_day(days: int) -> bool:
    return 1 <= days + EPOCH.toordinal() <= dt.date.max.toordinal()


def near(*edges: int) -> st.SearchStrategy[int]:
    return st.one_of(*(st.integers(edge - 2, edge + 2) for edge in edges))


TEXTS = st.binary(max_size=3)
TIMES = near(0, *EDGES_US) | st.integers(-(2**63), 2**63 - 1)
DAYS = near(0, *EDGES_DAYS) | st.integers(-(2**31), 2**31 - 1)


def rows_at_fault(column: pa.Array) -> list[int]:
    return [fault.row for fault in faults(column, "c")]


@given(st.lists(st.none() | TEXTS, max_size=9), st.integers(0, 3))
def test_text_is_utf_8(contents, skipped):
    expected = [
        row
        for row, content in enumerate(contents[skipped:])
        if content is not None and not is_text(content)
    ]
    assert rows_at_fault(text_of(*contents).slice(skipped)) == expected


@given(st.lists(st.none() | TIMES, max_size=9))
def test_times_are_within_pythons_calendar(times):
    column = pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC"))
    assert rows_at_fault(column) == [
        row for row, time in enumerate(times) if time is not None and not is_time(time)
    ]


@given(st.lists(st.none() | DAYS, max_size=9))
def test_days_are_within_pythons_calendar(days):
    column = pa.array(days, pa.int32()).cast(pa.date32())
    assert rows_at_fault(column) == [
        row for row, day in enumerate(days) if day is not None and not is_day(day)
    ]


@given(
    st.lists(st.none() | st.lists(st.sampled_from("abc"), max_size=4), max_size=9),
    st.integers(0, 3),
)
def test_maps_have_each_key_once(keys, skipped):
    maps = [None if each is None else [(key, 1) for key in each] for each in keys]
    column = pa.array(maps, pa.map_(pa.string(), pa.int8())).slice(skipped)
    expected = [
        row
        for row, each in enumerate(keys[skipped:])
        if each is not None and len(set(each)) < len(each)
    ]
    assert rows_at_fault(column) == expected


@given(
    st.lists(
        st.none()
        | st.lists(st.none() | st.fixed_dictionaries({"t": st.none() | TIMES}), max_size=3),
        max_size=5,
    )
)
def test_a_fault_inside_is_that_of_its_row(rows):
    given_type = pa.list_(pa.struct([("t", pa.int64())]))
    column = pa.array(rows, given_type).cast(
        pa.list_(pa.struct([("t", pa.timestamp("us", "UTC"))]))
    )
    times = [
        [each["t"] for each in row or () if each is not None and each["t"] is not None]
        for row in rows
    ]
    found = list(faults(column, "c"))
    assert [fault.row for fault in found] == [
        row for row, inner in enumerate(times) if not all(map(is_time, inner))
    ]
    assert {fault.path for fault in found} <= {"c.element.t"}


@pytest.mark.parametrize(
    ("left", "right", "are_equal"),
    [
        ([float("nan")], [float("nan")], True),
        ([0.0], [-0.0], False),
        ([[{"f": float("nan"), "s": "x"}]], [[{"f": float("nan"), "s": "x"}]], True),
        ([[{"f": 1.0, "s": "x"}]], [[{"f": 1.0, "s": "y"}]], False),
    ],
)
def test_stored_arrays_are_equal_where_their_values_print_the_same(
    left: Any, right: Any, are_equal: bool
):
    assert as_stored(pa.array(left)).equals(as_stored(pa.array(right))) is are_equal
