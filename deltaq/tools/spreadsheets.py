"""Spreadsheets (.xlsx) as rows of messages, and back. Openpyxl is known only here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltaq.errors import InvalidConfig, printable

ROWS_MAX = 1_048_576
"""Rows of a sheet, with its heading."""

CELL_CHARS_MAX = 32_767
"""Characters of a cell."""

_ROWS_AT_ONCE = 10_000


def read_sheet(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a workbook's first sheet, whose first row has the names of the columns. Empty rows are left out.

    Formulas count as the value that the workbook has for them, times as UTC. Raises InvalidConfig for a file that is no
    workbook, or has no names, and without openpyxl; pyarrow's ArrowInvalid for a column of mixed types.
    """
    openpyxl = _openpyxl()
    try:
        with path.open("rb") as file:  # openpyxl would leave a damaged file open
            book = openpyxl.load_workbook(file, read_only=True, data_only=True)
            rows = book.worksheets[0].iter_rows(values_only=True)
            names = _names(path, next(rows, ()))
            filled = (row[: len(names)] for row in rows if any(cell is not None for cell in row))
            while chunk := list(islice(filled, _ROWS_AT_ONCE)):
                padded = ([*row, *[None] * (len(names) - len(row))] for row in chunk)
                columns = [_column(cells) for cells in zip(*padded, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, names)
    except (InvalidConfig, pa.ArrowException):
        raise
    except Exception as error:  # noqa: BLE001 - openpyxl lets through what its parsers raise for a damaged file
        raise InvalidConfig(f"{path}: not a workbook: {error}", key="file") from None


def _column(cells: Sequence[Any]) -> pa.Array:
    """Cells as an array; times, which have no time zone in a sheet, are in UTC."""
    column = pa.array(cells)
    return column.cast(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(column.type) else column


def _names(path: Path, row: Sequence[Any]) -> list[str]:
    names = ["" if cell is None else str(cell).strip() for cell in row]
    while names and not names[-1]:
        names.pop()
    if not names or not all(names) or len(set(names)) < len(names):
        raise InvalidConfig(f"{path}: the first row must have a name for each column, each once", key="file")
    return names


def write_sheet(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
    """Write a workbook of one sheet, with a heading; the number of rows. Text is text, also where it begins with `=`.

    Times are in UTC, since a sheet has no time zones. Raises InvalidConfig for more rows than a sheet has, a text that
    is too long for a cell, a file that cannot be written, and without openpyxl.
    """
    openpyxl = _openpyxl()
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("messages")
    sheet.freeze_panes = "A2"
    count = -1  # without the heading
    try:
        for count, row in enumerate(chain([names], rows)):
            if count >= ROWS_MAX:
                raise InvalidConfig(f"a sheet has {ROWS_MAX:,} rows at most: choose a range of the topic", key="file")
            sheet.append([_cell(openpyxl, sheet, value) for value in row])
    finally:
        sheet.close()
    try:
        book.save(path)
    except OSError as error:
        raise InvalidConfig(f"{path}: {error}", key="file") from None
    return count


def _cell(openpyxl: Any, sheet: Any, value: Any) -> Any:
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    if not isinstance(value, str):
        return value
    text = "".join(map(_shown, value))
    if len(text) > CELL_CHARS_MAX:
        raise InvalidConfig(f"a cell has {CELL_CHARS_MAX:,} characters at most, not {len(text):,}", key="file")
    cell = openpyxl.cell.WriteOnlyCell(sheet, text)
    cell.data_type = "s"  # a text that begins with `=` would become a formula, which the program of the reader runs
    return cell


def _shown(char: str) -> str:
    """A character of a cell. A sheet has no others that are not printable; the names of their escapes are not words."""
    return char if char in "\n\t" else "\\x0d" if char == "\r" else printable(char)


def _openpyxl() -> Any:
    try:
        import openpyxl  # noqa: PLC0415 - an extra
        import openpyxl.cell  # noqa: PLC0415 - as above
    except ModuleNotFoundError:
        raise InvalidConfig("spreadsheets need the extra [xlsx]: pip install 'deltaq[xlsx]'", key="file") from None
    return openpyxl
