"""Topics as tables of other libraries and as files, and back."""

from __future__ import annotations

import csv
import re
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import duckdb
import openpyxl
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import BaseModel, Field, StringConstraints

from deltaq import Producer, Topic
from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.serde.source import schema_of
from deltaq.tools import (
    Last,
    frames,
    from_arrow,
    from_duckdb,
    from_file,
    from_pandas,
    from_polars,
    messages,
    to_arrow,
    to_csv,
    to_duckdb,
    to_pandas,
    to_polars,
    to_xlsx,
)
from deltaq.tools import spreadsheets as sheets
from deltaq.tools.duckdb_tables import connected
from tests.doubles.unsound import text_of

T0 = datetime(2026, 11, 25, 9, 30, tzinfo=UTC)
COLUMNS = pa.schema(
    {
        "id": pa.int64(),
        "price": pa.decimal128(10, 2),
        "at": pa.timestamp("us", "UTC"),
        "tags": pa.list_(pa.string()),
    }
)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "price": Decimal("1.50"), "at": T0, "tags": ["a", "b"]},
    {"id": 2, "price": None, "at": None, "tags": None},
]


@pytest.fixture
def trades(memory_root: str) -> Topic:
    """A typed topic with two records."""
    topic = Topic("trades", COLUMNS, bootstrap_servers=memory_root).create()
    with Producer(bootstrap_servers=memory_root) as producer:
        for row in ROWS:
            producer.produce(
                topic, row, key=f"k{row['id']}", timestamp=1_700_000_000_000, headers={"h": b"v"}
            )
    return topic


@pytest.fixture
def orders(memory_root: str) -> Topic:
    """A topic of bytes with values that files and spreadsheets may take for something else."""
    topic = Topic("orders", bootstrap_servers=memory_root).create()
    with Producer(bootstrap_servers=memory_root) as producer:
        for value in (b'a,"b"\nc', b"=1+1", b"\xff\x00", None, "Grüße".encode()):
            producer.produce(topic, value, key=b"+k", timestamp=1_700_000_000_000)
    return topic


def other(topic: Topic, memory_root: str) -> Topic:
    """A second, empty topic with the same columns."""
    return Topic(f"{topic.name}-2", topic.schema, bootstrap_servers=memory_root).create()


def values(topic: Topic) -> list[Any]:
    return [record.value for record in messages(topic)]


def test_a_topic_goes_to_each_library_and_back(trades: Topic, memory_root: str) -> None:
    assert to_arrow(trades, Last(1)).column("id").to_pylist() == [2]
    frame = to_pandas(trades)
    assert isinstance(frame, pd.DataFrame)
    assert frame["id"].tolist() == [1, 2]
    polars = to_polars(trades)
    assert isinstance(polars, pl.DataFrame)
    assert polars["price"].to_list() == [Decimal("1.50"), None]
    with duckdb.connect() as connection:
        assert to_duckdb(trades, connection, start=Last(1)) == "trades"
        assert connection.sql("select id from trades").fetchall() == [(2,)]
        to_duckdb(trades, connection, 'a "b"')
        found = connection.sql("""select id, price, "at", tags from "a ""b\"\"" order by id""")
        back = other(trades, memory_root)
        assert from_duckdb(back, found) == 2
    assert values(back) == ROWS
    names = list(COLUMNS.names)
    assert from_pandas(back, frame[names]) == 2
    assert from_polars(back, polars.select(["_key", *names])) == 2
    assert from_arrow(back, to_arrow(trades).select(names), key_column="id") == 2
    assert values(back) == ROWS * 4
    assert [record.key for record in messages(back)][4:] == [b"k1", b"k2", b"1", b"2"]


def test_sql_with_several_threads_filters_no_rows_below_a_limit() -> None:
    with connected(threads=2) as connection:
        connection.execute(
            "create table people as select * from (values (0, 0), (1, 0)) t(id, age)"
        )
        query = (
            "select a.id from (select id from people order by id desc limit 1) a "
            "join people b on a.id = b.age where b.id > 0"
        )
        assert not any(connection.execute(query).fetchall() for _ in range(300))


class OrderLine(BaseModel):
    sku: str = Field(max_length=3)


