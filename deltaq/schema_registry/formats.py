"""The formats of schemas. The libraries of a format are loaded with the first schema of it."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from deltaq.schema_registry.errors import INVALID_SCHEMA, registry_error
from deltaq.schema_registry.schemas import Schema
from deltaq.serde.errors import MissingLibrary


class NamedText(NamedTuple):
    """The text of a referenced schema, under the name by which others refer to it."""

    name: str
    text: str


class Format(Protocol):
    """What the registry needs of a format; its module has these functions."""

    def canonical(self, text: str) -> str:
        """The text without differences that have no meaning, such as white space. Raises
        ValueError.
        """

    def normalized(self, text: str) -> str:
        """The text with everything in a fixed order whose order has no meaning. Raises
        ValueError.
        """

    def identity(self, text: str, references: Sequence[NamedText]) -> str:
        """What all canonical texts of one schema have in common. Raises ValueError."""

    def parse(self, text: str, references: Sequence[NamedText]) -> Any:
        """The schema, for `incompatibilities`. `references` precede what refers to them. Raises
        ValueError.
        """

    def prepared(self, text: str, references: Sequence[NamedText]) -> Any:
        """The schema, for the serializers of the format. Raises ValueError."""

    def incompatibilities(self, reader: Any, writer: Any) -> Iterable[str]:
        """Why data of the writer's schema cannot be read with the reader's; empty if it can."""


class _Place(NamedTuple):
    """Where a format is: its module, the packages that it imports, and the extra that installs
    them.
    """

    module: str
    packages: tuple[str, ...]
    extra: str


_FORMATS: Mapping[str, _Place] = {
    "AVRO": _Place("avro_format", ("avro", "fastavro"), "avro"),
    "JSON": _Place("json_format", ("jsonschema", "referencing"), "json"),
    "PROTOBUF": _Place("protobuf_format", ("antlr4", "google", "proto_schema_parser"), "protobuf"),
}
SCHEMA_TYPES = tuple(_FORMATS)


def load_format(schema_type: str) -> Any:
    """The module of a format. Raises SchemaRegistryError (42201) for an unknown one,
    MissingLibrary.
    """
    place = _FORMATS.get(schema_type)
    if place is None:
        reason = f"invalid schema type {str(schema_type)[:60]!a}: use {', '.join(SCHEMA_TYPES)}"
        raise registry_error(INVALID_SCHEMA, reason)
    try:
        return importlib.import_module("deltaq.schema_registry." + place.module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in place.packages:
            raise MissingLibrary(f"schema type {schema_type}", place.extra) from error
        raise


def schema_guid(schema: Schema, references: Sequence[NamedText]) -> str:
    """A UUID of the content: equal schemas, with equal references and metadata, have the same.
    Raises ValueError.
    """
    text = load_format(schema.schema_type).identity(schema.schema_str, references)
    body = json.dumps({**schema.to_dict(), "schema": text}, sort_keys=True, ensure_ascii=True)
    digits = hashlib.sha256(body.encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
