"""Conversion of Arrow input to records: finds columns by name, checks and casts them, without a Python step per row.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.errors import InvalidValue, KafkaError, MessageTooLarge, UnknownTopic
from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.serde.columns import SAME_VALUES, is_required
from deltaq.serde.schema import TopicSchema
from deltaq.topics.columns import HEADERS, VALUE_SCHEMA, Columns


class ArrowStream(Protocol):
    """Any object that exports Arrow's C stream: frames of Polars and pandas, relations of DuckDB, …"""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


ArrowInput: TypeAlias = "pa.Table | pa.RecordBatch | ArrowStream"

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
BYTES_TYPES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
"""Tests for the types of columns that hold bytes."""

_KINDS: Mapping[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "null": (pa.types.is_null,),
    "boolean": (pa.types.is_boolean,),
    "integer": (pa.types.is_integer,),
    "decimal": (pa.types.is_decimal,),
    "float": (pa.types.is_floating,),
    "string": _TEXT,
    "binary": BYTES_TYPES,
    "date": (pa.types.is_date,),
    "timestamp": (pa.types.is_timestamp,),
    # List views are left out: Arrow casts them to invalid lists.
    "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    "map": (pa.types.is_map,),
    "struct": (pa.types.is_struct,),
}
_WIDENS = {("integer", "float"), ("integer", "decimal")}
"""Casts to a kind that can hold the values. Arrow's safe cast refuses single values that do not fit."""


def columns_from_arrow(
    data: ArrowInput,
    topic_name: str,
    schema: TopicSchema | None,
    partitions: int | None,
    size_max: int,
    *,
    keyed: bool,
    now_ms: int,
) -> Columns:
    """The rows of `data` as records for the topic. A missing partition becomes -1, a missing timestamp `now_ms`.

    An untyped topic (`schema` is None) takes `value` and, optional, `key`, `partition`, `timestamp`, `headers`. A typed
    topic takes its own columns, and the optional ones with a `_` before the name, which untyped topics accept too.
    `partitions` is the number of partitions, None if unknown; `size_max` limits the bytes of a row; `keyed` forbids
    null keys.

    Raises InvalidValue naming the column, UnknownTopic for a missing partition, MessageTooLarge, TypeError.
    """
    table = _as_table(data, topic_name)
    source = _Input(topic_name, table.num_rows, _by_name(table, topic_name), typed=schema is not None)
    columns = Columns(
        partitions=_partitions(source, partitions),
        timestamps=_timestamps(source, now_ms),
        keys=_keys(source, required=keyed),
        headers=_headers(source),
        values=_value(source) if schema is None else _typed_values(source, schema),
    )
    source.check_nothing_left()
    _check_sizes(columns, size_max, topic_name)
    return columns


def check_arrow(data: object) -> None:
    """Raises TypeError for an object that is no Arrow data. Reads no data."""
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__"):
        raise TypeError(f"expected an Arrow table, record batch or stream, not {type(data).__name__}")


def _as_table(data: ArrowInput, topic: str) -> pa.Table:
    if not isinstance(data, pa.Table):
        check_arrow(data)
        try:
            data = pa.table(data)
        except pa.ArrowException as error:
            raise InvalidValue(f"not a table: {error}", topic=topic) from error
    try:
        data.validate()
    except pa.ArrowException as error:
        raise InvalidValue(f"not valid Arrow data: {error}", topic=topic) from error
    return data


def _by_name(table: pa.Table, topic: str) -> dict[str, pa.ChunkedArray]:
    columns = dict(zip(table.column_names, table.columns, strict=True))
    if len(columns) < table.num_columns:
        twice = next(name for name in columns if table.column_names.count(name) > 1)
        raise InvalidValue("the column appears twice in the table", field=twice, topic=topic)
    return columns


