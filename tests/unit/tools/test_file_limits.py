"""Files that would never end or take all memory are refused by file, place and limit, before
anything is written.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaq import Topic
from deltaq.errors import KafkaException
from deltaq.parquet import bounded_decoding, plain_files
from deltaq.tools import csv_files, file_rows, files, from_file, workbook_limits
from deltaq.tools.json_lines import read_json_lines
from deltaq.tools.spreadsheets import write_sheet

SHEET = "xl/worksheets/sheet1.xml"
HEADING = '<row r="1"><c r="A1" t="str"><v>a</v></c></row>'


@pytest.fixture
def raw(memory_root: str) -> Topic:
    """An empty topic of bytes."""
    return Topic("raw", bootstrap_servers=memory_root).create()


def refused(topic: Topic, path: Path, reason: str) -> None:
    with pytest.raises(KafkaException, match=reason) as error:
        from_file(topic, path)
    assert error.value.error.str().startswith(f"{path}: ")
    assert error.value.error.str().count(str(path)) == 1
    assert topic.to_arrow().num_rows == 0


def workbook(
    path: Path, rows: str, before: str = "", *, parts: dict[str, str] | None = None
) -> Path:
    """A workbook whose sheet has this XML."""
    write_sheet(path.with_name("good.xlsx"), ["a"], [["x"]])
    sheet = (
        '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
        f"{before}<sheetData>{rows}</sheetData></worksheet>"
    )
    with (
        zipfile.ZipFile(path.with_name("good.xlsx")) as good,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in good.namelist():
            archive.writestr(name, sheet if name == SHEET else good.read(name))
        for name, text in (parts or {}).items():
            archive.writestr(name, text)
    return path


# --- workbooks ---


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            HEADING + '<row r="1000000000000"><c t="str"><v>x</v></c></row>',
            "row 1000000000000 is beyond 1,048,576",
        ),
        (HEADING + '<row r="1048577"/>', "row 1048577 is beyond 1,048,576"),
        (
            HEADING + '<row r="2"><c r="XFE2" t="str"><v>x</v></c></row>',
            "cell XFE2 is beyond 16,384 columns",
        ),
        (HEADING + '<row r="2"><c r="ZZZZZZ2"/></row>', "cell ZZZZZZ2 is beyond 16,384 columns"),
        (HEADING + "<x>" * 100, "nested more than 100 levels deep"),
        ("</sheetData><x>" + "<y/>" * 1001 + "</x><sheetData>", "more than 1,000 XML elements"),
        ("<row>" + "<y/>" * 1001 + "</row>", "more than 1,000 XML elements in row 1"),
        (HEADING + "<row/>" * 1001, "has more than 1,000 rows"),
    ],
    ids=[
        "row",
        "row after the last",
        "column",
        "name of a column",
        "depth",
        "elements",
        "elements of a row",
        "rows",
    ],
)
def test_a_workbook_beyond_a_limit_is_refused(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, reason: str
) -> None:
    monkeypatch.setattr(workbook_limits, "ELEMENTS_MAX", 1000)
    if "rows" in reason:
        monkeypatch.setattr(workbook_limits, "ROWS_MAX", 1000)
        reason = "row 1001 is beyond 1,000, the limit of a sheet"
    refused(raw, workbook(tmp_path / "a.xlsx", rows), f"not a workbook: {SHEET}: .*{reason}")


@pytest.mark.parametrize("text", ["<v>{}</v>", "<v><![CDATA[{}]]></v>", '<v a="{}"/>'])
def test_a_huge_cell_of_a_small_workbook_is_refused(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(workbook_limits, "ROW_CHARS_MAX", 10_000)
    rows = HEADING + f'<row r="2"><c r="A2" t="str">{text.format("x" * 10_001)}</c></row>'
    refused(raw, workbook(tmp_path / "a.xlsx", rows), "has more than 10,000 characters in row 2")


def test_a_tag_that_does_not_end_is_not_kept_in_memory(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbook_limits, "TOKEN_BYTES_MAX", 100_000)
    monkeypatch.setattr(workbook_limits, "_CHUNK_BYTES", 10_000)
    rows = HEADING + f'<row a="{"x" * 300_000}"/>'
    refused(raw, workbook(tmp_path / "a.xlsx", rows), "has a tag of more than 100,000 bytes")


def test_a_workbook_that_unpacks_to_too_much_is_refused(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbook_limits, "UNPACKED_BYTES_MAX", 100_000)
    path = workbook(tmp_path / "a.xlsx", HEADING, parts={"xl/media/a.bin": "x" * 100_000})
    refused(raw, path, r"it unpacks to 1\d\d,\d\d\d bytes, and 100,000 are the limit")


def test_the_parts_that_openpyxl_parses_as_a_tree_have_limits(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbook_limits, "ELEMENTS_MAX", 1000)
    tree = '<x xmlns="a">' + "<y/>" * 1001 + "</x>"
    for name in ("xl/other.xml", "xl/sheet"):
        refused(
            raw,
            workbook(tmp_path / "a.xlsx", HEADING, parts={name: tree}),
            f"{name}: has more than 1,000 XML",
        )
    lol = '<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'
    refused(
        raw,
        workbook(tmp_path / "b.xlsx", HEADING, parts={"xl/a.xml": lol}),
        "xl/a.xml: has a document type",
    )


def test_a_claimed_width_of_a_sheet_costs_nothing(raw: Topic, tmp_path: Path) -> None:
    rows = HEADING + "".join(
        f'<row r="{n}"><c r="A{n}" t="str"><v>x</v></c></row>' for n in range(2, 2000)
    )
    path = workbook(tmp_path / "a.xlsx", rows, '<dimension ref="A1:XFD1048576"/>')
    assert from_file(raw, path) == 1998


def test_a_long_list_of_parts_is_refused(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workbook_limits, "DIRECTORY_BYTES_MAX", 1000)
    path = workbook(tmp_path / "a.xlsx", HEADING, parts={f"x/{n}": "" for n in range(20)})
    refused(raw, path, r"its list of parts has \d,\d\d\d bytes, and 1,000 are the limit")


def test_pictures_in_a_workbook_do_no_harm(raw: Topic, tmp_path: Path) -> None:
    path = workbook(
        tmp_path / "a.xlsx",
        HEADING + "<row><c t='str'><v>x</v></c></row>",
        parts={"xl/a.png": "\x89PNG"},
    )
    assert from_file(raw, path) == 1


# --- text ---


def test_a_csv_file_of_too_many_columns_is_refused(raw: Topic, tmp_path: Path) -> None:
    for count, reason in (
        (20_000, "has 20,000 columns, and 16,384 are the limit"),
        (200_000, "the heading has more"),
    ):
        (tmp_path / "a.csv").write_text(
            ",".join(f"c{n}" for n in range(count)) + "\n" + "," * (count - 1) + "\n"
        )
        refused(raw, tmp_path / "a.csv", reason)
    (tmp_path / "a.csv").write_text(
        ",".join(f"c{n}" for n in range(16_384)) + "\n" + "," * 16_383 + "\n"
    )
    assert from_file(raw, tmp_path / "a.csv") == 1


def test_a_heading_that_does_not_end_is_refused(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_files, "HEADING_BYTES_MAX", 1000)
    for text in ('"' + "x" * 2000, "x" * 2000, '"' + "x\n" * 1000, "a," * 1000):
        (tmp_path / "a.csv").write_text(text)
        refused(raw, tmp_path / "a.csv", "the heading has more than 1,000 bytes, the limit")


def test_a_heading_with_a_name_that_is_too_long_is_refused(raw: Topic, tmp_path: Path) -> None:
    for row in (b"text", b"\xff"):
        (tmp_path / "a.csv").write_bytes(b"x" * 200_000 + b"\n" + row + b"\n")
        refused(raw, tmp_path / "a.csv", "the heading: field larger than field limit")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_row_that_is_too_long_is_refused(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(files, "ROW_BYTES_MAX", 1000)
    long = "x" * 3000
    (tmp_path / f"a.{form}").write_text(
        f'a\n"{long}"\n' if form == "csv" else f'{{"a": "{long}"}}\n'
    )
    reason = (
        "a row has more than 1,000 bytes"
        if form == "csv"
        else "line 1: is longer than 1,000 bytes, the limit"
    )
    refused(raw, tmp_path / f"a.{form}", reason)


def test_a_line_of_many_names_is_refused_and_lines_of_other_names_cost_their_own(
    raw: Topic, memory_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(f'{{"n{number}": 1}}' for number in range(5000)))
    [rows] = read_json_lines(tmp_path / "a.jsonl", None, 1_000_000)
    assert sum(len(row.cells) for row in rows) == 5000  # and not 5,000 columns of 5,000 rows
    assert from_file(raw, tmp_path / "a.jsonl") == 5000
    monkeypatch.setattr(file_rows, "COLUMNS_MAX", 3)
    typed = Topic("typed", pa.schema({"a": pa.int64()}), bootstrap_servers=memory_root).create()
    (tmp_path / "b.jsonl").write_text('{"a": 1, "b": 1, "c": 1, "d": 1}')
    refused(typed, tmp_path / "b.jsonl", "line 1: has 4 names, and 3 are the limit")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('{"a": ' + "9" * 1_000_000 + "}", "does not fit 64 bits|is no int64"),
        ('{"a": 1e' + "9" * 100_000 + "}", "a valid integer"),
    ],
)
def test_depth_and_digits_of_a_line_have_limits(
    memory_root: str, tmp_path: Path, line: str, reason: str
) -> None:
    typed = Topic("typed", pa.schema({"a": pa.int64()}), bootstrap_servers=memory_root).create()
    (tmp_path / "a.jsonl").write_text(line)
    refused(typed, tmp_path / "a.jsonl", f"line 1: .*({reason})")


def test_a_long_number_of_a_cell_is_a_number_only_as_text(
    raw: Topic, memory_root: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("a\n" + "9" * 900_000 + "\n0." + "1" * 900_000 + "\n")
    assert from_file(raw, tmp_path / "a.csv") == 2
    typed = Topic("typed", pa.schema({"a": pa.int64()}), bootstrap_servers=memory_root).create()
    refused(typed, tmp_path / "a.csv", "row 1: field 'a': .* is no int64")


# --- Parquet ---


def test_a_row_group_that_decodes_to_too_much_is_refused(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_decoding, "DECODED_BYTES_MAX", 10_000_000)
    texts = pa.DictionaryArray.from_arrays(
        pa.array([0] * 1000, pa.int32()), pa.array(["x" * 100_000])
    )
    pq.write_table(pa.table({"value": texts}), tmp_path / "a.parquet", store_schema=False)
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    refused(
        raw,
        tmp_path / "a.parquet",
        r"row group 0: it would take 100\d{6} bytes of memory, more than the limit",
    )


def test_a_parquet_file_of_too_many_columns_or_a_large_footer_is_refused(
    raw: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({f"c{n}": [1] for n in range(6)}), path)
    monkeypatch.setattr(files, "COLUMNS_MAX", 5)
    refused(raw, path, "it has 6 columns, and 5 are the limit")
    monkeypatch.setattr(plain_files, "DECODED_BYTES_MAX", 2000)
    refused(raw, path, "its footer would take more memory than allowed")


# --- files that are none ---


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "xlsx"])
def test_a_pipe_or_a_folder_is_no_file_of_rows(
    raw: Topic, tmp_path: Path, form: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / f"a.{form}")
    refused(raw, tmp_path / f"a.{form}", "is no regular file")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "xlsx"])
def test_an_empty_file_has_an_answer(raw: Topic, tmp_path: Path, form: str) -> None:
    (tmp_path / f"a.{form}").touch()
    if form == "jsonl":
        assert from_file(raw, tmp_path / "a.jsonl") == 0
    else:
        refused(raw, tmp_path / f"a.{form}", "no row of the file was written")
