"""Files of rows as messages: CSV, JSON lines, Parquet and spreadsheets."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from deltaq.errors import InvalidConfig, InvalidValue, KafkaError, KafkaException
from deltaq.parquet.plain_files import read_batches
from deltaq.serde.column_values import BYTES_TYPES, check_sound, faulty_rows, key_without_text
from deltaq.serde.schema import TopicSchema, Unreadable, python_values
from deltaq.tools.csv_files import CSV, CSV_OF_RECORDS, read_csv
from deltaq.tools.file_rows import (
    COLUMNS_MAX,
    OF_MESSAGES,
    FileMessage,
    FileRow,
    Form,
    RowReader,
    as_table,
    is_exported,
    runs_of,
    shown_names,
)
from deltaq.tools.json_lines import JSON_LINES, read_json_lines
from deltaq.tools.records import plain
from deltaq.tools.spreadsheets import SHEET, SHEET_OF_RECORDS, read_sheet
from deltaq.tools.writing import Sending

ROW_BYTES_MAX = 16 * 1024 * 1024
"""The longest row of a text file; also how much of such a file is read at once."""


def load_file(
    sending: Sending,
    path: Path,
    schema: TopicSchema | None,
    *,
    key_column: str | None = None,
    partition: int = -1,
) -> None:
    """Send the rows of a .csv, .jsonl, .parquet or .xlsx file as messages. `schema` is that of the
    topic.

    A typed topic takes its own columns, and `_key`, `_partition`, `_timestamp`, `_headers`. A topic
    of bytes takes `value`, `key`, `partition`, `timestamp` and `headers`; of a file without
    `value`, each row becomes a JSON object, and a line of JSON stays as it is. Only an empty cell
    of a CSV file is null. Files of `to_csv` and `to_xlsx`, and lines of `deltaq consume -o json`,
    give back their records, with new offsets. `key_column` names the column with the key.

    Raises InvalidConfig for a file that cannot be read, InvalidValue for rows that do not fit, and
    what `Sending.send_table` raises. The error names the row, the number of the file's rows that
    are in the topic, and the row from which to go on. A file of one part (10,000 rows, 16 MiB) is
    refused before its first row is sent.
    """
    check_file(path)
    sending.flush()
    loading = _Loading(sending, schema, key_column, partition, sending.delivered)
    try:
        form = _FORMS.get(path.suffix.lower())
        if form is None:
            loading.send_batches(read_batches(path, COLUMNS_MAX))
        else:
            loading.send_parts(form, form.read(path, schema))
    except KafkaException as error:
        first = error.error
        text = first.str().removeprefix(f"{path}: ")
        error.args = (
            KafkaError(first.code(), f"{path}: {text}; {loading.progress()}"),
            *error.args[1:],
        )
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InvalidConfig(f"{path}: {error}; {loading.progress()}", key="file") from None


def check_file(path: Path) -> None:
    """Raises InvalidConfig for a file whose form is not known, and for one that cannot be read.
    Sends nothing.
    """
    if path.suffix.lower() not in (".parquet", *_FORMS):
        raise InvalidConfig(
            f"{path}: the form is not known: {', '.join(sorted({'.parquet', *_FORMS}))}", key="file"
        )
    try:
        # Reading a named pipe would wait for a writer, perhaps for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidConfig(f"{path}: is no regular file: write its content to one", key="file")
    except OSError as error:
        raise InvalidConfig(f"{path}: {error}", key="file") from None


@dataclass(slots=True)
class _Loading:
    """Rows of a file on their way to a topic. `sent` counts the rows of parts that were queued;
    `following` is the number of the first row after them.
    """

    sending: Sending
    schema: TopicSchema | None
    key_column: str | None
    partition: int
    delivered_before: int
    unit: str = "row"
    sent: int = 0
    following: int = 1

    def send_parts(self, form: _FileForm, parts: Iterator[Sequence[FileRow]]) -> None:
        """Send rows, of which a part that does not fit is refused as a whole."""
        self.unit = form.of_rows.unit
        model, is_first = self.sending.model_rows(), True
        for part in parts:
            if not part:
                continue
            if is_first:
                _check_key_column(self.key_column, part)
                is_first = False
            self.following = part[0].number
            reader = form.of_records if is_exported(part[0].cells) else form.of_rows
            rows = RowReader(
                reader, self.schema, self.sending.encode, self.key_column, self.partition, model
            )
            made = rows.messages(part)
            for is_tombstones, run in runs_of(made, self.schema):
                self.following = run[0].number
                self._send(run, is_tombstones=is_tombstones)
                self.following = run[-1].number + 1

    def _send(self, run: Sequence[FileMessage], *, is_tombstones: bool) -> None:
        if not is_tombstones:
            self.sending.send_table(as_table(run, self.schema))
            self.sent += len(run)
            return
        for message in run:
            headers = (
                None
                if message.headers is None
                else [(pair["key"], pair["value"]) for pair in message.headers]
            )
            about = {
                "partition": -1 if message.partition is None else message.partition,
                "headers": headers,
            }
            self.sending.send(
                value=None, key=message.key, timestamp=message.timestamp or 0, **about
            )
            self.sent += 1
            self.following = message.number + 1

    def send_batches(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Send batches of Arrow, each of which is refused as a whole."""
        model = self.sending.model_rows()
        for batch in batches:
            check_sound(pa.Table.from_batches([batch]), self.sent)
            messages = as_messages(
                batch, self.schema, self.key_column, self.partition, first=self.sent
            )
            self.sending.send_table(messages if model is None else model.table(messages, self.sent))
            self.sent += batch.num_rows
            self.following = self.sent + 1

    def progress(self) -> str:
        """What of the file is in the topic, after all that was queued has been delivered."""
        try:
            self.sending.flush()
        except KafkaException:
            pass  # the error that ends the loading is the same or an earlier one
        delivered = self.sending.delivered - self.delivered_before
        if delivered < self.sent:
            return (
                f"{delivered:,} of the first {self.sent:,} rows are in the topic, in no certain "
                "order"
            )
        if not delivered:
            return "no row of the file was written"
        return f"{delivered:,} rows are in the topic: go on from {self.unit} {self.following:,}"


