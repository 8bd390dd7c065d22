"""Which types hold all values of others unchanged, and conversions to them.

A column of a topic can become wider, and a struct can gain fields, while older data files stay as
they are. The rules are narrower than those of Delta's type widening: pyarrow, delta-rs, DataFusion,
Polars, DuckDB and Spark all read a column whose files have either type. Polars does not for an
integer that becomes a float and for decimals of another scale, DataFusion not for structs inside a
map. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.serde.columns import SAME_VALUES

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def is_wider(kind: pa.DataType, than: pa.DataType) -> bool:
    """Whether `kind`, which is not nested, holds more than all values of the type `than`, and files
    may have either.
    """
    if kind in _INTEGERS and than in _INTEGERS:
        return _INTEGERS.index(kind) > _INTEGERS.index(than)
    if pa.types.is_decimal128(kind) and pa.types.is_decimal128(than):
        return bool(kind.scale == than.scale and kind.precision > than.precision)
    return bool(kind == pa.float64() and than == pa.float32())


def holds(wanted: pa.DataType, found: pa.DataType, *, evolved: bool = True) -> bool:
    """Whether every value of the type `found` is also a value of the type `wanted`, or becomes one
    without loss.

    Where types have `evolved`, `found` may be narrower, and a struct may lack fields that can be
    null.
    """
    if found == wanted:
        return True
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return is_list and _hold([wanted.value_field], [found.value_field], evolved=evolved)
    if pa.types.is_map(wanted):
        pair = [wanted.key_field, wanted.item_field]
        return bool(pa.types.is_map(found)) and _hold(
            pair, [found.key_field, found.item_field], evolved=evolved
        )
    if pa.types.is_struct(wanted):
        return bool(pa.types.is_struct(found)) and _struct_holds(wanted, found, evolved=evolved)
    return bool(SAME_VALUES.get(found) == wanted) or (evolved and is_wider(wanted, found))


def _struct_holds(wanted: pa.StructType, found: pa.StructType, *, evolved: bool) -> bool:
    given = [field.name for field in found]
    # Another order, a repeated or unknown field.
    if [field.name for field in wanted if field.name in given] != given:
        return False
    if not all(field.name in given or (evolved and field.nullable) for field in wanted):
        return False
    return _hold([wanted.field(name) for name in given], list(found), evolved=evolved)


def _hold(wanted: Sequence[pa.Field], found: Sequence[pa.Field], *, evolved: bool) -> bool:
    """`holds` for the fields of a nested type, including their nullability."""
    return all(
        holds(one.type, other.type, evolved=evolved) and (one.nullable or not other.nullable)
        for one, other in zip(wanted, found, strict=True)
    )


def conformed(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The wanted columns of a table whose types they hold, each with its type; a missing one is
    null.
    """
    if table.schema.equals(wanted):
        return table
    batches = [conformed_batch(batch, wanted) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, wanted)


def conformed_batch(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """As `conformed`, for a record batch."""
    if batch.schema.equals(wanted):
        return batch
    columns = [
        pa.nulls(batch.num_rows, column.type)
        if (at := batch.schema.get_field_index(column.name)) < 0
        else widened(batch.column(at), column.type)
        for column in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def widened(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of an array as the type `kind`, which holds them."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        nulls = array.is_null()
        found = {field.name: array.field(at) for at, field in enumerate(array.type)}
        children = [
            widened(found[field.name], field.type)
            if field.name in found
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if pa.types.is_list(kind):
        ends = pc.cumulative_sum(pc.list_value_length(array).fill_null(0).cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        values = widened(array.flatten(), kind.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    return array.cast(kind)
