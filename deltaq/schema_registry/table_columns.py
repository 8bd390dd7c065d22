"""The columns that hold the values of a schema: of Avro, JSON Schema and Protobuf. Pure.

A column holds a value as `deltaq.tools.records.plain` shows it: times of day, UUIDs and enums are
text. A field that may have values of several types has no column, and is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from deltaq.errors import InvalidConfig
from deltaq.serde.columns import TIMESTAMP
from deltaq.serde.widening import holds

_NULL = "null"


def columns_of(kind: str, parsed: Any) -> pa.Schema:
    """The columns of values with a schema of this type, which its format has prepared; of the
    first message of a file of Protobuf. Raises InvalidConfig, naming the field.
    """
    found = _COLUMNS[kind](parsed)
    if not pa.types.is_struct(found):
        raise InvalidConfig("the schema is that of no record with fields", key="columns")
    return pa.schema([pa.field(field.name, field.type) for field in found])


def columns_of_all(versions: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of values that have any of these schemas, the oldest first: all of their fields,
    with the wider type. Raises InvalidConfig for a field whose types do not hold each other.
    """
    types: dict[str, pa.DataType] = {}
    for field in (field for version in versions for field in version):
        before = types.get(field.name, field.type)
        if holds(field.type, before):
            types[field.name] = field.type
        elif not holds(before, field.type):
            reason = f"it has the types {before} and {field.type} in versions of the schema"
            raise _refused(field.name, reason)
    return pa.schema([pa.field(name, kind) for name, kind in types.items()])


def _refused(path: str, reason: str) -> InvalidConfig:
    return InvalidConfig(f"field {path!r}: {reason}; declare the columns of the input", key=path)


def _inner(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# --- Avro ---

_AVRO: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "int-date": pa.date32(),
    "int-time-millis": pa.string(),
    "long-time-micros": pa.string(),
    "string-uuid": pa.string(),
    **{
        f"long-{zone}timestamp-{unit}": TIMESTAMP
        for zone in ("", "local-")
        for unit in ("millis", "micros")
    },
}


def _of_avro(prepared: Any) -> pa.DataType:
    root = prepared.parsed
    named = root.get("__named_schemas", {}) if isinstance(root, dict) else {}
    return _avro_type(root, named, "", ())


def _avro_type(
    schema: Any, named: Mapping[str, Any], path: str, above: tuple[str, ...]
) -> pa.DataType:
    if isinstance(schema, list):
        (schema,) = _one_of([each for each in schema if each != _NULL], path)
    if not isinstance(schema, dict):
        schema = named.get(schema, {"type": schema})
    kind, logical = schema["type"], schema.get("logicalType")
    if not isinstance(kind, str):  # a type within a type
        return _avro_type(kind, named, path, above)
    if kind in ("record", "error"):
        if schema["name"] in above:
            raise _refused(path, "its record contains itself")
        above = (*above, schema["name"])
        return pa.struct(
            [
                pa.field(
                    field["name"],
                    _avro_type(field["type"], named, _inner(path, field["name"]), above),
                )
                for field in schema["fields"]
            ]
        )
    if kind == "array":
        return pa.list_(_avro_type(schema["items"], named, f"{path}[]", above))
    if kind == "map":
        return pa.map_(pa.string(), _avro_type(schema["values"], named, f"{path}[value]", above))
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    found = _AVRO.get(f"{kind}-{logical}") or _AVRO.get(kind)
    if found is None:
        raise _refused(path, f"no column has the type {kind}")
    return found


def _one_of(branches: Sequence[Any], path: str) -> Sequence[Any]:
    if len(branches) != 1:
        raise _refused(path, "it may have values of several types")
    return branches


# --- JSON Schema ---

_JSON: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}


def _of_json(node: Any) -> pa.DataType:
    return _json_type(node.schema, node.schema, "", ())


