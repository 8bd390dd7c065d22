"""Avro: the only door to `fastavro`, which writes and reads records. `compatibility/avro`
judges.
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException
from fastavro.validation import ValidationError

from deltaq.schema_registry.avro_bounds import Bounds, TooManyValues, bounds_of, check_payload
from deltaq.schema_registry.avro_fields import (
    complete,
    has_overflown,
    unwritable_field,
    without_branches,
)
from deltaq.schema_registry.avro_guards import LOGICAL_READERS as OWN_LOGICAL_READERS
from deltaq.schema_registry.avro_guards import guarded
from deltaq.schema_registry.compatibility import avro as rules
from deltaq.schema_registry.formats import NamedText
from deltaq.schema_registry.work import (
    VALUE_DEPTH_MAX,
    OutOfBounds,
    TooMuchWork,
    check_schema_size,
    count_values,
    depth_of,
    limited_work,
    spend,
)
from deltaq.serde.errors import SerializationError
from deltaq.serde.json_text import strict_json

_DEFAULT_STEPS_MAX = 100_000
"""Values in all defaults of a schema. Defaults of a record's fields are part of each default of the
record.
"""
_CHARS_PER_DEFAULT = 64
"""Characters or bytes of a default that count as a value."""
_INFINITY, _NEGATIVE_INFINITY = b"\x00\x00\x80\x7f", b"\x00\x00\x80\xff"
"""What `float` is written as beyond 32 bits."""
LOGICAL_READERS.update(OWN_LOGICAL_READERS)
_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))


def canonical(text: str) -> str:
    """The schema without white space; a primitive type may be a bare word. Raises ValueError."""
    return json.dumps(_loaded(text), separators=(",", ":"), ensure_ascii=False)


def normalized(text: str) -> str:
    """The schema without white space and with sorted attributes. Raises ValueError."""
    return json.dumps(_loaded(text), separators=(",", ":"), ensure_ascii=False, sort_keys=True)


def _loaded(text: str) -> Any:
    if text.strip() in _PRIMITIVES:
        return text.strip()
    loaded = strict_json(text)
    check_schema_size(loaded)
    return loaded


def identity(text: str, references: Sequence[NamedText]) -> str:
    """The normalized text: the order of attributes makes no other schema, as in Confluent's
    registry.
    """
    return normalized(text)


def parse(text: str, references: Sequence[NamedText]) -> Any:
    """The schema for a comparison. Raises ValueError."""
    try:
        # Refuses defaults and names that the library of the rules lets pass.
        _prepared(text, tuple(references))
        return rules.parsed(_loaded(text), [_loaded(reference.text) for reference in references])
    except (SchemaParseException, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def incompatibilities(reader: Any, writer: Any) -> list[str]:
    """Why records of the writer's schema cannot be read with the reader's."""
    return rules.incompatibilities(reader, writer)


# --- records ---


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A schema as fastavro needs it, for `encode` and `decode`. `guarded` is for payloads that are
    read without another schema. `mutable_defaults` are the ids of the defaults in it that are lists
    or dicts, `default_values` is the largest number of values in the defaults of one record.
    """

    parsed: Any
    guarded: Any
    bounds: Bounds
    mutable_defaults: frozenset[int]
    default_values: int

    @property
    def name(self) -> str | None:
        """The full name of a named type, and the word for any other type; None for a union."""
        if not isinstance(self.parsed, dict):
            return self.parsed if isinstance(self.parsed, str) else None
        name = self.parsed.get("name", self.parsed["type"])
        return name if isinstance(name, str) else None


def prepared(text: str, references: Sequence[NamedText]) -> PreparedSchema:
    """The schema for `encode` and `decode`. Raises ValueError."""
    try:
        return _prepared(text, tuple(references))
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


@lru_cache(maxsize=1000)
def _prepared(text: str, references: tuple[NamedText, ...]) -> PreparedSchema:
    """Raises SchemaParseException, ValueError, TypeError, KeyError."""
    named: dict[str, Any] = {}
    for reference in references:
        fastavro.parse_schema(_loaded(reference.text), named_schemas=named)
    parsed = fastavro.parse_schema(_loaded(text), named_schemas=named)
    bounds = bounds_of(parsed, named)
    # Found before any is replaced: the default of a record can include those of its fields.
    with limited_work(_DEFAULT_STEPS_MAX):
        defaults = list(_python_defaults(named))
    for field, value in defaults:
        field["default"] = value
    mutable = frozenset(id(value) for _, value in defaults if isinstance(value, list | dict))
    to_read = complete(guarded(parsed), {name: guarded(schema) for name, schema in named.items()})
    return PreparedSchema(complete(parsed, named), to_read, bounds, mutable, _default_values(named))


