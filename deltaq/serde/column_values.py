"""Which values a column may hold: the one rule for everything that is written, and for what readers
find.

A value is sound if every reader returns it as it is: Python, Arrow and other engines. Arrow itself
accepts text that is no UTF-8, times outside the years 1 to 9999, decimals with more digits than
their type has, maps with a key twice, and structs with two fields of one name. Pure functions,
without a Python step per row unless a value is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import lru_cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.errors import InvalidValue
from deltaq.serde.columns import Members

TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
"""Tests for the types of columns that hold text."""

BYTES_TYPES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
)
"""Tests for the types of columns that hold bytes."""

EXTENSIONS = {"arrow.uuid": "binary", "arrow.json": "string", "arrow.bool8": "boolean"}
"""The extension types that a topic takes, with the kind of their values. The storage of any other
one may mean nothing by itself: pandas' periods are stored as numbers without their unit.
"""

_NESTED = (
    *(pa.types.is_struct, pa.types.is_map),
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
)
_EXTENSION_NAME = b"ARROW:extension:name"
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, from 1970-01-01 on
_DAYS_MAX = 999_999_999  # of Python's durations
_DAY_S = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_INT64_MAX = 2**63 - 1
_MEMBERS_SHOWN = 5


def scaled_decimal(value: Decimal, kind: pa.DataType) -> Decimal:
    """The same number with the digits after the point that the type has: Arrow takes one with some
    hundred zeros there for 0, and refuses one with fewer of them. Raises ValueError for a number
    that the type does not have.
    """
    quantum, context = _scale_of(kind)
    try:
        return value.quantize(quantum, context=context)
    except DecimalException:
        raise ValueError(f"it is no {kind}") from None


@lru_cache(maxsize=1000)
def _scale_of(kind: pa.DataType) -> tuple[Decimal, Context]:
    exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    return Decimal(1).scaleb(-kind.scale), exact


@dataclass(frozen=True, slots=True)
class ValueFault:
    """A value that a reader cannot return: its row, the path of its column (`place.city`), and the
    reason.
    """

    row: int
    path: str
    reason: str


Check: TypeAlias = "Callable[[pa.Array, str], tuple[str, str] | None]"
"""Path and reason of a value at fault in an array at a path; None if all its values are sound."""


def faults(column: pa.Array, path: str, first: int = 0) -> Iterator[ValueFault]:
    """The rows of a column that hold a value at fault, in order. `first` is the number of its first
    row.
    """
    return faulty_rows(column, path, unsound, first)


def faulty_rows(column: pa.Array, path: str, check: Check, first: int = 0) -> Iterator[ValueFault]:
    """As `faults`, with another check. A column without a fault is checked once."""
    found = check(column, path)
    if found is None:
        return
    if len(column) == 1:
        yield ValueFault(first, *found)
        return
    half = len(column) // 2
    yield from faulty_rows(column.slice(0, half), path, check, first)
    yield from faulty_rows(column.slice(half), path, check, first + half)


def first_row(
    column: pa.Array | pa.ChunkedArray, is_at_fault: Callable[[pa.Array | pa.ChunkedArray], bool]
) -> int:
    """The first row that is at fault, of a column with such a row."""
    low, count = 0, len(column)
    while count > 1:
        half = count // 2
        if is_at_fault(column.slice(low, half)):
            count = half
        else:
            low, count = low + half, count - half
    return low


def unsound(array: pa.Array, path: str) -> tuple[str, str] | None:
    """The `Check` of all columns: path and reason of a value that a reader cannot return."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return unsound(array.dictionary_decode(), path)
    if isinstance(kind, pa.BaseExtensionType):
        return unsound(array.storage, path)
    if any(test(kind) for test in _NESTED):
        return _nested_fault(array.drop_null() if array.null_count else array, path)
    reason = next(
        (reason for test, is_sound, reason in _RULES if test(kind) and not is_sound(array)), None
    )
    return None if reason is None else (path, reason.format(kind))


