"""Validation of the values of typed topics, run by pydantic-core: the checks are built once per
schema.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pydantic
from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, core_schema

from deltaq.errors import InvalidValue
from deltaq.serde.column_values import scaled_decimal
from deltaq.serde.columns import Members, is_required, members_of, table_columns
from deltaq.serde.model_validation import VALIDATOR_ERROR, python_parts, validated
from deltaq.serde.models import ModelShape, shape_of
from deltaq.serde.read_back import difference
from deltaq.serde.schema import SchemaSource, TopicSchema, unreadable

_FLOAT32_DIGITS = 24  # binary
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class ValidatedSchema(TopicSchema):
    """A schema with the checks of its columns, and the conversions of its model."""

    _check: SchemaValidator = field(repr=False, compare=False)
    _shape: ModelShape | None = field(repr=False, compare=False)
    _names: frozenset[str] = field(repr=False, compare=False)

    def __reduce__(self) -> tuple[Callable[[SchemaSource], ValidatedSchema], tuple[SchemaSource]]:
        # The conversions are closures, which cannot be pickled: the other process creates its own.
        return validated_schema, (self.model or self.arrow,)

    def accept(self, value: object) -> dict[str, object]:
        try:
            instance = self._instance(value)
            row: dict[str, object] = self._check.validate_python(self._plain(instance), strict=True)
            if all(column is None for column in row.values()):
                raise InvalidValue(
                    "all fields are None, and a row of nulls means deletion: give at least one a "
                    "value"
                )
            self._check_read_back(row, instance)
        except pydantic.ValidationError as error:
            raise _refusal(error) from error.__cause__
        return row

    def _instance(self, value: object) -> object:
        """The instance of the model that a value stands for; without a model, the value."""
        if self.model is None or self._shape is None:
            return value
        if isinstance(value, dict):
            with_members = self._shape.with_members
            given = value if with_members is None else with_members(value)
            return validated(
                self.model.model_validate,
                given,
                python_parts,
                strict=True,
                extra="forbid",
                by_alias=True,
                by_name=True,
            )
        if (
            not isinstance(value, self.model)
            or type(value).model_fields.keys() != self.model.model_fields.keys()
        ):
            # A subclass with additional fields would lose them.
            raise InvalidValue(
                f"expected {self.model.__name__} or dict, got {type(value).__name__}"
            )
        return value

    def _plain(self, instance: object) -> object:
        if self.model is None or self._shape is None:
            return instance
        try:
            return self._shape.plain(instance)
        except (AttributeError, TypeError) as error:
            raise InvalidValue(f"this {self.model.__name__} was never validated: {error}") from None

    def _check_read_back(self, row: Mapping[str, object], instance: object) -> None:
        """Refuse an instance whose row a reader would refuse or take for another one: one with
        fields of a subclass, one that was changed against the rules of its model, or one whose
        validators do not accept their own result.

        Raises ValidationError, InvalidValue.
        """
        if self.model is None or self._shape is None:
            return
        read = self._read(row)
        if self._shape.is_compared_by_fields and read == instance:
            return
        if (found := difference(read, instance)) is not None:
            place, reason = found
            raise InvalidValue(reason, field=".".join(map(str, place))[:200] or None)

    def accept_columns(self, row: Mapping[str, object]) -> dict[str, object]:
        if self.model is None:
            return self.accept({name: value for name, value in row.items() if name in self._names})
        try:
            instance = self._read(row)
        except pydantic.ValidationError as error:
            raise _refusal(error) from error.__cause__
        return self.accept(instance)

    def restore(self, row: Mapping[str, object]) -> pydantic.BaseModel | dict[str, object]:
        if self.model is None:
            return dict(row)
        try:
            return self._read(row)
        except pydantic.ValidationError as error:
            where, reason = _first_error(error)
            what = f"field {where!r}" if where else "the row"
            raise unreadable(f"{self.model.__name__} does not take {what}: {reason}") from error

    def _read(self, row: Mapping[str, object]) -> pydantic.BaseModel:
        """A row as the model reads it. Raises ValidationError."""
        assert self.model is not None  # noqa: S101 - the callers have looked
        names, required = self._names, self.required
        given = {
            name: value
            for name, value in row.items()
            if name in names and (value is not None or name not in required)
        }
        read: pydantic.BaseModel = validated(
            self.model.model_validate,
            given,
            python_parts,
            strict=False,
            by_alias=False,
            by_name=True,
        )
        return read


def validated_schema(source: SchemaSource) -> ValidatedSchema:
    """As `deltaq.serde.source.schema_of`."""
    shape, model, defaults = None, None, frozenset[str]()
    if isinstance(source, pa.Schema):
        columns = table_columns(source)
    elif isinstance(source, type) and issubclass(source, pydantic.BaseModel):
        shape, model = shape_of(source), source
        columns = shape.columns
        defaults = frozenset(
            name for name, field in source.model_fields.items() if not field.is_required()
        )
    else:
        given = (
            f"the class {source.__name__}"
            if isinstance(source, type)
            else f"an object of {type(source).__name__}"
        )
        raise TypeError(
            f"a schema is a pyarrow.Schema or a class derived from pydantic.BaseModel, not {given}"
        )
    required = frozenset(column.name for column in columns if is_required(column))
    names = frozenset(columns.names)
    return ValidatedSchema(
        columns, model, required, defaults, _members(columns), _validator(columns), shape, names
    )


def _members(columns: pa.Schema) -> frozenset[tuple[str, frozenset[str | int]]]:
    return frozenset(pair for column in columns for pair in members_of(column).items())


# --- the checks ---


def _validator(columns: pa.Schema) -> SchemaValidator:
    fields = [(column.name, column.type, not is_required(column)) for column in columns]
    return SchemaValidator(_struct(fields, "", dict(_members(columns))))


def _struct(
    fields: Sequence[tuple[str, pa.DataType, bool]], prefix: str, members: Members
) -> CoreSchema:
    entries = {}
    for name, kind, nullable in fields:
        check = _optional(_check_of(kind, prefix + name, members), nullable)
        entries[name] = core_schema.typed_dict_field(
            core_schema.with_default_schema(check, default=None) if nullable else check
        )
    return core_schema.typed_dict_schema(entries, extra_behavior="forbid", strict=True)


def _optional(check: CoreSchema, nullable: bool) -> CoreSchema:
    return core_schema.nullable_schema(check) if nullable else check


def _check_of(kind: pa.DataType, path: str, members: Members) -> CoreSchema:
    """The check that a value fits an Arrow type without loss, and is a member where the path of the
    field has some.
    """
    if pa.types.is_nested(kind):
        return _nested_check(kind, path, members)
    if pa.types.is_timestamp(kind):
        aware = core_schema.datetime_schema(tz_constraint="aware", strict=True)
        return core_schema.no_info_after_validator_function(_in_utc, aware)
    check = _SIMPLE[kind] if kind in _SIMPLE else _number_check(kind)
    if path in members:
        return core_schema.chain_schema(
            [check, core_schema.literal_schema(sorted(members[path], key=repr))]
        )
    return check


def _nested_check(kind: pa.DataType, path: str, members: Members) -> CoreSchema:
    if pa.types.is_struct(kind):
        return _struct(
            [(child.name, child.type, child.nullable) for child in kind], f"{path}.", members
        )
    if pa.types.is_list(kind):
        element = _optional(
            _check_of(kind.value_type, f"{path}[]", members), kind.value_field.nullable
        )
        return core_schema.list_schema(element, strict=True)
    item = _optional(_check_of(kind.item_type, f"{path}[value]", members), kind.item_field.nullable)
    return core_schema.dict_schema(_STRING, item, strict=True)


def _number_check(kind: pa.DataType) -> CoreSchema:
    if pa.types.is_integer(kind):
        bound = 2 ** (kind.bit_width - 1)
        return core_schema.int_schema(ge=-bound, le=bound - 1, strict=True)
    if pa.types.is_decimal(kind):
        checked = core_schema.decimal_schema(
            max_digits=kind.precision, decimal_places=kind.scale, allow_inf_nan=False, strict=True
        )
        return core_schema.no_info_after_validator_function(
            lambda value: scaled_decimal(value, kind), checked
        )
    is_short = kind == pa.float32()
    exact = core_schema.no_info_before_validator_function(
        _exact_float32 if is_short else _exact_float, core_schema.float_schema(strict=True)
    )
    return core_schema.no_info_after_validator_function(_in_float32, exact) if is_short else exact


# With a minimum length, even 0, pydantic-core also detects lone surrogates, which UTF-8 cannot
# encode.
_STRING = core_schema.str_schema(min_length=0, strict=True)
_SIMPLE: Mapping[pa.DataType, CoreSchema] = {
    pa.bool_(): core_schema.bool_schema(strict=True),
    pa.string(): _STRING,
    pa.binary(): core_schema.bytes_schema(strict=True),
    pa.date32(): core_schema.date_schema(strict=True),
}


def _exact_float(value: object) -> object:
    """Convert an int to the equal float. Other conversions could lose information and are
    refused.
    """
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


def _exact_float32(value: object) -> object:
    """As `_exact_float`, for a column of float32, to which only a float is rounded."""
    if isinstance(value, float):
        return value
    number = _exact_float(value)
    if isinstance(value, int) and not (math.frexp(value)[0] * 2**_FLOAT32_DIGITS).is_integer():
        raise PydanticCustomError("float_exact", "No float32 is equal to this integer")
    return number


def _in_float32(value: float) -> float:
    # A float32 column implies rounding to the nearest value, but a finite value must not become
    # infinite.
    if math.isfinite(value) and abs(value) > _FLOAT32_MAX:
        raise PydanticCustomError("float_range", "Input is too large for float32")
    return value


def _in_utc(value: datetime.datetime) -> datetime.datetime:
    try:
        return value.astimezone(datetime.UTC)
    except OverflowError:
        raise PydanticCustomError(
            "datetime_range", "In UTC this is outside the years 1 to 9999"
        ) from None


# --- errors ---

_COMPLETE_ERRORS = {
    "missing",
    "extra_forbidden",
    "decimal_max_digits",
    "decimal_max_places",
    "decimal_whole_digits",
    VALIDATOR_ERROR,
}
"""Errors of pydantic that the type of the value would not explain better."""


def _first_error(error: pydantic.ValidationError) -> tuple[str, str]:
    """The field and the reason of the first error. The value may be private, so only its type is
    shown.
    """
    first: Any = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    is_complete = first["type"] in _COMPLETE_ERRORS
    return where, (
        first["msg"] if is_complete else f"{first['msg']}, got {type(first['input']).__name__}"
    )


def _refusal(error: pydantic.ValidationError) -> InvalidValue:
    where, reason = _first_error(error)
    return InvalidValue(reason, field=where[:200] or None)
