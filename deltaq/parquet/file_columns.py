"""Checks the columns of a data file against the topic's table, and selects those to read. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from deltaq.serde.columns import SAME_VALUES, is_required


def check_columns(found: pa.Schema, wanted: pa.Schema) -> list[int]:
    """The numbers of the file's columns to read for the `wanted` columns of the table, in the order of the file.

    A file may lack a value column that was added to the table later. ValueError, with the column's name, if it lacks
    one of deltaq's own columns, a required column, or all value columns, or if a type does not fit.
    """
    places: dict[str, list[int]] = {}
    for number, name in enumerate(found.names):
        places.setdefault(name, []).append(number)
    for column in wanted:
        at = places.get(column.name, ())
        if len(at) > 1:
            raise ValueError(f"column {column.name!r} occurs {len(at)} times")
        if not at and (_is_system(column) or is_required(column)):
            raise ValueError(f"column {column.name!r} is missing")
        if at and not _holds(column.type, found.field(at[0]).type):
            raise ValueError(f"column {column.name!r} is {found.field(at[0]).type} instead of {column.type}")
    values = [column.name for column in wanted if not _is_system(column)]
    if values and not any(name in places for name in values):
        raise ValueError(f"column {values[0]!r} is missing")
    return sorted(at for column in wanted for at in places.get(column.name, ()))


def conformed(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The wanted columns of a table that passed `check_columns`, each with its type; a missing one is null."""
    if table.schema.equals(wanted):
        return table
    columns: list[pa.ChunkedArray | pa.Array] = []
    for column in wanted:
        at = table.schema.get_field_index(column.name)
        columns.append(pa.nulls(len(table), column.type) if at < 0 else table.column(at).cast(column.type))
    return pa.Table.from_arrays(columns, schema=wanted)


def _is_system(column: pa.Field) -> bool:
    return bool(column.name.startswith("_"))


def _holds(wanted: pa.DataType, found: pa.DataType) -> bool:
    """Whether every value of the type `found` is also a value of the type `wanted`, unchanged."""
    if found == wanted:
        return True
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return is_list and _hold([wanted.value_field], [found.value_field])
    if pa.types.is_map(wanted):
        pair = [wanted.key_field, wanted.item_field]
        return bool(pa.types.is_map(found)) and _hold(pair, [found.key_field, found.item_field])
    if pa.types.is_struct(wanted):
        same_names = pa.types.is_struct(found) and [field.name for field in wanted] == [field.name for field in found]
        return same_names and _hold(list(wanted), list(found))
    return bool(SAME_VALUES.get(found) == wanted)


def _hold(wanted: Sequence[pa.Field], found: Sequence[pa.Field]) -> bool:
    """`_holds` for the fields of a nested type, including their nullability."""
    return all(
        _holds(one.type, other.type) and (one.nullable or not other.nullable)
        for one, other in zip(wanted, found, strict=True)
    )