def _nested_fault(array: pa.Array, path: str) -> tuple[str, str] | None:
    if pa.types.is_map(array.type):
        pairs = map_as_list(array)
        keys = pc.list_flatten(pairs).field("key")
        if keys.null_count:
            return path, "has a key that is null"
        if _has_repeated_key(pairs, keys):
            return path, "has a key twice"
    found = (unsound(child, inner) for child, inner in children_of(array, path))
    return next((each for each in found if each is not None), None)


def key_without_text(array: pa.Array, path: str) -> tuple[str, str] | None:
    """The `Check` of columns that become JSON: path and reason of a key of a map that cannot be a
    name of JSON without becoming another key.
    """
    kind = array.type
    if not any(test(kind) for test in _NESTED):
        return None
    array = array.drop_null() if array.null_count else array
    if pa.types.is_map(kind):
        keys, inner = children_of(array, path)[0]
        if len(keys) and pa.types.is_nested(keys.type):
            return inner, f"is {keys.type}, which is no name in JSON: use a list of pairs"
        if not _is_text(keys):
            return inner, "has bytes that are no UTF-8, and names in JSON are text"
    found = (key_without_text(child, inner) for child, inner in children_of(array, path))
    return next((each for each in found if each is not None), None)


def _is_text(array: pa.Array) -> bool:
    """Whether bytes are text; true of other values."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary
    if not any(test(array.type) for test in BYTES_TYPES):
        return True
    try:
        array.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def children_of(array: pa.Array, path: str) -> list[tuple[pa.Array, str]]:
    """The values inside of a nested array without nulls, each array with its path: the fields of a
    struct, the keys and the values of a map, the elements of a list.
    """
    if pa.types.is_struct(array.type):
        fields = [field.name for field in array.type]
        return [
            (child, f"{path}.{name}") for child, name in zip(array.flatten(), fields, strict=True)
        ]
    if pa.types.is_map(array.type):
        keys, values = pc.list_flatten(map_as_list(array)).flatten()
        return [(keys, f"{path}.key"), (values, f"{path}.value")]
    return [(pc.list_flatten(array), f"{path}.element")]


def map_as_list(array: pa.MapArray) -> pa.ListArray:
    """A map as a list of its pairs."""
    return array.cast(
        pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)]))
    )


def _has_repeated_key(pairs: pa.ListArray, keys: pa.Array) -> bool:
    if len(keys) < 2 or pc.max(pc.list_value_length(pairs)).as_py() < 2:
        return False
    known = keys.dictionary_encode()
    of_map = pc.multiply(pc.list_parent_indices(pairs).cast(pa.int64()), len(known.dictionary))
    numbers = pc.add(of_map, known.indices)
    # Maps with the same keys in the same order, as most are: that takes a tenth of the time of
    # counting.
    if pc.all(pc.less(numbers[:-1], numbers[1:])).as_py():
        return False
    return int(pc.count_distinct(numbers).as_py()) < len(keys)


def foreign_member(array: pa.Array, path: str, members: Members, at: str) -> tuple[str, str] | None:
    """Path and reason of a value that is not one of the `members` of its field; None if there is
    none. `at` is the path as `members` spells it.
    """
    if at in members:
        values = sorted(members[at], key=repr)
        is_member = pc.is_in(array.drop_null(), value_set=pa.array(values, array.type))
        shown = ", ".join(map(repr, values[:_MEMBERS_SHOWN])) + (
            ", ..." if len(values) > _MEMBERS_SHOWN else ""
        )
        return (path, f"is none of {shown}") if pc.all(is_member).as_py() is False else None
    if not any(test(array.type) for test in _NESTED) or not any(
        inner.startswith(at) for inner in members
    ):
        return None
    children = zip(children_of(array.drop_null(), path), _steps(array.type), strict=True)
    found = (foreign_member(child, inner, members, at + step) for (child, inner), step in children)
    return next((each for each in found if each is not None), None)


def _steps(kind: pa.DataType) -> list[str]:
    """The steps from a nested type to the parts that `children_of` returns, as paths of members
    have them.
    """
    if pa.types.is_struct(kind):
        return [f".{field.name}" for field in kind]
    return ["[key]", "[value]"] if pa.types.is_map(kind) else ["[]"]


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_in_calendar(array: pa.Array) -> bool:
    if pa.types.is_date32(array.type):
        return _is_within(array.cast(pa.int32()), _FIRST_DAY, _LAST_DAY)
    unit = "ms" if pa.types.is_date64(array.type) else array.type.unit
    scale = _DAY_S * _PER_SECOND[unit]
    return _is_within(array.cast(pa.int64()), _FIRST_DAY * scale, (_LAST_DAY + 1) * scale - 1)


def _is_duration(array: pa.Array) -> bool:
    scale = _DAY_S * _PER_SECOND[array.type.unit]
    return _is_within(array.cast(pa.int64()), -_DAYS_MAX * scale, (_DAYS_MAX + 1) * scale - 1)


def _is_within(numbers: pa.Array, low: int, high: int) -> bool:
    if high > _INT64_MAX:  # the numbers of a finer unit end before
        return True
    bounds = pc.min_max(numbers)
    return bounds["min"].as_py() is None or (
        low <= bounds["min"].as_py() and bounds["max"].as_py() <= high
    )


def _is_whole_microseconds(array: pa.Array) -> bool:
    if array.type.unit != "ns":
        return True
    numbers = array.cast(pa.int64())
    whole = pc.multiply(pc.divide(numbers, 1000), 1000)
    return pc.all(pc.equal(numbers, whole)).as_py() is not False


def long_decimal(array: pa.Array, path: str) -> tuple[str, str] | None:
    """The `Check` of decimals alone, the only values that are not sound and that Python returns."""
    kind = array.type
    if not contains(kind, pa.types.is_decimal):
        return None
    if pa.types.is_decimal(kind):
        return unsound(array, path)
    array = array.drop_null() if array.null_count else array
    found = (long_decimal(child, inner) for child, inner in children_of(array, path))
    return next((each for each in found if each is not None), None)


@lru_cache(maxsize=256)
def contains(kind: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type is of a kind, or has a part of it within structs, lists and maps."""
    if is_kind(kind):
        return True
    parts = kind.num_fields if any(test(kind) for test in _NESTED) else 0
    return any(contains(kind.field(number).type, is_kind) for number in range(parts))


