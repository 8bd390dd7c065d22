"""Files of rows as messages: CSV, JSON lines, Parquet and spreadsheets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv
from pyarrow import json as arrow_json

from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.parquet.plain_files import read_batches
from deltaq.serde.schema import TopicSchema
from deltaq.tools.records import headers_from_json, plain, row_from_json
from deltaq.tools.spreadsheets import read_sheet
from deltaq.tools.writing import Sending
from deltaq.topics.columns import HEADERS

_ROWS_AT_ONCE = 10_000
_BYTE = r"\\x[0-9a-f]{2}"
_ESCAPED = {".csv": re.compile(_BYTE), ".xlsx": re.compile(rf"{_BYTE}|\\u[0-9a-f]{{4}}|\\U[0-9a-f]{{8}}")}
"""What may stand for bytes, or for characters that a cell cannot hold, by the form of the file."""


def load_file(
    sending: Sending, path: Path, schema: TopicSchema | None, *, key_column: str | None = None, partition: int = -1
) -> None:
    """Send the rows of a .csv, .jsonl, .parquet or .xlsx file as messages. `schema` is that of the topic.

    A typed topic takes its own columns, and `_key`, `_partition`, `_timestamp`, `_headers`. A topic of bytes takes
    `value`, `key`, `partition`, `timestamp` and `headers`; of a file without `value`, each row becomes a JSON object.
    Files of `to_csv` and `to_xlsx` give back their records, with new offsets. `key_column` names the column with the
    key. Raises InvalidConfig for a file that cannot be read, InvalidValue for rows that do not fit, and what
    `Sending.send_table` raises.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InvalidConfig(f"{path}: the form is not known: {', '.join(_READERS)}", key="file")
    try:
        for batch in read(path, schema):
            if _is_exported(batch.schema.names):
                _check_escapes(path, batch, schema)
            sending.send_table(as_messages(batch, schema, key_column, partition))
    except (OSError, pa.ArrowException) as error:
        raise InvalidConfig(f"{path}: {error}", key="file") from None


def as_messages(
    batch: pa.RecordBatch, schema: TopicSchema | None, key_column: str | None, partition: int
) -> pa.RecordBatch:
    """Rows of a file as `Producer.produce_arrow` takes them. Raises InvalidValue for a missing key column."""
    if key_column is not None and key_column not in batch.schema.names:
        raise InvalidValue(f"there is no such column; there are {', '.join(batch.schema.names)}", field=key_column)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if _is_exported(batch.schema.names):
        columns = _as_given(columns, schema)
    key = None if key_column is None else _as_key(columns[key_column])
    prefix = "" if schema is None else "_"
    if schema is None and "value" not in columns:
        columns = {"value": pa.array([json.dumps(plain(row)) for row in batch.to_pylist()], pa.string())}
    elif schema is None:
        columns |= {name: _as_key(columns[name]) for name in ("value", "key") if name in columns}
    if key is not None:
        if key_column is not None and (schema is None or key_column not in schema.arrow.names):
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
        for number, text in enumerate(_as_key(batch.column(name)).cast(pa.string()).to_pylist()):
            if text is not None and (found := escaped.search(text)):
                offset = batch.column("_offset")[number].as_py()
                raise InvalidValue(
                    f"the cell with {found[0]} of offset {offset} may stand for bytes or for this text; "
                    "use a .parquet file, or copy the topic",
                    field=name,
                )


def _as_key(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.string())


def _csv(path: Path, schema: TopicSchema | None) -> Iterator[pa.RecordBatch]:
    # Keys and values of a topic of bytes are not numbers: 0070 stays as it is.
    types: Mapping[str, pa.DataType] = {"key": pa.binary(), "value": pa.binary(), "_key": pa.binary()}
    if schema is not None:
        types = {"_key": pa.binary()} | {field.name: field.type for field in schema.arrow}
        for field in schema.arrow:
            if pa.types.is_nested(field.type):
                raise InvalidConfig(f"{path}: CSV has no column {field.name!r} of {field.type}: use .jsonl", key="file")
    with csv.open_csv(path) as reader:
        is_exported = _is_exported(reader.schema.names)
    options = csv.ConvertOptions(
        column_types=types,
        strings_can_be_null=True,
        quoted_strings_can_be_null=not is_exported,  # `to_csv` puts empty text into quotes, but not null
    )
    with csv.open_csv(path, convert_options=options) as reader:
        yield from reader


def _jsonl(path: Path, schema: TopicSchema | None) -> Iterator[pa.RecordBatch]:
    if schema is not None and any(_is_beyond_arrow(kind) for kind in schema.arrow.types):
        yield from _typed_lines(path, schema)
        return
    options = None if schema is None else arrow_json.ParseOptions(explicit_schema=schema.arrow)
    with arrow_json.open_json(path, parse_options=options) as reader:
        yield from reader


def _is_beyond_arrow(kind: pa.DataType) -> bool:
    """Whether a type has maps or bytes, which Arrow's reader does not take as `plain` shows them."""
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return pa.types.is_map(kind) or pa.types.is_binary(kind) or any(map(_is_beyond_arrow, inner))


def _typed_lines(path: Path, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
    """Lines as rows of a typed topic, read one by one, which takes ten times as long as Arrow."""
    with path.open("rb") as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        while rows := list(islice(lines, _ROWS_AT_ONCE)):
            found = [_typed_line(number, line, schema) for number, line in rows]
            batch = schema.to_arrow([row for row, _ in found])
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            for name in {name for _, about in found for name in about}:
                given = pa.array([about.get(name) for _, about in found])
                is_text = name == "_timestamp" and pa.types.is_string(given.type)
                columns[name] = given.cast(pa.timestamp("us", "UTC")) if is_text else given
            yield pa.RecordBatch.from_pydict(columns)


def _typed_line(number: int, line: bytes, schema: TopicSchema) -> tuple[dict[str, object], dict[str, Any]]:
    """(columns of the topic, columns that begin with _). Raises InvalidValue."""
    try:
        row = row_from_json(line, schema)
        about = {name: row.pop(name) for name in list(row) if name.startswith("_") and row[name] is not None}
        return schema.accept(row), about
    except InvalidValue as error:
        raise InvalidValue(f"line {number}: {error.error.str()}") from None


def _parquet(path: Path, _: TopicSchema | None) -> Iterator[pa.RecordBatch]:
    return read_batches(path)


_READERS: Mapping[str, Callable[[Path, Any], Iterator[pa.RecordBatch]]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".parquet": _parquet,
    ".xlsx": lambda path, _: read_sheet(path),
}
