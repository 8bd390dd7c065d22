"""Topics as tables of other libraries, and such tables as messages. Polars is known only here."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import csv

from deltaq.errors import InvalidConfig
from deltaq.serde.column_values import check_sound
from deltaq.serde.columns import TIMESTAMP
from deltaq.serde.schema import python_values
from deltaq.tools.cells import cell_of_bytes
from deltaq.tools.file_rows import OF_REGISTRY
from deltaq.tools.files import as_messages, load_file
from deltaq.tools.pandas_frames import frame_of, table_of_frame
from deltaq.tools.positions import Place, offset_ranges
from deltaq.tools.reading import read
from deltaq.tools.records import headers_as_json, json_text, plain
from deltaq.tools.registry_values import RegistryDecoder
from deltaq.tools.spreadsheets import write_sheet
from deltaq.tools.writing import Sending
from deltaq.topic import Topic
from deltaq.topics.arrow_input import check_frame, table_of
from deltaq.topics.columns import HEADERS, table_schema
from deltaq.topics.record_faults import without_faults
from deltaq.units import as_time

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_log = logging.getLogger("deltaq.tools")

_ROWS_AT_ONCE = 10_000


def to_arrow(topic: Topic, start: Place = None, end: Place = None) -> pa.Table:
    """The records between two places as a table of the topic's columns, as they are stored. Raises
    as `offset_ranges` and `to_batches`.
    """
    return pa.Table.from_batches(_batches(topic, start, end), table_schema(topic.describe().schema))


def to_pandas(topic: Topic, start: Place = None, end: Place = None) -> pd.DataFrame:
    """The records as a data frame of pandas. A value that cannot be returned is null, and the log
    names its record. Integers beside nulls are of pandas' type `Int64`, and maps are lists of
    pairs. Raises as `to_arrow`, and InvalidConfig without pandas.
    """
    return frame_of(_sound_table(topic, start, end))


def to_polars(topic: Topic, start: Place = None, end: Place = None) -> pl.DataFrame:
    """The records as a data frame of Polars. A value that cannot be returned is null, and the log
    names its record. Raises as `to_arrow`, and InvalidConfig without Polars.
    """
    try:
        import polars  # noqa: PLC0415 - only where it is used
    except ModuleNotFoundError:
        raise InvalidConfig("to_polars needs Polars: pip install polars", key="polars") from None
    return polars.DataFrame(_sound_table(topic, start, end))


def to_csv(topic: Topic, path: Path, start: Place = None, end: Place = None) -> int:
    """Write the records to a CSV file with a heading; their number.

    Bytes stand as text, those that are no UTF-8 escaped as `\\xff`; lists, maps and headers as
    JSON. Values with a schema of the registry stand as JSON, beside the id of the schema.
    `from_file` takes such a file. The cell of a value that cannot be returned, such as a time in
    the year 10000, is empty, and the log names its record. Raises as `to_arrow`, InvalidConfig for
    a file that cannot be written.
    """
    count, decoder = 0, RegistryDecoder.of_topic(topic)
    columns = pa.schema([(name, pa.string()) for name in _names(topic, decoder)])
    try:
        with csv.CSVWriter(path, columns) as writer:
            for batch in sound_batches(topic, start, end):
                texts = pa.RecordBatch.from_arrays(
                    [*map(_as_texts, _columns(batch, decoder))], columns.names
                )
                writer.write_batch(texts.cast(columns))
                count += batch.num_rows
    except OSError as error:
        raise InvalidConfig(f"{path}: {error}", key="file") from None
    return count


def to_xlsx(topic: Topic, path: Path, start: Place = None, end: Place = None) -> int:
    """Write the records to a workbook, in the form of `to_csv`, but with numbers and times as such;
    their number.

    Needs the extra [xlsx]. Raises as `to_csv` and `write_sheet`.
    """
    decoder = RegistryDecoder.of_topic(topic)

    def rows() -> Iterator[list[Any]]:
        for batch in sound_batches(topic, start, end):
            columns = [_cells(column) for column in _columns(batch, decoder)]
            yield from map(list, zip(*columns, strict=True))

    return write_sheet(path, _names(topic, decoder), rows())


def from_arrow(topic: Topic, data: Any, *, key_column: str | None = None) -> int:
    """Produce the rows of an Arrow table or record batch; their number, once all are delivered.

    A typed topic takes its own columns, and `_key`, `_partition`, `_timestamp`, `_headers`. A topic
    of bytes takes `value`, `key`, `partition`, `timestamp` and `headers`; of rows without `value`,
    each becomes a JSON object. `key_column` names the column with the key. If the handle has a
    model, rows are written as its instances: by its rules, and with its defaults. Raises
    InvalidValue for rows that do not fit, and, before any row is written, for a value that no
    reader could return; KafkaException.
    """
    table, schema = table_of(data, topic.name), topic.describe().schema
    check_sound(table)
    with Sending(topic) as sending:
        model, rows = sending.model_rows(), 0
        for batch in table.to_batches(_ROWS_AT_ONCE):
            messages = as_messages(batch, schema, key_column, -1, first=rows)
            sending.send_table(messages if model is None else model.table(messages, rows))
            rows += batch.num_rows
    return sending.delivered


def from_pandas(topic: Topic, frame: pd.DataFrame, *, key_column: str | None = None) -> int:
    """Produce the rows of a data frame of pandas, without its index. Lists of pairs, and dicts, are
    maps where the topic's column has maps. Raises as `from_arrow`, and InvalidValue for a column
    whose values are not of one type.
    """
    schema = topic.describe().schema
    kinds = {} if schema is None else {field.name: field.type for field in schema.arrow}
    return from_arrow(topic, table_of_frame(frame, kinds, topic.name), key_column=key_column)


def from_polars(topic: Topic, frame: pl.DataFrame, *, key_column: str | None = None) -> int:
    """Produce the rows of a data frame of Polars. Raises as `from_arrow`."""
    check_frame(frame, topic.name)
    return from_arrow(topic, frame.to_arrow(), key_column=key_column)


def from_file(topic: Topic, path: Path, *, key_column: str | None = None) -> int:
    """Produce the rows of a .csv, .jsonl, .parquet or .xlsx file; their number. If the handle has a
    model, rows are written as its instances: by its rules, and with its defaults. Raises as
    `load_file`.
    """
    with Sending(topic) as sending:
        load_file(sending, path, topic.describe().schema, key_column=key_column)
    return sending.delivered


def _batches(topic: Topic, start: Place, end: Place) -> Iterator[pa.RecordBatch]:
    return read(topic, offset_ranges(topic, start, end))


def sound_batches(topic: Topic, start: Place, end: Place) -> Iterator[pa.RecordBatch]:
    """The records between two places as `without_faults` returns them. Raises as `to_arrow`."""
    return (without_faults(batch, topic.name, _log) for batch in _batches(topic, start, end))


def _sound_table(topic: Topic, start: Place, end: Place) -> pa.Table:
    return pa.Table.from_batches(
        sound_batches(topic, start, end), table_schema(topic.describe().schema)
    )


def _names(topic: Topic, decoder: RegistryDecoder | None) -> list[str]:
    """The columns of a file of a topic's records."""
    names: list[str] = table_schema(topic.describe().schema).names
    return names if decoder is None else [*names, *OF_REGISTRY]


