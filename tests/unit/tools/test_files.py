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
import pyarrow.parquet as pq
import pytest

from deltaq import Producer, Topic
from deltaq.errors import InvalidConfig, InvalidValue, KafkaException
from deltaq.parquet import plain_files
from deltaq.tools import (
    csv_files,
    files,
    from_arrow,
    from_file,
    from_polars,
    json_lines,
    messages,
    spreadsheets,
    to_csv,
    to_polars,
    to_xlsx,
)
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


def test_only_an_empty_cell_of_a_csv_file_is_null(
    raw: Topic, memory_root: str, tmp_path: Path
) -> None:
    texts = ["NA", "null", "nan", "N/A", "NULL", "#N/A"]
    path = written(
        tmp_path / "a.csv",
        "key,value\n" + "".join(f"{text},{text}\n" for text in texts) + ",x\ny,\n",
    )
    assert from_file(raw, path) == 8
    assert contents(raw) == [
        *((text.encode(), text.encode()) for text in texts),
        (None, b"x"),
        (b"y", None),
    ]
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
    monkeypatch.setattr(files, "ROW_BYTES_MAX", 500)
    back = Topic("back", bootstrap_servers=memory_root).create()
    assert from_file(back, tmp_path / "raw.csv") == 100
    assert contents(back) == [(None, value) for value in values]


def test_the_key_column_of_a_csv_file_is_text_as_it_stands(
    raw: Topic, memory_root: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "a.csv", "id,value\n0070,a\n1e3,b\n")
    from_file(raw, path, key_column="id")
    assert contents(raw) == [(b"0070", b"a"), (b"1e3", b"b")]
    typed = Topic(
        "typed", pa.schema({"value": pa.string()}), bootstrap_servers=memory_root
    ).create()
    from_file(typed, path, key_column="id")
    assert [key for key, _ in contents(typed)] == [b"0070", b"1e3"]


def test_a_row_that_is_longer_than_a_megabyte_is_loaded(
    raw: Topic, memory_root: str, tmp_path: Path
) -> None:
    value = '"' * 700_000
    doubled = value.replace('"', '""')
    from_file(raw, written(tmp_path / "a.csv", f'value\nx\n"{doubled}"\ny\n'))
    assert contents(raw) == [(None, text.encode()) for text in ("x", value, "y")]
    typed = Topic("typed", pa.schema({"s": pa.string()}), bootstrap_servers=memory_root).create()
    from_file(
        typed, written(tmp_path / "a.jsonl", '{"s": "%s"}\n{"s": "x"}\n' % ("\\u0001" * 400_000))
    )
    assert contents(typed) == [(None, {"s": "\x01" * 400_000}), (None, {"s": "x"})]


# --- JSON lines ---


def test_a_line_without_value_is_the_message_as_it_stands(raw: Topic, tmp_path: Path) -> None:
    lines = [
        '{"at": "2026-11-25 09:30:00", "n": 1}',
        '{"day":"2026-11-25","n":2.50}',
        '{"b": [1, {"c": null}]}',
    ]
    assert from_file(raw, written(tmp_path / "a.jsonl", "\n".join(lines) + "\n\n")) == 3
    assert contents(raw) == [(None, line.encode()) for line in lines]


def test_the_key_column_of_json_lines_is_a_field_of_each_line(raw: Topic, tmp_path: Path) -> None:
    lines = [
        '{"id": "2026-11-25"}',
        '{"id": 70}',
        '{"id": null}',
        '{"other": 1}',
        '{"id": {"a": 1}}',
    ]
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
def test_a_line_of_a_file_that_is_no_message_is_explained(
    raw: Topic, tmp_path: Path, text: str, reason: str
) -> None:
    with pytest.raises((InvalidValue, InvalidConfig), match=reason.replace("[", r"\[")):
        from_file(raw, written(tmp_path / "a.jsonl", text))


# --- columns ---