def _check_key_column(name: str | None, rows: Sequence[FileRow]) -> None:
    if name is None or any(name in row.cells for row in rows):
        return
    names = [*dict.fromkeys(each for row in rows[:100] for each in row.cells)]
    raise InvalidValue(f"there is no such column; there are {shown_names(names)}", field=name)


def as_messages(
    batch: pa.RecordBatch,
    schema: TopicSchema | None,
    key_column: str | None,
    partition: int,
    *,
    first: int = 0,
) -> pa.RecordBatch:
    """Rows of Arrow as `Producer.produce_arrow` takes them. `first` is the number of the first row
    in errors. Raises InvalidValue for a missing key column, for a column of keys or values that
    cannot become text, and for a value that cannot become JSON.
    """
    names = batch.schema.names
    if key_column is not None and key_column not in names:
        raise InvalidValue(
            f"there is no such column; there are {shown_names(names)}", field=key_column
        )
    columns = dict(zip(names, batch.columns, strict=True))
    if len(columns) < batch.num_columns:
        twice = next(name for name in columns if names.count(name) > 1)
        raise InvalidValue("there are several columns of this name", field=twice)
    key = None if key_column is None else _content(columns, key_column)
    if is_exported(names):
        columns = _as_given(columns, schema)
    prefix = "" if schema is None else "_"
    if schema is None and "value" not in columns:
        columns = {"value": pa.array(_as_json(batch, first), pa.string())}
    elif schema is None:
        columns |= {name: _content(columns, name) for name in ("value", "key") if name in columns}
    if key is not None:
        known = {f"{prefix}{name}" for name in OF_MESSAGES} | {
            *(() if schema is None else schema.arrow.names)
        }
        if key_column not in known:
            columns.pop(key_column, None)
        columns[f"{prefix}key"] = key
    if partition >= 0:
        columns[f"{prefix}partition"] = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
    return pa.RecordBatch.from_pydict(columns)


def _as_given(columns: Mapping[str, pa.Array], schema: TopicSchema | None) -> dict[str, pa.Array]:
    """The columns of records as those of new messages, whose offsets the topic gives."""
    given = {name: column for name, column in columns.items() if name != "_offset"}
    if pa.types.is_null(given["_headers"].type):
        del given["_headers"]
    if schema is None:  # whose columns have no underscore when they are produced
        return {name.removeprefix("_"): column for name, column in given.items()}
    return given


def _as_json(batch: pa.RecordBatch, first: int) -> list[str]:
    """The rows as objects of JSON. Raises InvalidValue, with the column and the row, for a value
    that is not in Python's types, and for a key of a map that is no text.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        fault = next(faulty_rows(column, name, key_without_text, first), None)
        if fault is not None:
            raise InvalidValue(fault.reason, field=f"{fault.path}[{fault.row}]")
    rows = python_values(batch)
    for number, row in enumerate(rows, first):
        for value in row.values():
            if isinstance(value, Unreadable):
                raise InvalidValue(
                    f"cannot become JSON: {value.reason}", field=f"{value.path}[{number}]"
                )
    return [json.dumps(plain(row)) for row in rows]


def _content(columns: Mapping[str, pa.Array], name: str) -> pa.Array:
    """A column as keys or values of bytes: bytes as they are, anything else as text. Raises
    InvalidValue.
    """
    column = columns[name]
    if any(is_bytes(column.type) for is_bytes in BYTES_TYPES):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowException as error:
        raise InvalidValue(f"cannot become text: {error}", field=name) from None


@dataclass(frozen=True, slots=True)
class _FileForm:
    """How the rows of a file are read, and what their cells mean; `of_records` in a file that
    deltaq has written.
    """

    read: Callable[[Path, TopicSchema | None], Iterator[Sequence[FileRow]]]
    of_rows: Form
    of_records: Form


_LINES = _FileForm(
    lambda path, schema: read_json_lines(path, schema, ROW_BYTES_MAX), JSON_LINES, JSON_LINES
)
_FORMS: Mapping[str, _FileForm] = {
    ".csv": _FileForm(lambda path, _: read_csv(path, ROW_BYTES_MAX), CSV, CSV_OF_RECORDS),
    ".jsonl": _LINES,
    ".ndjson": _LINES,
    ".xlsx": _FileForm(lambda path, _: read_sheet(path), SHEET, SHEET_OF_RECORDS),
}
