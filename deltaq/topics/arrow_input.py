"""Conversion of Arrow input to records: finds columns by name, checks and casts them, without a
Python step per row.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.errors import InvalidValue, KafkaError, MessageTooLarge, UnknownTopic
from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.serde.column_values import (
    BYTES_TYPES,
    EXTENSIONS,
    TEXT_TYPES,
    check_layout,
    children_of,
    faults,
    faulty_rows,
    first_row,
    foreign_member,
    map_as_list,
    retyped,
)
from deltaq.serde.columns import SAME_VALUES, is_required, members_of
from deltaq.serde.schema import TopicSchema
from deltaq.topics.columns import HEADERS, VALUE_SCHEMA, Columns


class ArrowStream(Protocol):
    """Any object that exports Arrow's C stream: frames of Polars and pandas, relations of
    DuckDB, …
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


ArrowInput: TypeAlias = "pa.Table | pa.RecordBatch | ArrowStream"

_KINDS: Mapping[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "null": (pa.types.is_null,),
    "boolean": (pa.types.is_boolean,),
    "integer": (pa.types.is_integer,),
    "decimal": (pa.types.is_decimal,),
    "float": (pa.types.is_floating,),
    "string": TEXT_TYPES,
    "binary": BYTES_TYPES,
    "date": (pa.types.is_date,),
    "timestamp": (pa.types.is_timestamp,),
    # List views are left out: Arrow casts them to invalid lists.
    "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    "map": (pa.types.is_map,),
    "struct": (pa.types.is_struct,),
}
_WIDENS = {("integer", "float"), ("integer", "decimal")}
"""Casts to a kind that can hold the values. Arrow's safe cast refuses single values that do not
fit.
"""

_WIDE_INTEGER = "which Arrow does not have: cast it, for instance to Int64 or Decimal"
_NOT_IN_ARROW = {
    "Object": "which has no form outside of this process: convert it, for instance to text",
    "Int128": _WIDE_INTEGER,
    "UInt128": _WIDE_INTEGER,
}
"""Types of Polars' frames."""

_FAILED_COLUMN = re.compile("Conversion failed for column (.*?) with type ")

_TEXT_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())]))
"""Headers whose values are given as text."""


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
    """The rows of `data` as records for the topic. A missing partition becomes -1, a missing
    timestamp `now_ms`.

    An untyped topic (`schema` is None) takes `value` and, optional, `key`, `partition`,
    `timestamp`, `headers`. A typed topic takes its own columns, and the optional ones with a `_`
    before the name, which untyped topics accept too. `partitions` is the number of partitions, None
    if unknown; `size_max` limits the bytes of a row; `keyed` forbids null keys.

    Raises InvalidValue naming the column and the row (`name[row]`) of a value that does not fit, or
    that a reader could not return (`deltaq/serde/column_values.py`); UnknownTopic for a missing
    partition, MessageTooLarge, TypeError.
    """
    table = _as_table(data, topic_name)
    source = _Input(
        topic_name, table.num_rows, _by_name(table, topic_name), typed=schema is not None
    )
    columns = Columns(
        partitions=_partitions(source, partitions),
        timestamps=_timestamps(source, now_ms),
        keys=_keys(source, required=keyed),
        headers=_headers(source),
        values=_value(source) if schema is None else _typed_values(source, schema.arrow),
    )
    source.check_nothing_left()
    _check_sizes(columns, size_max, topic_name)
    return columns


def values_from_arrow(data: ArrowInput, topic_name: str, schema: TopicSchema) -> pa.RecordBatch:
    """The values of a typed topic in `data`, of all its columns, with a null for each value that is
    missing. Raises InvalidValue and TypeError as `columns_from_arrow`, but not for what is required
    or for members.
    """
    table = _as_table(data, topic_name)
    source = _Input(topic_name, table.num_rows, _by_name(table, topic_name), typed=True)
    return _typed_values(
        source, pa.schema([pa.field(column.name, column.type) for column in schema.arrow])
    )