def test_bytes_that_are_no_text_go_to_polars_and_back(raw: Topic, memory_root: str) -> None:
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("raw", b"\xff\x00", key=b"\xfe", headers={"h": b"\xfd"})
    back = Topic("back", bootstrap_servers=memory_root).create()
    assert from_polars(back, to_polars(raw)) == 1
    assert (
        from_polars(back, pl.DataFrame({"value": [b"\xff"], "id": [b"\xfe"]}), key_column="id") == 1
    )
    assert contents(back) == [(b"\xfe", b"\xff\x00"), (b"\xfe", b"\xff")]


def test_a_key_column_that_is_a_part_of_messages_stays_that_part(
    raw: Topic, memory_root: str, tmp_path: Path
) -> None:
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
def test_the_mark_at_the_begin_of_a_file_of_unicode_is_no_text(
    raw: Topic, tmp_path: Path, form: str
) -> None:
    text = "\ufeffvalue\nx\n" if form == "csv" else '\ufeff{"value": "x"}\n'
    from_file(raw, written(tmp_path / f"a.{form}", text))
    assert contents(raw) == [(None, b"x")]


# --- spreadsheets ---


def test_days_and_decimals_come_back_from_a_workbook(memory_root: str, tmp_path: Path) -> None:
    columns = pa.schema(
        {"day": pa.date32(), "price": pa.decimal128(10, 2), "at": pa.timestamp("us", "UTC")}
    )
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
    with pytest.raises(InvalidValue, match=r"row 2: field 'day': .*date"):
        from_file(back, tmp_path / "noon.xlsx")
    write_sheet(tmp_path / "long.xlsx", ["price"], [[0.1234567890123456]])
    with pytest.raises(InvalidValue, match="field 'price': a number is no decimal128"):
        from_file(back, tmp_path / "long.xlsx")


