"""The compatibility levels, and the Avro schemas that may follow which."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltaq.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from deltaq.schema_registry.avro_format import incompatibilities, parse
from deltaq.schema_registry.compatibility.levels import compatibility_level, conflicts
from deltaq.store import MemoryStore

# Which of two versions must read the other's data: (the new one, the old one).
LEVELS = {
    "NONE": (False, False),
    "BACKWARD": (True, False),
    "BACKWARD_TRANSITIVE": (True, False),
    "BACKWARD_ALL": (True, False),
    "FORWARD": (False, True),
    "FORWARD_TRANSITIVE": (False, True),
    "FORWARD_ALL": (False, True),
    "FULL": (True, True),
    "FULL_TRANSITIVE": (True, True),
    "FULL_ALL": (True, True),
}


def record(
    *fields: tuple[str, Any] | tuple[str, Any, Any], name: str = "R", aliases: tuple[str, ...] = ()
) -> Any:
    """A record; a field with a third part has it as its default."""
    listed = [
        {"name": f[0], "type": f[1], **({"default": f[2]} if len(f) > 2 else {})} for f in fields
    ]
    return {
        "type": "record",
        "name": name,
        "fields": listed,
        **({"aliases": list(aliases)} if aliases else {}),
    }


def decimal(precision: int, scale: int, size: int | None = None) -> dict[str, Any]:
    kind = {"type": "bytes"} if size is None else {"type": "fixed", "name": "F", "size": size}
    return {**kind, "logicalType": "decimal", "precision": precision, "scale": scale}


def enum(*symbols: str, default: str | None = None) -> dict[str, Any]:
    return {
        "type": "enum",
        "name": "E",
        "symbols": list(symbols),
        **({"default": default} if default else {}),
    }


X = ("x", "int")
SHORT_ALIAS = record(X, name="a.S", aliases=("R",))
RENAMED = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "y", "type": "int", "aliases": ["x"]}],
}
FOUR, EIGHT = ({"type": "fixed", "name": "F", "size": size} for size in (4, 8))
SIX, FIVE = decimal(6, 2), decimal(5, 2)
NEXT = ("next", ["null", "R"], None)


def array(items: Any) -> Any:
    return {"type": "array", "items": items}


def of_values(values: Any) -> Any:
    return {"type": "map", "values": values}


def long(logical: str) -> Any:
    return {"type": "long", "logicalType": logical}


def web(size: int) -> Any:
    """A record of records, each of which may contain all before it: 2 ** size ways lead to the
    first one.
    """
    names = [f"R{number}" for number in range(size)]
    inner = [
        record(*((n, ["null", n], None) for n in names[:at]), ("sum", SIX), name=names[at])
        for at in range(size)
    ]
    return record(
        *((name, ["null", each], None) for name, each in zip(names, inner, strict=True)), name="Web"
    )


WEB = web(24)
LIST = record(("v", "int"), NEXT)
# From the old version to the new one: whether the new one reads what the old one wrote, and the
# reverse. The rules are those of the Avro specification, "Schema Resolution".
CASES = [
    ("the same", record(X), record(X), True, True),
    ("a field with a default is added", record(X), record(X, ("y", "int", 0)), True, True),
    ("a field without a default is added", record(X), record(X, ("y", "int")), False, True),
    ("an optional field is removed", record(X, ("y", "int", 0)), record(X), True, True),
    ("fields change their order", record(X, ("y", "int")), record(("y", "int"), X), True, True),
    ("a field is renamed", record(X), record(("y", "int")), False, False),
    ("a field is renamed with an alias", record(X), RENAMED, True, False),
    ("a record is renamed", record(X), record(X, name="S"), False, False),
    (
        "a record is renamed with an alias",
        record(X),
        record(X, name="S", aliases=("R",)),
        True,
        False,
    ),
    ("an alias has the namespace of its type", record(X, name="a.R"), SHORT_ALIAS, True, False),
    (
        "a record of another namespace has the alias",
        record(X, name="b.R"),
        SHORT_ALIAS,
        False,
        False,
    ),
    ("a namespace changes", record(X, name="a.R"), record(X, name="b.R"), True, True),
    ("an int becomes a long", record(X), record(("x", "long")), True, False),
    ("a long becomes a float", record(("x", "long")), record(("x", "float")), True, False),
    ("an int becomes a double", "int", "double", True, False),
    ("a string becomes bytes", "string", "bytes", True, True),
    ("a string becomes an int", "string", "int", False, False),
    ("a field becomes optional", record(X), record(("x", ["null", "int"], None)), True, False),
    ("a branch is added to a union", ["int"], ["int", "string"], True, False),
    ("branches of a union change their order", ["int", "string"], ["string", "int"], True, True),
    ("a union becomes one of its branches", ["int", "null"], "int", False, True),
    ("a symbol is added", enum("A"), enum("A", "B"), True, False),
    (
        "a symbol is removed from an enumeration with a default",
        enum("A", "B"),
        enum("A", default="A"),
        True,
        True,
    ),
    ("a fixed gets another size", FOUR, EIGHT, False, False),
    ("items of an array are widened", array("int"), array("long"), True, False),
    ("values of a map change", of_values("int"), of_values("string"), False, False),
    ("an array becomes a map", array("int"), of_values("int"), False, False),
    (
        "a recursive record gets a field",
        LIST,
        record(("v", "int"), NEXT, ("w", "int", 0)),
        True,
        True,
    ),
    ("a recursive record changes", LIST, record(("v", "string"), NEXT), False, False),
    ("a decimal stays the same", record(("d", SIX)), record(("d", SIX)), True, True),
    ("the precision of a decimal changes", record(("d", SIX)), record(("d", FIVE)), False, False),
    ("the scale of a decimal changes", decimal(6, 2), decimal(6, 3), False, False),
    ("a decimal in a fixed changes", decimal(6, 2, 8), decimal(7, 2, 8), False, False),
    (
        "a decimal in a union changes",
        record(("d", ["null", SIX])),
        record(("d", ["null", FIVE])),
        False,
        False,
    ),
    ("a decimal in an array changes", array(SIX), array(FIVE), False, False),
    ("a decimal in a map changes", of_values(SIX), of_values(FIVE), False, False),
    ("bytes become a decimal", "bytes", SIX, True, True),
    ("many records contain each other", WEB, WEB, True, True),
    ("a time gets another unit", long("timestamp-millis"), long("timestamp-micros"), True, True),
]


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_each_level_accepts_what_the_specification_lets_be_read(old, new, backward, forward):
    before, after = parse(json.dumps(old), ()), parse(json.dumps(new), ())
    for name, (needs_backward, needs_forward) in LEVELS.items():
        found = conflicts(compatibility_level(name), after, [(1, before)], incompatibilities)
        accepted = (backward or not needs_backward) and (forward or not needs_forward)
        assert (not found) == accepted, (name, found)
    assert conflicts(compatibility_level("DISABLED"), after, [(1, before)], incompatibilities)
    assert not conflicts(compatibility_level("DISABLED"), after, [], incompatibilities)


@pytest.mark.parametrize(
    ("first", "second", "third", "refusing"),
    [
        # The third version cannot read the first one, which lacks y.
        (
            record(X),
            record(X, ("y", "int", 0)),
            record(X, ("y", "int")),
            {"BACKWARD_TRANSITIVE", "FULL_TRANSITIVE"},
        ),
        # The first version cannot read the third one, which lacks y.
        (
            record(X, ("y", "int")),
            record(X, ("y", "int", 0)),
            record(X),
            {"FORWARD_TRANSITIVE", "FULL_TRANSITIVE"},
        ),
    ],
)
def test_transitive_levels_compare_with_all_versions(first, second, third, refusing):
    earlier = [
        (number, parse(json.dumps(schema), ())) for number, schema in enumerate((first, second), 1)
    ]
    new = parse(json.dumps(third), ())
    levels = set(LEVELS) - {"BACKWARD_ALL", "FORWARD_ALL", "FULL_ALL"}
    assert {
        n for n in levels if conflicts(compatibility_level(n), new, earlier, incompatibilities)
    } == refusing
    assert {
        n
        for n in ("BACKWARD_ALL", "FORWARD_ALL", "FULL_ALL")
        if conflicts(compatibility_level(n), new, earlier, incompatibilities)
    } == {n.replace("TRANSITIVE", "ALL") for n in refusing}


def test_the_refusal_of_a_decimal_names_its_place():
    client = SchemaRegistryClient({}, store=MemoryStore("test"))
    client.register_schema("a", Schema(json.dumps(record(("d", decimal(6, 2))))))
    with pytest.raises(
        SchemaRegistryError,
        match=r"decimal mismatch at /d: reader decimal\(4, 2\), writer decimal\(6, 2\)",
    ):
        client.register_schema("a", Schema(json.dumps(record(("d", decimal(4, 2))))))
