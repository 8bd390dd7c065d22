"""The types that a view's columns of DuckDB have in its topic, and which have none. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from deltaq.tools.duckdb_tables import quoted
from deltaq.views.column_text import is_named_type, named_types, parts_of

_STORED = {
    "HUGEINT": "DECIMAL(38,0)",
    "UHUGEINT": "DECIMAL(38,0)",
    "UBIGINT": "DECIMAL(20,0)",
    "UINTEGER": "BIGINT",
    "USMALLINT": "INTEGER",
    "UTINYINT": "SMALLINT",
    "BIGNUM": "VARCHAR",
    "UUID": "VARCHAR",
    "JSON": "VARCHAR",
    "TIME": "VARCHAR",
    "TIME_NS": "VARCHAR",
    "TIME WITH TIME ZONE": "VARCHAR",
    "INTERVAL": "VARCHAR",
    "BIT": "VARCHAR",
    "TIMESTAMP": "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_S": "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_MS": "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP_NS": "TIMESTAMP WITH TIME ZONE",
}
"""The type of a value in the view's topic, for types of DuckDB that a table of Delta does not
have.
"""

_OF_DELTA = frozenset(
    {
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE"),
        *("VARCHAR", "BLOB", "DATE", "TIMESTAMP WITH TIME ZONE", '"NULL"'),
    }
)
_LIST = re.compile(r"(.*)\[\d*\]", re.DOTALL)
_STRUCT, _MAP, _UNION, _ENUM, _DECIMAL = "STRUCT(", "MAP(", "UNION(", "ENUM(", "DECIMAL("


def stored_type(kind: str) -> str:
    """The type in a topic of values of a type of DuckDB, also within lists, structs and maps."""
    if found := _LIST.fullmatch(kind):
        return f"{stored_type(found[1])}[]"
    if kind.startswith(_STRUCT):
        if _is_without_names(kind):
            return kind
        fields = (f"{quoted(name)} {stored_type(of)}" for name, of in _fields(kind))
        return f"{_STRUCT}{', '.join(fields)})"
    if kind.startswith(_MAP):
        return f"{_MAP}{', '.join(map(stored_type, _inner(kind)))})"
    if kind.startswith(_ENUM):
        return "VARCHAR"
    return _STORED.get(kind, kind)


def refused_types(kind: str, path: str) -> Iterator[tuple[str, str, str]]:
    """The parts of a type in a topic that it cannot have: path, type, and what to do."""
    if found := _LIST.fullmatch(kind):
        yield from refused_types(found[1], f"{path}[]")
    elif kind.startswith(_STRUCT) and _is_without_names(kind):
        yield path, kind, "give its fields names, such as {'a': x, 'b': y}"
    elif kind.startswith(_STRUCT):
        for name, of in _fields(kind):
            yield from refused_types(of, f"{path}.{name}")
    elif kind.startswith(_MAP):
        key, item = _inner(kind)
        if key != "VARCHAR":
            yield path, kind, f"have text as keys, such as CAST(x AS {_MAP}VARCHAR, {item}))"
        yield from refused_types(item, f"{path}[value]")
    elif kind.startswith(_UNION):
        yield path, kind, "have a struct or text in its place, such as CAST(x AS VARCHAR)"
    elif kind not in _OF_DELTA and not kind.startswith(_DECIMAL):
        yield path, kind, "cast it to text, CAST(x AS VARCHAR), or to numbers"


def _inner(kind: str) -> list[str]:
    """What is in the brackets of a type."""
    return [part.strip() for part in parts_of(kind[kind.index("(") + 1 : -1])]


def _is_without_names(struct: str) -> bool:
    """Whether it is the type of a value such as `row(1, 2)`."""
    first = _inner(struct)[0]
    while found := _LIST.fullmatch(first):
        first = found[1]
    # A type of several words looks like a name and a type.
    return first in _STORED or first in _OF_DELTA or not is_named_type(first)


def _fields(kind: str) -> Iterator[tuple[str, str]]:
    return named_types(kind[len(_STRUCT) : -1])
