"""What a program says about its inputs: the columns that the bytes of a topic stand for, or that an
input is a Delta table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias

from deltaq.delta.schema import arrow_schema, delta_schema
from deltaq.errors import InvalidConfig
from deltaq.names import check_topic
from deltaq.serde.json_text import compact_json, strict_json
from deltaq.serde.schema import SchemaSource, TopicSchema
from deltaq.serde.source import schema_of
from deltaq.views.column_text import columns_of
from deltaq.views.delta_tables import checked_address

Columns: TypeAlias = "str | Mapping[str, str] | SchemaSource"
"""Columns as a user declares them: text such as "account VARCHAR, amount DECIMAL(18,2)", the types
by name, or what makes a typed topic.
"""

InputFormat: TypeAlias = Literal["json", "avro", "json_schema", "protobuf"]
"""What the values of a topic are: JSON, or of the schema registry."""

OnError: TypeAlias = Literal["refuse", "skip"]
"""What becomes of a record that does not fit its columns."""

REGISTRY_TYPES: Final[Mapping[str, str]] = {
    "avro": "AVRO",
    "json_schema": "JSON",
    "protobuf": "PROTOBUF",
}
"""The formats of the schema registry, with the names that it has for them."""

_FORMATS = ("json", *REGISTRY_TYPES)
_DELTA = "delta"
_ON_ERROR = ("refuse", "skip")


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """An input with declared columns, or a Delta table at the address `delta`. `columns` is a
    `schemaString` of Delta; "" for those that the schema registry names, or the table.
    """

    name: str
    format: str
    columns: str
    on_error: str = "refuse"
    delta: str = ""

    @property
    def schema(self) -> TopicSchema | None:
        """The declared columns; None for those of the registry, or of the table."""
        return _schema_of_text(self.columns) if self.columns else None

    def as_json(self) -> dict[str, object]:
        """It as a value of JSON, for the record of a tick."""
        if self.delta:
            return {"name": self.name, "format": self.format, "delta": self.delta}
        return {
            "name": self.name,
            "format": self.format,
            "columns": strict_json(self.columns) if self.columns else None,
            "onError": self.on_error,
        }

    @classmethod
    def of_json(cls, found: Any) -> DeclaredInput:
        """What `as_json` made. Raises ValueError, KeyError, TypeError."""
        if found["format"] == _DELTA:
            return cls(str(found["name"]), _DELTA, "", delta=str(found["delta"]))
        name, format_, on_error = (str(found[key]) for key in ("name", "format", "onError"))
        if format_ not in _FORMATS or on_error not in _ON_ERROR:
            raise ValueError(f"input {name!r} has the unknown format {format_!r}, {on_error!r}")
        columns = found["columns"]
        return cls(name, format_, "" if columns is None else compact_json(columns), on_error)


@lru_cache(maxsize=100)
def _schema_of_text(columns: str) -> TopicSchema:
    """Made once: the checks of a schema are compiled, and each tick asks for them."""
    return schema_of(arrow_schema(columns))


def declared_input(
    name: str, columns: Columns | None, format_: InputFormat, on_error: OnError
) -> DeclaredInput:
    """The declaration of a topic of bytes. Raises InvalidConfig, TypeError."""
    check_topic(name)
    _check_one_of(name, "format", format_, _FORMATS)
    _check_one_of(name, "on_error", on_error, _ON_ERROR)
    if columns is None and format_ not in REGISTRY_TYPES:
        reason = f"input {name!r} needs columns, such as 'account VARCHAR, amount DECIMAL(18,2)'"
        raise InvalidConfig(reason, key=name)
    text = "" if columns is None else delta_schema(_schema(name, columns).arrow)
    return DeclaredInput(name, format_, text, on_error)


def declared_table(name: str, address: str) -> DeclaredInput:
    """The declaration of a Delta table. Raises InvalidConfig."""
    check_topic(name)
    return DeclaredInput(name, _DELTA, "", delta=checked_address(name, address))


def _schema(name: str, columns: Columns) -> TopicSchema:
    try:
        if isinstance(columns, str | Mapping):
            return schema_of(columns_of(columns))
        return schema_of(columns)
    except InvalidConfig as error:
        raise InvalidConfig(f"input {name!r}: {error.error.str()}", key=name) from None


def _check_one_of(name: str, option: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        reason = f"the {option} of input {name!r} must be one of {', '.join(known)}, not {value!r}"
        raise InvalidConfig(reason, key=name)