def check_arrow(data: object) -> None:
    """Raises TypeError for an object that is no Arrow data. Reads no data."""
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__"):
        raise TypeError(
            f"expected an Arrow table, record batch or stream, not {type(data).__name__}"
        )


def _as_table(data: ArrowInput, topic: str) -> pa.Table:
    if not isinstance(data, pa.Table):
        check_arrow(data)
        data = table_of(data, topic)
    check_layout(data, topic)
    return data


def table_of(data: Any, topic: str) -> pa.Table:
    """Any object with rows of Arrow as a table. Raises InvalidValue for one whose values Arrow does
    not have, and as `check_frame`.
    """
    check_frame(data, topic)
    try:
        return pa.table(data)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        # Arrow names the column of a frame of pandas in this way only.
        named = _FAILED_COLUMN.search(str(error))
        raise InvalidValue(
            f"not a table: {error}", field=None if named is None else named[1], topic=topic
        ) from error


def check_frame(frame: object, topic: str | None = None) -> None:
    """Raises InvalidValue for a frame of Polars with a column of a type that Arrow does not have:
    integers of 128 bits, and Python objects, which Polars exports as their addresses in this
    process, as bytes of fixed length without any mark.
    """
    if all(kind.__module__.partition(".")[0] != "polars" for kind in type(frame).__mro__):
        return
    schema: Mapping[str, object] = getattr(frame, "schema", {})
    for name, kind in schema.items():
        for path, leaf in _leaves(kind, name):
            if (reason := _NOT_IN_ARROW.get(str(leaf))) is not None:
                raise InvalidValue(f"is of Polars' type {leaf}, {reason}", field=path, topic=topic)


def _leaves(kind: Any, path: str) -> Iterator[tuple[str, object]]:
    """The types of the plain values in a type of Polars, with their paths."""
    if (fields := getattr(kind, "fields", None)) is not None:
        for field in fields:
            yield from _leaves(field.dtype, f"{path}.{field.name}")
    elif (inner := getattr(kind, "inner", None)) is not None:
        yield from _leaves(inner, f"{path}.element")
    else:
        yield path, kind


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
        """Take a system column: its name in the table (with or without `_`), and the column or
        None.
        """
        spellings = [f"_{name}"] if self.typed else [name, f"_{name}"]
        found = [spelling for spelling in spellings if spelling in self.columns]
        if len(found) > 1:
            raise self.refusal(
                found[0], f"the table has the column {found[1]!r} too, and both mean the same"
            )
        return (found[0], self.columns.pop(found[0])) if found else (spellings[0], None)

    def refusal(self, column: str, reason: str) -> InvalidValue:
        return InvalidValue(reason, field=column, topic=self.topic)

    def cast(
        self, name: str, column: pa.ChunkedArray, target: pa.DataType, *, nullable: bool = True
    ) -> pa.Array:
        """The column as an array of the target type. Raises InvalidValue if a value changes, is not
        sound, or must not be null.
        """
        misfit = _misfit(column.type, target, name)
        if misfit is not None:
            raise self.refusal(*misfit)
        # Arrow's cast refuses nulls in a required field even inside a null parent, so `_missing`
        # checks them.
        array = self.converted(name, column, _all_nullable(target))
        missing = _missing(array, target, nullable, name)
        if missing is not None:
            row = first_row(array, lambda part: _missing(part, target, nullable, name) is not None)
            path = _missing(array.slice(row, 1), target, nullable, name) or missing
            raise self.refusal(f"{path}[{row}]", "is null, and the topic requires a value")
        return retyped(array, target)

    def converted(self, name: str, column: pa.ChunkedArray, target: pa.DataType) -> pa.Array:
        """Cast the column to one array of a compatible type, with sound values. Raises
        InvalidValue.
        """
        plain = _without_views(column)
        try:
            array = plain.cast(target).combine_chunks()
        except (pa.ArrowException, OverflowError) as error:
            row = first_row(plain, lambda part: not _can_become(part, target))
            # Each row can: together they have too many bytes.
            if _can_become(plain.slice(row, 1), target):
                raise self.refusal(
                    name, f"is too large to be one batch of {target}: {error}"
                ) from error
            raise self.refusal(f"{name}[{row}]", f"cannot become {target}: {error}") from error
        if _became_infinite(plain, array):
            row = first_row(plain, lambda part: _became_infinite(part, part.cast(target)))
            raise self.refusal(f"{name}[{row}]", f"holds a number too large for {pa.float32()}")
        fault = next(faults(array, name), None)
        if fault is not None:
            raise self.refusal(f"{fault.path}[{fault.row}]", fault.reason)
        return array

    def check_nothing_left(self) -> None:
        """Raises InvalidValue for a column that the topic does not have."""
        if "_offset" in self.columns:
            raise self.refusal(
                "_offset", "offsets are assigned when the rows are written: drop the column"
            )
        for name in self.columns:
            is_index = name.startswith("__index_level_")
            remedy = (
                "it is the index of a pandas frame: call reset_index(drop=True)"
                if is_index
                else "drop it"
            )
            raise self.refusal(name, f"the topic has no such column: {remedy}, or rename it")


