"""The columns of a view: their types in its topic, and which it cannot have, in words that name the
view and say what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa

from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.serde.column_values import contains, unsound
from deltaq.serde.source import schema_of
from deltaq.views.incremental import FLOATS
from deltaq.views.program import TICK, WEIGHT, View
from deltaq.views.stored_types import refused_types, stored_type

TYPES_REMEDY = (
    "cast the column to the type that it had, or give the view another name; or delete the group "
    "and run it anew"
)
"""What to do where a column has another type than at the last tick."""

_NAMES_REMEDY = "name a column by AS, cast it with CAST, and list the columns in place of *"


def stored_types(types: Mapping[str, str]) -> dict[str, str]:
    """The types of the columns of a view in its topic."""
    return {name: stored_type(of) for name, of in types.items()}


def check_columns(view: View, types: Mapping[str, str], readable: Collection[str]) -> None:
    """Raise InvalidConfig for a view whose columns have these names and types in DuckDB, if it
    cannot have them. `readable` are the columns of what it reads, in lower case.
    """
    kinds = {name.lower(): kind for name, kind in types.items()}
    for name in sorted(kinds.keys() & {TICK, WEIGHT}):
        reason = f"view {view.name!r} has a column {name!r}, which belongs to deltaq: rename it"
        raise InvalidConfig(reason, key=view.name)
    for name in view.key or ():
        if name.lower() not in kinds:
            reason = f"the key of view {view.name!r} names {name!r}, which is no column of it"
            raise InvalidConfig(reason, key=view.name)
        kind = kinds[name.lower()]
        if _has_several_texts(kind):
            reason = (
                f"the row key of view {view.name!r} has the column {name!r} of type {kind}, "
                "of which equal values may be written in several ways or different ones in "
                "one: have a number or text in its place, such as epoch_us() of a time"
            )
            raise InvalidConfig(reason, key=view.name)
    for name, kind in stored_types(types).items():
        for path, of, remedy in refused_types(kind, name):
            reason = (
                f"view {view.name!r}: column {path!r} is of type {of}, which a topic cannot have; "
                f"in the SQL of a view: {remedy}"
            )
            raise InvalidConfig(reason, key=view.name)
    if view.names_rowid and "rowid" not in readable:
        reason = f"view {view.name!r} reads rowid, which rows have by chance: remove it"
        raise InvalidConfig(reason, key=view.name)


def check_stored(view: str, columns: pa.Schema) -> None:
    """Raise InvalidConfig for columns that a topic cannot have."""
    with about_view(view, _NAMES_REMEDY):
        schema_of(columns)


@contextmanager
def about_view(view: str, remedy: str) -> Iterator[None]:
    """What is raised within it about a topic's columns names the view, and what to do."""
    try:
        yield
    except InvalidConfig as error:
        text = f"view {view!r}: {error.error.str()}; in the SQL of a view: {remedy}"
        raise InvalidConfig(text, key=view) from None


def check_values(view: str, rows: pa.Table) -> None:
    """Raise InvalidValue for dates and times that a topic cannot have, such as infinity. The other
    values are sound, as DuckDB has made them.
    """
    for name in rows.column_names:
        column = rows.column(name)
        if not contains(column.type, _is_time):
            continue
        for path, fault in filter(None, (unsound(chunk, name) for chunk in column.chunks)):
            reason = (
                f"view {view!r}: column {path!r} {fault}; in the SQL of a view: leave such rows"
            )
            raise InvalidValue(f"{reason} out, or cast the column to text, CAST(x AS VARCHAR)")


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def check_same_columns(view: str, held: pa.Schema, wanted: pa.Schema) -> None:
    """Raise InvalidConfig for a view that lacks columns or fields that its topic has, or has others
    before such fields.
    """
    for what in _changed(pa.struct([*held]), pa.struct([*wanted]), ""):
        reason = f"{what}: give the view another name, or delete the group and run it anew"
        raise InvalidConfig(f"view {view!r} {reason}", key=view)


def _changed(held: pa.DataType, wanted: pa.DataType, path: str) -> Iterator[str]:
    if pa.types.is_struct(held) and pa.types.is_struct(wanted):
        names, theirs = [field.name for field in held], {field.name: field.type for field in wanted}
        for field in held:
            where = f"{path}.{field.name}" if path else field.name
            if field.name not in theirs:
                yield f"has no column {where!r} any more, which its rows have"
            else:
                yield from _changed(field.type, theirs[field.name], where)
        if path and [*theirs][: len(names)] != names:
            order = ", ".join(names)
            yield f"has the fields of column {path!r} not in the order of its rows, {order}"
    elif pa.types.is_list(held) and pa.types.is_list(wanted):
        yield from _changed(held.value_type, wanted.value_type, f"{path}[]")
    elif pa.types.is_map(held) and pa.types.is_map(wanted):
        yield from _changed(held.item_type, wanted.item_type, f"{path}[value]")


def has_floats(kinds: Iterable[str]) -> bool:
    """Whether there are floats in types of DuckDB."""
    return any(of in kind for kind in kinds for of in FLOATS)


def _has_several_texts(kind: str) -> bool:
    """Whether a key made of values of a type does not tell them apart as DuckDB does."""
    is_nested_float = kind not in FLOATS and has_floats([kind])
    return is_nested_float or "INTERVAL" in kind or "TIMESTAMP_NS" in kind