def test_a_number_that_a_sheet_does_not_have_is_text_in_it(
    memory_root: str, tmp_path: Path
) -> None:
    topic = Topic(
        "typed", pa.schema({"rate": pa.float64()}), bootstrap_servers=memory_root
    ).create()
    with Producer(bootstrap_servers=memory_root) as producer:
        for rate in (math.nan, math.inf, -math.inf, 0.5):
            producer.produce(topic, {"rate": rate})
    to_xlsx(topic, tmp_path / "t.xlsx")
    heading, *rows = (
        openpyxl.load_workbook(tmp_path / "t.xlsx").worksheets[0].iter_rows(values_only=True)
    )
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
                archive.writestr(
                    name, content[: len(content) // 2] if name.endswith("sheet1.xml") else content
                )
    with pytest.raises(InvalidConfig, match=r"a\.xlsx: not a workbook"):
        from_file(raw, path)
    gc.collect()  # a file that is left open becomes a warning, which fails the test


# --- one set of rules for each form ---

RULES = pa.schema(
    {
        "d": pa.date32(),
        "f": pa.float64(),
        "g": pa.float32(),
        "p": pa.decimal128(38, 25),
        "n": pa.int64(),
        "s": pa.string(),
        "at": pa.timestamp("us", "UTC"),
    }
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('{"d": "2026-01-01"}', {"d": date(2026, 1, 1)}),
        ('{"f": "NaN"}', {"f": math.nan}),
        ('{"g": "-Infinity"}', {"g": -math.inf}),
        ('{"f": 1, "_timestamp": "2026-01-01T00:00:00Z"}', {"f": 1.0}),
        ('{"d": 5}', "line 1: field 'd': "),
        ('{"f": NaN}', "line 1: not a JSON object: NaN is not a JSON number"),
        ('{"g": 1e39}', "line 1: field 'g': .* too large for float32"),
        ('{"f": 1e400}', "line 1: field 'f': 1e400 is no double"),
        ('{"f": 1e-400}', "line 1: field 'f': 1e-400 is no double"),
        ('{"f": 1.50}', {"f": 1.5}),
        ('{"g": 16777218}', {"g": 16777218.0}),
        ('{"g": 16777217}', "line 1: field 'g': No float32 is equal to this integer"),
        ('{"p": 1.0000000000000000000000001}', {"p": Decimal("1.0000000000000000000000001")}),
        ('{"p": 12.5' + "0" * 300 + "}", {"p": Decimal("12.5" + "0" * 24)}),
        ('{"p": "12.5' + "0" * 100 + '"}', {"p": Decimal("12.5" + "0" * 24)}),
        ('{"p": 1e-25}', {"p": Decimal("1E-25")}),
        ('{"p": "\\u0661"}', "line 1: field 'p': '\u0661' is no decimal128"),
        ('{"p": 1e-999999999}', "line 1: field 'p': 1e-999999999 is no decimal128"),
        ('{"p": "1_0"}', "line 1: field 'p': '1_0' is no decimal128"),
        ('{"f": 9007199254740993}', "line 1: field 'f': No float is equal to this integer"),
        ('{"n": 1} {"n": 2}', "line 1: not a JSON object: Extra data"),
        ('{"n": 1, "x": 2}', "line 1: field 'x'"),
        ('{"n": 1, "n": 2}', "line 1: not a JSON object: a key is repeated"),
        ('{"s": "\xfc"}', "line 1: not a JSON object: .*can't decode byte 0xfc"),
        ('{"s": "\\ud800"}', "line 1: field 's'"),
        ('{"n": 1, "_timestamp": "noon"}', "line 1: field 'timestamp': not a time"),
        ('{"n": 1, "_timestamp": 1e30}', "line 1: field 'timestamp'"),
        ('{"n": 1, "_partition": 1.5}', "line 1: field 'partition': 1.5 is no whole number"),
        ('{"n": 1, "_partition": true}', "line 1: field 'partition'"),
        (
            '{"n": 1, "_headers": [{"key": 1, "value": "x"}]}',
            "line 1: field 'headers': not headers",
        ),
    ],
)
@pytest.mark.parametrize(
    "others", [[], [("m", pa.map_(pa.string(), pa.string()))], [("b", pa.binary())]]
)
def test_the_rules_for_a_line_do_not_depend_on_the_other_columns(
    memory_root: str,
    tmp_path: Path,
    line: str,
    expected: Any,
    others: list[tuple[str, pa.DataType]],
) -> None:
    topic = Topic("typed", pa.schema([*RULES, *others]), bootstrap_servers=memory_root).create()
    path = tmp_path / "a.jsonl"
    path.write_bytes(line.encode("latin-1"))
    if isinstance(expected, str):
        with pytest.raises(KafkaException, match=expected):
            from_file(topic, path)
    else:
        from_file(topic, path)
        [(_, value)] = contents(topic)
        assert repr({name: cell for name, cell in value.items() if cell is not None}) == repr(
            expected
        )


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("n", " +5 ", 5),
        ("n", "0x1F", None),
        ("n", "9223372036854775808", None),
        ("n", "1.0", None),
        ("f", "1e400", None),
        ("f", "9007199254740993", None),
        ("f", "0x1p3", None),
        ("f", "1_0", None),
        ("f", "inf", math.inf),
        ("f", "1e3", 1000.0),
        ("f", "1e-400", None),
        ("f", "0e-400", 0.0),
        ("g", "1e39", None),
        ("g", "16777217", None),
        ("p", " 1.0000000000000000000000001 ", Decimal("1.0000000000000000000000001")),
        ("p", "1e-999999999", None),
        ("p", "1_0", None),
        ("p", "\u0661", None),
        ("p", "NaN", None),
        ("d", "2026-01-01", date(2026, 1, 1)),
        ("d", "20000", None),
        ("at", "2026-01-01 10:00", datetime(2026, 1, 1, 10, tzinfo=UTC)),
        ("at", "2026-01-01T10:00:00.1234567Z", None),
        ("s", " x ", " x "),
    ],
)
def test_a_cell_of_a_typed_topic_is_a_value_or_is_refused(
    memory_root: str, tmp_path: Path, name: str, text: str, expected: object
) -> None:
    topic = Topic("typed", RULES, bootstrap_servers=memory_root).create()
    path = written(tmp_path / "a.csv", f"{name}\n{text}\n")
    if expected is None:
        with pytest.raises(InvalidValue, match=f"row 1: field '{name}': "):
            from_file(topic, path)
    else:
        from_file(topic, path)
        assert [value[name] for _, value in contents(topic)] == [expected]


