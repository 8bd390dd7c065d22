"""Files of rows as messages: every row becomes the message that its text says."""

from __future__ import annotations

import gc
import math
import zipfile
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.tools import files, from_arrow, from_file, from_polars, messages, to_csv, to_polars, to_xlsx
from deltaq.tools.spreadsheets import write_sheet


@pytest.fixture
def raw(memory_root: str) -> Topic:
    """An empty topic of bytes."""
    return Topic("raw", bootstrap_servers=memory_root).create()


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def contents(topic: Topic) -> list[tuple[bytes | None, Any]]:
    """Keys and values of all records."""
    return [(record.key, record.value) for record in messages(topic)]


# --- CSV ---


def test_only_an_empty_cell_of_a_csv_file_is_null(raw: Topic, memory_root: str, tmp_path: Path) -> None:
    texts = ["NA", "null", "nan", "N/A", "NULL", "#N/A"]
    path = written(tmp_path / "a.csv", "key,value\n" + "".join(f"{text},{text}\n" for text in texts) + ",x\ny,\n")
    assert from_file(raw, path) == 8
    assert contents(raw) == [*((text.encode(), text.encode()) for text in texts), (None, b"x"), (b"y", None)]
    columns = pa.schema({"country": pa.string(), "rate": pa.float64()})
    typed = Topic("typed", columns, bootstrap_servers=memory_root).create()
    from_file(typed, written(tmp_path / "b.csv", "country,rate\nNA,1.5\n,2\nnull,\n"))
    assert [value for _, value in contents(typed)] == [
        {"country": "NA", "rate": 1.5},
        {"country": None, "rate": 2.0},
        {"country": "null", "rate": None},
    ]


def test_a_line_break_in_a_cell_does_not_end_a_row_of_a_large_csv_file(
    raw: Topic, memory_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"first\n%d,second\nthird" % number for number in range(100)]
    with Producer(bootstrap_servers=memory_root) as producer:
        for value in values:
            producer.produce("raw", value)
    to_csv(raw, tmp_path / "raw.csv")
    monkeypatch.setattr(files, "BYTES_AT_ONCE", 500)
    back = Topic("back", bootstrap_servers=memory_root).create()
    assert from_file(back, tmp_path / "raw.csv") == 100
    assert contents(back) == [(None, value) for value in values]


def test_the_key_column_of_a_csv_file_is_text_as_it_stands(raw: Topic, memory_root: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "id,value\n0070,a\n1e3,b\n")
    from_file(raw, path, key_column="id")
    assert contents(raw) == [(b"0070", b"a"), (b"1e3", b"b")]
    typed = Topic("typed", pa.schema({"value": pa.string()}), bootstrap_servers=memory_root).create()
    from_file(typed, path, key_column="id")
    assert [key for key, _ in contents(typed)] == [b"0070", b"1e3"]


def test_a_row_that_is_longer_than_a_megabyte_is_loaded(raw: Topic, memory_root: str, tmp_path: Path) -> None:
    value = '"' * 700_000
    doubled = value.replace('"', '""')
    from_file(raw, written(tmp_path / "a.csv", f'value\nx\n"{doubled}"\ny\n'))
    assert contents(raw) == [(None, text.encode()) for text in ("x", value, "y")]
    typed = Topic("typed", pa.schema({"s": pa.string()}), bootstrap_servers=memory_root).create()
    from_file(typed, written(tmp_path / "a.jsonl", '{"s": "%s"}\n{"s": "x"}\n' % ("\\u0001" * 400_000)))
    assert contents(typed) == [(None, {"s": "\x01" * 400_000}), (None, {"s": "x"})]


# --- JSON lines ---


def test_a_line_without_value_is_the_message_as_it_stands(raw: Topic, tmp_path: Path) -> None:
    lines = ['{"at": "2026-11-25 09:30:00", "n": 1}', '{"day":"2026-11-25","n":2.50}', '{"b": [1, {"c": null}]}']
    assert from_file(raw, written(tmp_path / "a.jsonl", "\n".join(lines) + "\n\n")) == 3
    assert contents(raw) == [(None, line.encode()) for line in lines]


