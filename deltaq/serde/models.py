"""Pydantic models as columns: the Arrow schema of a model, and the conversion of its instances to
plain values.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import pyarrow as pa
import pydantic
from pydantic.fields import FieldInfo

from deltaq.serde.columns import TIMESTAMP, refused, table_columns, table_field

Convert: TypeAlias = Callable[[Any], Any]

_SCALARS: Mapping[object, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.date: pa.date32(),
    pydantic.PastDate: pa.date32(),
    datetime.datetime: TIMESTAMP,
    pydantic.AwareDatetime: TIMESTAMP,
    pydantic.PastDatetime: TIMESTAMP,
}
_UUID: type = get_args(pydantic.UUID1)[0]  # the module is for `deltaq.clock`, which makes ids
_AS_TEXT: Mapping[type, Convert] = {
    _UUID: str,
    # Of one length, so that text sorts as the times do.
    datetime.time: lambda time: time.isoformat("microseconds"),
    pydantic.AnyUrl: str,
}
"""Types without a type in Delta, and the text that the model reads back as an equal value; for
subclasses, too.
"""

_ANY_REMEDY = "use a type that Delta has, such as str, or a nested pydantic model"
_REMEDIES: Mapping[object, str] = {
    Any: "say which type its values have",
    pydantic.NaiveDatetime: (
        "use AwareDatetime: a time without a zone would need a newer Delta reader"
    ),
    pydantic.FutureDate: "use date: a reader would refuse it as soon as it is past",
    pydantic.FutureDatetime: "use AwareDatetime: a reader would refuse it as soon as it is past",
    datetime.timedelta: "use int and put the unit into the name",
    tuple: "use list or a nested model",
    set: "say what it holds: set[...]",
    frozenset: "say what it holds: frozenset[...]",
    list: "say what it holds: list[...]",
    dict: "say what it holds: dict[str, ...]",
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's columns, and two conversions.

    `plain` converts an instance to a dict of plain Python values. `with_members` replaces enum
    values in a user's dict by enum members, because strict validation does not accept the values.
    `is_compared_by_fields`: neither the model nor one within it has a comparison of its own, which
    may pass over a field.
    """

    columns: pa.Schema
    plain: Convert
    with_members: Convert | None
    is_compared_by_fields: bool


@dataclass(frozen=True, slots=True)
class _Shape:
    """One annotation: its Arrow type, whether it allows None, and its conversions (None: the value
    as it is).
    """

    kind: pa.DataType
    nullable: bool = False
    plain: Convert | None = None
    with_members: Convert | None = None
    members: Mapping[str, frozenset[str | int]] = dataclasses.field(default_factory=dict)
    """The values of a `Literal` or an enum, by the rest of the path: "" of the field itself,
    `[].colour` within it.
    """

    def members_at(self, path: str) -> Mapping[str, frozenset[str | int]]:
        """`members` by a longer path."""
        return {path + rest: values for rest, values in self.members.items()}


def shape_of(model: type[pydantic.BaseModel]) -> ModelShape:
    """The shape of a model. InvalidConfig, with field and remedy, for a field whose type no column
    can hold.
    """
    shape, fields = _of_model(model, "", ())
    columns = [
        table_field(
            name,
            field.kind,
            required=not field.nullable,
            comment=model.model_fields[name].description or "",
            members=field.members_at(name),
        )
        for name, field in fields.items()
    ]
    assert shape.plain is not None  # noqa: S101 - a model always has a conversion
    is_by_fields = all(found.__eq__ is pydantic.BaseModel.__eq__ for found in _models_in(model))
    return ModelShape(
        table_columns(pa.schema(columns)), shape.plain, shape.with_members, is_by_fields
    )


