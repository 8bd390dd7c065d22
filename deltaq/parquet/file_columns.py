"""Checks the columns of a data file against the topic's table, and selects those to read. Pure
functions.
"""

from __future__ import annotations

import pyarrow as pa

from deltaq.serde.columns import is_required
from deltaq.serde.widening import holds


def check_columns(found: pa.Schema, wanted: pa.Schema) -> list[int]:
    """The numbers of the file's columns to read for the `wanted` columns of the table, in the order
    of the file.

    A file may be older than its table's schema: it may lack a value column that was added later,
    and have a narrower type than the table. ValueError, with the column's name, if it lacks one of
    deltaq's own columns, a required column, or all value columns, or if a type does not fit.
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
        if at and not holds(column.type, found.field(at[0]).type, evolved=not _is_system(column)):
            raise ValueError(
                f"column {column.name!r} is {found.field(at[0]).type} instead of {column.type}"
            )
    values = [column.name for column in wanted if not _is_system(column)]
    if values and not any(name in places for name in values):
        raise ValueError(f"column {values[0]!r} is missing")
    return sorted(at for column in wanted for at in places.get(column.name, ()))


def _is_system(column: pa.Field) -> bool:
    return bool(column.name.startswith("_"))
