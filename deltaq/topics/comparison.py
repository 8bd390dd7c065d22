"""Whether rows of two topics hold the same, compared as they are stored. Pure."""

from __future__ import annotations

import pyarrow as pa

from deltaq.serde.column_values import as_stored
from deltaq.serde.widening import holds, widened


def same_rows(ours: pa.RecordBatch, theirs: pa.RecordBatch) -> bool:
    """Whether the rows hold the same values. A NaN is the same as itself, and 0.0 is not -0.0.

    The schema of one table may be older: a column that it lacks is null, and one that is narrower
    holds the same. Values that Python does not have, such as a time in the year 10000, are compared
    as any other.
    """
    names = dict.fromkeys([*ours.schema.names, *theirs.schema.names])
    return all(
        _same(
            *(rows.column(name) if name in rows.schema.names else None for rows in (ours, theirs))
        )
        for name in names
    )


def _same(ours: pa.Array | None, theirs: pa.Array | None) -> bool:
    if ours is None or theirs is None:
        there = theirs if ours is None else ours
        return there is None or there.null_count == len(there)
    if ours.type != theirs.type:
        if holds(ours.type, theirs.type):
            theirs = widened(theirs, ours.type)
        elif holds(theirs.type, ours.type):
            ours = widened(ours, theirs.type)
        else:
            return False
    return bool(as_stored(ours).equals(as_stored(theirs)))