def _can_become(column: pa.ChunkedArray, target: pa.DataType) -> bool:
    try:
        column.cast(target).combine_chunks()
    except (pa.ArrowException, OverflowError):
        return False
    return True


def _without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories of Polars, a dictionary of string views, as one of strings: Arrow's cast knows no
    other.
    """
    given = column.type
    if not pa.types.is_dictionary(given) or given.value_type not in (
        pa.string_view(),
        pa.binary_view(),
    ):
        return column
    plain = SAME_VALUES[given.value_type]
    chunks = [
        pa.DictionaryArray.from_arrays(part.indices, part.dictionary.cast(plain))
        for part in column.chunks
    ]
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
            raise UnknownTopic(
                source.topic, partition=partition, code=KafkaError._UNKNOWN_PARTITION
            )
    return chosen.cast(pa.int32()).fill_null(-1)


def _timestamps(source: _Input, now_ms: int) -> pa.Array:
    name, column = source.take("timestamp")
    if column is None:
        return pa.repeat(pa.scalar(now_ms, pa.int64()), source.rows)
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        raise source.refusal(
            name, "has no time zone: give it one, for instance with pyarrow.compute.assume_timezone"
        )
    if _kind(column.type) == "integer":
        # As in `produce`: milliseconds, and 0 is now.
        times = source.cast(name, column, pa.int64())
        times = pc.replace_with_mask(
            times, pc.equal(times, 0).fill_null(False), pa.scalar(now_ms, pa.int64())
        )
    elif _kind(column.type) in ("timestamp", "null"):
        times = _in_milliseconds(source, name, column)
    else:
        raise source.refusal(
            name, f"is {column.type}: use a timestamp with a time zone, or integer milliseconds"
        )
    limits = pc.min_max(times)
    for time_ms in (limits["min"].as_py(), limits["max"].as_py()):
        if time_ms is not None and not 0 <= time_ms <= TIMESTAMP_MS_MAX:
            where = f"{name}[{pc.index(times, time_ms).as_py()}]"
            raise source.refusal(
                where, f"{time_ms} ms is outside 0..{TIMESTAMP_MS_MAX} ms (1970 to 2262)"
            )
    return times.fill_null(now_ms)


def _in_milliseconds(source: _Input, name: str, column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_timestamp(column.type) and column.type.unit in ("us", "ns"):
        times = column.cast(pa.int64())
        earliest = pc.min(times).as_py()
        # The next cast would round some of them up to 1970.
        if earliest is not None and earliest < 0:
            where = f"{name}[{pc.index(times, earliest).as_py()}]"
            raise source.refusal(where, f"{earliest} {column.type.unit} is before 1970")
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
    headers = source.converted(
        name, column, _TEXT_HEADERS if _have_text(column.type) else HEADERS
    ).cast(HEADERS)
    if _has_nameless(headers):
        row = first_row(headers, _has_nameless)
        raise source.refusal(f"{name}[{row}]", "a header without a name")
    # A record with an empty list of headers has none.
    return pc.if_else(pc.equal(pc.list_value_length(headers), 0), pa.scalar(None, HEADERS), headers)


def _have_text(given: pa.DataType) -> bool:
    """Whether the values of headers are text."""
    if _kind(given) == "null":
        return False
    return (
        _kind(given.item_type if pa.types.is_map(given) else given.value_type.field("value").type)
        == "string"
    )


def _has_nameless(headers: pa.ListArray) -> bool:
    pairs = pc.list_flatten(headers)
    return bool(pairs.null_count or pairs.field("key").null_count)


def _are_headers(given: pa.DataType) -> bool:
    kind = _kind(given)
    if kind == "map":
        return _kind(given.key_type) == "string" and _kind(given.item_type) in (
            "string",
            "binary",
            "null",
        )
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
        raise source.refusal(
            name, f"is {column.type}: the topic holds bytes, so use binary or string"
        )
    # Text is checked as text, so that it can be read back as such.
    return source.converted(
        name, column, pa.string() if _kind(column.type) == "string" else pa.binary()
    ).cast(pa.binary())


def _typed_values(source: _Input, schema: pa.Schema) -> pa.RecordBatch:
    values = pa.RecordBatch.from_arrays(
        [_typed_column(source, field) for field in schema], schema=schema
    )
    empty = reduce(pc.and_, (pc.is_null(column) for column in values.columns))
    if (row := pc.index(empty, True).as_py()) >= 0:
        raise InvalidValue(
            f"row {row} has nothing but nulls, which would mean deletion", topic=source.topic
        )
    return values


def _typed_column(source: _Input, field: pa.Field) -> pa.Array:
    column = source.columns.pop(field.name, None)
    if column is None:
        if is_required(field):
            raise source.refusal(
                field.name, "the table lacks this column, which the topic requires"
            )
        # `pa.nulls` would put nulls into required fields.
        return pa.array([None] * source.rows, field.type)
    array = source.cast(field.name, column, field.type, nullable=not is_required(field))
    if members := members_of(field):

        def check(part: pa.Array, path: str) -> tuple[str, str] | None:
            return foreign_member(part, path, members, field.name)

        fault = next(faulty_rows(array, field.name, check), None)
        if fault is not None:
            raise source.refusal(f"{fault.path}[{fault.row}]", fault.reason)
    return array


def _became_infinite(given: pa.Array | pa.ChunkedArray, array: pa.Array | pa.ChunkedArray) -> bool:
    """Whether a finite number overflows a narrower float. Rounding is accepted: the topic chose the
    narrower type.
    """
    if not (_has(given.type, pa.float64()) and _has(array.type, pa.float32())):
        return False
    return _infinities(given) != _infinities(array)


def _has(kind: pa.DataType, leaf: pa.DataType) -> bool:
    """Whether a type has this type at any depth."""
    if pa.types.is_dictionary(kind):
        return _has(kind.value_type, leaf)
    return kind == leaf or any(
        _has(kind.field(number).type, leaf) for number in range(kind.num_fields)
    )


def _infinities(column: pa.Array | pa.ChunkedArray) -> int:
    """The number of infinite values at any depth."""
    if isinstance(column, pa.ChunkedArray):
        return sum(map(_infinities, column.chunks))
    if pa.types.is_dictionary(column.type):
        return _infinities(column.dictionary_decode())
    if pa.types.is_nested(column.type):
        return sum(_infinities(child) for child, _ in children_of(column.drop_null(), ""))
    is_float = column.type in (pa.float32(), pa.float64())
    return (pc.sum(pc.is_inf(column)).as_py() or 0) if is_float else 0


def _missing(array: pa.Array, wanted: pa.DataType, nullable: bool, path: str) -> str | None:
    """The path of a null that `wanted` does not allow; None if there is none."""
    if array.null_count and not nullable:
        return path
    if not pa.types.is_nested(wanted):
        return None
    if pa.types.is_struct(wanted):
        fields = list(wanted)
    elif pa.types.is_map(wanted):
        fields = [wanted.key_field, wanted.item_field]
    else:
        fields = [wanted.value_field]
    children = zip(children_of(array.drop_null(), path), fields, strict=True)
    found = (
        _missing(child, field.type, field.nullable, inner) for (child, inner), field in children
    )
    return next((path for path in found if path is not None), None)


def _first_null(array: pa.Array) -> int:
    return int(pc.index(array.is_null(), True).as_py())


# --- types ---


@lru_cache(maxsize=256)
def _kind(given: pa.DataType) -> str | None:
    """The kind of values of a type, independent of their storage; None for kinds that topics do not
    support.
    """
    if isinstance(given, pa.BaseExtensionType):
        return EXTENSIONS.get(given.extension_name)
    if pa.types.is_dictionary(given):
        return _kind(given.value_type)
    return next(
        (kind for kind, tests in _KINDS.items() if any(test(given) for test in tests)), None
    )


def _misfit(given: pa.DataType, wanted: pa.DataType, path: str) -> tuple[str, str] | None:
    """Path and reason if a cast from one type to the other could change the meaning of values; else
    None.
    """
    kind, wanted_kind = _kind(given), _kind(wanted)
    if kind == "null":
        return None
    if kind != wanted_kind and (kind, wanted_kind) not in _WIDENS:
        return path, f"is {given}, not {wanted}"
    if kind == "timestamp" and given.tz is None:
        return (
            path,
            "has no time zone: give it one, for instance with pyarrow.compute.assume_timezone",
        )
    if kind == "list":
        return _misfit(given.value_type, wanted.value_type, f"{path}.element")
    if kind == "map":
        return _misfit(given.key_type, wanted.key_type, f"{path}.key") or _misfit(
            given.item_type, wanted.item_type, f"{path}.value"
        )
    return _misfit_of_struct(given, wanted, path) if kind == "struct" else None


def _misfit_of_struct(
    given: pa.StructType, wanted: pa.StructType, path: str
) -> tuple[str, str] | None:
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
        return pa.struct(
            [field.with_type(_all_nullable(field.type)).with_nullable(True) for field in given]
        )
    if pa.types.is_list(given):
        return pa.list_(
            given.value_field.with_type(_all_nullable(given.value_type)).with_nullable(True)
        )
    if pa.types.is_map(given):
        return pa.map_(
            given.key_type,
            given.item_field.with_type(_all_nullable(given.item_type)).with_nullable(True),
        )
    return given


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
        array = map_as_list(array)
    if pa.types.is_list(array.type):
        ends = pc.cumulative_sum(pc.list_value_length(array).fill_null(0).cast(pa.int64()))
        up_to = pc.cumulative_sum(
            pa.concat_arrays([pa.array([0], pa.int64()), row_bytes(pc.list_flatten(array))])
        )
        sums = up_to.take(pa.concat_arrays([pa.array([0], pa.int64()), ends]))
        return pc.pairwise_diff(sums).slice(1)
    if pa.types.is_struct(array.type):
        return reduce(pc.add, map(row_bytes, array.flatten()))
    if any(test(array.type) for test in TEXT_TYPES + BYTES_TYPES):
        return pc.binary_length(array).fill_null(0).cast(pa.int64())
    return pa.repeat(pa.scalar(array.type.bit_width // 8, pa.int64()), len(array))
