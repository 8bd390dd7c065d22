"""Avro schemas and payloads that hypothesis draws, recursive ones too, written by an encoder of our
own: it knows where the choices and the decimals of a payload are.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

VALUE_LEVELS = 6
"""From here on, recursive values end."""


def varint(number: int) -> bytes:
    """A long as Avro writes it."""
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*found, left))


@dataclass(frozen=True, slots=True)
class Mark:
    """A choice of `limit` branches or symbols, or a decimal of `limit` digits, in a payload. `size`
    is that of a fixed decimal.
    """

    kind: str
    start: int
    end: int
    limit: int
    size: int | None = None


@dataclass
class Drawn:
    """A schema and a payload of it."""

    schema: Any
    payload: bytearray = field(default_factory=bytearray)
    marks: list[Mark] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Drawn({json.dumps(self.schema)}, {bytes(self.payload)!r})"


@st.composite
def drawn(draw: st.DrawFn, levels: int = 4) -> Drawn:
    names: dict[str, Any] = {}
    found = Drawn(_schema(draw, levels, names, []))
    _Encoder(draw, found, names).write(found.schema, 0)
    return found


# --- schemas ---


def _schema(draw: st.DrawFn, levels: int, names: dict[str, Any], around: list[str]) -> Any:
    """A type that is no union. `names` are all named types so far, `around` the records that it is
    in.
    """
    simple = ["null", "boolean", "int", "long", "float", "double", "string", "bytes"]
    kinds = [
        *simple,
        "fixed",
        "enum",
        "decimal",
        "fixed decimal",
        *(["again"] if names.keys() - set(around) else []),
    ]
    if levels:
        kinds += ["array", "map", "record"] * 3
    kind = draw(st.sampled_from(kinds))
    if kind == "again":
        return draw(st.sampled_from(sorted(names.keys() - set(around))))
    if kind == "array":
        return {"type": "array", "items": _part(draw, levels - 1, names, around)}
    if kind == "map":
        return {"type": "map", "values": _part(draw, levels - 1, names, around)}
    if kind == "record":
        return _record(draw, levels - 1, names, around)
    return kind if kind in simple else _special(draw, kind, names)


def _special(draw: st.DrawFn, kind: str, names: dict[str, Any]) -> Any:
    if kind == "decimal":
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": draw(st.integers(1, 30)),
            "scale": 1,
        }
    name = f"N{len(names)}"
    if kind == "enum":
        names[name] = {
            "type": "enum",
            "name": name,
            "symbols": [f"s{i}" for i in range(draw(st.integers(1, 3)))],
        }
    elif kind == "fixed":
        names[name] = {"type": "fixed", "name": name, "size": draw(st.integers(0, 3))}
    else:
        size, digits = draw(st.sampled_from([(1, 2), (2, 4), (5, 11), (9, 21)]))
        about = {"logicalType": "decimal", "precision": draw(st.integers(1, digits)), "scale": 0}
        names[name] = {"type": "fixed", "name": name, "size": size, **about}
    return names[name]


def _record(draw: st.DrawFn, levels: int, names: dict[str, Any], around: list[str]) -> Any:
    name = f"N{len(names)}"
    fields: list[Any] = []
    names[name] = {"type": "record", "name": name, "fields": fields}
    for number in range(draw(st.integers(0, 3))):
        kind = _part(draw, levels, names, [*around, name])
        fields.append({"name": f"f{number}", "type": kind})
    return names[name]


def _part(draw: st.DrawFn, levels: int, names: dict[str, Any], around: list[str]) -> Any:
    """A type that may be a union, or a record around it."""
    what = draw(st.sampled_from(["type", "type", "union", "recursive"]))
    if what == "recursive" and around:
        inner = draw(st.sampled_from(around))
        return draw(st.sampled_from([["null", inner], {"type": "array", "items": inner}]))
    if what != "union":
        return _schema(draw, levels, names, around)
    found: dict[str, Any] = {}
    for _ in range(draw(st.integers(1, 4))):
        known = {*names}
        branch = _schema(draw, levels, names, around)
        kind = _of_union(branch, names)
        if kind in found:
            for dropped in {*names} - known:  # nothing would define it
                del names[dropped]
        else:
            found[kind] = branch
    return list(found.values())


def _of_union(branch: Any, names: dict[str, Any]) -> str:
    """What a union can have once. Of two decimals, fastavro writes any value as the first one."""
    definition = names.get(branch, branch) if isinstance(branch, str) else branch
    if isinstance(definition, str):
        return definition
    return "bytes" if "precision" in definition else str(definition.get("name", definition["type"]))


# --- payloads ---


@dataclass
class _Encoder:
    draw: st.DrawFn
    drawn: Drawn
    names: dict[str, Any]

    def write(self, schema: Any, level: int) -> None:
        if isinstance(schema, list):
            may_be = range(len(schema)) if level < VALUE_LEVELS else [0]
            branch = self._choice("union", len(schema), may_be)
            self.write(schema[branch], level + 1)
            return
        schema = self.names.get(schema, schema) if isinstance(schema, str) else schema
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(schema, dict) and "precision" in schema:
            self._decimal(schema)
        elif kind == "record":
            for each in schema["fields"]:
                self.write(each["type"], level + 1)
        elif kind in ("array", "map"):
            self._items(schema, level)
        elif kind == "enum":
            self._choice("enum", len(schema["symbols"]), range(len(schema["symbols"])))
        elif kind == "fixed":
            self.drawn.payload += self.draw(
                st.binary(min_size=schema["size"], max_size=schema["size"])
            )
        else:
            self.drawn.payload += _SCALARS[kind](self.draw)

    def _choice(self, kind: str, count: int, may_be: Any) -> int:
        start = len(self.drawn.payload)
        found = self.draw(st.sampled_from(may_be))
        self.drawn.payload += varint(found)
        self.drawn.marks.append(Mark(kind, start, len(self.drawn.payload), count))
        return int(found)

    def _items(self, schema: Any, level: int) -> None:
        count = self.draw(st.integers(0, 2)) if level < VALUE_LEVELS else 0
        if count:
            self.drawn.payload += varint(count)
        for number in range(count):
            if schema["type"] == "map":
                self.drawn.payload += _sized(b"k%d" % number)
            self.write(schema.get("items", schema.get("values")), level + 1)
        self.drawn.payload += b"\0"

    def _decimal(self, schema: Any) -> None:
        start, edge = len(self.drawn.payload), 10 ** schema["precision"] - 1
        number = self.draw(st.integers(-edge, edge) | st.sampled_from([-edge, 0, edge]))
        self.drawn.payload += decimal(number, schema.get("size"))
        self.drawn.marks.append(
            Mark("decimal", start, len(self.drawn.payload), schema["precision"], schema.get("size"))
        )


def decimal(number: int, size: int | None) -> bytes:
    """A decimal without its point, in a fixed of this size, or as bytes."""
    if size is not None:
        return number.to_bytes(size, signed=True)
    return _sized(number.to_bytes(number.bit_length() // 8 + 1, signed=True))


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data


_SCALARS: dict[str, Callable[[st.DrawFn], bytes]] = {
    "null": lambda draw: b"",
    "boolean": lambda draw: draw(st.sampled_from([b"\0", b"\1"])),
    "int": lambda draw: varint(draw(st.integers(-(2**31), 2**31 - 1))),
    "long": lambda draw: varint(draw(st.integers(-(2**63), 2**63 - 1))),
    "float": lambda draw: struct.pack("<f", draw(st.floats(width=32, allow_nan=False))),
    "double": lambda draw: struct.pack("<d", draw(st.floats(allow_nan=False))),
    "string": lambda draw: _sized(draw(st.text(max_size=3)).encode()),
    "bytes": lambda draw: _sized(draw(st.binary(max_size=3))),
}
