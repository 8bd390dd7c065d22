"""Which field of an Avro record its writer refuses, or changes: the writer itself names none."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from typing import Any

import fastavro


def complete(parsed: Any, named: Mapping[str, Any]) -> Any:
    """A parsed schema with all named types that it refers to. fastavro notes them only in a record,
    and parses any other schema anew with each message, without them.
    """
    if isinstance(parsed, list):
        return [complete(branch, named) for branch in parsed]
    schema = named.get(parsed) if isinstance(parsed, str) else parsed
    if schema is None:
        return parsed
    return {**schema, "__fastavro_parsed": True, "__named_schemas": named}


def unwritable_field(parsed: Any, value: Any) -> str | None:
    """The innermost field that the writer refuses, after the name of its record; None if it is the
    value as a whole. `parsed` is a schema that fastavro has parsed.
    """
    named = parsed.get("__named_schemas", {}) if isinstance(parsed, dict) else {}
    found: str | None = None
    place, schema = None, parsed
    while True:
        for place, inner_schema, inner in _parts(schema, value, named):  # noqa: B007 - kept for after the loop
            if not _is_kept(inner_schema, inner, named):
                break
        else:
            return found
        found = place or found
        schema, value = inner_schema, inner


def has_overflown(value: Any, written: Any) -> bool:
    """Whether a finite number in a value was written as an infinity."""
    waiting = [(value, written)]
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, Mapping) and isinstance(other, dict):
            waiting += [(one[key], other[key]) for key in other.keys() & one.keys()]
        elif isinstance(one, list | tuple) and isinstance(other, list):
            waiting += zip(one, other, strict=False)
        elif (
            isinstance(other, float)
            and math.isinf(other)
            and one is not None
            and not math.isinf(one)
        ):
            return True
    return False


def without_branches(value: Any) -> Any:
    """The value without what names the branches of unions: (branch, value), and `-type` in a
    record.
    """
    match value:
        case (str(), inner) if isinstance(value, tuple):
            return without_branches(inner)
        case dict():
            return {key: without_branches(inner) for key, inner in value.items() if key != "-type"}
        case list():
            return [without_branches(inner) for inner in value]
    return value


def _parts(
    schema: Any, value: Any, named: Mapping[str, Any]
) -> Iterator[tuple[str | None, Any, Any]]:
    """The parts of a value: the field, if it is one, the schema and the value."""
    # Which branch the value was meant for is known if only one is not null.
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        schema = branches[0] if len(branches) == 1 else "null"
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in ("record", "error") and isinstance(value, Mapping):
        for field in schema["fields"]:
            default = field.get("default")
            yield (
                f"{schema['name']}.{field['name']}",
                field["type"],
                value.get(field["name"], default),
            )
    elif kind == "array" and isinstance(value, list | tuple):
        yield from ((None, schema["items"], item) for item in value)
    elif kind == "map" and isinstance(value, Mapping):
        yield from ((None, schema["values"], item) for item in value.values())


def _is_kept(schema: Any, value: Any, named: Mapping[str, Any]) -> bool:
    """Whether a value can be written, and its numbers are finite afterwards if they were before."""
    parsed, buffer = complete(schema, named), io.BytesIO()
    try:
        fastavro.schemaless_writer(buffer, parsed, value)
        buffer.seek(0)
        return not has_overflown(
            without_branches(value), fastavro.schemaless_reader(buffer, parsed, None)
        )
    except Exception:  # noqa: BLE001 - fastavro raises many errors, all of which mean that it cannot
        return False
