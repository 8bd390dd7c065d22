"""CSV files as rows. Arrow splits them into cells, and the rules of deltaq make values of the
cells.
"""

from __future__ import annotations

import codecs
import csv as text_csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.tools.cells import bytes_of_cell, json_of_text, value_of_text
from deltaq.tools.file_rows import COLUMNS_MAX, FileRow, Form, is_exported

HEADING_BYTES_MAX = 1024 * 1024
"""Size of the first row of a CSV file."""

ROWS_AT_ONCE = 10_000
_CELLS_AT_ONCE = 1_000_000


def read_csv(path: Path, bytes_max: int) -> Iterator[list[FileRow]]:
    """The rows after the heading, a part at a time; cells are bytes, and empty ones None.

    Empty lines are no rows. In a file of `to_csv`, an empty cell in quotes is empty text. Raises
    InvalidConfig for a heading beyond the limits, and for a row of more than `bytes_max` bytes;
    OSError, pa.ArrowException.
    """
    names = _heading(path)
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValue("there are several columns of this name", field=twice)
    options = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.binary()),
        null_values=[""],  # and not `NA` or `null`, which are texts
        strings_can_be_null=True,
        # `to_csv` puts empty text into quotes, but not null.
        quoted_strings_can_be_null=not is_exported(names),
    )
    # A part of the file must end with a row, and not with a line break inside of quotes.
    parts = {
        "read_options": csv.ReadOptions(block_size=bytes_max),
        "parse_options": csv.ParseOptions(newlines_in_values=True),
    }
    number = 0
    rows_at_once = max(1, min(ROWS_AT_ONCE, _CELLS_AT_ONCE // len(names)))
    try:
        with csv.open_csv(path, convert_options=options, **parts) as reader:
            if reader.schema.names != names:
                raise InvalidConfig(
                    f"{path}: the heading can be read in two ways: put its names in quotes",
                    key="file",
                )
            for batch in reader:
                for start in range(0, batch.num_rows, rows_at_once):
                    columns = [
                        column.to_pylist() for column in batch.slice(start, rows_at_once).columns
                    ]
                    rows = [
                        dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)
                    ]
                    yield [FileRow(number + at, row) for at, row in enumerate(rows, 1)]
                    number += len(rows)
    except pa.ArrowInvalid as error:
        if "straddl" not in str(error):
            raise
        raise InvalidConfig(
            f"{path}: a row has more than {bytes_max:,} bytes, the limit", key="file"
        ) from None


def _heading(path: Path) -> list[str]:
    """The names in the first row. Raises InvalidConfig."""
    with path.open("rb") as file:
        start = file.read(HEADING_BYTES_MAX + 1).removeprefix(codecs.BOM_UTF8)
    is_cut = len(start) > HEADING_BYTES_MAX
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start, final=not is_cut)
    except UnicodeDecodeError as error:
        # Else the heading is text, and a row is not: its cell is refused by name.
        if b"\n" not in start[: error.start]:
            raise InvalidConfig(f"{path}: the heading is no UTF-8", key="file") from None
        text = start[: error.start].decode()
    try:
        names = next((row for row in text_csv.reader(io.StringIO(text, newline="")) if row), [])
    except text_csv.Error as error:
        raise InvalidConfig(f"{path}: the heading: {error}", key="file") from None
    if is_cut and len(",".join(names)) > HEADING_BYTES_MAX // 2:
        raise InvalidConfig(
            f"{path}: the heading has more than {HEADING_BYTES_MAX:,} bytes, the limit", key="file"
        )
    if len(names) > COLUMNS_MAX:
        raise InvalidConfig(
            f"{path}: has {len(names):,} columns, and {COLUMNS_MAX:,} are the limit", key="file"
        )
    if not names:
        raise InvalidConfig(f"{path}: is empty: its first row must name the columns", key="file")
    return names


def _as_json(cells: Mapping[str, Any]) -> str:
    texts = (
        f"{json.dumps(name)}: {'null' if cell is None else json_of_text(_text(cell, name))}"
        for name, cell in cells.items()
    )
    return "{" + ", ".join(texts) + "}"


def _text(cell: bytes, name: str) -> str:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        raise InvalidValue("is no UTF-8", field=name) from None


def _typed(kind: pa.DataType, path: str) -> Callable[[bytes], Any] | None:
    if pa.types.is_binary(kind):
        return None
    value_of = value_of_text(kind, path)
    return lambda cell: value_of(_text(cell, path))


def _exported(kind: pa.DataType, path: str) -> Callable[[bytes], Any] | None:
    if pa.types.is_binary(kind):
        return lambda cell: bytes_of_cell(_text(cell, path))
    return _typed(kind, path)


CSV = Form("row", _typed, bytes, _as_json)
CSV_OF_RECORDS = Form("row", _exported, lambda cell: bytes_of_cell(cell.decode()), _as_json)
"""Files of `to_csv`, whose bytes are escaped."""
