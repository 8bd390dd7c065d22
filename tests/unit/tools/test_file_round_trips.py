"""What deltaq prints it loads again: drawn records go through each form of file, and come back
equal.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaq import Producer, Topic
from deltaq.tools import from_file, messages, to_csv, to_xlsx
from deltaq.tools.records import Record, as_json

COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "small": pa.int8(),
        "rate": pa.float64(),
        "short": pa.float32(),
        "text": pa.string(),
        "blob": pa.binary(),
        "flag": pa.bool_(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(38, 6),
        "tags": pa.list_(pa.string()),
        "rates": pa.map_(pa.string(), pa.float64()),
        "part": pa.struct({"blob": pa.binary(), "days": pa.list_(pa.date32()), "n": pa.int64()}),
    }
)

TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            "",
            '""',
            '"',
            r"\xff",
            r"\x5cxff",
            "_x0041_",
            "\x0b\x00",
            "0070",
            "NaN",
            "true",
            " x ",
            "=1+1",
        ]
    ),
    st.text(st.sampled_from("\\x0af_5c41\"',\r\n\t\x85\u2028\ufffe "), max_size=10),
)
BYTES = st.one_of(st.binary(max_size=8), TEXTS.map(str.encode), st.just(rb"\x5cxff" + b"\xff\\"))
FLOATS = st.one_of(st.floats(allow_nan=False), st.just(0.1 + 0.2), st.just(-0.0))
INTEGERS = st.integers(-(2**63), 2**63 - 1)
DAYS = st.one_of(st.dates(), st.just(date(1900, 2, 28)))
TIMES = st.one_of(st.datetimes(timezones=st.just(UTC)), st.just(datetime(1900, 3, 1, tzinfo=UTC)))
PRICES = st.decimals(
    allow_nan=False, allow_infinity=False, places=6, min_value=-(10**31), max_value=10**31
)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


ROWS = st.fixed_dictionaries(
    {
        "id": INTEGERS,
        "small": optional(st.integers(-128, 127)),
        "rate": optional(FLOATS),
        "short": optional(st.floats(allow_nan=False, width=32)),
        "text": optional(TEXTS),
        "blob": optional(BYTES),
        "flag": optional(st.booleans()),
        "day": optional(DAYS),
        "at": optional(TIMES),
        "price": optional(PRICES),
        "tags": optional(st.lists(optional(TEXTS), max_size=2)),
        "rates": optional(st.dictionaries(TEXTS, optional(FLOATS), max_size=2)),
        "part": optional(
            st.fixed_dictionaries(
                {
                    "blob": optional(BYTES),
                    "days": optional(st.lists(DAYS, max_size=2)),
                    "n": optional(INTEGERS),
                }
            )
        ),
    }
)
HEADERS = st.lists(st.tuples(TEXTS.filter(bool), optional(BYTES)), max_size=2)


def to_lines(topic: Topic, path: Path) -> None:
    """Write what `deltaq consume -o json` prints."""
    path.write_text(
        "".join(json.dumps(as_json(record, topic.name)) + "\n" for record in messages(topic))
    )


FORMS: list[tuple[str, Callable[[Topic, Path], object]]] = [
    ("csv", to_csv),
    ("xlsx", to_xlsx),
    ("jsonl", to_lines),
]


def same(record: Record) -> tuple[object, ...]:
    """A record without its place; -0.0 and 0.0 differ."""
    return record.timestamp, record.key, record.headers, repr(record.value)


def check(
    memory_root: str,
    tmp_path: Path,
    columns: pa.Schema | None,
    sent: list[dict[str, Any]],
    form: str,
) -> None:
    name = uuid.uuid4().hex
    first, second = (
        Topic(f"{name}-{n}", columns, bootstrap_servers=memory_root).create() for n in "ab"
    )
    with Producer(bootstrap_servers=memory_root) as producer:
        for message in sent:
            producer.produce(first.name, **message)
    path = tmp_path / f"{name}.{form}"
    dict(FORMS)[form](first, path)
    assert from_file(second, path) == len(sent)
    assert [*map(same, messages(second))] == [*map(same, messages(first))]


@pytest.mark.parametrize("form", [form for form, _ in FORMS])
@settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_typed_records_come_back_from_a_file(
    memory_root: str, tmp_path: Path, form: str, data: st.DataObject
) -> None:
    message = st.fixed_dictionaries(
        {
            "value": ROWS,
            "key": optional(BYTES),
            "headers": HEADERS,
            "timestamp": st.integers(1, 2**40),
        }
    )
    check(
        memory_root, tmp_path, COLUMNS, data.draw(st.lists(message, min_size=1, max_size=6)), form
    )


@pytest.mark.parametrize("form", [form for form, _ in FORMS])
@settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_records_of_bytes_come_back_from_a_file(
    memory_root: str, tmp_path: Path, form: str, data: st.DataObject
) -> None:
    message = st.fixed_dictionaries(
        {
            "value": optional(BYTES),
            "key": optional(BYTES),
            "headers": HEADERS,
            "timestamp": st.integers(1, 2**40),
        }
    )
    check(memory_root, tmp_path, None, data.draw(st.lists(message, min_size=1, max_size=6)), form)


@pytest.mark.parametrize("form", [form for form, _ in FORMS])
def test_the_first_and_the_last_times_come_back_from_a_file(
    memory_root: str, tmp_path: Path, form: str
) -> None:
    times = [datetime.min, datetime(9999, 12, 31, 23, 59, 59, 999_500), datetime.max]
    rows = [{"at": time.replace(tzinfo=UTC), "day": time.date()} for time in times]
    columns = pa.schema({"at": pa.timestamp("us", "UTC"), "day": pa.date32()})
    check(memory_root, tmp_path, columns, [{"value": row} for row in rows], form)


@pytest.mark.parametrize("form", [form for form, _ in FORMS])
def test_numbers_that_are_not_finite_come_back_from_a_file(
    memory_root: str, tmp_path: Path, form: str
) -> None:
    rows = [
        {"rate": rate, "short": rate, "rates": {"x": rate}}
        for rate in (math.nan, math.inf, -math.inf, 0.5)
    ]
    check(memory_root, tmp_path, COLUMNS, [{"value": row} for row in rows], form)


def test_a_tombstone_of_a_typed_topic_comes_back_from_lines(
    memory_root: str, tmp_path: Path
) -> None:
    sent: list[dict[str, Any]] = [
        {"value": {"id": 1}, "key": b"a"},
        {"value": None, "key": b"a", "headers": [("h", b"\xff")], "timestamp": 5},
        {"value": {"price": Decimal("1.5")}, "key": b"b"},
    ]
    check(memory_root, tmp_path, COLUMNS, sent, "jsonl")
