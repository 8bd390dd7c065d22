"""Rows of a file as messages: one set of rules for lines of JSON, CSV files and workbooks.

A reader gives `FileRow`s, and says by its `Form` how a cell becomes a value. All rows of a part
become messages before the first of them is sent, so a part that has a row that does not fit is
refused as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from deltaq.config.declare import INT32_MAX
from deltaq.errors import InvalidValue
from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.serde.json_text import JsonNumber, parse_time, typed_json
from deltaq.serde.schema import TopicSchema
from deltaq.tools.model_rows import ModelRows
from deltaq.tools.records import headers_from_json, headers_of, message_of, plain
from deltaq.topics.columns import HEADERS

COLUMNS_MAX = 16_384
"""Columns of a file, or names of one line of JSON."""

OF_MESSAGES = ("value", "key", "partition", "timestamp", "headers")
"""The columns of messages of bytes."""

OF_REGISTRY = ("_schema_id", "_message_type")
"""The columns with the schema of a value that stands as JSON, in a file of records."""

_SPELLINGS = {f"{prefix}{name}": name for name in OF_MESSAGES[1:] for prefix in ("", "_")}
_OF_RECORDS = {"_partition", "_offset", "_timestamp", "_key", "_headers"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = re.compile(r"-?[0-9]{1,20}")
_NAMES_SHOWN = 20


class FileRow(NamedTuple):
    """A row with its number in the file. `line` is the row as a whole, if that is the value;
    `is_message` says that the row is a record as `deltaq consume -o json` prints it.
    """

    number: int
    cells: dict[str, Any]
    line: bytes | None = None
    is_message: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """How a form of files shows values.

    unit -- what the numbers of rows count: line or row typed -- for the type and the name of a
    typed topic's column, a function that makes a value of a cell; None if
        cells are values
    content -- a cell as a key or a value of bytes
    as_json -- the cells of a row as a value in JSON
    """

    unit: str
    typed: Callable[[pa.DataType, str], Callable[[Any], Any] | None]
    content: Callable[[Any], bytes]
    as_json: Callable[[Mapping[str, Any]], str]


class FileMessage(NamedTuple):
    """A message made from a row. `timestamp` is milliseconds since 1970 UTC; None is now."""

    number: int
    value: Any
    key: bytes | None
    partition: int | None
    timestamp: int | None
    headers: list[dict[str, Any]] | None


def is_exported(names: Iterable[str]) -> bool:
    """Whether rows with these columns are records of a topic."""
    return {*names} >= _OF_RECORDS


def shown_names(names: Sequence[str]) -> str:
    """The names of columns for an error message."""
    return ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")


@dataclass(frozen=True)
class RowReader:
    """Makes messages for a topic from rows. `schema` is the topic's; `key_column` names the column
    with the key; `encode` gives the bytes of a value in JSON, by the id of its schema in the
    registry and the type of the message; `model` is that of the topic's handle, if it has one.
    """

    form: Form
    schema: TopicSchema | None
    encode: Callable[[Any, int, str | None], bytes]
    key_column: str | None = None
    partition: int = -1
    model: ModelRows | None = None

    def messages(self, rows: Iterable[FileRow]) -> list[FileMessage]:
        """The messages of a part of a file. Raises InvalidValue, with the number of the row and the
        field.
        """
        return [self._message(row) for row in rows]

    def _message(self, row: FileRow) -> FileMessage:
        try:
            if len(row.cells) > COLUMNS_MAX:
                raise InvalidValue(
                    f"has {len(row.cells):,} names, and {COLUMNS_MAX:,} are the limit"
                )
            message = self._of_record(row) if row.is_message else self._of_cells(row)
        except InvalidValue as error:
            refusal = InvalidValue(f"{self.form.unit} {row.number}: {error.error.str()}")
            refusal.field = error.field
            raise refusal from None
        except (UnicodeEncodeError, UnicodeDecodeError) as error:
            raise InvalidValue(f"{self.form.unit} {row.number}: {error.reason}") from None
        except RecursionError:
            raise InvalidValue(f"{self.form.unit} {row.number}: is nested too deeply") from None
        return message if self.partition < 0 else message._replace(partition=self.partition)

    def _of_record(self, row: FileRow) -> FileMessage:
        """A record as `deltaq consume -o json` prints it. Raises InvalidValue."""
        given = message_of(row.cells)
        value = given["value"]
        schema_id = given.get("schema_id")
        if schema_id is not None:
            value = self._encoded(value, schema_id, given.get("message_type"))
        elif self.schema is None:
            value = self._bytes(value)
        elif value is not None:
            if not isinstance(value, dict):
                raise InvalidValue("is no object with the topic's columns", field="value")
            value = self._row_of(value, self.schema)
        about = {name: given.get(name) for name in ("partition", "timestamp")}
        if "headers" in given:
            about["headers"] = [
                {"key": name, "value": content} for name, content in given["headers"]
            ]
        message = self._built(row, value, self._bytes(given["key"]), about)
        is_1970 = message.timestamp is None and about["timestamp"] is not None
        return message._replace(timestamp=0) if is_1970 else message

    def _bytes(self, content: Any) -> bytes | None:
        return content if isinstance(content, bytes) else self._content(content)

    def _of_registry(
        self, value: bytes | None, schema_id: Any, message_type: bytes | None
    ) -> bytes:
        try:
            found = typed_json(value or b"", finite=True)
        except ValueError as error:
            raise InvalidValue(f"is no JSON: {error}", field="value") from None
        return self._encoded(
            found, schema_id, None if message_type is None else message_type.decode()
        )

    def _encoded(self, value: Any, schema_id: Any, message_type: Any) -> bytes:
        if self.schema is not None:
            raise InvalidValue(
                "values with a schema of the registry are for topics of bytes", field="schema_id"
            )
        if not isinstance(message_type, str | None):
            raise InvalidValue("is no text", field="message_type")
        return self.encode(value, _whole(schema_id, "schema_id", INT32_MAX), message_type)

    def _of_cells(self, row: FileRow) -> FileMessage:
        cells = dict(row.cells)
        if row.line is not None:
            key = None if self.key_column is None else self._content(cells.get(self.key_column))
            return self._built(row, row.line, key, {})
        exported = is_exported(cells)
        if exported:
            del cells["_offset"]  # the topic gives a new one
        if self.schema is None:
            return self._untyped(row, cells, exported=exported)
        return self._typed(row, cells, self.schema)

    def _untyped(self, row: FileRow, cells: dict[str, Any], *, exported: bool) -> FileMessage:
        key = None if self.key_column is None else self._content(cells.get(self.key_column))
        about: dict[str, Any] = {}
        if "value" in cells:
            about = self._about(cells, bare=True)
            schema_id, message_type = (
                cells.pop(name, None) if exported else None for name in OF_REGISTRY
            )
            value = self._content(cells.pop("value"))
            if schema_id is not None:
                value = self._of_registry(value, schema_id, self._content(message_type))
            self._refuse_others(cells)
        else:
            if exported:
                about = self._about(cells, bare=False)
            value = self.form.as_json(cells).encode()
        given = self._content(about.pop("key", None))
        return self._built(row, value, given if self.key_column is None else key, about)

    def _refuse_others(self, cells: Mapping[str, Any]) -> None:
        for name in cells:
            if name != self.key_column:
                hint = (
                    ": offsets are assigned when the rows are written" if name == "_offset" else ""
                )
                raise InvalidValue(
                    f"the topic has no such column{hint}: drop it, or rename it", field=name
                )

    def _typed(self, row: FileRow, cells: dict[str, Any], schema: TopicSchema) -> FileMessage:
        name = self.key_column
        about = self._about(cells, bare=False)
        key = self._content(about.pop("key", None))
        if name is not None and name not in schema.arrow.names and name in cells:
            key = self._content(cells.pop(name))
        value = self._row_of(cells, schema)
        if name is not None and name in value:
            key = _text_of(value[name])
        return self._built(row, value, key, about)

    def _row_of(self, cells: Mapping[str, Any], schema: TopicSchema) -> dict[str, object]:
        """Cells as an accepted row of the topic. Raises InvalidValue."""
        row = dict(cells)
        for name, typed in self._typed_columns.items():
            if (cell := row.get(name)) is not None:
                row[name] = typed(cell)
        return schema.accept(row) if self.model is None else self.model.row(row)

    @cached_property
    def _typed_columns(self) -> Mapping[str, Callable[[Any], Any]]:
        """How cells become values, by the names of the topic's columns."""
        schema = () if self.schema is None else self.schema.arrow
        found = ((field.name, self.form.typed(field.type, field.name)) for field in schema)
        return {name: typed for name, typed in found if typed is not None}

    def _about(self, cells: dict[str, Any], *, bare: bool) -> dict[str, Any]:
        """Take the columns of a message but its value, by their names without the `_`, which they
        may lack if they are `bare`. Raises InvalidValue.
        """
        about: dict[str, Any] = {}
        for spelling in cells.keys() & _SPELLINGS.keys():
            name = _SPELLINGS[spelling]
            if spelling == name and not bare:
                continue
            if name in about:
                raise InvalidValue(
                    f"there is the column '_{name}' too, and both mean the same", field=name
                )
            about[name] = cells.pop(spelling)
        return about

    def _content(self, cell: Any) -> bytes | None:
        return None if cell is None else self.form.content(cell)

    def _built(
        self, row: FileRow, value: Any, key: bytes | None, about: Mapping[str, Any]
    ) -> FileMessage:
        timestamp, partition = about.get("timestamp"), about.get("partition")
        return FileMessage(
            row.number,
            value,
            key,
            None if partition is None else _whole(partition, "partition", INT32_MAX, -1),
            None if timestamp is None else _milliseconds(timestamp),
            self._headers(about.get("headers")),
        )

    def _headers(self, cell: Any) -> list[dict[str, Any]] | None:
        if cell is None:
            return None
        if isinstance(cell, list):
            return headers_of(cell)
        return headers_from_json(self.form.content(cell).decode())