class Sale(BaseModel):
    """Columns of every kind whose values differ from the model's, with rules and a default."""

    id: int = Field(ge=0)
    state: Literal["new", "paid"] = "new"
    tags: set[Annotated[str, Field(max_length=3)]] = set()
    ident: UUID | None = None
    price: Decimal | None = Field(default=None, max_digits=10, decimal_places=2)
    lines: list[OrderLine] = []
    name: Annotated[str, StringConstraints(strip_whitespace=True)] = "-"


IDENT = UUID(int=5)
GOOD: dict[str, Any] = {
    "id": 1,
    "state": "paid",
    "tags": ["b", "a"],
    "ident": str(IDENT),
    "price": Decimal("1.50"),
    "lines": [{"sku": "abc"}],
    "name": " anna ",
}
BAD: list[tuple[str, Any, str]] = [
    ("id", -1, "id[1]"),
    ("state", "gone", "state[1]"),
    ("tags", ["long tag"], "tags.0[1]"),
    ("ident", "no id", "ident[1]"),
    ("lines", [{"sku": "abc"}, {"sku": "long"}], "lines.1.sku[1]"),
]


@pytest.fixture
def sales(memory_root: str) -> Topic:
    return Topic("sales", Sale, bootstrap_servers=memory_root).create()


def sale_table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(
        [*rows], pa.schema([(field.name, field.type) for field in schema_of(Sale).arrow])
    )


def instances(topic: Topic) -> list[Any]:
    """The values as a consumer with the model gets them."""
    return [None if value is None else schema_of(Sale).restore(value) for value in values(topic)]


def from_parquet(topic: Topic, table: pa.Table) -> int:
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, Path(folder) / "t.parquet")
        return from_file(topic, Path(folder) / "t.parquet")


WAYS_IN: list[Callable[[Topic, pa.Table], int]] = [
    from_arrow,
    lambda topic, table: from_pandas(topic, table.to_pandas(types_mapper=pd.ArrowDtype)),
    lambda topic, table: from_polars(topic, pl.DataFrame(table)),
    from_parquet,
]


@pytest.mark.parametrize("load", WAYS_IN, ids=["arrow", "pandas", "polars", "parquet"])
def test_rows_are_written_as_the_model_of_the_handle_writes_its_instances(
    sales: Topic, load: Any
) -> None:
    assert load(sales, sale_table(GOOD)) == 1
    expected = Sale(
        id=1,
        state="paid",
        tags={"a", "b"},
        ident=IDENT,
        price=Decimal("1.50"),
        lines=[OrderLine(sku="abc")],
        name="anna",
    )
    assert instances(sales) == [expected]
    assert values(sales) == [schema_of(Sale).accept(expected)]


@pytest.mark.parametrize("load", WAYS_IN, ids=["arrow", "pandas", "polars", "parquet"])
@pytest.mark.parametrize(("field", "value", "where"), BAD)
def test_a_row_that_the_model_of_the_handle_does_not_take_is_refused(
    sales: Topic, load: Any, field: str, value: Any, where: str
) -> None:
    with pytest.raises(InvalidValue, match=re.escape(f"field '{where}'")):
        load(sales, sale_table(GOOD, GOOD | {field: value}, GOOD))
    assert values(sales) == []


def test_only_types_and_members_are_checked_where_the_handle_has_no_model(
    sales: Topic, memory_root: str
) -> None:
    handle = Topic("sales", bootstrap_servers=memory_root)
    for load in WAYS_IN:
        with pytest.raises(
            InvalidValue, match=re.escape("field 'state[1]': is none of 'new', 'paid'")
        ):
            load(handle, sale_table(GOOD, GOOD | {"state": "gone"}))
        assert load(handle, sale_table(GOOD | {"id": -1})) == 1
    assert [value["id"] for value in values(handle)] == [-1] * len(WAYS_IN)


def test_lines_of_json_are_checked_by_the_model_of_the_handle(sales: Topic, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"id": 1, "name": " x "}\n{"id": -1}\n')
    with pytest.raises(
        InvalidValue,
        match=r"line 2: field 'id': .*greater than or equal to 0.*no row .*was written",
    ):
        from_file(sales, path)
    assert values(sales) == []
    path.write_text('{"id": 1, "name": " x "}\n{"id": 2, "_key": "k", "tags": ["a"]}\n')
    assert from_file(sales, path) == 2
    assert instances(sales) == [Sale(id=1, name="x"), Sale(id=2, tags={"a"})]
    assert [record.key for record in messages(sales)] == [None, b"k"]


