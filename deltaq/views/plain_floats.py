"""Floats in one form: 0.0 for -0.0 and NaN without a sign, as DuckDB takes these for equal and
writes them as different texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc


def plain_rows(
    columns: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    """Rows with these columns, whose floats have one form."""
    if not any(_has_floats(column.type) for column in columns):
        return columns, batches
    return columns, map(_plain_batch, batches)


def plain_table(rows: pa.Table) -> pa.Table:
    """A table whose floats have one form."""
    return pa.Table.from_batches(plain_rows(rows.schema, rows.to_batches())[1], rows.schema)


def _plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*map(_plain, batch.columns)], schema=batch.schema)


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if not _has_floats(kind):
        return array
    if _is_float(kind):
        zero, nan = _constants(kind)
        return pc.if_else(pc.is_nan(array), nan, pc.add(array, zero))
    if pa.types.is_struct(kind):
        children = [_plain(array.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=[*kind], mask=array.is_null())
    own, at = array.buffers()[: kind.num_buffers], array.offset
    return pa.Array.from_buffers(
        kind, len(array), own, array.null_count, at, [_plain(array.values)]
    )


@cache
def _has_floats(kind: pa.DataType) -> bool:
    return _is_float(kind) or any(map(_has_floats, _inner(kind)))


def _inner(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types that a nested type has."""
    if pa.types.is_struct(kind):
        yield from (kind.field(number).type for number in range(kind.num_fields))
    elif pa.types.is_map(kind):
        yield from (kind.key_type, kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield kind.value_type


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_float32(kind) or pa.types.is_float64(kind))


@cache
def _constants(kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar]:
    """0.0 and NaN of a type. Adding 0.0 changes -0.0 only."""
    return pa.scalar(0.0, kind), pa.scalar(math.nan, kind)