def test_a_cell_of_csv_is_a_number_only_if_printing_it_gives_the_same_text(
    raw: Topic, tmp_path: Path
) -> None:
    numbers = [
        "0",
        "-7",
        "9007199254740993",
        "12345678901234567890",
        "0.5",
        "-1.25",
        "true",
        "false",
    ]
    texts = [
        "1e400",
        "0x1F",
        "+49",
        "0070",
        "1.50",
        "-0",
        "1.",
        ".5",
        "1e5",
        "True",
        "NaN",
        "null",
        "0.1234567890123456789",
    ]
    from_file(raw, written(tmp_path / "a.csv", "a\n" + "\n".join([*numbers, *texts]) + "\n"))
    assert contents(raw) == [
        *((None, b'{"a": %s}' % text.encode()) for text in numbers),
        *((None, b'{"a": "%s"}' % text.encode()) for text in texts),
    ]


def test_a_late_cell_of_csv_changes_no_other(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROW_BYTES_MAX", 500)
    lines = "".join(f"{number},,{'x' * 90}\n" for number in range(100))
    assert from_file(raw, written(tmp_path / "a.csv", f"id,note,pad\n{lines}100,late,x\n")) == 101
    assert contents(raw)[0][1] == b'{"id": 0, "note": null, "pad": "%s"}' % (b"x" * 90)
    assert contents(raw)[-1][1] == b'{"id": 100, "note": "late", "pad": "x"}'


def test_numbers_of_a_message_in_a_line_stay_as_they_stand(raw: Topic, tmp_path: Path) -> None:
    value = (
        b'{"n": 12345678901234567890123, "f": 1.50, "e": 1e400, "a": [0.1234567890123456789, null,'
        b' "x"]}'
    )
    (tmp_path / "a.jsonl").write_bytes(
        b'{"value": %s, "key": 1.50, "partition": 0, "timestamp": 7}\n' % value
    )
    from_file(raw, tmp_path / "a.jsonl")
    assert contents(raw) == [(b"1.50", value)]
    assert [record.timestamp for record in messages(raw)] == [7]


def test_the_first_line_says_what_all_lines_are(raw: Topic, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidValue, match="line 2: has no value, as the first line has; give null for a tombstone"
    ):
        from_file(raw, written(tmp_path / "a.jsonl", '{"value": "x"}\n{"key": "x"}\n'))
    assert from_file(raw, written(tmp_path / "b.jsonl", '{"a": 1}\n{"value": "x"}\n')) == 2
    assert contents(raw) == [(None, b'{"a": 1}'), (None, b'{"value": "x"}')]


def test_lines_that_are_no_messages_may_have_any_numbers(raw: Topic, tmp_path: Path) -> None:
    line = '{"n": 12345678901234567890123, "e": 1e400}'
    from_file(raw, written(tmp_path / "a.jsonl", line))
    assert contents(raw) == [(None, line.encode())]


# --- what a refused file has written ---


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "xlsx"])
def test_a_refusal_names_the_rows_that_are_in_the_topic_and_where_to_go_on(
    memory_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    topic = Topic("typed", pa.schema({"n": pa.int64()}), bootstrap_servers=memory_root).create()
    path = tmp_path / f"a.{form}"
    for module in (csv_files, json_lines, spreadsheets):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(plain_files, "ROWS_AT_ONCE", 10)
    good = range(25)
    if form == "csv":
        path.write_text("n\n" + "".join(f"{n}\n" for n in good) + "x\n")
    elif form == "jsonl":
        path.write_text("\n" + "".join(f'{{"n": {n}}}\n' for n in good) + "{}\n")
    elif form == "xlsx":
        write_sheet(path, ["n"], [*([n] for n in good), ["x"]])
    else:
        pq.write_table(pa.table({"n": [*good, None]}), path)
    place = {"csv": "row 21", "jsonl": "line 22", "xlsx": "row 22", "parquet": "row 21"}[form]
    with pytest.raises(KafkaException, match=f"20 rows are in the topic: go on from {place}"):
        from_file(topic, path)
    assert [value for _, value in contents(topic)] == [{"n": n} for n in range(20)]


def test_a_file_of_one_part_is_refused_before_its_first_row(raw: Topic, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"value": "x"}\n' * 9999 + "{}\n")
    with pytest.raises(
        InvalidValue, match=r"a\.jsonl: line 10000: has no value.*; no row of the file was written"
    ):
        from_file(raw, path)
    assert contents(raw) == []


def test_a_refusal_of_the_topic_names_the_file_too(raw: Topic, tmp_path: Path) -> None:
    with pytest.raises(
        KafkaException, match=r"a\.csv: .*partition.*; no row of the file was written"
    ):
        from_file(raw, written(tmp_path / "a.csv", "value,partition\nx,7\n"))


# --- Parquet ---


def test_old_times_of_parquet_are_microseconds_in_utc(
    raw: Topic, memory_root: str, tmp_path: Path
) -> None:
    times = [
        datetime(9999, 12, 31),
        datetime(1500, 1, 1),
        datetime(1, 1, 1),
        None,
        datetime(2026, 1, 1, 1, 2, 3, 4),
    ]
    rows = pa.table(
        {
            "before": pa.array([1] * 5),
            "at": pa.array(times, pa.timestamp("us")),
            "all": pa.array(
                [[{"at": time}] for time in times], pa.list_(pa.struct({"at": pa.timestamp("us")}))
            ),
        }
    )
    pq.write_table(rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    utc = pa.timestamp("us", "UTC")
    columns = pa.schema({"before": pa.int64(), "at": utc, "all": pa.list_(pa.struct({"at": utc}))})
    typed = Topic("typed", columns, bootstrap_servers=memory_root).create()
    from_file(typed, tmp_path / "a.parquet")
    aware = [time and time.replace(tzinfo=UTC) for time in times]
    assert [value["at"] for _, value in contents(typed)] == aware
    assert [value["all"] for _, value in contents(typed)] == [[{"at": time}] for time in aware]
    from_file(raw, tmp_path / "a.parquet")
    assert b'"at": "9999-12-31T00:00:00+00:00"' in contents(raw)[0][1]


# --- workbooks of others ---


def test_text_of_a_workbook_is_what_its_program_shows(
    raw: Topic, memory_root: str, tmp_path: Path
) -> None:
    write_sheet(tmp_path / "a.xlsx", ["value"], [["_x0041_"], ["_x000B_"], ["a_x005F_x0041_"]])
    from_file(raw, tmp_path / "a.xlsx")
    assert contents(raw) == [(None, text) for text in (b"_x0041_", b"_x000B_", b"a_x005F_x0041_")]
    book = openpyxl.Workbook()
    book.active.append(["value"])
    book.active.append(["a_x000B_b_x005F_x0041_"])
    book.save(tmp_path / "b.xlsx")
    back = Topic("back", bootstrap_servers=memory_root).create()
    from_file(back, tmp_path / "b.xlsx")
    assert contents(back) == [(None, b"a\x0bb_x0041_")]


def test_a_cell_without_a_name_is_refused(raw: Topic, tmp_path: Path) -> None:
    write_sheet(tmp_path / "a.xlsx", ["a"], [["x"], ["x", "y"]])
    with pytest.raises(
        InvalidValue, match="row 3: has a cell beyond the columns that the first row names"
    ):
        from_file(raw, tmp_path / "a.xlsx")


def test_an_unknown_form_is_refused_before_anything_else(raw: Topic, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"x\.xml: the form is not known: \.csv, \.jsonl"):
        from_file(raw, tmp_path / "x.xml")