def runs_of(
    messages: Sequence[FileMessage], schema: TopicSchema | None
) -> Iterator[tuple[bool, list[FileMessage]]]:
    """The messages as runs: (whether they are tombstones of a typed topic, which no table can have;
    messages).
    """
    for is_tombstone, run in groupby(
        messages, lambda message: schema is not None and message.value is None
    ):
        yield is_tombstone, list(run)


def as_table(messages: Sequence[FileMessage], schema: TopicSchema | None) -> pa.RecordBatch:
    """Messages as `Producer.produce_arrow` takes them."""
    prefix = "" if schema is None else "_"
    if schema is None:
        columns = {"value": pa.array([message.value for message in messages], pa.binary())}
    else:
        batch = schema.to_arrow([message.value for message in messages])
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns[f"{prefix}key"] = pa.array([message.key for message in messages], pa.binary())
    columns[f"{prefix}partition"] = pa.array(
        [message.partition for message in messages], pa.int32()
    )
    columns[f"{prefix}timestamp"] = pa.array(
        [message.timestamp for message in messages], pa.timestamp("ms", "UTC")
    )
    columns[f"{prefix}headers"] = pa.array([message.headers for message in messages], HEADERS)
    return pa.RecordBatch.from_pydict(columns)


# --- the columns that every topic has ---


