"""Files of rows as messages: CSV, JSON lines, Parquet and spreadsheets."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv
from pyarrow import json as arrow_json

from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.parquet.plain_files import read_batches
from deltaq.serde.column_values import check_sound
from deltaq.serde.json_text import strict_json
from deltaq.serde.schema import TopicSchema, python_values
from deltaq.tools.records import exact_decimal, headers_from_json, parse_time, plain, row_from_json
from deltaq.tools.spreadsheets import read_sheet
from deltaq.tools.writing import Sending
from deltaq.topics.arrow_input import BYTES_TYPES
from deltaq.topics.columns import HEADERS

ROWS_AT_ONCE = 10_000
BYTES_AT_ONCE = 16 * 1024 * 1024
"""How much of a file is read at once; also the longest row."""

_OF_MESSAGES = ("value", "key", "partition", "timestamp", "headers")
"""The columns of messages of bytes."""

_BYTE = r"\\x[0-9a-f]{2}"
_ESCAPED = {".csv": re.compile(_BYTE), ".xlsx": re.compile(rf"{_BYTE}|\\u[0-9a-f]{{4}}|\\U[0-9a-f]{{8}}")}
"""What may stand for bytes, or for characters that a cell cannot hold, by the form of the file."""


def load_file(
    sending: Sending, path: Path, schema: TopicSchema | None, *, key_column: str | None = None, partition: int = -1
) -> None:
    """Send the rows of a .csv, .jsonl, .parquet or .xlsx file as messages. `schema` is that of the topic.

    A typed topic takes its own columns, and `_key`, `_partition`, `_timestamp`, `_headers`. A topic of bytes takes
    `value`, `key`, `partition`, `timestamp` and `headers`; of a file without `value`, each row becomes a JSON object,
    and a line of JSON stays as it is. Only an empty cell of a CSV file is null. Files of `to_csv` and `to_xlsx` give
    back their records, with new offsets; of a sheet, empty text comes back as null. `key_column` names the column with
    the key.

    Raises InvalidConfig for a file that cannot be read, InvalidValue for rows that do not fit, and what
    `Sending.send_table` raises.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InvalidConfig(f"{path}: the form is not known: {', '.join(_READERS)}", key="file")
    rows = 0
    try:
        for batch in read(path, schema, key_column):
            check_sound(pa.Table.from_batches([batch]), rows)
            rows += batch.num_rows
            if _is_exported(batch.schema.names):
                _check_escapes(path, batch, schema)
            sending.send_table(as_messages(batch, schema, key_column, partition))
    except (OSError, UnicodeEncodeError, pa.ArrowException) as error:  # a JSON text may escape a half of a character
        raise InvalidConfig(f"{path}: {error}", key="file") from None


def as_messages(
    batch: pa.RecordBatch, schema: TopicSchema | None, key_column: str | None, partition: int
) -> pa.RecordBatch:
    """Rows of a file as `Producer.produce_arrow` takes them. Raises InvalidValue for a missing key column, for a column
    of keys or values that cannot become text."""
    if key_column is not None and key_column not in batch.schema.names:
        raise InvalidValue(f"there is no such column; there are {', '.join(batch.schema.names)}", field=key_column)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if len(columns) < batch.num_columns:
        twice = next(name for name in columns if batch.schema.names.count(name) > 1)
        raise InvalidValue("there are several columns of this name", field=twice)
    key = None if key_column is None else _content(columns, key_column)
    if _is_exported(batch.schema.names):
        columns = _as_given(columns, schema)
    prefix = "" if schema is None else "_"
    if schema is None and "value" not in columns:
        columns = {"value": pa.array([json.dumps(plain(row)) for row in python_values(batch)], pa.string())}
    elif schema is None:
        columns |= {name: _content(columns, name) for name in ("value", "key") if name in columns}
    if key is not None:
        known = {f"{prefix}{name}" for name in _OF_MESSAGES} | {*(() if schema is None else schema.arrow.names)}
        if key_column not in known:
            columns.pop(key_column, None)
        columns[f"{prefix}key"] = key
    if partition >= 0:
        columns[f"{prefix}partition"] = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
    return pa.RecordBatch.from_pydict(columns)


def _is_exported(names: Iterable[str]) -> bool:
    """Whether rows with these columns are records of a topic."""
    return {"_partition", "_offset", "_timestamp", "_key", "_headers"} <= {*names}


