"""Typed topics: the schema of a topic's values, their validation, and the conversion of rows to Arrow and back.

A value is a dict of plain Python values or an instance of the topic's pydantic model. An accepted value is read back
equal. A value that could not be stored without loss is refused with the name of the field.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pydantic
from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, core_schema

from deltaq.errors import InvalidValue, KafkaError, KafkaException
from deltaq.serde.columns import is_required, table_columns
from deltaq.serde.models import ModelShape, shape_of

__all__ = ["SchemaSource", "TopicSchema", "schema_conflict", "schema_of"]

SchemaSource: TypeAlias = "pa.Schema | type[pydantic.BaseModel]"
"""The schema of a typed topic as a user passes it."""

_REMEDY = "a topic keeps the schema that it was created with: use that schema here, or a topic of another name"

_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The columns of a topic's values (`arrow`) and the model, if any. Created by `schema_of`.

    All columns are nullable, because a tombstone is a row of nulls. Two schemas are equal if their columns and models
    are equal.
    """

    arrow: pa.Schema
    model: type[pydantic.BaseModel] | None
    _check: SchemaValidator = field(repr=False, compare=False)
    _shape: ModelShape | None = field(repr=False, compare=False)

    def accept(self, value: object) -> dict[str, object]:
        """The row for a value: every column by name, in order, with None for missing optional fields.

        Takes an instance of the model or a dict. A dict is validated strictly: "5" is not accepted as 5, and the only
        conversion is from int to float. Raises InvalidValue, with the field's name, for a value that does not fit.
        """
        try:
            row: dict[str, object] = self._check.validate_python(self._plain(value), strict=True)
        except pydantic.ValidationError as error:
            raise _refusal(error) from None
        if all(column is None for column in row.values()):
            raise InvalidValue("all fields are None, and a row of nulls means deletion: give at least one a value")
        return row

    def _plain(self, value: object) -> object:
        if self.model is None or self._shape is None:
            return value
        if isinstance(value, dict):
            with_members = self._shape.with_members
            value = self.model.model_validate(
                value if with_members is None else with_members(value),
                strict=True,
                extra="forbid",
                by_alias=True,
                by_name=True,
            )
        elif not isinstance(value, self.model) or type(value).model_fields.keys() != self.model.model_fields.keys():
            # A subclass with additional fields would lose them.
            raise InvalidValue(f"expected {self.model.__name__} or dict, got {type(value).__name__}")
        try:
            return self._shape.plain(value)
        except (AttributeError, TypeError) as error:
            raise InvalidValue(f"this {self.model.__name__} was never validated: {error}") from None

    def to_arrow(self, rows: Sequence[Mapping[str, object] | None]) -> pa.RecordBatch:
        """Accepted rows as a batch with the columns of `arrow`. None, a tombstone, becomes a row of nulls."""
        columns = [
            pa.array([None if row is None else row[column.name] for row in rows], column.type) for column in self.arrow
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def to_python(self, batch: pa.RecordBatch) -> list[dict[str, object] | None]:
        """The rows of a batch that has at least the columns of `arrow`. A row of nulls becomes None, a tombstone.

        Raises KafkaException (_VALUE_DESERIALIZATION) for a missing column, and for values without an equal in Python,
        such as a date in the year 10000 or a map with a repeated key. Such values come only from produced Arrow data.
        """
        missing = [name for name in self.arrow.names if name not in batch.schema.names]
        if missing:
            raise _unreadable(f"the topic has no column {missing[0]!r}; {_REMEDY}")
        try:
            rows = batch.select(self.arrow.names).to_pylist(maps_as_pydicts="strict")
        except (ValueError, OverflowError, KeyError) as error:  # KeyError: a map with one key twice
            raise _unreadable(str(error)) from error
        return [row if any(value is not None for value in row.values()) else None for row in rows]

    def restore(self, row: Mapping[str, object]) -> pydantic.BaseModel | dict[str, object]:
        """The row as an instance of the model; without a model, a copy of the row.

        A required field that the row lacks takes the model's default: the row may be older than the field. Raises
        KafkaException (_VALUE_DESERIALIZATION) if the model rejects the row.
        """
        if self.model is None:
            return dict(row)
        given = {
            column.name: row[column.name]
            for column in self.arrow
            if row.get(column.name) is not None or (column.name in row and not is_required(column))
        }
        try:
            return self.model.model_validate(given, by_alias=False, by_name=True)
        except pydantic.ValidationError as error:
            where, reason = _first_error(error)
            raise _unreadable(f"{self.model.__name__} does not take field {where!r}: {reason}") from error

    def __reduce__(self) -> tuple[Callable[..., TopicSchema], tuple[object]]:
        # The conversions are closures, which cannot be pickled: the other process creates its own.
        return schema_of, (self.model or self.arrow,)


def schema_of(source: SchemaSource) -> TopicSchema:
    """The schema of a topic whose values have these columns or are instances of this model.

    Raises InvalidConfig for a column that a Delta table cannot have, TypeError for any other kind of source.
    """
    if isinstance(source, pa.Schema):
        columns = table_columns(source)
        return TopicSchema(columns, None, _validator(columns), None)
    if isinstance(source, type) and issubclass(source, pydantic.BaseModel):
        shape = shape_of(source)
        return TopicSchema(shape.columns, source, _validator(shape.columns), shape)
    raise TypeError(f"a schema is a pyarrow.Schema or a pydantic model class, not {type(source).__name__}")


def schema_conflict(topic: str, wanted: TopicSchema, held: TopicSchema | None) -> str | None:
    """The reason why values of the schema `wanted` do not fit a topic with the schema `held`, with the remedy; None if
    they fit. `held` is None for a topic of bytes."""
    if held is not None and held.arrow == wanted.arrow:
        return None
    return f"topic {topic!r} has another schema: {_difference(wanted.arrow, held)}; {_REMEDY}"


def _difference(wanted: pa.Schema, held: TopicSchema | None) -> str:
    """The first column that differs between a schema and that of a topic."""
    if held is None:
        return "it holds bytes"
    there: pa.Schema = held.arrow
    for column in wanted:
        if column.name not in there.names:
            return f"it has no column {column.name!r}"
        kind = there.field(column.name).type
        if kind != column.type:
            return f"its column {column.name!r} is {kind}, not {column.type}"
    extra = [name for name in there.names if name not in wanted.names]
    return (
        f"it has the column {extra[0]!r} too" if extra else f"its columns are {', '.join(there.names)}, in this order"
    )


# --- validation: built once per schema, run by pydantic-core ---


def _validator(columns: pa.Schema) -> SchemaValidator:
    return SchemaValidator(_struct([(column.name, column.type, not is_required(column)) for column in columns]))


def _struct(fields: Sequence[tuple[str, pa.DataType, bool]]) -> CoreSchema:
    entries = {}
    for name, kind, nullable in fields:
        check = _optional(_check_of(kind), nullable)
        entries[name] = core_schema.typed_dict_field(
            core_schema.with_default_schema(check, default=None) if nullable else check
        )
    return core_schema.typed_dict_schema(entries, extra_behavior="forbid", strict=True)


def _optional(check: CoreSchema, nullable: bool) -> CoreSchema:
    return core_schema.nullable_schema(check) if nullable else check


def _check_of(kind: pa.DataType) -> CoreSchema:
    """The check that a value fits an Arrow type without loss."""
    if pa.types.is_nested(kind):
        return _nested_check(kind)
    if pa.types.is_timestamp(kind):
        aware = core_schema.datetime_schema(tz_constraint="aware", strict=True)
        return core_schema.no_info_after_validator_function(_in_utc, aware)
    return _SIMPLE[kind] if kind in _SIMPLE else _number_check(kind)


def _nested_check(kind: pa.DataType) -> CoreSchema:
    if pa.types.is_struct(kind):
        return _struct([(child.name, child.type, child.nullable) for child in kind])
    if pa.types.is_list(kind):
        element = _optional(_check_of(kind.value_type), kind.value_field.nullable)
        return core_schema.list_schema(element, strict=True)
    item = _optional(_check_of(kind.item_type), kind.item_field.nullable)
    return core_schema.dict_schema(_STRING, item, strict=True)


def _number_check(kind: pa.DataType) -> CoreSchema:
    if pa.types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        return core_schema.int_schema(ge=-bound, le=bound - 1, strict=True)
    if pa.types.is_decimal(kind):
        return core_schema.decimal_schema(
            max_digits=kind.precision, decimal_places=kind.scale, allow_inf_nan=False, strict=True
        )
    exact = core_schema.no_info_before_validator_function(_exact_float, core_schema.float_schema(strict=True))
    return core_schema.no_info_after_validator_function(_in_float32, exact) if kind == pa.float32() else exact


# With a minimum length, even 0, pydantic-core also detects lone surrogates, which UTF-8 cannot encode.
_STRING = core_schema.str_schema(min_length=0, strict=True)
_SIMPLE: Mapping[pa.DataType, CoreSchema] = {
    pa.bool_(): core_schema.bool_schema(strict=True),
    pa.string(): _STRING,
    pa.binary(): core_schema.bytes_schema(strict=True),
    pa.date32(): core_schema.date_schema(strict=True),
}


def _exact_float(value: object) -> object:
    """Convert an int to the equal float. Other conversions could lose information and are refused."""
    if isinstance(value, float):
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise PydanticCustomError("float_type", "Input should be a valid number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if number != value:
        raise PydanticCustomError("float_exact", "No float is equal to this integer")
    return number


def _in_float32(value: float) -> float:
    # A float32 column implies rounding to the nearest value, but a finite value must not become infinite.
    if math.isfinite(value) and abs(value) > _FLOAT32_MAX:
        raise PydanticCustomError("float_range", "Input is too large for float32")
    return value


def _in_utc(value: datetime.datetime) -> datetime.datetime:
    try:
        return value.astimezone(datetime.timezone.utc)
    except OverflowError:
        raise PydanticCustomError("datetime_range", "In UTC this is outside the years 1 to 9999") from None


# --- errors ---


def _first_error(error: pydantic.ValidationError) -> tuple[str, str]:
    """The field and the reason of the first error. The value may be private, so only its type is shown."""
    first: Any = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    is_complete = first["type"] in ("missing", "extra_forbidden")
    return where, first["msg"] if is_complete else f"{first['msg']}, got {type(first['input']).__name__}"


def _refusal(error: pydantic.ValidationError) -> InvalidValue:
    where, reason = _first_error(error)
    return InvalidValue(reason, field=where[:200] or None)


def _unreadable(reason: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._VALUE_DESERIALIZATION, reason))
