"""Avro values from JSON's types, in which bytes, decimals, times and non-finite numbers are text.
Pure.

The notation is that of `deltaq.tools.records.plain`: a value of a union stands without the name of
its branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import DecimalException
from typing import Any

from deltaq.schema_registry.work import VALUE_DEPTH_MAX, depth_of
from deltaq.serde.json_text import (
    NOT_FINITE,
    bytes_of_json,
    check_microseconds,
    decimal_of_json,
    parse_time,
)


def from_json(value: Any, schema: Any) -> Any:
    """The value of a parsed Avro schema (`PreparedSchema.parsed`) that a value of JSON stands for.

    Where nothing of the schema fits, the value stays as it is, and the serializer refuses it.
    Raises ValueError, with the field's path, for text that is no value of the field's type.
    """
    if depth_of(value, VALUE_DEPTH_MAX + 1) > VALUE_DEPTH_MAX + 1:  # bytes are an object here
        raise ValueError(f"the value is nested more than {VALUE_DEPTH_MAX} levels deep")
    named: Mapping[str, Any] = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    return _Conversion(named).converted(value, schema, "")


class _Conversion:
    """The conversion of one value. Each part of it is converted once for each union: unions whose
    branches lead to the same unions again have exponentially many ways through them.
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        # By the ids of a part and a union, which outlive this.
        self._of_unions: dict[tuple[int, int], Any] = {}

    def converted(self, value: Any, schema: Any, path: str) -> Any:
        if isinstance(schema, list):
            place = id(value), id(schema)
            if place not in self._of_unions:
                self._of_unions[place] = self._of_union(value, schema, path)
            return self._of_unions[place]
        definition = (
            schema if isinstance(schema, dict) else self._named.get(schema, {"type": schema})
        )
        match definition["type"], value:
            case (("record" | "error"), dict()):
                types = {field["name"]: field["type"] for field in definition["fields"]}
                return {
                    name: self.converted(inner, types[name], f"{path}.{name}".removeprefix("."))
                    if name in types
                    else inner
                    for name, inner in value.items()
                }
            case "array", list():
                return [
                    self.converted(item, definition["items"], f"{path}[{at}]")
                    for at, item in enumerate(value)
                ]
            case "map", dict():
                return {
                    name: self.converted(item, definition["values"], f"{path}[{name}]")
                    for name, item in value.items()
                }
            case _:
                return _scalar(value, definition, path)

    def _of_union(self, value: Any, branches: Sequence[Any], path: str) -> Any:
        """The value as one of the first branch that has such values; unchanged if there is none."""
        for branch in branches:
            definition = (
                branch if isinstance(branch, dict) else self._named.get(branch, {"type": branch})
            )
            try:
                found = self.converted(value, branch, path)
            except ValueError:
                continue
            if _may_be(found, definition):
                return found
        return value


def _scalar(value: Any, definition: Mapping[str, Any], path: str) -> Any:
    kind, logical = definition["type"], definition.get("logicalType")
    parse = _PARSERS.get(f"{kind}-{logical}") or _PARSERS.get(kind)
    if parse is None:
        return value
    try:
        return parse(value)
    except (ValueError, TypeError, DecimalException):
        raise ValueError(f"{path or 'the value'}: {value!r:.100} is no {logical or kind}") from None


def _may_be(value: Any, definition: Mapping[str, Any]) -> bool:
    kind = definition["type"]
    if kind in ("record", "error"):
        fields = definition["fields"]
        needed = {field["name"] for field in fields if "default" not in field}
        return isinstance(value, dict) and needed <= value.keys() <= {
            field["name"] for field in fields
        }
    if kind == "enum":
        return value in definition["symbols"]
    if "logicalType" in definition and not isinstance(value, str):
        return value is not None and not isinstance(value, bool | list | dict)
    if isinstance(value, bool):
        return bool(kind == "boolean")
    return isinstance(value, _TYPES.get(kind, ()))


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "string": str,
    "bytes": bytes,
    "fixed": bytes,
    "array": list,
    "map": dict,
}


def _float(value: Any) -> Any:
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _of_text(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    def parsed(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        check_microseconds(value)
        return parse(value)

    return parsed


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "bytes": bytes_of_json,
    "fixed": bytes_of_json,
    "float": _float,
    "double": _float,
    "bytes-decimal": decimal_of_json,
    "fixed-decimal": decimal_of_json,
    "int-date": _of_text(date.fromisoformat),
    "int-time-millis": _of_text(time.fromisoformat),
    "long-time-micros": _of_text(time.fromisoformat),
    "long-timestamp-millis": _of_text(parse_time),
    "long-timestamp-micros": _of_text(parse_time),
    "long-local-timestamp-millis": _of_text(datetime.fromisoformat),
    "long-local-timestamp-micros": _of_text(datetime.fromisoformat),
}