def test_a_row_in_a_later_part_is_named_by_its_number_in_the_table(
    sales: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_ROWS_AT_ONCE", 2)
    with pytest.raises(InvalidValue, match=re.escape("'id[3]'")):
        from_arrow(sales, sale_table(GOOD, GOOD, GOOD, GOOD | {"id": -1}))


def test_a_model_for_a_topic_of_bytes_and_one_that_leaves_columns_out(
    orders: Topic, memory_root: str
) -> None:
    with pytest.raises(InvalidConfig, match="holds bytes, and the handle has a model"):
        from_arrow(Topic("orders", Sale, bootstrap_servers=memory_root), sale_table(GOOD))
    narrow = Topic("trades-of-less", Trade, bootstrap_servers=memory_root)
    Topic("trades-of-less", COLUMNS, bootstrap_servers=memory_root).create()
    assert from_arrow(narrow, pa.table({"id": [1], "tags": [["a"]]})) == 1
    assert values(narrow) == [{"id": 1, "price": None, "at": None, "tags": ["a"]}]
    with pytest.raises(InvalidValue, match=re.escape("'id[0]'")):
        from_arrow(narrow, pa.table({"id": [-1], "tags": [["a"]]}))


class Trade(BaseModel):
    """Some columns of `COLUMNS`, and one that its topic does not have."""

    id: int | None = Field(default=None, ge=0)
    venue: str = "here"


def test_rows_without_value_become_json_in_a_topic_of_bytes(orders: Topic) -> None:
    assert (
        from_polars(
            orders, pl.DataFrame({"customer": ["anna"], "cups": [2]}), key_column="customer"
        )
        == 1
    )
    record = list(messages(orders))[-1]
    assert (record.key, record.value) == (b"anna", b'{"customer": "anna", "cups": 2}')


def map_of(keys: pa.Array) -> pa.Array:
    """A null, and then one map with these keys."""
    ends = pa.array([None, 0, len(keys)], pa.int32())
    return pa.MapArray.from_arrays(ends, keys, pa.array(range(len(keys))))


TWINS = pa.StructArray.from_arrays([pa.array([0, 1])] * 2, ["a", "a"])


@pytest.mark.parametrize(
    ("column", "field", "reason"),
    [
        (TWINS, "c.a", "two fields of this name"),
        (pa.array([0, 1_000_000_999], pa.time64("ns")), "c[1]", "parts of a microsecond"),
        (pa.array([0, 2**63 - 1]).view(pa.duration("s")), "c[1]", "longer than 999,999,999 days"),
        (pa.array([0, 253_402_300_800_000]).view(pa.date64()), "c[1]", "outside the years"),
        (map_of(pa.array([b"a", b"\xff"])), "c.key[1]", "are no UTF-8"),
        (map_of(pa.array([[1]])), "c.key[1]", "is no name in JSON"),
        (map_of(pa.array([{"a": 1}])), "c.key[1]", "is no name in JSON"),
        (map_of(pa.array([0.0, -0.0])), "c[1]", "cannot become JSON"),
    ],
    ids=["twins", "time", "duration", "day", "bytes", "lists", "structs", "two zeros"],
)
def test_a_row_with_a_value_that_json_does_not_have_is_refused(
    memory_root: str, tmp_path: Path, column: pa.Array, field: str, reason: str
) -> None:
    topic = Topic("t", bootstrap_servers=memory_root).create()
    table = pa.table({"c": column})
    with pytest.raises(InvalidValue, match=reason) as refusal:
        from_arrow(topic, table)
    assert refusal.value.field == field
    if not pa.types.is_duration(column.type) and not pa.types.is_date64(column.type):
        pq.write_table(table, tmp_path / "x.parquet")
        with pytest.raises(InvalidValue, match=reason):
            from_file(topic, tmp_path / "x.parquet")
    assert topic.to_arrow().num_rows == 0


NESTED_MAPS = pa.schema(
    {
        "id": pa.int64(),
        "m": pa.map_(pa.string(), pa.int64()),
        "l": pa.list_(pa.map_(pa.string(), pa.float64())),
        "s": pa.struct(
            {"x": pa.map_(pa.string(), pa.map_(pa.string(), pa.date32())), "n": pa.int8()}
        ),
    }
)


def test_a_frame_of_pandas_loads_again(memory_root: str) -> None:
    topic = Topic("t", NESTED_MAPS, bootstrap_servers=memory_root).create()
    rows: list[dict[str, Any]] = [
        {"id": 2**53 + 1, "m": {"a": 2**53 + 1, "b": None}, "l": [{"a": 1.5}, None, {}]},
        {"m": {}, "l": [], "s": {"x": {"k": {"z": T0.date()}, "e": {}, "n": None}, "n": None}},
        {"id": None, "s": {"x": None, "n": 1}},
    ]
    with Producer(bootstrap_servers=memory_root) as producer:
        for row in rows:
            producer.produce(topic, row)
    frame = to_pandas(topic)
    assert frame["id"].tolist() == [2**53 + 1, pd.NA, pd.NA]
    again = other(topic, memory_root)
    assert from_pandas(again, frame) == 3
    assert (
        values(again) == values(topic) == [dict.fromkeys(NESTED_MAPS.names) | row for row in rows]
    )
    with pytest.raises(InvalidValue, match=r"field 'm\.value': is double, not int64"):
        from_pandas(again, pd.DataFrame({"m": [[("a", 1.0)], {"a": 2.0}]}))


@pytest.mark.parametrize(
    ("column", "field"),
    [
        ([1, 2, "a", 3], "c[2]"),
        (["a", 1], "c[1]"),
        ([2**70], "c[0]"),
        ([1, object()], "c[1]"),
        ([0j], "c[0]"),
        (["a", "\ud800"], "c[1]"),
        (pd.arrays.SparseArray([0, 1]), "c[0]"),
        ([[("a", 1)]], "c[0]"),
    ],
    ids=["mixed", "text", "long", "object", "complex", "surrogate", "sparse", "map"],
)
def test_a_column_of_pandas_without_one_type_of_arrow_is_refused(
    orders: Topic, column: Any, field: str
) -> None:
    before = orders.to_arrow().num_rows
    with pytest.raises(InvalidValue, match="use from_arrow with a table") as refusal:
        from_pandas(orders, pd.DataFrame({"id": range(len(column)), "c": column}))
    assert refusal.value.field == field
    assert orders.to_arrow().num_rows == before


def test_a_csv_file_has_every_record_as_text(orders: Topic, trades: Topic, tmp_path: Path) -> None:
    assert to_csv(orders, tmp_path / "o.csv") == 5
    with (tmp_path / "o.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["value"] for row in rows] == ['a,"b"\nc', "=1+1", "\\xff\0", "", "Grüße"]
    assert rows[0]["_timestamp"] == "2023-11-14T22:13:20.000Z"
    to_csv(trades, tmp_path / "t.csv", Last(2))
    with (tmp_path / "t.csv").open(newline="") as file:
        (row, _) = csv.DictReader(file)
    assert (row["price"], row["tags"], row["at"]) == (
        "1.50",
        '["a", "b"]',
        "2026-11-25T09:30:00.000Z",
    )
    assert row["_headers"] == '[{"key": "h", "value": "v"}]'


def test_a_topic_of_bytes_comes_back_from_a_file(memory_root: str, tmp_path: Path) -> None:
    topic = Topic("t", partitions=2, bootstrap_servers=memory_root).create()
    at = 1_700_000_000_123
    with Producer(bootstrap_servers=memory_root) as producer:
        for number, value in enumerate(
            ['a,"b"\nc', "=1+1", None, "", "0070", "Grüße\\n", "1e3", " x "]
        ):
            headers: Any = [("h", "v"), ("h", b"\xff"), ("n", None)] if number % 3 == 0 else None
            producer.produce(
                topic,
                value,
                key=[None, "", "007"][number % 3],
                partition=number % 2,
                timestamp=at + number,
                headers=headers,
            )
    records = [record._replace(offset=0) for record in messages(topic)]
    for form, write in (
        ("csv", to_csv),
        ("parquet", lambda t, path: pq.write_table(to_arrow(t), path)),
    ):
        write(topic, tmp_path / f"t.{form}")
        back = Topic(form, partitions=2, bootstrap_servers=memory_root).create()
        assert from_file(back, tmp_path / f"t.{form}") == 8
        assert sorted(record._replace(offset=0) for record in messages(back)) == sorted(records)


def test_a_flat_typed_topic_comes_back_from_a_csv_file(memory_root: str, tmp_path: Path) -> None:
    columns = pa.schema(
        {"id": pa.int64(), "price": pa.decimal128(9, 2), "at": pa.timestamp("us", "UTC")}
    )
    topic = Topic("flat", columns, bootstrap_servers=memory_root).create()
    rows = [{"id": 1, "price": Decimal("1.50"), "at": T0}, {"id": 2, "price": None, "at": None}]
    rows += [
        {"id": 3, "price": None, "at": T0.replace(microsecond=us)} for us in (7, 999_999, 120_000)
    ]
    with Producer(bootstrap_servers=memory_root) as producer:
        for row in rows:
            producer.produce(topic, row, key="k", headers={"h": "v"})
    to_csv(topic, tmp_path / "flat.csv")
    back = other(topic, memory_root)
    assert from_file(back, tmp_path / "flat.csv") == 5
    assert [(record.key, record.headers, record.value) for record in messages(back)] == [
        (b"k", [("h", b"v")], row) for row in rows
    ]


def test_bytes_and_nested_values_come_back_from_a_csv_file(
    orders: Topic, trades: Topic, memory_root: str, tmp_path: Path
) -> None:
    to_csv(orders, tmp_path / "o.csv")
    back = other(orders, memory_root)
    from_file(back, tmp_path / "o.csv")
    assert values(back) == values(orders)
    to_csv(trades, tmp_path / "t.csv")
    back = other(trades, memory_root)
    from_file(back, tmp_path / "t.csv")
    assert values(back) == values(trades)


@pytest.mark.parametrize(
    "value", ["a\tb\nc", r"C:\reports\temp", "a\rb", "\x1b[0m", "\ufeff", "\U000e0001"]
)
def test_text_comes_back_from_a_workbook(memory_root: str, tmp_path: Path, value: str) -> None:
    topic = Topic("texts", bootstrap_servers=memory_root).create()
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("texts", value)
    to_xlsx(topic, tmp_path / "t.xlsx")
    back = Topic("back", bootstrap_servers=memory_root).create()
    from_file(back, tmp_path / "t.xlsx")
    assert values(back) == [value.encode()]


def test_a_workbook_comes_back_and_holds_no_formula(
    orders: Topic, trades: Topic, tmp_path: Path
) -> None:
    path = tmp_path / "o.xlsx"
    assert to_xlsx(orders, path) == 5
    sheet = openpyxl.load_workbook(path).worksheets[0]
    assert {cell.data_type for row in sheet.iter_rows() for cell in row} <= {"s", "n", "d"}
    heading, *rows = sheet.iter_rows(values_only=True)
    at = heading.index("value")
    assert [row[at] for row in rows] == ['a,"b"\nc', "=1+1", "\\xff\\x00", None, "Grüße"]
    assert rows[0][heading.index("_timestamp")] == datetime(2023, 11, 14, 22, 13, 20)
    assert rows[0][heading.index("_key")] == "+k"
    to_xlsx(trades, tmp_path / "t.xlsx")
    heading, row, _ = (
        openpyxl.load_workbook(tmp_path / "t.xlsx").worksheets[0].iter_rows(values_only=True)
    )
    assert row[heading.index("price")] == 1.5
    assert row[heading.index("tags")] == '["a", "b"]'


def test_a_workbook_is_produced_with_the_types_of_its_cells(
    memory_root: str, tmp_path: Path
) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    for row in (
        [" id ", "item", "at", None],
        [1, "tea", T0.replace(tzinfo=None), None],
        [],
        [2.0, "milk", None],
    ):
        sheet.append(row)
    book.save(tmp_path / "o.xlsx")
    columns = pa.schema({"id": pa.int64(), "item": pa.string(), "at": pa.timestamp("us", "UTC")})
    topic = Topic("typed", columns, bootstrap_servers=memory_root).create()
    assert from_file(topic, tmp_path / "o.xlsx", key_column="id") == 2
    assert values(topic) == [
        {"id": 1, "item": "tea", "at": T0},
        {"id": 2, "item": "milk", "at": None},
    ]
    raw = Topic("raw", bootstrap_servers=memory_root).create()
    from_file(raw, tmp_path / "o.xlsx")
    assert values(raw)[0] == b'{"id": 1, "item": "tea", "at": "2026-11-25T09:30:00+00:00"}'


def test_a_file_that_is_no_workbook_or_has_no_names_is_refused(
    memory_root: str, tmp_path: Path
) -> None:
    topic = Topic("t", bootstrap_servers=memory_root).create()
    (tmp_path / "a.xlsx").write_bytes(b"no zip")
    with pytest.raises(InvalidConfig, match="not a workbook"):
        from_file(topic, tmp_path / "a.xlsx")
    for heading in ([], ["a", "a"], ["a", None, "b"]):
        book = openpyxl.Workbook()
        book.active.append(heading)
        book.save(tmp_path / "b.xlsx")
        with pytest.raises(InvalidConfig, match="a name for each column"):
            from_file(topic, tmp_path / "b.xlsx")


def test_what_a_sheet_cannot_hold_is_refused(
    memory_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic("t", bootstrap_servers=memory_root).create()
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("t", b"x" * (sheets.CELL_CHARS_MAX + 1))
    with pytest.raises(InvalidConfig, match="a cell has 32,767 characters at most, not 32,768"):
        to_xlsx(topic, tmp_path / "t.xlsx")
    monkeypatch.setattr(sheets, "ROWS_MAX", 1)
    with pytest.raises(InvalidConfig, match="choose a range"):
        to_xlsx(topic, tmp_path / "t.xlsx")
    with pytest.raises(InvalidConfig, match="nothing"):
        to_csv(topic, tmp_path / "nothing" / "t.csv")


UNSOUND = pa.table({"id": [1, 2], "note": text_of(b"ok", b"\xfc")})


@pytest.mark.parametrize("typed", [False, True])
def test_a_table_with_a_value_that_no_reader_could_return_is_refused_before_its_first_row(
    memory_root: str, monkeypatch: pytest.MonkeyPatch, typed: bool
) -> None:
    monkeypatch.setattr("deltaq.tools.frames._ROWS_AT_ONCE", 1)
    schema = pa.schema([("id", pa.int64()), ("note", pa.string())]) if typed else None
    topic = Topic("t", schema, bootstrap_servers=memory_root).create()
    with pytest.raises(InvalidValue, match=r"field 'note\[1\]': has bytes that are no UTF-8"):
        from_arrow(topic, UNSOUND)
    assert topic.to_arrow().num_rows == 0


def test_a_row_of_a_file_that_no_reader_could_return_is_refused_by_its_number(
    orders: Topic, tmp_path: Path
) -> None:
    before = orders.to_arrow().num_rows
    pq.write_table(UNSOUND, tmp_path / "x.parquet")
    with pytest.raises(InvalidValue, match=r"field 'note\[1\]': has bytes that are no UTF-8"):
        from_file(orders, tmp_path / "x.parquet")
    assert orders.to_arrow().num_rows == before


def test_python_objects_of_polars_and_periods_of_pandas_are_refused_by_name(orders: Topic) -> None:
    with pytest.raises(InvalidValue, match="field 'id': is of Polars' type Object"):
        from_polars(orders, pl.DataFrame({"id": [object()], "n": [1]}))
    with pytest.raises(InvalidValue, match=r"field 'n': is of Polars' type Int128.*cast it"):
        from_polars(orders, pl.DataFrame({"n": pl.Series([1], dtype=pl.Int128)}))
    with pytest.raises(InvalidValue, match=r"field 'p': is of the extension type 'pandas\.period'"):
        from_pandas(orders, pd.DataFrame({"p": pd.period_range("2020-01", periods=1, freq="M")}))


@pytest.mark.parametrize(
    ("library", "call", "extra"),
    [
        ("openpyxl", lambda topic, path: to_xlsx(topic, path), r"deltaq\[xlsx\]"),
        ("polars", lambda topic, _: to_polars(topic), "pip install polars"),
    ],
)
def test_without_its_library_a_call_says_what_to_install(
    memory_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    call: Any,
    extra: str,
) -> None:
    topic = Topic("t", bootstrap_servers=memory_root).create()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InvalidConfig, match=extra):
        call(topic, tmp_path / "t")
