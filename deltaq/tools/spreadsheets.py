"""Spreadsheets (.xlsx) as rows of messages, and back. Openpyxl is known only here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.tools.cells import bytes_of_sheet, cell_of_sheet, plain_cell, value_of_cell
from deltaq.tools.file_rows import FileRow, Form, is_exported
from deltaq.tools.records import plain
from deltaq.tools.workbook_limits import ROWS_MAX, check_workbook

CELL_CHARS_MAX = 32_767
"""Characters of a cell."""

ROWS_AT_ONCE = 10_000
_CELLS_AT_ONCE = 1_000_000
_EXACT_DIGITS_MAX = 15  # programs for workbooks cut the others
_FIRST_DAY = date(1900, 3, 1)  # before it, such programs count a 29th of February that was none
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
"""A character that XML does not have, in the text of a cell."""

_LOOKALIKE = re.compile("_(?=x[0-9A-Fa-f]{4}_)")


def read_sheet(path: Path) -> Iterator[list[FileRow]]:
    """The rows of a workbook's first sheet, whose first row has the names of the columns, a part at
    a time. Empty rows are left out; the numbers are those that a spreadsheet program shows.

    Formulas count as the value that the workbook has for them. Raises InvalidConfig for a file that
    is no workbook, is beyond a limit, or has no names, and without openpyxl; InvalidValue for a
    cell beyond the named columns.
    """
    openpyxl = _openpyxl()
    try:
        with path.open("rb") as file:  # openpyxl would leave a damaged file open
            check_workbook(file)
            file.seek(0)
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            sheet = book.worksheets[0]
            # Else each row would be filled up to the width that the workbook claims.
            sheet.reset_dimensions()
            rows = sheet.iter_rows(values_only=True)
            names = _names(path, next(rows, ()))
            filled = (
                _row(number, names, row)
                for number, row in enumerate(rows, 2)
                if any(cell is not None for cell in row)
            )
            rows_at_once = max(1, min(ROWS_AT_ONCE, _CELLS_AT_ONCE // len(names)))
            while part := list(islice(filled, rows_at_once)):
                yield part
    except (InvalidConfig, InvalidValue):
        raise
    except Exception as error:  # noqa: BLE001 - openpyxl lets through what its parsers raise for a damaged file
        raise InvalidConfig(f"{path}: not a workbook: {error}", key="file") from None


def _row(number: int, names: Sequence[str], row: Sequence[Any]) -> FileRow:
    if any(cell is not None for cell in row[len(names) :]):
        raise InvalidValue(f"row {number}: has a cell beyond the columns that the first row names")
    cells = [_unescaped(cell) if isinstance(cell, str) else cell for cell in row[: len(names)]]
    return FileRow(
        number, dict(zip(names, cells + [None] * (len(names) - len(cells)), strict=True))
    )


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _names(path: Path, row: Sequence[Any]) -> list[str]:
    names = ["" if cell is None else _unescaped(str(cell)) for cell in row]
    while names and not names[-1].strip():
        names.pop()
    exported = is_exported(names)
    names = [bytes_of_sheet(name).decode() if exported else name.strip() for name in names]
    if not names or not all(names) or len(set(names)) < len(names):
        raise InvalidConfig(
            f"{path}: the first row must have a name for each column, each once", key="file"
        )
    return names


def _content(cell: Any) -> bytes:
    shown = plain_cell(cell)
    return (shown if isinstance(shown, str) else json.dumps(shown)).encode()


def _as_json(cells: Mapping[str, Any]) -> str:
    return json.dumps({name: plain_cell(cell) for name, cell in cells.items()})


def _typed_of_records(kind: pa.DataType, path: str) -> Callable[[Any], Any]:
    value_of = value_of_cell(kind, path)

    def value_of_record(cell: Any) -> Any:
        if not isinstance(cell, str):
            return value_of(cell)
        content = bytes_of_sheet(cell)
        return content if pa.types.is_binary(kind) else value_of(content.decode())

    return value_of_record


def _content_of_records(cell: Any) -> bytes:
    return bytes_of_sheet(cell) if isinstance(cell, str) else _content(cell)


SHEET = Form("row", value_of_cell, _content, _as_json)
SHEET_OF_RECORDS = Form("row", _typed_of_records, _content_of_records, _as_json)
"""Workbooks of `to_xlsx`, whose text is escaped."""


def write_sheet(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Write a workbook of one sheet, with a heading; the number of rows. Text is text, also where
    it begins with `=`.

    Times are in UTC, since a sheet has no time zones. Bytes and text are escaped as `cell_of_sheet`
    does it; a number or a time that a cell would change stands as text. Raises InvalidConfig for
    more rows than a sheet has, a text that is too long for a cell, a file that cannot be written,
    and without openpyxl.
    """
    openpyxl = _openpyxl()
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("messages")
    sheet.freeze_panes = "A2"
    count = -1  # without the heading
    try:
        for count, row in enumerate(chain([names], rows)):
            if count >= ROWS_MAX:
                raise InvalidConfig(
                    f"a sheet has {ROWS_MAX:,} rows at most: choose a range of the topic",
                    key="file",
                )
            cells = zip(chain(names, repeat("")), row, strict=False)
            sheet.append([_cell(openpyxl, sheet, value, name, count) for name, value in cells])
    finally:
        sheet.close()
    try:
        book.save(path)
    except OSError as error:
        raise InvalidConfig(f"{path}: {error}", key="file") from None
    return count


