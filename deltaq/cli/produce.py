"""`deltaq produce`: messages from standard input or from files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from deltaq.cli.arguments import Topic, pairs
from deltaq.cli.command import Argument, Command, Option, UsageError
from deltaq.cli.session import CliSession
from deltaq.errors import InvalidValue
from deltaq.units import counted

if TYPE_CHECKING:
    from deltaq.serde.schema import TopicSchema
    from deltaq.tools.registry_values import RegistryEncoder
    from deltaq.tools.writing import Sending


def produce(
    session: CliSession,
    topic: Topic,
    files: Annotated[
        list[Path] | None,
        Argument(
            help=(
                "Files of csv, jsonl, parquet or xlsx, by the end of their names; none: lines of "
                "standard input."
            ),
            metavar="FILE",
        ),
    ] = None,
    key_delimiter: Annotated[
        str | None,
        Option(
            "--key-delimiter", "-K", metavar="TEXT", help="Splits each line into key and value."
        ),
    ] = None,
    key: Annotated[str | None, Option("--key", "-k", help="The key of all lines.")] = None,
    key_column: Annotated[
        str | None,
        Option("--key-column", metavar="NAME", help="The column of a file with the key."),
    ] = None,
    headers: Annotated[
        list[str] | None,
        Option(
            "--header", "-H", metavar="NAME=VALUE", help="A header of all lines. May be repeated."
        ),
    ] = None,
    partition: Annotated[
        int, Option("--partition", "-p", min=-1, help="The partition; -1: by the key.")
    ] = -1,
    empty_as_null: Annotated[
        bool, Option("--null", "-Z", help="An empty value is a tombstone, an empty key is none.")
    ] = False,
    json: Annotated[
        bool, Option("--json", help="Lines are JSON as consume -o json prints it.")
    ] = False,
    schema_name: Annotated[
        str | None,
        Option(
            "--schema",
            metavar="SUBJECT",
            help=(
                "Values are JSON, and are written with the latest schema of this subject of the "
                "registry, or with the "
                "schema of this id."
            ),
        ),
    ] = None,
    create: Annotated[bool, Option("--create", help="Create the topic if there is none.")] = False,
) -> None:
    """Write messages to a topic: each line of standard input is one.

    In a typed topic a line is a JSON object with the topic's columns, and a file has these columns.
    In a topic of bytes, a file has a column value, and perhaps key, partition, timestamp and
    headers; the rows of any other file become JSON objects.
    """
    # Here: `deltaq --help` needs no clients.
    from deltaq.tools.files import check_file, load_file  # noqa: PLC0415 - as above
    from deltaq.tools.writing import Sending  # noqa: PLC0415 - as above

    if key is not None and key_delimiter is not None:
        raise UsageError("give --key or --key-delimiter, not both")
    of_lines = {"-K": key_delimiter, "-k": key, "-H": headers, "-Z": empty_as_null or None}
    of_lines |= {"--json": json or None, "--schema": schema_name}
    if files and (given := [name for name, value in of_lines.items() if value is not None]):
        raise UsageError(
            f"{', '.join(given)}: for standard input only; columns of a file have keys and headers"
        )
    if key_column is not None and not files:
        raise UsageError("--key-column is for files; -K splits lines of standard input")
    for path in files or ():
        check_file(path)
    handle = session.topic(topic)
    # Without --create, a wrong name raises UnknownTopic and makes no topic.
    schema = handle.describe().schema if not create or handle.exists() else None
    if schema_name is not None and schema is not None:
        raise UsageError("--schema is for topics of bytes, and this topic has columns")
    encoder = session.encoder()
    schema_id = None if schema_name is None else encoder.id_of(schema_name)
    lines = _Lines(
        schema,
        encoder,
        schema_id,
        key_delimiter,
        key,
        pairs(headers, "--header"),
        partition,
        empty_as_null,
        json,
    )
    sending = Sending(handle, session.conf)
    try:
        # Waits for the deliveries, also of the messages before a line that does not fit.
        with sending:
            for path in files or ():
                load_file(sending, path, schema, key_column=key_column, partition=partition)
            if not files:
                _send_lines(sending, lines, sys.stdin.buffer)
    except BaseException:
        if sending.delivered:  # else the error says all
            session.out.note(f"{counted(sending.delivered, 'message')} written to {topic}")
        raise
    session.out.note(f"{counted(sending.delivered, 'message')} written to {topic}")


def _send_lines(sending: Sending, lines: _Lines, stream: BinaryIO) -> None:
    """Send each line as a message. Raises InvalidValue, with the number of the line."""
    from deltaq.producer.encoding import LARGE_MESSAGE_BYTES_MAX  # noqa: PLC0415 - as above
    from deltaq.tools.files import ROW_BYTES_MAX  # noqa: PLC0415 - as above
    from deltaq.tools.json_lines import bounded_lines  # noqa: PLC0415 - as above

    for number, line in bounded_lines(
        stream, ROW_BYTES_MAX if lines.are_json else LARGE_MESSAGE_BYTES_MAX
    ):
        try:
            sending.send(**lines.message(line.removesuffix(b"\n")))
        except (InvalidValue, TypeError, ValueError, OverflowError) as error:
            reason = error.error.str() if isinstance(error, InvalidValue) else str(error)
            raise InvalidValue(f"line {number}: {reason}") from None


@dataclass(frozen=True)
class _Lines:
    """How lines become messages: the options of the command. `schema` is the topic's."""

    schema: TopicSchema | None
    encoder: RegistryEncoder
    schema_id: int | None
    key_delimiter: str | None
    key: str | None
    headers: Mapping[str, str]
    partition: int
    empty_as_null: bool
    json: bool

    @property
    def are_json(self) -> bool:
        """Whether lines are parsed as JSON."""
        return self.json or self.schema is not None or self.schema_id is not None

    def message(self, line: bytes) -> dict[str, Any]:
        """The line as arguments of `Producer.produce`. Raises InvalidValue."""
        from deltaq.tools.records import from_json  # noqa: PLC0415 - as above

        about: dict[str, Any] = {"partition": self.partition}
        if self.headers:
            about["headers"] = list(self.headers.items())
        if self.json:
            about |= from_json(line, has_schema=self.schema_id is not None)
            about["value"] = self._json_value(
                about["value"], about.pop("schema_id", None), about.pop("message_type", None)
            )
            return about
        key = None if self.key is None else self.key.encode()
        if self.key_delimiter is not None:
            key, delimiter, line = line.partition(self.key_delimiter.encode())
            if not delimiter:
                raise InvalidValue(f"it has no key delimiter {self.key_delimiter!r}")
        if self.empty_as_null:
            key = key or None
        return about | {"key": key, "value": self._value(line)}

    def _json_value(self, value: object, schema_id: object, message_type: object) -> object:
        """The value of a line that `consume -o json` printed. Raises InvalidValue."""
        from deltaq.tools.records import typed_row  # noqa: PLC0415 - as above

        if self.schema is not None:
            return typed_row(value, self.schema) if isinstance(value, dict) else value
        if schema_id is not None:
            if type(schema_id) is not int or not isinstance(message_type, str | None):
                raise InvalidValue(
                    f"schema_id must be a number and message_type text, not {schema_id!r:.40}"
                )
            return (
                value if isinstance(value, bytes) else self.encoder(value, schema_id, message_type)
            )
        if self.schema_id is not None and value is not None:
            return value if isinstance(value, bytes) else self.encoder(value, self.schema_id)
        if isinstance(value, dict):
            raise InvalidValue(
                "its value is an object, and the topic has bytes: give it as text, or name its "
                "--schema"
            )
        return value

    def _value(self, line: bytes) -> object:
        from deltaq.serde.json_text import typed_json  # noqa: PLC0415 - as above
        from deltaq.tools.records import row_from_json  # noqa: PLC0415 - as above

        if self.empty_as_null and not line:
            return None
        if self.schema_id is not None:
            return self.encoder(typed_json(line, finite=True), self.schema_id)
        return line if self.schema is None else row_from_json(line, self.schema)


COMMANDS: Mapping[str, Command] = {"produce": produce}
