"""Avro: the only door to `fastavro`, which writes and reads records. `compatibility/avro` judges."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import fastavro
from fastavro.repository import AbstractSchemaRepository, SchemaRepositoryError
from fastavro.schema import SchemaParseException, load_schema
from fastavro.validation import ValidationError

from deltaq.schema_registry.compatibility import avro as rules
from deltaq.schema_registry.formats import NamedText
from deltaq.serde.errors import SerializationError

_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))


def canonical(text: str) -> str:
    """The schema without white space; a primitive type may be a bare word. Raises ValueError."""
    return json.dumps(_loaded(text), separators=(",", ":"), ensure_ascii=False)


def normalized(text: str) -> str:
    """The schema without white space and with sorted attributes. Raises ValueError."""
    return json.dumps(_loaded(text), separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def _loaded(text: str) -> Any:
    return text.strip() if text.strip() in _PRIMITIVES else json.loads(text)


def identity(text: str, references: Sequence[NamedText]) -> str:
    """The normalized text: the order of attributes makes no other schema, as in Confluent's registry."""
    return normalized(text)


def parse(text: str, references: Sequence[NamedText]) -> Any:
    """The schema for a comparison. Raises ValueError."""
    try:
        fastavro_schema(text, tuple(references))  # refuses defaults and names that the library of the rules lets pass
        return rules.parsed(_loaded(text), [_loaded(reference.text) for reference in references])
    except (SchemaParseException, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def incompatibilities(reader: Any, writer: Any) -> list[str]:
    """Why records of the writer's schema cannot be read with the reader's."""
    return rules.incompatibilities(reader, writer)


# --- records ---


def prepared(text: str, references: Sequence[NamedText]) -> Any:
    """The schema for `encode` and `decode`. Raises ValueError."""
    try:
        return fastavro_schema(text, tuple(references))
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


@lru_cache(maxsize=1000)
def fastavro_schema(text: str, references: tuple[NamedText, ...]) -> Any:
    """The schema as fastavro needs it. Raises SchemaParseException, ValueError, TypeError, KeyError."""
    root = _loaded(text)
    if references and not (isinstance(root, dict) and root.get("type") == "record"):
        # Only a parsed record keeps the named types that it refers to. In others, they are written out.
        return load_schema("", repo=_References(root, references))
    named: dict[str, Any] = {}
    for reference in references:
        fastavro.parse_schema(_loaded(reference.text), named_schemas=named)
    return fastavro.parse_schema(root, named_schemas=named)


class _References(AbstractSchemaRepository):
    """A schema under the name "", and those that it refers to under the names of their types."""

    def __init__(self, root: Any, references: tuple[NamedText, ...]) -> None:
        self._schemas: dict[str, Any] = {"": root}
        for reference in references:
            schema = _loaded(reference.text)
            self._schemas[reference.name] = self._schemas[record_name(schema) or reference.name] = schema

    def load(self, name: str) -> Any:
        """The schema of this name, which the caller may change."""
        if name not in self._schemas:
            raise SchemaRepositoryError(name)
        return copy.deepcopy(self._schemas[name])


def record_name(schema: Any) -> str | None:
    """The full name of a named type, and the word for a primitive one; None for a union."""
    if not isinstance(schema, dict):
        return schema if isinstance(schema, str) else None
    name, namespace = schema.get("name", schema.get("type")), schema.get("namespace")
    if not isinstance(name, str):
        return None
    return f"{namespace}.{name}" if namespace and "." not in name else name


def encode(schema: Any, value: Any, *, strict: bool, strict_allow_default: bool) -> bytes:
    """A record of a schema that `fastavro_schema` returned. Raises SerializationError with the field that does not
    conform."""
    if _is_bytes(schema):  # as by Confluent's serializers: without the length, of which the message has one already
        if not isinstance(value, bytes | bytearray | str):
            raise SerializationError(f"expected bytes, not {type(value).__name__}")
        return value.encode() if isinstance(value, str) else bytes(value)
    buffer = io.BytesIO()
    try:
        # The writer itself truncates 1.5 to an int and takes any object for a boolean.
        if not fastavro.validate(value, schema, raise_errors=False):
            fastavro.validate(value, schema)
        fastavro.schemaless_writer(buffer, schema, value, strict=strict, strict_allow_default=strict_allow_default)
    except ValidationError as error:
        raise _not_conforming(error) from error
    except Exception as error:
        raise SerializationError(str(error)[:1000] or type(error).__name__) from error
    return buffer.getvalue()


def _not_conforming(error: ValidationError) -> SerializationError:
    """The innermost field. The value may be private, so only its type is shown."""
    found = sorted(error.errors, key=lambda each: str(each.field).count("."))[-1]
    wanted = found.schema
    while isinstance(wanted, dict):
        wanted = wanted.get("name") or wanted.get("logicalType") or wanted.get("type")
    if isinstance(wanted, list):
        wanted = "a branch of the union"
    given = "None" if found.datum is None else type(found.datum).__name__
    is_too_large = wanted in ("int", "long") and given == "int"
    reason = f"the number does not fit {wanted}" if is_too_large else f"expected {wanted}, not {given}"
    return SerializationError(reason, field=str(found.field) or None)


def decode(payload: io.BytesIO, writer: Any, reader: Any, *, return_record_name: bool) -> Any:
    """The record in a payload. Raises SerializationError for bytes that are no record of the writer's schema, for more
    bytes than that, and for a record that the reader's schema cannot show."""
    if _is_bytes(writer):
        return payload.read()
    try:
        record = fastavro.schemaless_reader(payload, writer, reader, return_record_name)
    except Exception as error:
        text = f"no record of the schema {record_name(writer)}: {type(error).__name__}: {error!s:.1000}"
        raise SerializationError(text) from error
    if left := len(payload.read()):
        raise SerializationError(f"{left} bytes follow the record of the schema {record_name(writer)}")
    return record


def _is_bytes(schema: Any) -> bool:
    return schema == "bytes" or (isinstance(schema, dict) and schema.get("type") == "bytes")