def test_the_key_column_of_json_lines_is_a_field_of_each_line(raw: Topic, tmp_path: Path) -> None:
    lines = ['{"id": "2026-11-25"}', '{"id": 70}', '{"id": null}', '{"other": 1}', '{"id": {"a": 1}}']
    path = written(tmp_path / "a.jsonl", "\n".join(lines))
    from_file(raw, path, key_column="id")
    assert contents(raw) == list(
        zip([b"2026-11-25", b"70", None, None, b'{"a": 1}'], map(str.encode, lines), strict=True)
    )
    with pytest.raises(InvalidValue, match="'key': there is no such column; there are id, other"):
        from_file(raw, path, key_column="key")


def test_json_lines_with_a_value_are_messages(raw: Topic, tmp_path: Path) -> None:
    lines = [
        '{"key": "2026-11-25", "value": "2026-11-25", "timestamp": "2026-01-02T12:00:00.5Z"}',
        '{"value": {"a": 1}, "timestamp": null, "headers": [{"key": "h", "value": "v"}]}',
        '{"key": 7, "value": null, "timestamp": "2026-01-02T12:00:00"}',
    ]
    from_file(raw, written(tmp_path / "a.jsonl", "\n".join(lines)))
    assert contents(raw) == [(b"2026-11-25", b"2026-11-25"), (None, b'{"a": 1}'), (b"7", None)]
    first, second, third = messages(raw)
    assert (first.timestamp, third.timestamp) == (1_767_355_200_500, 1_767_355_200_000)
    assert second.headers == [("h", b"v")]