@dataclass(slots=True)
class _Input:
    """The columns of a table that have not been taken yet."""

    topic: str
    rows: int
    columns: dict[str, pa.ChunkedArray]
    typed: bool

    def take(self, name: str) -> tuple[str, pa.ChunkedArray | None]:
        """Take a system column: its name in the table (with or without `_`), and the column or None."""
        spellings = [f"_{name}"] if self.typed else [name, f"_{name}"]
        found = [spelling for spelling in spellings if spelling in self.columns]
        if len(found) > 1:
            raise self.refusal(found[0], f"the table has the column {found[1]!r} too, and both mean the same")
        return (found[0], self.columns.pop(found[0])) if found else (spellings[0], None)

    def refusal(self, column: str, reason: str) -> InvalidValue:
        return InvalidValue(reason, field=column, topic=self.topic)

    def cast(self, name: str, column: pa.ChunkedArray, target: pa.DataType, *, nullable: bool = True) -> pa.Array:
        """The column as an array of the target type. Raises InvalidValue if a value changes or must not be null."""
        misfit = _misfit(column.type, target, name)
        if misfit is not None:
            raise self.refusal(*misfit)
        # Arrow's cast refuses nulls in a required field even inside a null parent, so `_missing` checks them.
        array = self.converted(name, column, _all_nullable(target))
        missing = _missing(array, target, nullable, name)
        if missing is not None:
            raise self.refusal(missing, "is null, and the topic requires a value")
        return array if array.type == target else pa.array(_Retyped(array, target))

    def converted(self, name: str, column: pa.ChunkedArray, target: pa.DataType) -> pa.Array:
        """Cast the column to one array of a compatible type. Raises InvalidValue."""
        try:
            return _without_views(column).cast(target).combine_chunks()
        except (pa.ArrowException, OverflowError) as error:
            raise self.refusal(name, f"cannot become {target}, or is too large to be one batch: {error}") from error

    def check_nothing_left(self) -> None:
        """Raises InvalidValue for a column that the topic does not have."""
        if "_offset" in self.columns:
            raise self.refusal("_offset", "offsets are assigned when the rows are written: drop the column")
        for name in self.columns:
            is_index = name.startswith("__index_level_")
            remedy = "it is the index of a pandas frame: call reset_index(drop=True)" if is_index else "drop it"
            raise self.refusal(name, f"the topic has no such column: {remedy}, or rename it")


def _without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories of Polars, a dictionary of string views, as one of strings: Arrow's cast knows no other."""
    given = column.type
    if not pa.types.is_dictionary(given) or given.value_type not in (pa.string_view(), pa.binary_view()):
        return column
    plain = SAME_VALUES[given.value_type]
    chunks = [pa.DictionaryArray.from_arrays(part.indices, part.dictionary.cast(plain)) for part in column.chunks]
    return pa.chunked_array(chunks, pa.dictionary(given.index_type, plain))


# --- the columns that every topic has ---


def _partitions(source: _Input, count: int | None) -> pa.Array:
    name, column = source.take("partition")
    if column is None:
        return pa.repeat(pa.scalar(-1, pa.int32()), source.rows)
    chosen = source.cast(name, column, pa.int64())
    limits = pc.min_max(chosen)
    for partition in (limits["min"].as_py(), limits["max"].as_py()):
        if partition is not None and not -1 <= partition < (2**31 if count is None else count):
            raise UnknownTopic(source.topic, partition=partition, code=KafkaError._UNKNOWN_PARTITION)
    return chosen.cast(pa.int32()).fill_null(-1)


def _timestamps(source: _Input, now_ms: int) -> pa.Array:
    name, column = source.take("timestamp")
    if column is None:
        return pa.repeat(pa.scalar(now_ms, pa.int64()), source.rows)
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        raise source.refusal(name, "has no time zone: give it one, for instance with pyarrow.compute.assume_timezone")
    if _kind(column.type) == "integer":
        # As in `produce`: milliseconds, and 0 is now.
        times = source.cast(name, column, pa.int64())
        times = pc.replace_with_mask(times, pc.equal(times, 0).fill_null(False), pa.scalar(now_ms, pa.int64()))
    elif _kind(column.type) in ("timestamp", "null"):
        times = _in_milliseconds(source, name, column)
    else:
        raise source.refusal(name, f"is {column.type}: use a timestamp with a time zone, or integer milliseconds")
    limits = pc.min_max(times)
    for time_ms in (limits["min"].as_py(), limits["max"].as_py()):
        if time_ms is not None and not 0 <= time_ms <= TIMESTAMP_MS_MAX:
            raise source.refusal(name, f"{time_ms} ms is outside 0..{TIMESTAMP_MS_MAX} ms (1970 to 2262)")
    return times.fill_null(now_ms)