def _json_type(schema: Any, root: Any, path: str, above: tuple[str, ...]) -> pa.DataType:
    if not isinstance(schema, dict):
        raise _refused(path, "its schema does not name a type")
    if "$ref" in schema:
        return _json_reference(str(schema["$ref"]), root, path, above)
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        (branch,) = _one_of([each for each in branches if each != {"type": _NULL}], path)
        return _json_type(branch, root, path, above)
    given = schema.get("type", "object" if "properties" in schema else None)
    kinds = given if isinstance(given, list) else [given]
    (kind,) = _one_of([each for each in kinds if each != _NULL], path)
    if kind == "object":
        return _json_object(schema, root, path, above)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return pa.list_(_json_type(schema["items"], root, f"{path}[]", above))
    if kind not in _JSON:
        raise _refused(path, f"its schema does not name one type: {kind}")
    return _JSON[kind]


def _json_object(schema: Any, root: Any, path: str, above: tuple[str, ...]) -> pa.DataType:
    properties = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    if not properties and isinstance(others, dict):
        return pa.map_(pa.string(), _json_type(others, root, f"{path}[value]", above))
    if not properties:
        raise _refused(path, "its schema names no properties")
    return pa.struct(
        [
            pa.field(name, _json_type(inner, root, _inner(path, name), above))
            for name, inner in properties.items()
        ]
    )


def _json_reference(reference: str, root: Any, path: str, above: tuple[str, ...]) -> pa.DataType:
    if reference in above:
        raise _refused(path, "its schema contains itself")
    found = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    if not reference.startswith("#/") or found is None:
        raise _refused(path, f"its schema is elsewhere, {reference!r:.100}")
    return _json_type(found, root, path, (*above, reference))


# --- Protobuf ---

_PROTOBUF: Mapping[int, pa.DataType] = {
    1: pa.float64(),
    2: pa.float32(),
    **dict.fromkeys((3, 16, 18), pa.int64()),
    **dict.fromkeys((5, 15, 17), pa.int32()),
    **dict.fromkeys((4, 6), pa.decimal128(20, 0)),  # unsigned
    **dict.fromkeys((7, 13), pa.int64()),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    14: pa.string(),
}
"""By the numbers that descriptors have."""

_WELL_KNOWN: Mapping[str, pa.DataType] = {
    "Timestamp": TIMESTAMP,
    **dict.fromkeys(("Duration", "FieldMask", "StringValue"), pa.string()),
    "BoolValue": pa.bool_(),
    "BytesValue": pa.binary(),
    "DoubleValue": pa.float64(),
    "FloatValue": pa.float32(),
    "Int32Value": pa.int32(),
    **dict.fromkeys(("Int64Value", "UInt32Value"), pa.int64()),
    "UInt64Value": pa.decimal128(20, 0),
}
_PACKAGE = "google.protobuf."


def _of_protobuf(file: Any) -> pa.DataType:
    messages = list(file.message_types_by_name.values())
    if not messages:
        raise InvalidConfig("the schema has no message", key="columns")
    return _protobuf_type(messages[0], "", ())


def _protobuf_type(message: Any, path: str, above: tuple[str, ...]) -> pa.DataType:
    name = message.full_name
    if name.startswith(_PACKAGE):
        found = _WELL_KNOWN.get(name.removeprefix(_PACKAGE))
        if found is None:
            raise _refused(path, f"no column has the type {name}")
        return found
    if name in above:
        raise _refused(path, "its message contains itself")
    if not message.fields:
        raise _refused(path, "its message has no fields")
    return pa.struct(
        [
            pa.field(field.name, _protobuf_field(field, _inner(path, field.name), (*above, name)))
            for field in message.fields
        ]
    )


def _protobuf_field(field: Any, path: str, above: tuple[str, ...]) -> pa.DataType:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        value = inner.fields_by_name["value"]
        return pa.map_(pa.string(), _protobuf_field(value, f"{path}[value]", above))
    found = _PROTOBUF[field.type] if inner is None else _protobuf_type(inner, path, above)
    return pa.list_(found) if field.is_repeated else found


_COLUMNS: Mapping[str, Callable[[Any], pa.DataType]] = {
    "AVRO": _of_avro,
    "JSON": _of_json,
    "PROTOBUF": _of_protobuf,
}
