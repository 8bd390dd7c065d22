"""Messages as a command prints them: by a format as in kcat, as JSON lines, or as a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from deltaq.cli.command import UsageError
from deltaq.cli.output import Output
from deltaq.cli.table import Column
from deltaq.units import as_count, as_text, as_time

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaq.serde.schema import TopicSchema
    from deltaq.tools.records import Record

Piece: TypeAlias = "Callable[[Record], bytes]"

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


class MessagePrinter:
    """Prints the messages of one topic. `form` is a format as in kcat; with `table`, a table is
    printed by `end`. `decode` replaces the values that have a schema of the registry.
    """

    def __init__(
        self,
        out: Output,
        topic: str,
        schema: TopicSchema | None,
        form: str | None,
        *,
        table: bool,
        decode: Callable[[Record], Record] | None = None,
    ) -> None:
        # Here: `deltaq --help` needs no clients.
        from deltaq.serde.schema import Unreadable  # noqa: PLC0415 - as above
        from deltaq.tools.records import as_json, plain, records_of  # noqa: PLC0415 - as above

        self._out = out
        self._topic = topic
        self._schema = schema
        self._as_json, self._plain, self._records_of = as_json, plain, records_of
        self._unreadable: type = Unreadable
        self._decode = decode
        self._pieces = compiled(form if form is not None else "%s\\n", self._contents())
        self._is_table = table and not out.is_json
        self._rows: list[Mapping[str, Any]] = []

    def print(self, batch: pa.RecordBatch) -> None:
        """Print the rows of a batch of the topic's table."""
        records = self._readable(self._records_of(batch, self._schema))
        if self._decode is not None:
            records = map(self._decode, records)
        if self._out.is_json:
            lines = (
                json.dumps(self._as_json(record, self._topic), ensure_ascii=self._out.is_ascii)
                for record in records
            )
            sys.stdout.writelines(line + "\n" for line in lines)
        elif self._is_table:
            self._rows += [self._row(record) for record in records]
        else:
            sys.stdout.flush()
            sys.stdout.buffer.writelines(
                piece(record) for record in records for piece in self._pieces
            )
        sys.stdout.flush()

    def _readable(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records as they are. One whose value cannot be returned is named apart from the
        output.
        """
        for record in records:
            if isinstance(record.value, self._unreadable):
                place = (
                    f"topic {self._topic!r}, partition {record.partition}, offset {record.offset}"
                )
                self._out.note(f"{place}: the value cannot be shown: {record.value}")
            yield record

    def end(self) -> None:
        """Print the table, if that was asked for."""
        if not self._is_table:
            return
        values = ["value"] if self._schema is None else list(self._schema.arrow.names)
        columns = [
            Column("partition"),
            Column("offset", as_count),
            Column("timestamp"),
            Column("key"),
        ]
        self._out.rows([*columns, *map(Column, values)], self._rows)

    def _row(self, record: Record) -> dict[str, Any]:
        about = {"partition": record.partition, "offset": record.offset, "key": record.key}
        values = (
            record.value if isinstance(record.value, dict) else {"value": self._content(record)}
        )
        return {
            **values,
            **about,
            "timestamp": as_time(record.timestamp if record.timestamp >= 0 else None),
        }

    def _contents(self) -> Mapping[str, Piece]:
        """What the letters of a format stand for."""

        def headers(record: Record) -> bytes:
            return b",".join(
                name.encode() + b"=" + (content or b"") for name, content in record.headers
            )

        return {
            "s": lambda record: self._shown(self._content(record)),
            "S": lambda record: _length(self._content(record)),
            "k": lambda record: self._shown(record.key),
            "K": lambda record: _length(record.key),
            "h": lambda record: self._shown(headers(record)),
            "t": lambda _: self._topic.encode(),
            "p": lambda record: b"%d" % record.partition,
            "o": lambda record: b"%d" % record.offset,
            "T": lambda record: b"%d" % record.timestamp,
        }

    def _content(self, record: Record) -> bytes | None:
        """A value as bytes: those of the topic, or JSON."""
        value = record.value
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, self._unreadable):
            return None
        return json.dumps(self._plain(value if isinstance(value, dict) else value.value)).encode()

    def _shown(self, content: bytes | None) -> bytes:
        """A key, value or header: as it is for programs, escaped for a terminal."""
        if content is None:
            return b""
        return as_text(content).encode() if self._out.is_terminal else content


def _length(content: bytes | None) -> bytes:
    return b"-1" if content is None else b"%d" % len(content)


def compiled(form: str, contents: Mapping[str, Piece]) -> list[Piece]:
    """A format as functions, one for each piece: %s is what `contents` has for s. Raises
    UsageError.
    """
    pieces: list[Piece] = []
    letters = iter(form)
    for letter in letters:
        if letter == "%":
            following = next(letters, "")
            if following != "%" and following not in contents:
                raise UsageError(
                    f"format: unknown %{following}; known are "
                    f"{', '.join('%' + name for name in contents)}, %%"
                )
            pieces.append(contents[following] if following != "%" else _literal(b"%"))
        elif letter == "\\":
            following = next(letters, "")
            if following not in _ESCAPES:
                raise UsageError(
                    f"format: unknown \\{following}; known are "
                    f"{', '.join(chr(92) + name for name in _ESCAPES)}"
                )
            pieces.append(_literal(_ESCAPES[following]))
        else:
            pieces.append(_literal(letter.encode()))
    return pieces


def _literal(text: bytes) -> Piece:
    return lambda _: text