def _in_milliseconds(source: _Input, name: str, column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_timestamp(column.type) and column.type.unit in ("us", "ns"):
        # Kafka's timestamps end at milliseconds.
        column = column.cast(pa.timestamp("ms", "UTC"), safe=False)
    return source.converted(name, column, pa.timestamp("ms", "UTC")).cast(pa.int64())


def _keys(source: _Input, *, required: bool) -> pa.Array:
    name, column = source.take("key")
    keys = pa.nulls(source.rows, pa.binary()) if column is None else _as_bytes(source, name, column)
    if required and keys.null_count:
        where = "" if column is None else f"row {_first_null(keys)}: "
        raise source.refusal(name, f"{where}the topic is compacted: every message needs a key")
    return keys


def _headers(source: _Input) -> pa.Array:
    name, column = source.take("headers")
    if column is None:
        return pa.nulls(source.rows, HEADERS)
    if not _are_headers(column.type):
        remedy = "use list<struct<key: string, value: binary>> or map<string, binary>"
        raise source.refusal(name, f"headers cannot be {column.type}: {remedy}")
    headers = source.converted(name, column, HEADERS)
    if pc.list_flatten(headers).field("key").null_count:
        raise source.refusal(name, "a header without a name")
    # A record with an empty list of headers has none.
    return pc.if_else(pc.equal(pc.list_value_length(headers), 0), pa.scalar(None, HEADERS), headers)


def _are_headers(given: pa.DataType) -> bool:
    kind = _kind(given)
    if kind == "map":
        return _kind(given.key_type) == "string" and _kind(given.item_type) in ("string", "binary", "null")
    if kind != "list" or not pa.types.is_struct(given.value_type):
        return kind == "null"
    fields = {field.name: _kind(field.type) for field in given.value_type}
    if fields.keys() != {"key", "value"}:
        return False
    return fields["key"] == "string" and fields["value"] in ("string", "binary", "null")


# --- values ---


def _value(source: _Input) -> pa.RecordBatch:
    name, column = source.take("value")
    if column is None:
        raise source.refusal(name, "the table has no such column, and the topic holds nothing else")
    return pa.RecordBatch.from_arrays([_as_bytes(source, name, column)], schema=VALUE_SCHEMA)


def _as_bytes(source: _Input, name: str, column: pa.ChunkedArray) -> pa.Array:
    if _kind(column.type) not in ("string", "binary", "null"):
        raise source.refusal(name, f"is {column.type}: the topic holds bytes, so use binary or string")
    return source.converted(name, column, pa.binary())


def _typed_values(source: _Input, schema: TopicSchema) -> pa.RecordBatch:
    values = pa.RecordBatch.from_arrays([_typed_column(source, field) for field in schema.arrow], schema=schema.arrow)
    empty = reduce(pc.and_, (pc.is_null(column) for column in values.columns))
    if (row := pc.index(empty, True).as_py()) >= 0:
        raise InvalidValue(f"row {row} has nothing but nulls, which would mean deletion", topic=source.topic)
    return values


def _typed_column(source: _Input, field: pa.Field) -> pa.Array:
    column = source.columns.pop(field.name, None)
    if column is None:
        if is_required(field):
            raise source.refusal(field.name, "the table lacks this column, which the topic requires")
        return pa.array([None] * source.rows, field.type)  # `pa.nulls` would put nulls into required fields
    array = source.cast(field.name, column, field.type, nullable=not is_required(field))
    if pa.types.is_floating(field.type) and _became_infinite(column, array):
        raise source.refusal(field.name, f"holds a number too large for {field.type}")
    return array


def _became_infinite(column: pa.ChunkedArray, array: pa.Array) -> bool:
    """Whether a finite number overflows a narrower float. Rounding is accepted: the topic chose the narrower type."""
    if column.type == array.type or not pa.types.is_floating(column.type):
        return False
    return bool(pc.any(pc.and_(pc.is_inf(array), pc.is_finite(column.combine_chunks()))).as_py())


def _missing(array: pa.Array, wanted: pa.DataType, nullable: bool, path: str) -> str | None:
    """The path of a null that `wanted` does not allow; None if there is none."""
    if array.null_count and not nullable:
        return f"{path}[{_first_null(array)}]"
    if not pa.types.is_nested(wanted):
        return None
    present = array.drop_null()
    if pa.types.is_struct(wanted):
        children = [(present.field(i), f.type, f.nullable, f"{path}.{f.name}") for i, f in enumerate(wanted)]
    elif pa.types.is_map(wanted):
        values = pc.list_flatten(_map_as_list(present)).field(1)
        children = [(values, wanted.item_type, wanted.item_field.nullable, f"{path}.value")]
    else:
        element = wanted.value_field
        children = [(pc.list_flatten(present), element.type, element.nullable, f"{path}.element")]
    found = (_missing(*child) for child in children)
    return next((path for path in found if path is not None), None)


def _map_as_list(array: pa.MapArray) -> pa.ListArray:
    return array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))