def _default_values(named: Mapping[str, Any]) -> int:
    """The largest number of values in the defaults of one record."""
    counts = (
        sum(
            count_values(field["default"], _CHARS_PER_DEFAULT)
            for field in record.get("fields", ())
            if "default" in field
        )
        for record in named.values()
    )
    return max(counts, default=0)


def _python_defaults(named: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """The fields of records that have a default, and its value in Python: fastavro takes the JSON
    itself, in which bytes are a string and a date is a number. A default that stands for no value
    is refused when it is needed.
    """
    for record in named.values():
        for field in record.get("fields", ()):
            if "default" in field:
                try:
                    yield field, _python_value(field["default"], field["type"], named)
                except TooMuchWork:
                    raise ValueError(
                        f"the defaults in it have more than {_DEFAULT_STEPS_MAX} values"
                    ) from None
                except (
                    ValueError,
                    TypeError,
                    AttributeError,
                    LookupError,
                    ArithmeticError,
                    RecursionError,
                ):
                    continue


_JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    **dict.fromkeys(("int", "long"), int),
    **dict.fromkeys(("float", "double"), (int, float)),
    **dict.fromkeys(("string", "bytes", "fixed", "enum"), str),
    "array": list,
    **dict.fromkeys(("map", "record", "error"), dict),
}


def _python_value(value: Any, schema: Any, named: Mapping[str, Any]) -> Any:
    """The value that fastavro would read if what this JSON stands for had been written. Raises many
    errors.
    """
    spend()
    # The default of a union is one of the first branch that has such values.
    if isinstance(schema, list):
        fitting = (
            branch for branch in schema if _may_be(value, _definition(branch, named)["type"])
        )
        schema = next(fitting, schema[0])
    schema = _definition(schema, named)
    match schema["type"]:
        case "bytes" | "fixed":
            value = value.encode("latin-1")
        case "float" | "double":
            value = float(value)
        case "array":
            value = [_python_value(item, schema["items"], named) for item in value]
        case "map":
            value = {
                key: _python_value(item, schema["values"], named) for key, item in value.items()
            }
        case "record" | "error":
            value = {
                field["name"]: _python_value(
                    value.get(field["name"], field.get("default")), field["type"], named
                )
                for field in schema["fields"]
            }
    logical = LOGICAL_READERS.get(f"{schema['type']}-{schema.get('logicalType')}")
    return value if logical is None else logical(value, schema, None)


def _definition(schema: Any, named: Mapping[str, Any]) -> Any:
    return schema if isinstance(schema, dict) else named.get(schema, {"type": schema})


def _may_be(value: Any, kind: str) -> bool:
    is_bool = isinstance(value, bool)  # an int to Python
    return isinstance(value, _JSON_TYPES[kind]) and is_bool == (kind == "boolean")


def encode(
    schema: PreparedSchema, value: Any, *, strict: bool, strict_allow_default: bool
) -> bytes:
    """The bytes of a record. Raises SerializationError with the field that does not conform."""
    # As by Confluent's serializers: without the length, of which the message has one already.
    if _is_bytes(schema):
        if not isinstance(value, bytes | bytearray | str):
            raise SerializationError(f"expected bytes, not {type(value).__name__}")
        return value.encode() if isinstance(value, str) else bytes(value)
    if schema.bounds.is_recursive and depth_of(value) > VALUE_DEPTH_MAX:
        raise SerializationError(f"the value is nested more than {VALUE_DEPTH_MAX} levels deep")
    buffer = io.BytesIO()
    try:
        # The writer itself truncates 1.5 to an int and takes any object for a boolean. The check
        # knows the notations (branch, value) and {"-type": branch} of unions only for some types.
        if not (
            fastavro.validate(value, schema.parsed, raise_errors=False)
            or fastavro.validate(without_branches(value), schema.parsed, raise_errors=False)
        ):
            fastavro.validate(value, schema.parsed)
        fastavro.schemaless_writer(
            buffer, schema.parsed, value, strict=strict, strict_allow_default=strict_allow_default
        )
    except ValidationError as error:
        raise _not_conforming(error) from error
    except Exception as error:
        raise SerializationError(
            _reason(error), field=unwritable_field(schema.parsed, value)
        ) from error
    payload = buffer.getvalue()
    _check_bounds(payload, schema, None)
    if _INFINITY in payload or _NEGATIVE_INFINITY in payload:
        written = fastavro.schemaless_reader(io.BytesIO(payload), schema.parsed, None)
        if has_overflown(without_branches(value), written):
            field = unwritable_field(schema.parsed, value)
            raise SerializationError(
                "the number does not fit float, which has 32 bits", field=field
            )
    return payload


