"""Values as cells of CSV files and workbooks, and cells as values. Pure.

`\\xff` in a cell is a byte: of content that is no UTF-8, or of a character that a workbook does not
have. A backslash that would look like such an escape is written as `\\x5c`, so a cell has one
meaning only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa

from deltaq.errors import InvalidValue
from deltaq.serde.json_text import decimal_of_text, finite_float, parse_time, typed_json
from deltaq.tools.records import exact_decimal, plain, typed_value

_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
_LOOKALIKE = re.compile(rb"\\(?=x[0-9a-f]{2})")
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,5})?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_PRINTED_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_PRINTED_FLOAT = re.compile(r"-?(0|[1-9][0-9]{0,16})\.[0-9]{1,20}")
_BOOLEANS = {
    **dict.fromkeys(("true", "True", "TRUE", "1"), True),
    **dict.fromkeys(("false", "False", "FALSE", "0"), False),
}

EMPTY = '""'
"""A cell of a workbook with empty text, which would otherwise come back as null."""


# --- values as cells ---


def cell_of_bytes(content: bytes) -> str:
    """Bytes as a cell of a CSV file: as text, with escapes for those that are no UTF-8."""
    return _LOOKALIKE.sub(rb"\\x5c", content).decode("utf-8", "backslashreplace")


def cell_of_sheet(content: bytes) -> str:
    """Bytes, or text in UTF-8, as a text cell of a workbook, whose characters are printable."""
    text = cell_of_bytes(content)
    if text == EMPTY:
        return f"\\x22{EMPTY[1:]}"
    return EMPTY if not text else text if text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char.isprintable() or char in "\n\t":
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode())


def bytes_of_cell(text: str) -> bytes:
    """The content that `cell_of_bytes` or, except for `EMPTY`, `cell_of_sheet` shows."""
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), text.encode())


def bytes_of_sheet(text: str) -> bytes:
    """The content that `cell_of_sheet` shows."""
    return b"" if text == EMPTY else bytes_of_cell(text)


# --- cells as values ---


def json_of_text(text: str) -> str:
    """A cell of a CSV file as JSON. It is a number, `true` or `false` only if JSON prints the same
    text: 0070, 1e400, 0x1F, +1 and 1.50 are texts.
    """
    if text in ("true", "false") or _PRINTED_INTEGER.fullmatch(text):
        return text
    is_float = _PRINTED_FLOAT.fullmatch(text) is not None and repr(float(text)) == text
    return text if is_float else json.dumps(text)


def value_of_text(kind: pa.DataType, path: str) -> Callable[[str], Any]:
    """A function that makes a value of a typed topic's column, which `TopicSchema.accept` checks
    further, of a text. It raises InvalidValue.
    """
    if pa.types.is_string(kind):
        return lambda text: text
    parse = next((parse for is_kind, parse in _PARSERS if is_kind(kind)), None)

    def value_of(text: str) -> Any:
        try:
            if parse is None:  # of lists, maps and structs, which stand as JSON
                return typed_value(typed_json(text), kind, path)
            return parse(text.strip())
        except ValueError:
            raise InvalidValue(f"{text!r:.100} is no {kind}", field=path) from None

    return value_of


def value_of_cell(kind: pa.DataType, path: str) -> Callable[[Any], Any]:
    """As `value_of_text`, for a cell of a workbook, which has no days, no whole numbers and no
    decimals: no value changes by that.
    """
    of_text = str.encode if pa.types.is_binary(kind) else value_of_text(kind, path)

    def value_of(cell: Any) -> Any:
        if isinstance(cell, str):
            return of_text(cell)
        try:
            return _typed_cell(cell, kind)
        except ValueError as error:
            raise InvalidValue(f"a number is no {kind}: {error}", field=path) from None

    return value_of


def _typed_cell(cell: Any, kind: pa.DataType) -> Any:
    if isinstance(cell, datetime):
        return _time_of_cell(cell, kind)
    if isinstance(cell, float) and pa.types.is_integer(kind) and cell.is_integer():
        return int(cell)
    if pa.types.is_decimal(kind) and isinstance(cell, int | float) and not isinstance(cell, bool):
        return exact_decimal(cell) if isinstance(cell, float) else Decimal(cell)
    return cell


def _time_of_cell(cell: datetime, kind: pa.DataType) -> Any:
    """A time of a workbook, which has no time zone, in UTC; as a day if it is midnight."""
    if pa.types.is_date(kind):
        return cell.date() if cell.time() == time() else cell
    return cell if cell.tzinfo else cell.replace(tzinfo=UTC)


def plain_cell(cell: Any) -> Any:
    """A cell of a workbook in JSON's types; times are in UTC."""
    is_naive = isinstance(cell, datetime) and cell.tzinfo is None
    return plain(cell.replace(tzinfo=UTC) if is_naive else cell)


def _boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text]


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _float(text: str) -> float | int:
    if _NOT_FINITE.fullmatch(text):
        return float(text)
    if _INTEGER.fullmatch(text):
        return int(text)  # of which an equal float may not exist
    if not _FLOAT.fullmatch(text):
        raise ValueError(text)
    return finite_float(text)


_PARSERS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]]] = (
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _float),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_decimal, decimal_of_text),
    (pa.types.is_timestamp, parse_time),
    (pa.types.is_date, date.fromisoformat),
)
