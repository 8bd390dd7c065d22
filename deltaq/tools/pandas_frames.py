"""Frames of pandas as Arrow tables, and tables as frames. Pandas is known only here.

A frame has neither maps, which are lists of pairs, nor null among integers of its own types. So the
maps of a topic are made by the types of its columns, and integers with nulls become pandas'
nullable integers: as floats they would lose digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.serde.column_values import contains

if TYPE_CHECKING:
    import pandas as pd

_FAILURES = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What Arrow and pandas raise for values that are not of one type, or that Arrow does not have."""


def frame_of(table: pa.Table) -> pd.DataFrame:
    """The rows of a topic as a frame. Raises InvalidConfig without pandas."""
    try:
        import pandas  # noqa: PLC0415 - only where it is used
    except ModuleNotFoundError:
        raise InvalidConfig("to_pandas needs pandas: pip install pandas", key="pandas") from None
    frame: pd.DataFrame = table.to_pandas(integer_object_nulls=True)
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_integer(field.type) and column.null_count:
            kind: Any = pandas.api.types.pandas_dtype(f"Int{field.type.bit_width}")
            frame[field.name] = kind.__from_arrow__(column)
    return frame


def table_of_frame(frame: pd.DataFrame, kinds: Mapping[str, pa.DataType], topic: str) -> pa.Table:
    """The rows of a frame, without its index. `kinds` are the types of the topic's columns.

    Raises InvalidValue, with the column and the row (`name[row]`), for values that are not of one
    type, or that Arrow does not have.
    """
    names = [str(name) for name in frame.columns]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValue("there are several columns of this name", field=twice, topic=topic)
    maps = {
        at: kinds[name]
        for at, name in enumerate(names)
        if str(frame.dtypes.iloc[at]) == "object" and _has_maps(kinds.get(name))
    }
    others = iter(
        _plain_columns(frame.iloc[:, [at not in maps for at in range(len(names))]], topic)
    )
    columns = [
        _map_column(frame.iloc[:, at], maps[at], topic) if at in maps else next(others)
        for at in range(len(names))
    ]
    return pa.table(columns, names)


def _plain_columns(frame: pd.DataFrame, topic: str) -> list[pa.ChunkedArray]:
    try:
        columns: list[pa.ChunkedArray] = _table(frame).columns
    except _FAILURES as error:
        for at in range(frame.shape[1]):
            column = frame.iloc[:, [at]]
            _checked(partial(_first_rows, column), column, topic)
        raise InvalidValue(f"not a table: {error}", topic=topic) from error
    return columns


def _first_rows(frame: pd.DataFrame, count: int) -> pa.Table:
    return _table(frame.iloc[:count])


def _table(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def _map_column(column: pd.Series[Any], kind: pa.DataType, topic: str) -> pa.Array:
    values = column.tolist()
    return _checked(lambda count: _with_maps(values[:count], kind), column.to_frame(), topic)


def _checked(convert: Callable[[int], Any], column: pd.DataFrame, topic: str) -> Any:
    """What `convert` makes of the rows of a column, of which it takes the number. Raises
    InvalidValue, with the first row that it cannot convert beside those before it.
    """
    try:
        return convert(len(column))
    except _FAILURES as error:
        good, bad = 0, len(column)
        while bad - good > 1:
            half = (good + bad) // 2
            try:
                convert(half)
                good = half
            except _FAILURES:
                bad = half
        # The second argument of Arrow's errors names the column, which the field does.
        reason = error.args[0] if isinstance(error, pa.ArrowException) else error
        where = "does not fit beside the rows before it" if good else "cannot be a value of Arrow"
        raise InvalidValue(
            f"{where}: {reason}; give the column one type, or use from_arrow with a table",
            field=f"{column.columns[0]}[{good}]",
            topic=topic,
        ) from error


# --- maps ---


def _has_maps(kind: pa.DataType | None) -> bool:
    return kind is not None and contains(kind, pa.types.is_map)


def _with_maps(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Values as an array with maps where the type has maps, and with lists and structs around them.
    All other types follow from the values, so that a value of another type than the topic's is
    refused as in any other column.
    """
    if not _has_maps(kind):
        return pa.array(values, from_pandas=True)
    values = [None if _is_null(value) else value for value in values]
    if pa.types.is_struct(kind):
        return _structs(values, kind)
    if pa.types.is_map(kind):
        pairs = [pair for value in values if value is not None for pair in _pairs(value)]
        keys = pa.array([key for key, _ in pairs], from_pandas=True)
        items = _with_maps([item for _, item in pairs], kind.item_type)
        return pa.MapArray.from_arrays(_ends(values), keys, items)
    elements = [element for value in values if value is not None for element in value]
    return pa.ListArray.from_arrays(_ends(values), _with_maps(elements, kind.value_type))


def _structs(values: Sequence[Any], kind: pa.StructType) -> pa.Array:
    kinds = {field.name: field.type for field in kind}
    names = [*dict.fromkeys(name for value in values if value is not None for name in value)]
    fields = [
        _with_maps(
            [None if value is None else value.get(name) for value in values],
            kinds.get(name, pa.null()),
        )
        for name in names
    ]
    is_null = pa.array([value is None for value in values], pa.bool_())
    if not names:  # whose length would be 0
        return pa.nulls(len(values)) if all(is_null.to_pylist()) else pa.array(values)
    return pa.StructArray.from_arrays(fields, names, mask=is_null)


def _pairs(value: Any) -> Sequence[tuple[Any, Any]]:
    return [*value.items()] if isinstance(value, Mapping) else value


def _ends(values: Sequence[Any]) -> pa.Array:
    """Where each list begins, null for null, and where the last one ends."""
    starts, end = [], 0
    for value in values:
        starts.append(None if value is None else end)
        end += 0 if value is None else len(value)
    return pa.array([*starts, end], pa.int32())


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
