"""The columns that a typed topic may have, and the conversion of an Arrow schema to the columns of
its table.

Names follow Delta's rules, and names that start with `_` are reserved for deltaq; types are those
of Delta. All columns of the table are nullable, because a tombstone is a row of nulls. Column
metadata marks required columns, and keeps the members of enums.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from deltaq.errors import InvalidConfig
from deltaq.serde.json_text import compact_json, strict_json

TIMESTAMP = pa.timestamp("us", tz="UTC")
NAME_CHARS_MAX = 255

_REQUIRED = b"deltaq.required"
_COMMENT = b"comment"
_MEMBERS = b"deltaq.members"

Members: TypeAlias = Mapping[str, frozenset[str | int]]
"""The values that fields of a `Literal` or an enum may have, by the path of the field: `state`,
`lines[].colour`.
"""
_FORBIDDEN = re.compile(r"[ ,;{}()=\x00-\x1f\x7f\ud800-\udfff]")
_NUMBERS = {pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()}
_AS_THEY_ARE = _NUMBERS | {pa.bool_(), pa.string(), pa.binary(), pa.date32()}
SAME_VALUES = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
"""Arrow's other types for strings and binaries. It may also assign them to a column of a file
because of metadata.
"""


NESTING_MAX = 100
"""Most types within each other in a column. What converts values is recursive, here and in other
engines.
"""


def is_too_deep(kind: pa.DataType) -> bool:
    """Whether a type has more than `NESTING_MAX` types within each other."""
    level = [kind]
    for _ in range(NESTING_MAX):
        level = [inner.field(at).type for inner in level for at in range(inner.num_fields)]
    return bool(level)


def table_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of a table for values of this schema. InvalidConfig, with column and remedy, for
    an unsupported one.

    Large and view types become the plain types with the same values; timestamps become microseconds
    in UTC.
    """
    _check_names(schema.names, "")
    for column in schema:
        if is_too_deep(column.type):
            raise refused(
                column.name, f"more than {NESTING_MAX} types are within each other", "nest it less"
            )
    return pa.schema(
        [
            table_field(
                column.name,
                _stored_type(column.type, column.name),
                required=is_required(column) or not column.nullable,
                comment=(column.metadata or {}).get(_COMMENT, b"").decode(),
                members=members_of(column),
            )
            for column in schema
        ]
    )


def table_field(
    name: str,
    kind: pa.DataType,
    *,
    required: bool,
    comment: str = "",
    members: Members | None = None,
) -> pa.Field:
    """A column of a table: nullable, as tombstones require. The metadata has `required`, `comment`
    and `members`.
    """
    metadata = {_COMMENT: comment.encode()} if comment else {}
    if required:
        metadata[_REQUIRED] = b"true"
    if members:
        by_path = {
            path: sorted(members[path], key=lambda value: (str(type(value)), value))
            for path in sorted(members)
        }
        metadata[_MEMBERS] = compact_json(by_path).encode()
    return pa.field(name, kind, nullable=True, metadata=metadata or None)


def comment_of(column: pa.Field) -> str:
    """The description of a column of a table; empty without one."""
    comment: bytes = (column.metadata or {}).get(_COMMENT, b"")
    return comment.decode()


def members_of(column: pa.Field) -> Members:
    """The values that a column of a table, or fields within it, may have; without a field that may
    have any.

    Raises ValueError for metadata that is damaged.
    """
    text = (column.metadata or {}).get(_MEMBERS)
    if text is None:
        return {}
    found = strict_json(text.decode())
    if not isinstance(found, dict) or not all(map(_are_members, found.values())):
        raise ValueError(
            f"the members of column {column.name[:300]!a} are not lists of texts or integers"
        )
    for path, kind in leaves(column.type, column.name):
        if path in found and not _fit(found[path], kind):
            raise ValueError(f"the members of {path[:300]!a} do not fit its type {kind}")
    return {path: frozenset(values) for path, values in found.items()}


def leaves(kind: pa.DataType, path: str) -> Iterator[tuple[str, pa.DataType]]:
    """The plain fields of a column, by the paths that `Members` have."""
    if pa.types.is_struct(kind):
        for child in kind:
            yield from leaves(child.type, f"{path}.{child.name}")
    elif pa.types.is_map(kind):
        yield from leaves(kind.item_type, f"{path}[value]")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from leaves(kind.value_type, f"{path}[]")
    else:
        yield path, kind


