"""Files with an object of JSON in each line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from deltaq.errors import InvalidValue
from deltaq.serde.json_text import JsonNumber, exact_json, typed_json
from deltaq.serde.schema import TopicSchema
from deltaq.tools.file_rows import FileRow, Form
from deltaq.tools.records import is_message, typed_value

ROWS_AT_ONCE = 10_000


def read_json_lines(
    path: Path, schema: TopicSchema | None, bytes_max: int
) -> Iterator[list[FileRow]]:
    """The lines of a file that are not empty, a part of some `bytes_max` bytes at a time. `schema`
    is the topic's.

    In a topic of bytes, the first line says what all are: messages, if it has a `value`; or else
    each line is a value as it stands. Raises InvalidValue for a line that is no object, or is
    longer than `bytes_max` bytes; OSError.
    """
    part: list[FileRow] = []
    size = 0
    are_messages = None if schema is None else True
    with path.open("rb") as file:
        for number, line in bounded_lines(file, bytes_max):
            text = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip()
            if not text:
                continue
            cells = _object(number, text, exact_json if schema is None else typed_json)
            is_record = is_message(cells) and (
                schema is None or not cells.keys() <= {*schema.arrow.names}
            )
            if are_messages is None:
                are_messages = is_record or "value" in cells
            if schema is None and are_messages and not (is_record or "value" in cells):
                raise InvalidValue(
                    f"line {number}: has no value, as the first line has; give null for a tombstone"
                )
            if is_record and schema is None:
                cells = _object(number, text, partial(typed_json, finite=True))
            part.append(
                FileRow(
                    number,
                    cells,
                    None if are_messages else text,
                    is_message=are_messages and is_record,
                )
            )
            size += len(text)
            if len(part) == ROWS_AT_ONCE or size >= bytes_max:
                yield part
                part, size = [], 0
    if part:
        yield part


def bounded_lines(file: BinaryIO, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a stream with their numbers. Raises InvalidValue for one of more than
    `bytes_max` bytes.
    """
    number = 0
    while line := file.readline(bytes_max + 2):
        number += 1
        if len(line.rstrip(b"\r\n")) > bytes_max:
            raise InvalidValue(
                f"line {number}: is longer than {bytes_max:,} bytes, the limit of a line"
            )
        yield number, line


def _object(number: int, line: bytes, parse: Callable[[bytes], object]) -> dict[str, Any]:
    try:
        found = parse(line)
    except ValueError as error:
        raise InvalidValue(f"line {number}: not a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise InvalidValue(f"line {number}: not a JSON object")
    return found


def _text(value: Any) -> str:
    """Values of JSON as text, with their numbers as they stand."""
    if isinstance(value, JsonNumber):
        return value
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(name)}: {_text(inner)}" for name, inner in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    return json.dumps(value)


def _content(value: Any) -> bytes:
    """A value of JSON as a key or a value of bytes: text as it is, anything else as JSON."""
    return (value if isinstance(value, str) else _text(value)).encode()


def _typed(kind: pa.DataType, path: str) -> Callable[[Any], Any] | None:
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        return None
    if pa.types.is_floating(kind):  # most are numbers, and not text
        return lambda value: value if type(value) is float else typed_value(value, kind, path)
    return lambda value: typed_value(value, kind, path)


JSON_LINES = Form("line", _typed, _content, _text)