def _as_given(columns: Mapping[str, pa.Array], schema: TopicSchema | None) -> dict[str, pa.Array]:
    """The columns of records as those of new messages, whose offsets the topic gives."""
    given = {name: column for name, column in columns.items() if name != "_offset"}
    if pa.types.is_null(given["_headers"].type):
        del given["_headers"]
    elif pa.types.is_string(given["_headers"].type):
        texts = given["_headers"].to_pylist()
        given["_headers"] = pa.array([None if text is None else headers_from_json(text) for text in texts], HEADERS)
    if schema is None:  # whose columns have no underscore when they are produced
        return {name.removeprefix("_"): column for name, column in given.items()}
    return given


def _check_escapes(path: Path, batch: pa.RecordBatch, schema: TopicSchema | None) -> None:
    """Refuse cells that may stand for what a cell cannot hold, such as bytes that are no UTF-8, which `to_csv` shows as
    `\\xff`: text may have the same characters. Raises InvalidValue."""
    escaped = _ESCAPED.get(path.suffix.lower())
    if escaped is None:
        return
    fields = [pa.field("value", pa.binary())] if schema is None else list(schema.arrow)
    names = ["_key", *(field.name for field in fields if pa.types.is_binary(field.type))]
    for name in (name for name in names if name in batch.schema.names):
        for number, text in enumerate(batch.column(name).cast(pa.string()).to_pylist()):
            if text is not None and (found := escaped.search(text)):
                offset = batch.column("_offset")[number].as_py()
                raise InvalidValue(
                    f"the cell with {found[0]} of offset {offset} may stand for bytes or for this text; "
                    "use a .parquet file, or copy the topic",
                    field=name,
                )


def _content(columns: Mapping[str, pa.Array], name: str) -> pa.Array:
    """A column as keys or values of bytes: bytes as they are, anything else as text. Raises InvalidValue."""
    column = columns[name]
    if any(is_bytes(column.type) for is_bytes in BYTES_TYPES):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowException as error:
        raise InvalidValue(f"cannot become text: {error}", field=name) from None


# --- readers: (path, schema of the topic, name of the column with the key) ---


def _csv(path: Path, schema: TopicSchema | None, key_column: str | None) -> Iterator[pa.RecordBatch]:
    if schema is not None:
        for field in schema.arrow:
            if pa.types.is_nested(field.type):
                raise InvalidConfig(f"{path}: CSV has no column {field.name!r} of {field.type}: use .jsonl", key="file")
    # A part of the file must end with a row, and not with a line break inside of quotes.
    parts = {
        "read_options": csv.ReadOptions(block_size=BYTES_AT_ONCE),
        "parse_options": csv.ParseOptions(newlines_in_values=True),
    }
    with csv.open_csv(path, **parts) as reader:
        names = reader.schema.names
    options = csv.ConvertOptions(
        column_types=_csv_types(names, schema, key_column),
        null_values=[""],  # and not `NA` or `null`, which are texts
        strings_can_be_null=True,
        quoted_strings_can_be_null=not _is_exported(names),  # `to_csv` puts empty text into quotes, but not null
    )
    with csv.open_csv(path, convert_options=options, **parts) as reader:
        yield from reader


def _csv_types(names: Iterable[str], schema: TopicSchema | None, key_column: str | None) -> dict[str, pa.DataType]:
    """The types of columns that are not found out from their cells: keys and values are no numbers, 0070 stays as it
    is. A row that becomes JSON keeps the numbers that it has."""
    content = {"_key"} if schema is not None else {"key", "value", "_key"}
    if key_column is not None and (schema is not None or "value" in names):
        content.add(key_column)
    own = {} if schema is None else {field.name: field.type for field in schema.arrow}
    return dict.fromkeys(content, pa.binary()) | own


def _jsonl(path: Path, schema: TopicSchema | None, key_column: str | None) -> Iterator[pa.RecordBatch]:
    if schema is None:
        yield from _lines_of_bytes(path, key_column)
    elif any(_is_beyond_arrow(kind) for kind in schema.arrow.types):
        yield from _typed_lines(path, schema)
    else:
        # With a type for the key: Arrow takes text that looks like a time for a time, and would write it otherwise.
        columns = schema.arrow.append(pa.field("_key", pa.string()))
        with arrow_json.open_json(
            path,
            read_options=arrow_json.ReadOptions(block_size=BYTES_AT_ONCE),
            parse_options=arrow_json.ParseOptions(explicit_schema=columns),
        ) as reader:
            yield from reader


def _is_beyond_arrow(kind: pa.DataType) -> bool:
    """Whether a type has maps or bytes, which Arrow's reader does not take as `plain` shows them."""
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_map(kind) or pa.types.is_binary(kind) or any(map(_is_beyond_arrow, inner))