def _are_members(values: object) -> bool:
    return (
        isinstance(values, list)
        and bool(values)
        and {type(value) for value in values} in ({str}, {int})
    )


def _fit(values: Sequence[str | int], kind: pa.DataType) -> bool:
    """Whether a column of a type can hold members."""
    if SAME_VALUES.get(kind, kind) == pa.string():
        return isinstance(values[0], str)
    limit = 2 ** (kind.bit_width - 1) if pa.types.is_signed_integer(kind) else 0
    return all(isinstance(value, int) and -limit <= value < limit for value in values)


def is_required(column: pa.Field) -> bool:
    """Whether every value must have this column."""
    return (column.metadata or {}).get(_REQUIRED) == b"true"


def refused(path: str, what: str, remedy: str) -> InvalidConfig:
    """The error for a column that a topic cannot have."""
    return InvalidConfig(f"column {path[:300]!a}: {what}; {remedy}", key=path)


def _check_names(columns: Sequence[str], path: str) -> None:
    if not columns:
        raise refused(path, "there are no fields", "declare at least one")
    twins: dict[str, str] = {}
    for name in columns:
        full = path + name
        if not 1 <= len(name) <= NAME_CHARS_MAX:
            raise refused(
                full, f"the name has {len(name)} characters", f"use 1 to {NAME_CHARS_MAX}"
            )
        if _FORBIDDEN.search(name):
            raise refused(
                full,
                "Delta forbids blanks, control characters and any of ,;{}()= in a name",
                "rename it",
            )
        if name.startswith("_") and not path:
            raise refused(full, "names that start with '_' belong to deltaq", "rename it")
        # Delta and Spark compare column names without case.
        if name.lower() in twins:
            raise refused(
                full,
                f"it differs from {twins[name.lower()]!a} at most in case",
                "rename one of them",
            )
        twins[name.lower()] = name


def _stored_type(kind: pa.DataType, path: str) -> pa.DataType:
    if kind in _AS_THEY_ARE:
        return kind
    if kind in SAME_VALUES:
        return SAME_VALUES[kind]
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            remedy = (
                "a timestamp without one would need a newer Delta reader: use timestamp('us', "
                "tz='UTC')"
            )
            raise refused(path, f"{kind} has no time zone", remedy)
        return TIMESTAMP
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return kind
    return _stored_nested(kind, path)


def _stored_nested(kind: pa.DataType, path: str) -> pa.DataType:
    if pa.types.is_struct(kind):
        _check_names([field.name for field in kind], f"{path}.")
        return pa.struct(
            [field.with_type(_stored_type(field.type, f"{path}.{field.name}")) for field in kind]
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _stored_type(kind.value_type, f"{path}[]")
        return pa.list_(pa.field("element", element, kind.value_field.nullable))
    if pa.types.is_map(kind):
        if _stored_type(kind.key_type, f"{path}[key]") != pa.string():
            raise refused(path, f"the keys of a map cannot be {kind.key_type}", "use string keys")
        item = _stored_type(kind.item_type, f"{path}[value]")
        return pa.map_(pa.string(), pa.field("value", item, kind.item_field.nullable))
    raise refused(path, f"a Delta table has no type for {kind}", _remedy(kind))


def _remedy(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_unsigned_integer(kind):
        signed = {8: "int16", 16: "int32", 32: "int64"}.get(kind.bit_width, "decimal128(20, 0)")
        return f"use {signed}, which holds all its values"
    if types.is_time(kind) or types.is_duration(kind):
        return "use int64 and put the unit into the name"
    if types.is_dictionary(kind):
        return f"use {kind.value_type}: the data files are dictionary-encoded by themselves"
    for test, instead in (
        (types.is_date64, "date32"),
        (types.is_float16, "float32"),
        (types.is_decimal, "decimal128 with a scale from 0 to its precision"),
        (types.is_fixed_size_binary, "binary"),
        (types.is_fixed_size_list, "list"),
        (types.is_null, "the type that its values will have"),
    ):
        if test(kind):
            return f"use {instead}"
    return (
        "use bool, int8..int64, float32/64, decimal128, string, binary, date32, timestamp, list, "
        "struct or map"
    )
