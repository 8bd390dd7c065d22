"""Topics of bytes through declared columns, as inputs of views."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pydantic
import pytest

from deltaq import Producer, Topic
from deltaq.errors import Corrupt, InvalidConfig
from deltaq.serde import ValueDeserializationError
from deltaq.store import forget_memory_store
from deltaq.views import Views
from deltaq.views.modes import MODES, Mode
from deltaq.views.ticks import tick_of
from tests.doubles.views import runner

ROOT = "memory://inputs"
COLUMNS = "account VARCHAR, amount DECIMAL(18,2), at TIMESTAMP"


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    yield
    forget_memory_store("inputs")


def create(topic: str = "events", **options: Any) -> Topic:
    return Topic(topic, bootstrap_servers=ROOT, **options).create()


def write(*values: Any, topic: str = "events", key: Any = None) -> None:
    with Producer(bootstrap_servers=ROOT) as producer:
        for value in values:
            is_raw = value is None or isinstance(value, bytes)
            producer.produce(topic, value if is_raw else json.dumps(value), key=key)


def sums(mode: Mode = "auto", **options: Any) -> Views:
    views = Views("g", ROOT)
    views.input("events", COLUMNS, **options)
    views.view("sums", "select account, sum(amount) as s from events group by account", mode=mode)
    return views


def rows(views: Views, name: str, at: int | None = None) -> list[tuple[Any, ...]]:
    found = views.read(at)[name].to_arrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


# --- JSON ---


@pytest.mark.parametrize("mode", MODES)
def test_json_has_declared_columns(mode: Mode):
    create(partitions=2)
    views = sums(mode)
    expected: Counter[str] = Counter()
    totals = {}
    for tick in range(1, 4):
        with runner(views) as running:  # a new one each time
            for part in range(2):
                for number in range(5):
                    account, cents = f"a{number % 3}", 101 * number + tick
                    write({"account": account, "amount": f"{cents / 100:.2f}", "other": [1]})
                    expected[account] += cents
                published = running.tick()
                assert published is not None
                assert published.number == 2 * tick - 1 + part
        totals[2 * tick] = dict(expected)
    for number, cents_of in totals.items():
        found = {account: int(total * 100) for account, total in rows(views, "sums", number)}
        assert found == cents_of
    # Other processes know the columns by the record of the tick.
    assert Views("g", ROOT).check() == []
    count = "select count(*) as n, count(amount) as a from events"
    assert Views("g", ROOT).read(2).sql(count).to_pylist() == [{"n": 10, "a": 10}]


def test_values_of_json_become_values_of_columns():
    create()
    views = Views("g", ROOT)
    views.input(
        "events",
        "id BIGINT, at TIMESTAMP, day DATE, price DECIMAL(10,2), ok BOOLEAN, rate DOUBLE, "
        "raw BLOB, tags VARCHAR[], inner STRUCT(x INTEGER, y STRUCT(z VARCHAR)[]), "
        "counts MAP(VARCHAR, INTEGER), places MAP(VARCHAR, STRUCT(x DOUBLE, since TIMESTAMP)), "
        "times TIMESTAMP[]",
    )
    views.view(
        "all_of_them",
        "select * exclude (_timestamp, _headers, _partition, _offset, _key), _key as k from events",
    )
    write(
        {
            "id": 2**62,
            "at": "2026-01-02T03:04:05.678901+01:00",
            "day": "2026-01-02",
            "price": 1.1,
            "ok": True,
            "rate": 3,
            "raw": {"base64": "AP8="},
            "tags": ["a", None],
            "inner": {"x": 1, "y": [{"z": "deep", "w": 1}], "more": {}},
            "counts": {"a": 1},
            "places": {"p": {"x": 0.5, "since": "2026-01-02T00:00:00", "z": 1}},
            "times": ["2026-01-02T00:00:00Z"],
        },
        key="k",
    )
    views.run(until="now")
    (found,) = views.read()["all_of_them"].to_arrow().to_pylist()
    assert found == {
        "id": 2**62,
        "at": datetime(2026, 1, 2, 2, 4, 5, 678901, UTC),
        "day": datetime(2026, 1, 2).date(),
        "price": Decimal("1.10"),
        "ok": True,
        "rate": 3.0,
        "raw": b"\x00\xff",
        "tags": ["a", None],
        "inner": {"x": 1, "y": [{"z": "deep"}]},
        "counts": [("a", 1)],
        "places": [("p", {"x": 0.5, "since": datetime(2026, 1, 2, tzinfo=UTC)})],
        "times": [datetime(2026, 1, 2, tzinfo=UTC)],
        "k": b"k",
    }
    assert views.check() == []


@pytest.mark.parametrize(
    ("value", "field", "reason"),
    [
        ({"account": 5}, "account", "valid string"),
        ({"amount": "much"}, "amount", "is no decimal"),
        ({"amount": "1.234"}, "amount", "decimal"),
        ({"at": "yesterday"}, "at", "is no timestamp"),
        ([1], None, "it is no object with fields"),
        (b"{", None, "it is no JSON"),
        (b"\xff", None, "it is no JSON"),
        (b'{"account": "a", "account": "b"}', None, "a key is repeated"),
    ],
)
def test_a_record_that_does_not_fit_stops_the_runner_and_is_named(
    value: Any, field: str | None, reason: str
):
    create()
    views = sums()
    write({"account": "a", "amount": 1})
    views.run(until="now")
    write({"account": "b", "amount": 2}, value)
    place = r"\(topic 'events', partition 0, offset 2\)"
    with pytest.raises(ValueDeserializationError, match=f"{reason}.*on_error='skip'.*{place}") as e:
        views.run(until="now")
    assert e.value.field == field
    # Readers keep what was published, and the group goes on when the record is skipped.
    assert rows(views, "sums") == [("a", Decimal(1))]
    assert views.check() == []
    skipping = sums(on_error="skip")
    skipping.run(until="now")
    assert rows(skipping, "sums") == [("a", Decimal(1)), ("b", Decimal(2))]
    assert Views("g", ROOT).check() == []


def test_records_that_are_skipped_are_named_in_the_log(caplog: pytest.LogCaptureFixture):
    create()
    views = sums(on_error="skip")
    write({"account": "a", "amount": 1}, {"amount": "x\n"}, {"account": "a", "amount": 2})
    with caplog.at_level(logging.WARNING, "deltaq.views"):
        views.run(until="now")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("a record is skipped topic=events partition=0 offset=1 field 'amount'")
    assert "\n" not in line
    assert rows(views, "sums") == [("a", Decimal(3))]
    # At each replay the same records count.
    with runner(views) as running:
        write({"account": "b", "amount": 5})
        running.tick()
    assert rows(views, "sums") == [("a", Decimal(3)), ("b", Decimal(5))]
    assert Views("g", ROOT).check() == []


def test_the_log_shows_no_control_characters_of_a_record(caplog: pytest.LogCaptureFixture):
    create()
    views = Views("g", ROOT)
    views.input("events", "prices MAP(VARCHAR, DECIMAL(5,2))", on_error="skip")
    views.view("n", "select count(*) as n from events")
    write({"prices": {"a\nb": "x"}})
    with caplog.at_level(logging.WARNING, "deltaq.views"):
        views.run(until="now")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "a\\nb" in line
    assert "\n" not in line


def test_only_some_of_many_skipped_records_are_named(caplog: pytest.LogCaptureFixture):
    create()
    write(*[{"amount": "x"}] * 13)
    with caplog.at_level(logging.WARNING, "deltaq.views"):
        sums(on_error="skip").run(until="now")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 11
    assert lines[-1] == "3 more records are skipped topic=events"


def test_fields_that_a_value_lacks_are_null_unless_they_are_required():
    create()
    views = Views("g", ROOT)
    views.input("events", {"a": "INTEGER", "b": "VARCHAR not null"})
    views.view("v", "select a, b from events")
    write({"b": "x"}, {"a": None, "b": "y"})
    views.run(until="now")
    assert rows(views, "v") == [(None, "x"), (None, "y")]
    columns = views.read().sql("select * from events").column_names
    assert columns == ["_partition", "_offset", "_timestamp", "_key", "_headers", "a", "b"]
    for offset, value in enumerate(({"a": 1}, {}), start=2):
        write(value)
        with pytest.raises(ValueDeserializationError, match="offset 2") as error:
            views.run(until="now")
        assert error.value.field == "b"
        skipping = Views("skipping", ROOT)
        skipping.input("events", "a INTEGER, b VARCHAR NOT NULL", on_error="skip")
        skipping.view("n", "select count(*) as n from events")
        tick = skipping.run(until="now")
        assert tick is not None
        assert tick.inputs["events"].ends == (offset + 1,)
        assert rows(skipping, "n") == [(2,)]


@pytest.mark.parametrize("mode", MODES)
def test_keyed_topics_count_with_the_newest_value_and_null_deletes(mode: Mode):
    create("people", config={"cleanup.policy": "compact"})
    views = Views("g", ROOT)
    views.input("people", "city VARCHAR, age INTEGER", on_error="skip")
    views.view("cities", "select city, count(*) as n from people group by city", mode=mode)
    living: dict[str, Any] = {}
    with runner(views) as running:
        for key, value in (
            ("ann", {"city": "u"}),
            ("bob", {"city": "u"}),
            ("ann", {"city": "v", "age": 5}),
            ("cyd", {"city": "v"}),
            ("bob", None),
            # All columns are null, which is no deletion.
            ("ann", {}),
            ("dan", {"other": 1}),
            ("cyd", {"city": 7}),  # is skipped: the value before counts
            ("ann", None),
            ("eve", None),
        ):
            write(value, topic="people", key=key)
            if value is None:
                living.pop(key, None)
            elif key != "cyd" or value["city"] != 7:
                living[key] = value.get("city")
            running.tick()
            counted = Counter(living.values())
            assert dict(rows(views, "cities")) == counted
            assert views.check() == []
    views.run(until="now")
    assert rows(views, "cities") == [("v", 1), (None, 1)]
    assert Views("g", ROOT).read().sql("select count(*) as n from people").to_pylist() == [{"n": 2}]


def test_null_values_of_other_topics_are_rows_of_nulls():
    create()
    views = sums()
    views.view("n", "select count(*) as n, count(account) as a from events")
    write(None, {"account": "a"}, {})
    views.run(until="now")
    assert rows(views, "n") == [(3, 1)]


# --- declarations ---


def test_columns_are_declared_by_a_model_or_an_arrow_schema():
    class Event(pydantic.BaseModel):
        account: str
        amount: int | None = None

    create()
    create("others")
    views = Views("g", ROOT)
    views.input("events", Event)
    views.input("others", pa.schema([("n", pa.int64())]))
    views.view("v", "select account, amount, n from events, others")
    write({"account": "a", "amount": 1})
    write({"n": 5}, topic="others")
    views.run(until="now")
    assert rows(views, "v") == [("a", 1, 5)]
    assert Views("g", ROOT).check() == []
    write({"amount": 1})
    with pytest.raises(ValueDeserializationError, match="account"):
        views.run(until="now")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("account", "'account' is no column: write a name and a type"),
        ("", "'' is no column"),
        ("a INTEGER,", "'' is no column"),
        ("a NOSUCH", "column 'a' of the type 'NOSUCH': DuckDB: .*NOSUCH"),
        ("a INTEGER DEFAULT 3", "column 'a' of the type"),
        ("a INTEGER, b BIGINT, a VARCHAR", "column 'a' is declared twice"),
        ("a INTEGER, A VARCHAR", "'A'.*differs from 'a'"),
        ("_a INTEGER", "names that start with '_' belong to deltaq"),
        ("a JSON", "declare the fields of JSON"),
        ("a UBIGINT", r"no type for uint64; use decimal128\(20, 0\)"),
        ("a INTEGER) as _c, (1", "is no type"),
        ("a INTEGER) as _c from read_text('/etc/hostname') --", "disabled"),
        ({"a": "STRUCT(x NOSUCH)"}, "column 'a' of the type"),
        ({}, "there are no fields"),
    ],
)
def test_columns_that_cannot_be_are_named(columns: Any, reason: str):
    with pytest.raises(InvalidConfig, match=f"input 'events': .*{reason}") as error:
        Views("g", ROOT).input("events", columns)
    assert error.value.error.str().startswith("input 'events'")


def test_other_declarations_that_cannot_be_are_named():
    views = Views("g", ROOT)
    with pytest.raises(InvalidConfig, match="input 'events' needs columns"):
        views.input("events")
    with pytest.raises(InvalidConfig, match="format of input 'events' must be one of json, avro"):
        views.input("events", COLUMNS, format="csv")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="on_error of input 'events' must be one of refuse, sk"):
        views.input("events", COLUMNS, on_error="null")  # type: ignore[arg-type]
    views.input("events", COLUMNS)
    with pytest.raises(InvalidConfig, match="two declarations of the input 'events'"):
        views.input("events", COLUMNS)
    views.view("v", "select 1 as a from other")
    with pytest.raises(InvalidConfig, match="input 'events' is declared, and no view of 'g' reads"):
        _ = views.program


def test_a_declaration_needs_a_topic_of_bytes():
    views = sums()
    with pytest.raises(InvalidConfig, match="'events'"):
        views.run(until="now")
    Topic("events", pa.schema([("account", pa.string())]), bootstrap_servers=ROOT).create()
    with pytest.raises(InvalidConfig, match="input 'events' is a typed topic"):
        views.run(until="now")
    with pytest.raises(InvalidConfig, match="input 'events' is a typed topic"):
        views.explain()


def test_a_declaration_names_its_topic_as_it_is_written():
    create()
    views = Views("g", ROOT)
    views.input("Events", COLUMNS)
    views.view("v", "select account from EVENTS")
    with pytest.raises(InvalidConfig, match="'Events' is declared, and there is no topic of this"):
        views.run(until="now")


def test_two_declarations_whose_names_differ_by_case_are_refused():
    views = Views("g", ROOT)
    for name in ("Events", "events"):
        views.input(name, COLUMNS)
    views.view("v", "select account from events")
    with pytest.raises(InvalidConfig, match="'Events' and 'events' differ by case only"):
        _ = views.program


def test_another_declaration_is_another_program():
    create()
    write({"account": "a", "amount": "1.25"})
    views = sums()
    first = views.run(until="now")
    other = Views("g", ROOT)
    other.input("events", COLUMNS.replace("(18,2)", "(18,4)"))
    other.view("sums", views.program.view("sums").sql)
    plain = Views("g", ROOT)
    plain.view("sums", views.program.view("sums").sql)
    assert len({of.program.digest for of in (views, other, plain, sums(on_error="skip"))}) == 4
    assert views.program.digest == sums().program.digest
    assert first is not None
    assert (len(first.queries), len(first.declared)) == (1, 1)
    assert views.run(until="now") == first
    # The declaration is said with the SQL only.
    write({"account": "a", "amount": 1})
    second = views.run(until="now")
    assert second is not None
    assert (second.queries, second.declared) == ((), ())


def test_ticks_with_and_without_declarations_are_read():
    create()
    views = sums()
    tick = views.run(until="now")
    assert tick is not None
    assert tick_of(tick.value(), "t") == tick
    before = replace(tick, declared=())
    assert b"declared" not in before.value()
    assert tick_of(before.value(), "t") == before
    for known, other in (
        (b'"format":"json"', b'"format":"csv"'),
        (b'"onError":"refuse"', b'"onError":"null"'),
    ):
        broken = tick.value().replace(known, other)
        with pytest.raises(Corrupt, match="input 'events' has the unknown format"):
            tick_of(broken, "t")


def test_files_of_a_folder_declare_inputs(tmp_path: Path):
    create("raw.events")
    create("more")
    write({"account": "a", "amount": 1}, {"amount": "x"}, topic="raw.events")
    write({"n": 5}, topic="more")
    folder = tmp_path / "bank"
    folder.mkdir()
    (folder / "sums.sql").write_text(
        'select account, sum(amount) as s, max(n) as n from "raw.events", more group by account'
    )
    (folder / "raw.events.input").write_text(
        "-- on_error: skip\n-- format: json\naccount VARCHAR NOT NULL,\namount DECIMAL(18,2)\n"
    )
    (folder / "more.input").write_text("n BIGINT")
    views = Views.from_folder(folder, ROOT)
    views.run(until="now")
    assert rows(views, "sums") == [("a", Decimal(1), 5)]
    assert Views("bank", ROOT).check() == []
    text = "\ufeff\r\n/* x */\r\n-- on_error: skip\r\nn INT"
    (folder / "more.input").write_bytes(text.encode())
    (declared, _) = Views.from_folder(folder, ROOT).program.declared
    assert (declared.name, declared.on_error) == ("more", "skip")
    (folder / "more.input").write_text("n BIGINT -- on_error: skip")
    with pytest.raises(InvalidConfig, match=r"more\.input, line 1: .* move it to the top"):
        Views.from_folder(folder, ROOT)
    (folder / "more.input").write_text("-- fmt: json\nn BIGINT")
    with pytest.raises(InvalidConfig, match="'-- fmt: json' is no option"):
        Views.from_folder(folder, ROOT)


def test_rules_are_explained_for_declared_columns():
    create()
    assert [str(of) for of in sums().explain()] == [
        "sums: by rules where that is quicker: aggregate (account)"
    ]