def _columns(batch: pa.RecordBatch, decoder: RegistryDecoder | None) -> list[pa.Array]:
    """The columns of a batch; with a decoder, its values decoded, and their schemas."""
    columns: list[pa.Array] = batch.columns
    if decoder is None:
        return columns
    at, found = batch.schema.get_field_index("value"), decoder.column(batch.column("value"))
    columns[at] = pa.array(
        [
            content if value is None else json_text(value.value).encode()
            for content, value in zip(columns[at].to_pylist(), found, strict=True)
        ],
        pa.binary(),
    )
    ids = pa.array([None if value is None else value.schema_id for value in found], pa.int64())
    kinds = pa.array(
        [None if value is None else value.message_type for value in found], pa.string()
    )
    return [*columns, ids, kinds]


def _as_texts(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        times = column.cast(TIMESTAMP).cast(pa.int64()).to_pylist()
        return pa.array([None if time is None else _time_text(time) for time in times], pa.string())
    escaped = (
        column.type == HEADERS
        or pa.types.is_binary(column.type)
        or pa.types.is_large_binary(column.type)
    )
    texts = [
        None if value is None else cell_of_bytes(value) if escaped else str(plain(value))
        for value in _cells(column)
    ]
    return pa.array(texts, pa.string())


def _cells(column: pa.Array) -> list[Any]:
    """Values of a column, of which headers are bytes of JSON, and what is nested JSON."""
    values = python_values(column)
    if column.type == HEADERS:
        return [None if value is None else headers_as_json(value).encode() for value in values]
    if pa.types.is_nested(column.type):
        return [
            None if value is None else json.dumps(plain(value), ensure_ascii=False)
            for value in values
        ]
    return values


def _time_text(us: int) -> str:
    """A time as ISO 8601 in UTC, with microseconds only where it has some."""
    milliseconds, rest = divmod(us, 1000)
    text = as_time(milliseconds)
    return text.replace("Z", f"{rest:03d}Z") if rest else text
