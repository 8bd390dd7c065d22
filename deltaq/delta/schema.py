"""Converts table schemas between Delta's `schemaString` and Arrow, without loss in either
direction. Pure functions.

Types, from the Delta protocol's section on schema serialisation: boolean, byte, short, integer,
long, float, double, decimal(p,s), string, binary, date, timestamp; struct, array and map of these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa

from deltaq.serde.columns import is_too_deep
from deltaq.serde.json_text import compact_json, strict_json

JsonType: TypeAlias = "str | dict[str, object]"

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    # Delta's timestamp is a point in time. The type without a time zone needs a reader above
    # version 1.
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_NAME_OF = {arrow: name for name, arrow in _PRIMITIVES.items()}
_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)")


def delta_schema(schema: pa.Schema) -> str:
    """The `schemaString` of a table with these columns. ValueError, with the column's name, for an
    unsupported column.

    Field metadata is kept as strings. Metadata of the schema as a whole is dropped: Delta has no
    place for it.
    """
    return compact_json(_struct_to_json(schema, ""))


def arrow_schema(schema_string: str) -> pa.Schema:
    """The columns of a table from its `schemaString`. ValueError if it is invalid, or has a type
    deltaq cannot read.
    """
    try:
        parsed = strict_json(schema_string)
        if not isinstance(parsed, dict) or parsed.get("type") != "struct":
            raise ValueError("the schema is not a struct")
        schema = pa.schema(_fields_of_json(parsed, ""))
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    if any(is_too_deep(column.type) for column in schema):
        raise ValueError("the schema is nested too deeply")
    return schema


def delta_type(kind: pa.DataType) -> JsonType:
    """The type of a column as in a `schemaString`. ValueError for an unsupported one."""
    return _type_to_json(kind, "")


# --- Arrow to Delta ---


def _struct_to_json(fields: pa.Schema | pa.StructType, path: str) -> dict[str, object]:
    columns = list(fields)
    seen: set[str] = set()
    for column in columns:
        # Delta compares column names without case.
        if column.name.lower() in seen:
            raise ValueError(f"column {path + column.name!r} appears twice in the schema")
        seen.add(column.name.lower())
    return {"type": "struct", "fields": [_field_to_json(column, path) for column in columns]}


def _field_to_json(column: pa.Field, path: str) -> dict[str, object]:
    metadata = {key.decode(): value.decode() for key, value in (column.metadata or {}).items()}
    kind = _type_to_json(column.type, path + column.name)
    return {"name": column.name, "type": kind, "nullable": column.nullable, "metadata": metadata}


def _type_to_json(kind: pa.DataType, path: str) -> JsonType:
    if kind in _NAME_OF:
        return _NAME_OF[kind]
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return _struct_to_json(kind, f"{path}.")
    if pa.types.is_list(kind):
        element = _type_to_json(kind.value_type, f"{path}[]")
        return {"type": "array", "elementType": element, "containsNull": kind.value_field.nullable}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _type_to_json(kind.key_type, f"{path}[key]"),
            "valueType": _type_to_json(kind.item_type, f"{path}[value]"),
            "valueContainsNull": kind.item_field.nullable,
        }
    raise ValueError(f"column {path!r} has the type {kind}, which a Delta table cannot have")


# --- Delta to Arrow ---


def _fields_of_json(struct: dict[str, object], path: str) -> list[pa.Field]:
    fields = struct.get("fields")
    if not isinstance(fields, list):
        raise ValueError(f"struct {path!r} has no list of fields")
    return [_field_of_json(field, path) for field in fields]


def _field_of_json(field: object, path: str) -> pa.Field:
    if not isinstance(field, dict) or not isinstance(field.get("name"), str):
        raise ValueError(f"a field of {path!r} has no name")
    name = field["name"]
    metadata = field.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f"the metadata of column {path + name!r} is not an object")
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in metadata.items()
    }
    nullable = _flag(field, "nullable", path + name)
    return pa.field(name, _type_of_json(field.get("type"), path + name), nullable, texts or None)


def _type_of_json(kind: object, path: str) -> pa.DataType:
    if isinstance(kind, str):
        return _primitive(kind, path)
    if not isinstance(kind, dict):
        raise ValueError(f"column {path!r} has no type")
    if kind.get("type") == "struct":
        return pa.struct(_fields_of_json(kind, f"{path}."))
    if kind.get("type") == "array":
        element = _type_of_json(kind.get("elementType"), f"{path}[]")
        return pa.list_(pa.field("element", element, _flag(kind, "containsNull", path)))
    if kind.get("type") == "map":
        key = _type_of_json(kind.get("keyType"), f"{path}[key]")
        item = _type_of_json(kind.get("valueType"), f"{path}[value]")
        return pa.map_(key, pa.field("value", item, _flag(kind, "valueContainsNull", path)))
    raise ValueError(f"column {path!r} has an unknown type")


def _primitive(name: str, path: str) -> pa.DataType:
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    decimal = _DECIMAL.fullmatch(name)
    if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    raise ValueError(f"column {path!r} has the type {name[:40]!r}, which deltaq cannot read")


def _flag(container: Mapping[str, object], key: str, path: str) -> bool:
    value = container.get(key)
    if not isinstance(value, bool):
        raise ValueError(f"column {path!r} does not say whether it may be null ({key})")
    return value