def _models_in(annotation: Any) -> Iterator[type[pydantic.BaseModel]]:
    """The models within an annotation, itself included."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        yield annotation
        inner: Iterable[Any] = [field.annotation for field in annotation.model_fields.values()]
    else:
        named = getattr(annotation, "__value__", getattr(annotation, "__supertype__", None))
        inner = get_args(annotation) if named is None else (named,)
    for part in inner:
        yield from _models_in(part)


def _of_model(
    model: type[pydantic.BaseModel], path: str, outer: tuple[type, ...]
) -> tuple[_Shape, Mapping[str, _Shape]]:
    if model in outer:
        raise refused(path, f"{model.__name__} contains itself", "give nested data a fixed depth")
    if issubclass(model, pydantic.RootModel):
        raise refused(
            path or model.__name__, "a RootModel has no fields of its own", "use a BaseModel"
        )
    if model.model_config.get("extra") == "allow":
        raise refused(
            path or model.__name__, "extra='allow' takes fields that have no column", "use 'forbid'"
        )
    model.model_rebuild()  # resolves annotations that were undefined when the class was created
    prefix = f"{path}." if path else ""
    for name, field in model.model_fields.items():
        if field.exclude or field.exclude_if is not None:
            what = (
                "exclude=True keeps a field out of documents, and a column would hold it for all to"
                " read"
            )
            raise refused(
                prefix + name, what, "use a private attribute (_name), or a model without the field"
            )
    fields = {
        name: _of(field.annotation, tuple(field.metadata), prefix + name, (*outer, model))
        for name, field in model.model_fields.items()
    }
    kind = pa.struct([pa.field(name, field.kind, field.nullable) for name, field in fields.items()])
    members: dict[str, frozenset[str | int]] = {}
    for name, shape in fields.items():
        members |= shape.members_at(f".{name}")
    return (
        _Shape(kind, False, _plain_model(fields), _members_of_model(model, fields), members),
        fields,
    )


def _of(
    annotation: Any, metadata: tuple[object, ...], path: str, outer: tuple[type, ...]
) -> _Shape:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _of(arguments[0], (*metadata, *arguments[1:]), path, outer)
    for named in ("__value__", "__supertype__"):  # `type X = ...` and NewType
        if hasattr(annotation, named):
            return _of(getattr(annotation, named), metadata, path, outer)
    if origin in (Union, types.UnionType):
        return _of_union(arguments, metadata, path, outer)
    if origin is not None:
        return _of_generic(annotation, path, outer)
    return _of_class(annotation, metadata, path, outer)


def _of_generic(annotation: object, path: str, outer: tuple[type, ...]) -> _Shape:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        members = frozenset(value for value in arguments if value is not None)
        return _Shape(
            _common_kind(arguments, path), nullable=None in arguments, members={"": members}
        )
    if origin in (set, frozenset):
        return _of_set(_of(arguments[0], (), f"{path}[]", outer), origin, path)
    if origin is list:
        return _of_list(_of(arguments[0], (), f"{path}[]", outer))
    if origin is dict:
        if _of(arguments[0], (), f"{path}[key]", outer).kind != pa.string():
            raise refused(path, "the keys of a dict must be str", "use dict[str, ...]")
        return _of_dict(_of(arguments[1], (), f"{path}[value]", outer))
    raise refused(path, f"no column can hold {annotation}", _REMEDIES.get(origin, _ANY_REMEDY))


def _of_class(
    annotation: Any, metadata: tuple[object, ...], path: str, outer: tuple[type, ...]
) -> _Shape:
    if annotation in _SCALARS:
        return _Shape(_SCALARS[annotation])
    if isinstance(annotation, type):
        for base, as_text in _AS_TEXT.items():
            if issubclass(annotation, base):
                return _Shape(pa.string(), plain=as_text)
    if annotation is Decimal:
        return _Shape(_decimal(metadata, path))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _of_enum(annotation, path)
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return _of_model(annotation, path, outer)[0]
    raise refused(
        path, f"no column can hold {_name_of(annotation)}", _REMEDIES.get(annotation, _ANY_REMEDY)
    )


def _of_union(
    arguments: tuple[object, ...], metadata: tuple[object, ...], path: str, outer: tuple[type, ...]
) -> _Shape:
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) != 1:
        names = " | ".join(map(_name_of, others))
        raise refused(
            path, f"a column has one type, not {names}", "use one type, or a field for each"
        )
    shape = _of(others[0], metadata, path, outer)
    return _Shape(shape.kind, True, shape.plain, shape.with_members, shape.members)


def _of_list(element: _Shape) -> _Shape:
    def over(convert: Convert | None) -> Convert | None:
        each = _unless_none(convert)
        return None if each is None else lambda items: [each(item) for item in items]

    kind = pa.list_(pa.field("element", element.kind, element.nullable))
    return _Shape(
        kind,
        False,
        over(element.plain),
        _if_type(list, over(element.with_members)),
        element.members_at("[]"),
    )


def _of_set(element: _Shape, kind: type, path: str) -> _Shape:
    """A set as a list in the order of its values, so that equal sets are stored alike."""
    if pa.types.is_nested(element.kind):
        raise refused(path, "a set holds plain values here", "use list")
    each = _unless_none(element.plain)

    def plain(items: Any) -> list[Any]:
        values = list(items) if each is None else [each(item) for item in items]
        return sorted(values, key=lambda value: (value is not None, value))

    with_members = _unless_none(element.with_members)
    members = (
        None
        if with_members is None
        else _if_type(kind, lambda items: kind(with_members(i) for i in items))
    )
    column = pa.list_(pa.field("element", element.kind, element.nullable))
    return _Shape(column, plain=plain, with_members=members, members=element.members_at("[]"))


def _of_dict(item: _Shape) -> _Shape:
    def over(convert: Convert | None) -> Convert | None:
        each = _unless_none(convert)
        if each is None:
            return None
        return lambda items: {key: each(value) for key, value in items.items()}

    kind = pa.map_(pa.string(), pa.field("value", item.kind, item.nullable))
    return _Shape(
        kind,
        False,
        over(item.plain),
        _if_type(dict, over(item.with_members)),
        item.members_at("[value]"),
    )


def _of_enum(members: type[enum.Enum], path: str) -> _Shape:
    kind = _common_kind([member.value for member in members], path)
    by_value = {member.value: member for member in members}

    def plain(value: object) -> object:
        # With `use_enum_values` the model already holds the plain value.
        return value.value if isinstance(value, enum.Enum) else value

    def with_members(value: object) -> object:
        return by_value.get(value, value) if type(value) in (str, int) else value

    is_open = issubclass(members, enum.Flag)  # whose combinations are members, too
    return _Shape(kind, False, plain, with_members, {} if is_open else {"": frozenset(by_value)})


def _common_kind(values: Iterable[object], path: str) -> pa.DataType:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        return pa.string()
    if kinds == {int}:
        return pa.int64()
    raise refused(
        path, "its values are not all str, or all int", "use values of one of these types"
    )


def _decimal(metadata: tuple[object, ...], path: str) -> pa.DataType:
    limits: dict[str, int] = {}
    for constraint in chain.from_iterable(
        part.metadata if isinstance(part, FieldInfo) else (part,) for part in metadata
    ):
        for name in ("max_digits", "decimal_places"):
            if (limit := getattr(constraint, name, None)) is not None:
                limits[name] = limit
    digits, places = limits.get("max_digits"), limits.get("decimal_places")
    if digits is None or places is None or not 0 <= places <= digits <= 38:
        what = "a column of Decimal needs its size"
        raise refused(
            path, what, "use Field(max_digits=..., decimal_places=...) with at most 38 digits"
        )
    return pa.decimal128(digits, places)


def _plain_model(fields: Mapping[str, _Shape]) -> Convert:
    converts = [(name, _unless_none(shape.plain)) for name, shape in fields.items()]

    def plain(instance: object) -> dict[str, object]:
        return {
            name: getattr(instance, name) if convert is None else convert(getattr(instance, name))
            for name, convert in converts
        }

    return plain


def _members_of_model(
    model: type[pydantic.BaseModel], fields: Mapping[str, _Shape]
) -> Convert | None:
    converts: dict[str, Convert] = {}
    for name, shape in fields.items():
        convert = _unless_none(shape.with_members)
        if convert is not None:
            field = model.model_fields[name]
            spellings = [name, field.alias, field.validation_alias]
            converts.update(
                {spelling: convert for spelling in spellings if isinstance(spelling, str)}
            )
    if not converts:
        return None
    return _if_type(
        dict,
        lambda row: {
            key: converts[key](value) if key in converts else value for key, value in row.items()
        },
    )


def _unless_none(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _if_type(kind: type, convert: Convert | None) -> Convert | None:
    """`convert` for values of this type. Other values are left to the validation, which reports
    them.
    """
    if convert is None:
        return None
    return lambda value: convert(value) if isinstance(value, kind) else value


def _name_of(annotation: object) -> str:
    return getattr(annotation, "__name__", str(annotation))