_RULES: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], bool], str]] = (
    *((is_text, _is_valid, "has bytes that are no UTF-8") for is_text in TEXT_TYPES),
    (pa.types.is_decimal, _is_valid, "has more digits than {} holds"),
    (pa.types.is_date32, _is_in_calendar, "is outside the years 1 to 9999"),
    (pa.types.is_date64, _is_in_calendar, "is outside the years 1 to 9999"),
    (pa.types.is_timestamp, _is_in_calendar, "is outside the years 1 to 9999"),
    (
        pa.types.is_time64,
        _is_whole_microseconds,
        "has parts of a microsecond: round it, or use text",
    ),
    (pa.types.is_duration, _is_duration, f"is longer than {_DAYS_MAX:,} days"),
)


# --- tables of others ---


def check_layout(table: pa.Table, topic: str | None = None) -> None:
    """Raises InvalidValue for a column whose buffers or offsets contradict each other, for a struct
    with two fields of one name, and as `check_extensions`.
    """
    check_extensions(table.schema, topic)
    for field in table.schema:
        is_plain = not field.type.num_fields and type(field.type) is pa.DataType
        if not is_plain and (twin := _twin_field(field.type)) is not None:
            raise InvalidValue(
                "the struct has two fields of this name: rename one of them",
                field=field.name + twin,
                topic=topic,
            )
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            for chunk in column.chunks:
                chunk.validate()
                as_stored(chunk).validate(full=True)
        except pa.ArrowException as error:
            raise InvalidValue(f"not valid Arrow data: {error}", field=name, topic=topic) from error


