"""Files of rows as messages: CSV, JSON lines, Parquet and spreadsheets."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv
from pyarrow import json as arrow_json

from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.parquet.plain_files import read_batches
from deltaq.serde.schema import TopicSchema
from deltaq.tools.records import plain
from deltaq.tools.spreadsheets import read_sheet
from deltaq.tools.writing import Sending


def load_file(
    sending: Sending, path: Path, schema: TopicSchema | None, *, key_column: str | None = None, partition: int = -1
) -> None:
    """Send the rows of a .csv, .jsonl, .parquet or .xlsx file as messages. `schema` is that of the topic.

    A typed topic takes its own columns, and `_key`, `_partition`, `_timestamp`, `_headers`. A topic of bytes takes
    `value`, `key`, `partition`, `timestamp` and `headers`; of a file without `value`, each row becomes a JSON object.
    `key_column` names the column with the key. Raises InvalidConfig for a file that cannot be read, InvalidValue for
    rows that do not fit, and what `Sending.send_table` raises.
    """
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InvalidConfig(f"{path}: the form is not known: {', '.join(_READERS)}", key="file")
    try:
        for batch in read(path, schema):
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


def _as_key(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.string())


def row_from_json(line: bytes, schema: TopicSchema) -> dict[str, object] | None:
    """The value of a typed topic that a JSON object stands for; times as ISO 8601, decimals as text.

    Raises InvalidValue for other text, and for columns that the topic does not have.
    """
    options = arrow_json.ParseOptions(explicit_schema=schema.arrow, unexpected_field_behavior="error")
    try:
        table = arrow_json.read_json(io.BytesIO(line), parse_options=options)
        (row,) = schema.to_python(table.combine_chunks().to_batches()[0])
    except (pa.ArrowException, ValueError, IndexError) as error:
        raise InvalidValue(f"not a JSON object with the topic's columns: {error}") from None
    return row


def _csv(path: Path, schema: TopicSchema | None) -> Iterator[pa.RecordBatch]:
    # Keys and values of a topic of bytes are not numbers: 0070 stays as it is.
    types: Mapping[str, pa.DataType] = {"key": pa.binary(), "value": pa.binary()}
    if schema is not None:
        types = {field.name: field.type for field in schema.arrow}
    with csv.open_csv(path, convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=True)) as reader:
        yield from reader


def _jsonl(path: Path, schema: TopicSchema | None) -> Iterator[pa.RecordBatch]:
    options = None if schema is None else arrow_json.ParseOptions(explicit_schema=schema.arrow)
    with arrow_json.open_json(path, parse_options=options) as reader:
        yield from reader


def _parquet(path: Path, _: TopicSchema | None) -> Iterator[pa.RecordBatch]:
    return read_batches(path)


_READERS: Mapping[str, Callable[[Path, Any], Iterator[pa.RecordBatch]]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".parquet": _parquet,
    ".xlsx": lambda path, _: read_sheet(path),
}