def _first_null(array: pa.Array) -> int:
    return int(pc.index(array.is_null(), True).as_py())


# --- types ---


def _kind(given: pa.DataType) -> str | None:
    """The kind of values of a type, independent of their storage; None for kinds that topics do not support."""
    if isinstance(given, pa.BaseExtensionType):
        return _kind(given.storage_type)
    if pa.types.is_dictionary(given):
        return _kind(given.value_type)
    return next((kind for kind, tests in _KINDS.items() if any(test(given) for test in tests)), None)


def _misfit(given: pa.DataType, wanted: pa.DataType, path: str) -> tuple[str, str] | None:
    """Path and reason if a cast from one type to the other could change the meaning of values; else None."""
    kind, wanted_kind = _kind(given), _kind(wanted)
    if kind == "null":
        return None
    if kind != wanted_kind and (kind, wanted_kind) not in _WIDENS:
        return path, f"is {given}, not {wanted}"
    if kind == "timestamp" and given.tz is None:
        return path, "has no time zone: give it one, for instance with pyarrow.compute.assume_timezone"
    if kind == "list":
        return _misfit(given.value_type, wanted.value_type, f"{path}.element")
    if kind == "map":
        return _misfit(given.key_type, wanted.key_type, f"{path}.key") or _misfit(
            given.item_type, wanted.item_type, f"{path}.value"
        )
    return _misfit_of_struct(given, wanted, path) if kind == "struct" else None


def _misfit_of_struct(given: pa.StructType, wanted: pa.StructType, path: str) -> tuple[str, str] | None:
    fields = {field.name: field.type for field in given}
    unknown = sorted(fields.keys() - {field.name for field in wanted})
    if unknown:
        return f"{path}.{unknown[0]}", "the topic has no such field"
    for field in wanted:
        if field.name not in fields:
            if not field.nullable:
                return f"{path}.{field.name}", "is missing, and the topic requires it"
        elif misfit := _misfit(fields[field.name], field.type, f"{path}.{field.name}"):
            return misfit
    return None


def _all_nullable(given: pa.DataType) -> pa.DataType:
    """The type with nulls allowed at every level."""
    if pa.types.is_struct(given):
        return pa.struct([field.with_type(_all_nullable(field.type)).with_nullable(True) for field in given])
    if pa.types.is_list(given):
        return pa.list_(given.value_field.with_type(_all_nullable(given.value_type)).with_nullable(True))
    if pa.types.is_map(given):
        return pa.map_(given.key_type, given.item_field.with_type(_all_nullable(given.item_type)).with_nullable(True))
    return given


class _Retyped:
    """Exports an array under another type of the same layout, without a copy."""

    def __init__(self, array: pa.Array, kind: pa.DataType) -> None:
        self._array = array
        self._kind = kind

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        _, data = self._array.__arrow_c_array__()
        return self._kind.__arrow_c_schema__(), data


# --- sizes ---


def _check_sizes(columns: Columns, size_max: int, topic: str) -> None:
    parts = [columns.keys, columns.headers, *columns.values.columns]
    if sum(part.nbytes for part in parts) <= size_max:
        return
    largest = pc.max(reduce(pc.add, map(row_bytes, parts))).as_py()
    if largest is not None and largest > size_max:
        raise MessageTooLarge(size=largest, limit=size_max, topic=topic)


def row_bytes(array: pa.Array) -> pa.Array:
    """Bytes of content per row (int64): lengths of text and bytes, widths of numbers."""
    if pa.types.is_map(array.type):
        array = _map_as_list(array)
    if pa.types.is_list(array.type):
        ends = pc.cumulative_sum(pc.list_value_length(array).fill_null(0).cast(pa.int64()))
        up_to = pc.cumulative_sum(pa.concat_arrays([pa.array([0], pa.int64()), row_bytes(pc.list_flatten(array))]))
        sums = up_to.take(pa.concat_arrays([pa.array([0], pa.int64()), ends]))
        return pc.pairwise_diff(sums).slice(1)
    if pa.types.is_struct(array.type):
        return reduce(pc.add, map(row_bytes, array.flatten()))
    if any(test(array.type) for test in _TEXT + BYTES_TYPES):
        return pc.binary_length(array).fill_null(0).cast(pa.int64())
    return pa.repeat(pa.scalar(array.type.bit_width // 8, pa.int64()), len(array))