def test_the_key_of_a_typed_line_is_no_time(memory_root: str, tmp_path: Path) -> None:
    typed = Topic("typed", pa.schema({"id": pa.int64()}), bootstrap_servers=memory_root).create()
    from_file(typed, written(tmp_path / "a.jsonl", '{"id": 1, "_key": "2026-11-25"}\n{"id": 2}\n'))
    assert contents(typed) == [(b"2026-11-25", {"id": 1}), (None, {"id": 2})]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}\n[1]\n", "line 2: not a JSON object"),
        ("{}\n\n{]\n", "line 3: not a JSON object: "),
        ('{"value": "x", "timestamp": "noon"}\n', "'timestamp': not a time: "),
        ('{"value": "\\ud800"}\n', "surrogates not allowed"),
    ],
)
def test_a_line_of_a_file_that_is_no_message_is_explained(raw: Topic, tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises((InvalidValue, InvalidConfig), match=reason.replace("[", r"\[")):
        from_file(raw, written(tmp_path / "a.jsonl", text))


# --- columns ---


def test_bytes_that_are_no_text_go_to_polars_and_back(raw: Topic, memory_root: str) -> None:
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("raw", b"\xff\x00", key=b"\xfe", headers={"h": b"\xfd"})
    back = Topic("back", bootstrap_servers=memory_root).create()
    assert from_polars(back, to_polars(raw)) == 1
    assert from_polars(back, pl.DataFrame({"value": [b"\xff"], "id": [b"\xfe"]}), key_column="id") == 1
    assert contents(back) == [(b"\xfe", b"\xff\x00"), (b"\xfe", b"\xff")]


def test_a_key_column_that_is_a_part_of_messages_stays_that_part(raw: Topic, memory_root: str, tmp_path: Path) -> None:
    from_file(raw, written(tmp_path / "a.csv", "value,partition\na,0\n"), key_column="value")
    assert contents(raw) == [(b"a", b"a")]
    to_csv(raw, tmp_path / "raw.csv")
    back = Topic("back", bootstrap_servers=memory_root).create()
    from_file(back, tmp_path / "raw.csv", key_column="_key")
    assert contents(back) == [(b"a", b"a")]


def test_a_column_that_cannot_become_text_is_refused_by_name(raw: Topic) -> None:
    for name in ("value", "key"):
        rows = pa.table({"value": ["x"], name: [[1]]} if name == "key" else {"value": [[1]]})
        with pytest.raises(InvalidValue, match=f"field '{name}': cannot become text"):
            from_arrow(raw, rows)


def test_two_columns_of_one_name_are_refused(raw: Topic, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="field 'a': there are several columns of this name"):
        from_file(raw, written(tmp_path / "a.csv", "a,b,a\n1,2,3\n"))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_the_mark_at_the_begin_of_a_file_of_unicode_is_no_text(raw: Topic, tmp_path: Path, form: str) -> None:
    text = "\ufeffvalue\nx\n" if form == "csv" else '\ufeff{"value": "x"}\n'
    from_file(raw, written(tmp_path / f"a.{form}", text))
    assert contents(raw) == [(None, b"x")]


# --- spreadsheets ---


def test_days_and_decimals_come_back_from_a_workbook(memory_root: str, tmp_path: Path) -> None:
    columns = pa.schema({"day": pa.date32(), "price": pa.decimal128(10, 2), "at": pa.timestamp("us", "UTC")})
    topic = Topic("typed", columns, bootstrap_servers=memory_root).create()
    at = datetime(2026, 11, 25, 9, 30, tzinfo=UTC)
    rows = [
        {"day": date(2026, 11, 25), "price": Decimal("1.10"), "at": at},
        {"day": None, "price": None, "at": at},
        {"day": date(1999, 12, 31), "price": Decimal("12345678.99"), "at": None},
    ]
    with Producer(bootstrap_servers=memory_root) as producer:
        for row in rows:
            producer.produce(topic, row)
    to_xlsx(topic, tmp_path / "t.xlsx")
    back = Topic("back", columns, bootstrap_servers=memory_root).create()
    from_file(back, tmp_path / "t.xlsx")
    assert [value for _, value in contents(back)] == rows
    write_sheet(tmp_path / "noon.xlsx", ["day"], [[datetime(2026, 11, 25, 12)]])
    with pytest.raises(InvalidValue, match="field 'day': is timestamp"):
        from_file(back, tmp_path / "noon.xlsx")
    write_sheet(tmp_path / "long.xlsx", ["price"], [[0.1234567890123456]])
    with pytest.raises(InvalidValue, match="field 'price': a number is no decimal128"):
        from_file(back, tmp_path / "long.xlsx")


def test_a_number_that_a_sheet_does_not_have_is_text_in_it(memory_root: str, tmp_path: Path) -> None:
    topic = Topic("typed", pa.schema({"rate": pa.float64()}), bootstrap_servers=memory_root).create()
    with Producer(bootstrap_servers=memory_root) as producer:
        for rate in (math.nan, math.inf, -math.inf, 0.5):
            producer.produce(topic, {"rate": rate})
    to_xlsx(topic, tmp_path / "t.xlsx")
    heading, *rows = openpyxl.load_workbook(tmp_path / "t.xlsx").worksheets[0].iter_rows(values_only=True)
    at = heading.index("rate")
    assert [row[at] for row in rows] == ["NaN", "Infinity", "-Infinity", 0.5]


@pytest.mark.parametrize("damage", ["no sheet", "xml", "data"])
def test_a_damaged_workbook_is_refused_by_its_name(raw: Topic, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.xlsx"
    if damage == "no sheet":
        book = openpyxl.Workbook()
        book.remove(book.active)
        book.create_chartsheet("chart")
        book.save(path)
    elif damage == "xml":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("[Content_Types].xml", "<x")
    else:
        write_sheet(tmp_path / "good.xlsx", ["value"], [["x"]])
        with zipfile.ZipFile(tmp_path / "good.xlsx") as good, zipfile.ZipFile(path, "w") as archive:
            for name in good.namelist():
                content = good.read(name)
                archive.writestr(name, content[: len(content) // 2] if name.endswith("sheet1.xml") else content)
    with pytest.raises(InvalidConfig, match=r"a\.xlsx: not a workbook"):
        from_file(raw, path)
    gc.collect()  # a file that is left open becomes a warning, which fails the test
