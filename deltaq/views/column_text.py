"""Columns as text with DuckDB's types, as in CREATE TABLE, and as columns of Arrow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from deltaq.errors import InvalidConfig
from deltaq.serde.columns import TIMESTAMP
from deltaq.tools.duckdb_tables import Connection, connected, fetched, naming

_EXTRA = "views"

_COLUMN = re.compile(r'\s*(?:"((?:[^"]|"")+)"|(\w+))\s+(\S.*)', re.DOTALL)
_NOT_NULL = re.compile(r"\s+not\s+null\s*$", re.IGNORECASE)
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|.""", re.DOTALL)
_OPENING, _CLOSING = "([", ")]"


def columns_of(columns: str | Mapping[str, str]) -> pa.Schema:
    """The columns that a text declares, such as "account VARCHAR NOT NULL, amount DECIMAL(18,2)";
    or a mapping of names to types. Times without a zone are those of UTC. Raises InvalidConfig,
    naming the column.
    """
    pairs = named_types(columns) if isinstance(columns, str) else columns.items()
    with connected(_EXTRA, threads=1) as connection:
        connection.execute("set TimeZone = 'UTC'; set enable_external_access = false")
        fields = [_field(connection, name, kind) for name, kind in pairs]
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfig(f"column {name!r} is declared twice", key=name)
    return pa.schema(fields)


def named_types(text: str) -> Iterator[tuple[str, str]]:
    """The names and types that a text has, as in CREATE TABLE. Raises InvalidConfig."""
    for part in parts_of(text):
        found = _COLUMN.fullmatch(part)
        if found is None:
            reason = f"{part.strip()!r} is no column: write a name and a type, such as 'id BIGINT'"
            raise InvalidConfig(reason, key="columns")
        inner, bare, kind = found.groups()
        yield (bare if inner is None else inner.replace('""', '"')), kind


def is_named_type(part: str) -> bool:
    """Whether a text is a name and what may be a type."""
    return _COLUMN.fullmatch(part) is not None


def parts_of(text: str) -> Iterable[str]:
    """The parts between commas that stand in no brackets and no quotes."""
    parts, depth = [""], 0
    for symbol in _TOKEN.findall(text):
        depth += (symbol in _OPENING) - (symbol in _CLOSING)
        if symbol == "," and not depth:
            parts.append("")
        else:
            parts[-1] += symbol
    return parts


def _field(connection: Connection, name: str, declared: str) -> pa.Field:
    kind, is_required = _NOT_NULL.subn("", declared)
    with naming(f"column {name!r} of the type {kind.strip()!r}", name):
        # Nothing runs: a type that holds a query is one column of another name, or more of them.
        described = connection.execute(f"describe select cast(null as {kind}) as _c").fetchall()
        if [row[0] for row in described] != ["_c"]:
            raise InvalidConfig(f"column {name!r}: {kind!r} is no type", key=name)
        (found,) = fetched(connection, f"select cast(null as {kind}) as _c limit 0").schema
    if described[0][1] == "JSON":
        reason = f"column {name!r}: declare the fields of JSON, as STRUCT, MAP or a list"
        raise InvalidConfig(reason, key=name)
    return pa.field(name, _in_utc(found.type), nullable=not is_required)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The type with UTC for times without a zone."""
    if pa.types.is_timestamp(kind):
        return TIMESTAMP
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_in_utc(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_utc(kind.item_type))
    return kind