def _cell(openpyxl: Any, sheet: Any, value: Any, name: str, row: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, bytes | str):
        text = cell_of_sheet(value if isinstance(value, bytes) else value.encode())
    elif (number := _exact(value)) is not None:
        return number
    else:
        text = str(plain(value))
    text = _LOOKALIKE.sub("_x005F_", text)
    if len(text) > CELL_CHARS_MAX:
        raise InvalidConfig(
            f"column {name[:300]!a}, row {row:,}: a cell has {CELL_CHARS_MAX:,} characters at "
            f"most, not {len(text):,}: choose a range of the topic without it, or CSV",
            key="file",
        )
    cell = openpyxl.cell.WriteOnlyCell(sheet, text)
    # A text that begins with `=` would become a formula, which the program of the reader runs.
    cell.data_type = "s"
    return cell


def _exact(value: Any) -> Any:
    """A number or a time as a cell has it; None if the cell would change it."""
    if isinstance(value, int):
        return value if len(str(abs(value))) <= _EXACT_DIGITS_MAX else None
    if isinstance(value, float):
        is_same = (
            math.isfinite(value)
            and float(f"{value:.16g}") == value
            and (value or math.copysign(1, value) > 0)
        )
        return value if is_same else None
    if isinstance(value, Decimal):
        is_short = len(value.as_tuple().digits) <= _EXACT_DIGITS_MAX
        return float(value) if is_short and Decimal(repr(float(value))) == value else None
    return _exact_time(value)


def _exact_time(value: Any) -> Any:
    from openpyxl.utils.datetime import from_excel, to_excel  # noqa: PLC0415 - an extra

    day = None if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    time = day or value.astimezone(UTC).replace(tzinfo=None)
    try:
        is_same = from_excel(float(f"{to_excel(time):.16g}")) == time
    except OverflowError:  # the cell of the last half millisecond is rounded to the year 10000
        is_same = False
    if time.date() < _FIRST_DAY or not is_same:
        return None
    return value if day else time


def _openpyxl() -> Any:
    try:
        import openpyxl  # noqa: PLC0415 - an extra
        import openpyxl.cell  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        raise InvalidConfig(
            "spreadsheets need the extra [xlsx]: pip install 'deltaq[xlsx]'", key="file"
        ) from None
    return openpyxl