def _reason(error: Exception) -> str:
    text = str(error)
    # And the value, which may be private.
    if isinstance(error, ValueError) and "do not match" in text:
        return "no branch of the union has such values"
    # Fastavro adds zeros to the exponent "n".
    if isinstance(error, TypeError) and "can only concatenate" in text:
        return "a decimal must be finite"
    return text[:1000] or type(error).__name__


def _check_bounds(payload: bytes, writer: PreparedSchema, reader: PreparedSchema | None) -> None:
    bounds, default_values = writer.bounds, 0 if reader is None else reader.default_values
    is_unguarded = reader is not None and bounds.has_limits
    if is_unguarded or bounds.are_unknown(len(payload), default_values):
        try:
            check_payload(payload, bounds, default_values)
        except OutOfBounds as error:
            raise _out_of_bounds(writer, error) from None


def _damage(payload: bytes, writer: PreparedSchema, found: Exception) -> Exception:
    """The damage that a reader has found, with its place."""
    try:
        check_payload(payload, writer.bounds)
    except TooManyValues:
        return found
    except OutOfBounds as error:
        return error
    return found


def _out_of_bounds(writer: PreparedSchema, error: Exception) -> SerializationError:
    return SerializationError(f"no record of the schema {writer.name} that can be read: {error}")


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
    reason = (
        f"the number does not fit {wanted}" if is_too_large else f"expected {wanted}, not {given}"
    )
    return SerializationError(reason, field=str(found.field) or None)


def decode(
    payload: io.BytesIO,
    writer: PreparedSchema,
    reader: PreparedSchema | None,
    *,
    return_record_name: bool,
) -> Any:
    """The record in a payload. Raises SerializationError for bytes that are no record of the
    writer's schema, for more bytes than that, and for a record that the reader's schema cannot
    show.
    """
    if _is_bytes(writer):
        return payload.read()
    resolved = (
        None if reader is None or reader is writer or reader.parsed == writer.parsed else reader
    )
    data = payload.read()
    _check_bounds(data, writer, resolved)
    payload = io.BytesIO(data)
    try:
        if resolved is None:
            record = fastavro.schemaless_reader(payload, writer.guarded, None, return_record_name)
        else:
            record = fastavro.schemaless_reader(
                payload, writer.parsed, resolved.parsed, return_record_name
            )
    except (KeyError, OutOfBounds) as error:
        raise _out_of_bounds(writer, _damage(data, writer, error)) from None
    except Exception as error:
        text = f"no record of the schema {writer.name}: {type(error).__name__}: {error!s:.1000}"
        raise SerializationError(text) from error
    if left := len(payload.read()):
        raise SerializationError(f"{left} bytes follow the record of the schema {writer.name}")
    if resolved is not None and resolved.mutable_defaults:
        return _without_shared(record, resolved.mutable_defaults)
    return record


def _without_shared(value: Any, shared: frozenset[int]) -> Any:
    """The value with copies of the objects that have these ids: fastavro puts a default itself into
    each record, and an application may change its records.
    """
    if id(value) in shared:
        return copy.deepcopy(value)
    if isinstance(value, tuple):  # of a record's name and the record
        return tuple(_without_shared(part, shared) for part in value)
    places = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for place, part in places:
        if isinstance(part, dict | list | tuple):
            value[place] = _without_shared(part, shared)
    return value


def _is_bytes(schema: PreparedSchema) -> bool:
    parsed = schema.parsed
    return bool(parsed == "bytes" or (isinstance(parsed, dict) and parsed["type"] == "bytes"))