def check_sound(table: pa.Table, first: int = 0) -> None:
    """Raises InvalidValue, with the column and the row (`name[row]`), for the first value that a
    reader could not return, and as `check_layout`. `first` is the number of the first row.
    """
    check_layout(table)
    for name, column in zip(table.column_names, table.columns, strict=True):
        row = first
        for chunk in column.chunks:
            fault = next(faults(chunk, name, row), None)
            if fault is not None:
                raise InvalidValue(fault.reason, field=f"{fault.path}[{fault.row}]")
            row += len(chunk)


def check_extensions(schema: pa.Schema, topic: str | None = None) -> None:
    """Raises InvalidValue, naming the column and its type, for an extension type that is not one of
    `EXTENSIONS`.
    """
    for field in schema:
        found = _unknown_extension(field, field.name)
        if found is not None:
            path, name = found
            reason = (
                f"is of the extension type {name!r}, whose stored values need not mean anything by "
                "themselves"
            )
            raise InvalidValue(
                f"{reason}: convert it to text, numbers or times", field=path, topic=topic
            )


def _unknown_extension(field: pa.Field, path: str) -> tuple[str, str] | None:
    """Path and name of an extension type in a field."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        return None if kind.extension_name in EXTENSIONS else (path, kind.extension_name)
    # Of a type that this process does not know.
    if field.metadata and _EXTENSION_NAME in field.metadata:
        return path, field.metadata[_EXTENSION_NAME].decode(errors="backslashreplace")
    if pa.types.is_dictionary(kind):
        return _unknown_extension(pa.field(field.name, kind.value_type), path)
    inner = [kind.field(number) for number in range(kind.num_fields)]
    found = (_unknown_extension(child, f"{path}.{child.name}") for child in inner)
    return next((each for each in found if each is not None), None)


@lru_cache(maxsize=256)
def _twin_field(kind: pa.DataType) -> str | None:
    """The path, within a column of this type, of a name that two fields of a struct have. Only one
    of them would have a place in a dict, and in the table.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return _twin_field(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _twin_field(kind.value_type)
    if pa.types.is_map(kind):
        inner = [("key", kind.key_type), ("value", kind.item_type)]
    else:
        fields = [kind.field(number) for number in range(kind.num_fields)]
        is_named = pa.types.is_struct(kind) or pa.types.is_union(kind)
        inner = [(field.name if is_named else "element", field.type) for field in fields]
    if pa.types.is_struct(kind):
        names = [name for name, _ in inner]
        if len({*names}) < len(names):
            return f".{next(name for name in names if names.count(name) > 1)}"
    found = ((name, _twin_field(each)) for name, each in inner)
    return next((f".{name}{twin}" for name, twin in found if twin is not None), None)


def as_stored(array: pa.Array) -> pa.Array:
    """The array under types without rules for its values: text as bytes, times, dates and
    floating-point numbers as integers, maps as lists of pairs. Nothing is copied.

    Arrow can then check buffers and offsets alone, and compare all values: a NaN equals the same
    NaN.
    """
    return array.view(_stored_type(array.type))


def retyped(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array under another type of the same layout, without a copy. Its fields may be required
    where they were nullable, which `Array.view` refuses. Not for views of text: Arrow 22 crashes as
    it exports one without a buffer.
    """
    return array if array.type == kind else pa.array(_Retyped(array, kind))


class _Retyped:
    """Exports an array under another type."""

    def __init__(self, array: pa.Array, kind: pa.DataType) -> None:
        self._array = array
        self._kind = kind

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        _, data = self._array.__arrow_c_array__()
        return self._kind.__arrow_c_schema__(), data


@lru_cache(maxsize=256)
def _stored_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _stored_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _stored_type(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _stored_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.list_(
            pa.struct(
                [("key", _stored_type(kind.key_type)), ("value", _stored_type(kind.item_type))]
            )
        )
    return _stored_list(kind) if any(test(kind) for test in _NESTED) else _stored_scalar(kind)


def _stored_list(kind: pa.DataType) -> pa.DataType:
    element = _stored_type(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(element, kind.list_size)
    return pa.large_list(element) if pa.types.is_large_list(kind) else pa.list_(element)


def _stored_scalar(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return pa.binary(kind.bit_width // 8)
    if pa.types.is_floating(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]
    instead = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    return instead.get(kind, kind)