def _lines_of_bytes(path: Path, key_column: str | None) -> Iterator[pa.RecordBatch]:
    """Lines for a topic of bytes: messages if they have a `value`, otherwise each line is a value as it stands."""
    are_messages: bool | None = None
    for lines in _lines(path):
        rows = [_object(number, line) for number, line in lines]
        names = dict.fromkeys(name for row in rows for name in row)
        if are_messages is None:
            are_messages = "value" in names
            if key_column is not None and key_column not in names:
                raise InvalidValue(f"there is no such column; there are {', '.join(names)}", field=key_column)
        wanted = {"value", *names} if are_messages else set()
        columns = {
            name: _texts(row.get(name) for row in rows) if name in ("value", "key", "_key") else _given(name, rows)
            for name in wanted
        }
        if key_column is not None:
            columns[key_column] = _texts(row.get(key_column) for row in rows)
        if not are_messages:
            columns["value"] = pa.array([line for _, line in lines], pa.binary())
        yield pa.RecordBatch.from_pydict(columns)


def _object(number: int, line: bytes) -> dict[str, Any]:
    try:
        found = strict_json(line)
    except ValueError as error:
        raise InvalidValue(f"line {number}: not a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise InvalidValue(f"line {number}: not a JSON object")
    return found


def _texts(values: Iterable[Any]) -> pa.Array:
    """Values of JSON as keys or values of bytes: text as it is, anything else as JSON."""
    return pa.array([v if v is None or isinstance(v, str) else json.dumps(v) for v in values], pa.string())


def _given(name: str, rows: Iterable[Mapping[str, Any]]) -> pa.Array:
    """A column of JSON objects. Raises InvalidValue for a text that is no time where one is needed."""
    column = pa.array([row.get(name) for row in rows])
    if name not in ("timestamp", "_timestamp") or not pa.types.is_string(column.type):
        return column
    try:
        times = [None if text is None else parse_time(text) for text in column.to_pylist()]
    except ValueError as error:
        raise InvalidValue(f"not a time: {error}", field=name) from None
    return pa.array(times, pa.timestamp("us", "UTC"))


def _lines(path: Path) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of a file that are not empty, with their numbers, a part at a time."""
    part: list[tuple[int, bytes]] = []
    size = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if text := (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip():
                part.append((number, text))
                size += len(text)
            if len(part) == ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
                yield part
                part, size = [], 0
    if part:
        yield part


def _typed_lines(path: Path, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
    """Lines as rows of a typed topic, read one by one, which takes ten times as long as Arrow."""
    for lines in _lines(path):
        found = [_typed_line(number, line, schema) for number, line in lines]
        batch = schema.to_arrow([row for row, _ in found])
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        about = [about for _, about in found]
        columns |= {name: _given(name, about) for name in {name for names in about for name in names}}
        yield pa.RecordBatch.from_pydict(columns)


def _typed_line(number: int, line: bytes, schema: TopicSchema) -> tuple[dict[str, object], dict[str, Any]]:
    """(columns of the topic, columns that begin with _). Raises InvalidValue."""
    try:
        row = row_from_json(line, schema)
        about = {name: row.pop(name) for name in list(row) if name.startswith("_") and row[name] is not None}
        return schema.accept(row), about
    except InvalidValue as error:
        raise InvalidValue(f"line {number}: {error.error.str()}") from None


def _xlsx(path: Path, schema: TopicSchema | None, _: str | None) -> Iterator[pa.RecordBatch]:
    for batch in read_sheet(path):
        for field in [] if schema is None else schema.arrow:
            if field.name in batch.schema.names:
                column = _of_sheet(batch.column(field.name), field)
                batch = batch.set_column(batch.schema.get_field_index(field.name), field.name, column)
        yield batch


def _of_sheet(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column of a sheet, which has no days and no decimals, as the topic's where no value changes by that. Raises
    InvalidValue for a number with more digits than a sheet keeps."""
    if pa.types.is_date32(field.type) and pa.types.is_timestamp(column.type):
        times, days = column.cast(pa.timestamp("us")), column.cast(pa.date32())
        return days if days.cast(times.type).equals(times) else column
    if pa.types.is_decimal(field.type) and pa.types.is_floating(column.type):
        try:
            return pa.array([None if v is None else exact_decimal(v) for v in column.to_pylist()], field.type)
        except (ValueError, pa.ArrowException) as error:
            raise InvalidValue(f"a number is no {field.type}: {error}", field=field.name) from None
    return column


_READERS: Mapping[str, Callable[[Path, TopicSchema | None, str | None], Iterator[pa.RecordBatch]]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".parquet": lambda path, *_: read_batches(path),
    ".xlsx": _xlsx,
}