def _text_of(value: Any) -> bytes | None:
    """A value of a column as a key."""
    shown = value if isinstance(value, bytes) else plain(value)
    if shown is None or isinstance(shown, bytes):
        return shown
    return (shown if isinstance(shown, str) else json.dumps(shown)).encode()


def _whole(cell: Any, name: str, most: int, least: int = 0) -> int:
    """A cell as a whole number from `least` to `most`. Raises InvalidValue."""
    if isinstance(cell, bytes):
        cell = cell.decode()
    is_number = isinstance(cell, int | float) and not isinstance(cell, bool) and cell == cell // 1
    if not is_number and not (isinstance(cell, str) and _WHOLE.fullmatch(cell)):
        raise InvalidValue(f"{cell!r:.100} is no whole number", field=name)
    if not least <= (number := int(cell)) <= most:
        raise InvalidValue(f"{number} is outside {least}..{most}", field=name)
    return number


def _milliseconds(cell: Any) -> int | None:
    """A time in ISO 8601, of a workbook, or as milliseconds since 1970 UTC, of which 0 is now as in
    `produce`. Raises InvalidValue.
    """
    if isinstance(cell, bytes):
        cell = JsonNumber(text) if _WHOLE.fullmatch(text := cell.decode()) else text
    if isinstance(cell, int | float | JsonNumber):
        return _whole(cell, "timestamp", TIMESTAMP_MS_MAX) or None
    try:
        time = parse_time(cell) if isinstance(cell, str) else cell
        time = time if time.tzinfo else time.replace(tzinfo=UTC)
        return _whole((time - _EPOCH) // timedelta(milliseconds=1), "timestamp", TIMESTAMP_MS_MAX)
    except (ValueError, OverflowError, AttributeError, TypeError):
        raise InvalidValue(f"not a time: {cell!r:.100}", field="timestamp") from None
