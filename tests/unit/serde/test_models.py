"""Instances of models: what is accepted is what the model reads back, whatever the rules of the
model.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from deltaq.errors import InvalidConfig, InvalidValue, KafkaError, KafkaException
from deltaq.serde import ModelDeserializer, ModelSerializer, SerializationError
from deltaq.serde.source import schema_of

T = TypeVar("T")


class MachinePart(BaseModel):
    name: str


class Screw(MachinePart):
    length: int


class Nail(MachinePart):
    """A part without more fields."""


class Loose(MachinePart):
    model_config = ConfigDict(extra="allow")


class Twin(BaseModel):
    name: str


class ByName(BaseModel):
    """A model whose own comparison passes over a field."""

    name: str
    part: MachinePart | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByName) and self.name == other.name

    __hash__ = None  # type: ignore[assignment] # as for any model that can be changed


SCREW = Screw(name="m4", length=20)


def model_of(annotation: Any, **fields: Any) -> Any:
    return pydantic.create_model("M", a=(annotation, ...), **fields)


def read_back(model: type[BaseModel], value: object) -> Any:
    """What a consumer gets for a value that `produce` accepts."""
    schema = schema_of(model)
    batch = schema.to_arrow([schema.accept(value)])
    batch.validate(full=True)
    (row,) = schema.to_python(batch)
    assert isinstance(row, dict)
    return schema.restore(row)


# --- subclasses inside of fields ---


@pytest.mark.parametrize(
    ("annotation", "wrap", "place"),
    [
        (MachinePart, lambda part: part, "a.length"),
        (MachinePart | None, lambda part: part, "a.length"),
        (list[MachinePart], lambda part: [MachinePart(name="x"), part], "a.1.length"),
        (dict[str, MachinePart], lambda part: {"k": part}, "a.k.length"),
        (dict[str, list[MachinePart | None]], lambda part: {"k": [None, part]}, "a.k.1.length"),
        (ByName, lambda part: ByName(name="x", part=part), "a.part.length"),
    ],
    ids=["field", "optional", "list", "dict", "dict of lists", "own comparison"],
)
def test_a_field_of_a_subclass_is_refused_where_it_stands(
    annotation: Any, wrap: Callable[[MachinePart], Any], place: str
) -> None:
    model = model_of(annotation)
    with pytest.raises(
        InvalidValue, match="Screw has the field 'length', which MachinePart does not have"
    ) as caught:
        schema_of(model).accept(model(a=wrap(SCREW)))
    assert caught.value.field == place
    with pytest.raises(InvalidValue, match="length"):
        schema_of(model).accept({"a": wrap(SCREW)})
    with pytest.raises(InvalidValue, match="'more'"):
        schema_of(model).accept(model(a=wrap(Loose.model_validate({"name": "x", "more": 1}))))
    for part in (MachinePart(name="x"), Nail(name="x"), Loose(name="x")):
        assert (
            read_back(model, model(a=wrap(part))).model_dump() == model(a=wrap(part)).model_dump()
        )


def test_a_model_that_only_looks_alike_is_refused() -> None:
    model = model_of(MachinePart)
    with pytest.raises(InvalidValue, match="no instance of MachinePart") as caught:
        schema_of(model).accept(
            model(a=MachinePart(name="x")).model_copy(update={"a": Twin(name="x")})
        )
    assert caught.value.field == "a"


# --- instances that were changed ---


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (Literal["new", "paid"], "new", "gone"),
        (Annotated[int, Field(ge=0)], 1, -1),
        (Annotated[str, Field(max_length=3)], "abc", "abcd"),
        (Annotated[str, Field(pattern="^a")], "a", "b"),
        (Annotated[float, Field(allow_inf_nan=False)], 1.0, float("nan")),
        (Annotated[list[int], Field(min_length=1)], [1], []),
        (pydantic.PastDate, dt.date(2000, 1, 1), dt.date(9999, 1, 1)),
        (Colour, Colour.RED, "blue"),
        (Colour, Colour.RED, "red"),
        (uuid.UUID, uuid.UUID(int=1), "no uuid"),
        (uuid.UUID, uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (pydantic.HttpUrl, pydantic.HttpUrl("https://a.example"), "ftp://a.example"),
        (set[uuid.UUID], {uuid.UUID(int=1)}, [uuid.UUID(int=1)]),
        (list[uuid.UUID], [uuid.UUID(int=1)], (uuid.UUID(int=1),)),
        (list[Annotated[int, Field(ge=0)]], [1], [1, -1]),
        (dict[str, Literal["x"]], {"k": "x"}, {"k": "y"}),
    ],
    ids=str,
)
def test_an_instance_changed_against_the_rules_is_refused(
    annotation: Any, good: object, bad: object
) -> None:
    model = model_of(annotation)
    instance = model(a=good)
    assert read_back(model, instance) == instance
    instance.a = bad
    with pytest.raises(InvalidValue) as caught:
        schema_of(model).accept(instance)
    assert (caught.value.field or "").split(".")[0] == "a"


class Span(BaseModel):
    first: int
    last: int

    @pydantic.model_validator(mode="after")
    def in_order(self) -> Span:
        if self.first > self.last:
            raise ValueError("first is above last")
        return self


def test_the_rules_of_the_model_as_a_whole_hold_for_changed_instances() -> None:
    span = Span(first=1, last=2)
    assert read_back(Span, span) == span
    span.first = 3
    with pytest.raises(InvalidValue, match="first is above last"):
        schema_of(Span).accept(span)
    outer = model_of(list[Span])(a=[Span(first=1, last=2)])
    outer.a[0].last = 0
    with pytest.raises(InvalidValue, match="first is above last") as caught:
        schema_of(type(outer)).accept(outer)
    assert caught.value.field == "a.0"


# --- validators ---

Shouted = Annotated[str, AfterValidator(lambda text: text + "!")]
Lower = Annotated[str, AfterValidator(str.lower)]


class Counted(BaseModel):
    n: int

    @pydantic.model_validator(mode="before")
    @classmethod
    def from_zero(cls, data: Any) -> Any:
        return {"n": data["n"] + 1}


@pytest.mark.parametrize(
    "annotation",
    [Shouted, list[Shouted], dict[str, Shouted | None]],
    ids=["field", "list", "dict of optional"],
)
def test_a_validator_that_changes_its_own_result_is_refused_by_field(annotation: Any) -> None:
    model = model_of(annotation)
    value = (
        {"k": "hi"} if "dict" in str(annotation) else ["hi"] if "list" in str(annotation) else "hi"
    )
    for accepted in (model(a=value), {"a": value}):
        with pytest.raises(InvalidValue, match="would be read back as another value") as caught:
            schema_of(model).accept(accepted)
        assert (caught.value.field or "").startswith("a")


def test_a_validator_of_the_model_that_changes_its_own_result_is_refused() -> None:
    with pytest.raises(InvalidValue, match="read back as another value") as caught:
        schema_of(Counted).accept(Counted(n=1))
    assert caught.value.field == "n"


def test_a_validator_that_leaves_its_own_result_holds() -> None:
    model = model_of(Lower)
    assert read_back(model, {"a": "ABC"}) == model(a="abc")
    assert read_back(model, model(a="ABC")) == model(a="abc")


# --- what a field may be ---


@pytest.mark.parametrize(
    "how", [{"exclude": True}, {"exclude_if": lambda value: not value}], ids=["always", "if"]
)
def test_an_excluded_field_is_refused_with_a_remedy(how: dict[str, Any]) -> None:
    with_secret: Any = pydantic.create_model(
        "Inner", user=(str, ...), secret=(Annotated[str, Field(**how)], "")
    )
    for model, path in ((with_secret, "secret"), (model_of(list[with_secret]), r"a\[\]\.secret")):
        with pytest.raises(InvalidConfig, match=rf"column '{path}'.*private attribute"):
            schema_of(model)


@pytest.mark.parametrize("kind", [pydantic.FutureDate, pydantic.FutureDatetime])
def test_a_type_whose_values_a_later_reader_refuses_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidConfig, match="as soon as it is past"):
        schema_of(model_of(kind))


@dataclasses.dataclass
class Point:
    x: int


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (Point, "Point"),
        (Annotated[Cat | Dog, Field(discriminator="kind")], r"Cat \| Dog"),
        (list[Annotated[Cat | Dog, Field(discriminator="kind")]], r"Cat \| Dog"),
        (pydantic.RootModel[int], "RootModel"),
        (Loose, "extra='allow'"),
    ],
    ids=str,
)
def test_a_field_that_no_column_holds_is_refused_by_name(annotation: Any, name: str) -> None:
    with pytest.raises(InvalidConfig, match=name) as caught:
        schema_of(model_of(annotation))
    assert (caught.value.key or "").startswith("a")


class Pair(BaseModel, Generic[T]):
    left: T
    right: T


class Spelled(BaseModel):
    """One field for each kind of alias, serializers, and parts that are no fields."""

    model_config = ConfigDict(serialize_by_alias=True, extra="forbid", frozen=True)

    one: int = Field(alias="uno")
    two: int = Field(validation_alias="due")
    three: int = Field(serialization_alias="tre")
    four: int = Field(
        validation_alias=pydantic.AliasChoices("quattro", pydantic.AliasPath("numbers", 3))
    )
    shown: str
    _seen: int = pydantic.PrivateAttr(default=0)

    @pydantic.field_serializer("shown")
    def mask(self, _: str) -> str:
        return "***"

    @pydantic.model_serializer(mode="plain")
    def as_text(self) -> str:
        return "text"

    @pydantic.computed_field  # type: ignore[prop-decorator] # as pydantic documents it
    @property
    def total(self) -> int:
        return self.one + self.two


class Swapped(BaseModel):
    """Aliases that are names of other fields."""

    left: int = Field(alias="right")
    right: int = Field(alias="left")


class EnumValues(BaseModel):
    model_config = ConfigDict(use_enum_values=True)

    given: Colour
    default: Colour = Colour.RED


def test_aliases_serializers_and_computed_fields_have_no_effect_on_columns() -> None:
    spelled = Spelled.model_validate(
        {"uno": 1, "due": 2, "three": 3, "quattro": 4, "shown": "plain"}
    )
    spelled._seen = 5  # private attributes are no part of the value
    read = read_back(Spelled, spelled)
    assert [read.one, read.two, read.three, read.four, read.shown, read.total, read._seen] == [
        1,
        2,
        3,
        4,
        "plain",
        3,
        0,
    ]
    assert schema_of(Spelled).arrow.names == ["one", "two", "three", "four", "shown"]
    swapped = Swapped.model_validate({"right": 1, "left": 2})
    assert read_back(Swapped, swapped) == swapped


def test_instances_of_generic_models_hold() -> None:
    pair = Pair[MachinePart](left=MachinePart(name="a"), right=MachinePart(name="b"))
    assert read_back(Pair[MachinePart], pair) == pair
    with pytest.raises(InvalidValue, match="length"):
        schema_of(Pair[MachinePart]).accept(Pair[MachinePart](left=SCREW, right=SCREW))


def test_the_default_of_an_enum_is_read_as_its_value_where_the_model_holds_values() -> None:
    assert read_back(EnumValues, EnumValues(given=Colour.RED)).model_dump() == {
        "given": "red",
        "default": "red",
    }


@pytest.mark.parametrize(
    "hour", [dt.datetime(2026, 3, 29, 2, 30), dt.datetime(2026, 10, 25, 2, 30)], ids=str
)
@pytest.mark.parametrize("fold", [0, 1])
def test_a_time_in_an_hour_that_a_zone_skips_or_repeats_holds(hour: dt.datetime, fold: int) -> None:
    at = hour.replace(tzinfo=ZoneInfo("Europe/Vienna"), fold=fold)
    model = model_of(
        AwareDatetime, all=(list[AwareDatetime], [at]), some=(set[AwareDatetime], {at})
    )
    read = read_back(model, model(a=at))
    expected = at.astimezone(dt.UTC)
    assert [read.a, *read.all, *read.some] == [expected] * 3


# --- validators that raise other exceptions ---


def in_table(text: str) -> str:
    return {"known": "known"}[text]


class Coded(BaseModel):
    a: int = 1
    b: Annotated[str, AfterValidator(in_table)] = "known"


class CodedAsAWhole(BaseModel):
    a: int = 1
    b: str = "known"

    @pydantic.model_validator(mode="before")
    @classmethod
    def check(cls, fields: dict[str, Any]) -> dict[str, Any]:
        in_table(fields["b"])
        return fields


def changed(model: Any) -> Any:
    instance = model(b="known")
    instance.b = "private"
    return instance


@pytest.mark.parametrize(("model", "field"), [(Coded, "b"), (CodedAsAWhole, None)])
@pytest.mark.parametrize("as_dict", [True, False])
def test_any_exception_of_a_validator_refuses_the_value_by_field(
    model: Any, field: str | None, as_dict: bool
) -> None:
    value = {"b": "private"} if as_dict else changed(model)
    with pytest.raises(InvalidValue, match="A validator raised KeyError") as caught:
        schema_of(model).accept(value)
    assert caught.value.field == field
    assert "private" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(("model", "field"), [(Coded, "field 'b'"), (CodedAsAWhole, "the row")])
def test_any_exception_of_a_validator_is_an_unreadable_value(model: Any, field: str) -> None:
    with pytest.raises(
        KafkaException, match=f"does not take {field}: A validator raised KeyError"
    ) as caught:
        schema_of(model).restore({"a": 1, "b": "private"})
    assert caught.value.error.code() == KafkaError._VALUE_DESERIALIZATION
    assert "private" not in str(caught.value)
    assert caught.value.__cause__ is not None
    assert isinstance(caught.value.__cause__.__cause__, KeyError)


@pytest.mark.parametrize("model", [Coded, CodedAsAWhole])
def test_any_exception_of_a_validator_is_an_error_of_serialization(model: Any) -> None:
    for convert in (
        lambda: ModelSerializer(model)({"b": "private"}),
        lambda: ModelSerializer(model)(changed(model)),
        lambda: ModelDeserializer(model)(b'{"b": "private"}'),
    ):
        with pytest.raises(SerializationError, match="A validator raised KeyError") as caught:
            convert()
        assert caught.value.field == ("b" if model is Coded else None)


# --- any model, any instance ---


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


Drawn = tuple[Any, st.SearchStrategy[Any]]
Way = Callable[[type[BaseModel], object], Any]
INSTANTS = st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC))
SCALARS: list[Drawn] = [
    (bool, st.booleans()),
    (int, st.integers(-(2**63), 2**63 - 1)),
    (Annotated[int, Field(ge=0, lt=10)], st.integers(0, 9)),
    (float, st.floats(allow_nan=False)),
    (str, st.text(max_size=4)),
    (Annotated[str, Field(max_length=2)], st.text(max_size=2)),
    (Lower, st.text("AbC", max_size=3)),
    (bytes, st.binary(max_size=4)),
    (dt.date, st.dates()),
    (AwareDatetime, INSTANTS),
    (dt.time, st.times()),
    (uuid.UUID, st.uuids()),
    (Annotated[Decimal, Field(max_digits=7, decimal_places=3)], st.decimals(-9999, 9999, places=3)),
    (Colour, st.sampled_from(Colour)),
    (Size, st.sampled_from(Size)),
    (Literal["new", "paid"], st.sampled_from(["new", "paid"])),
    (Literal[1, 2, None], st.sampled_from([1, 2, None])),
]
CHANGING: Drawn = (Shouted, st.text("ab", max_size=2))


def _listed(inner: Drawn) -> Drawn:
    kind: Any = list
    return kind[inner[0]], st.lists(inner[1], max_size=2)


def _keyed(inner: Drawn) -> Drawn:
    kind: Any = dict
    return kind[str, inner[0]], st.dictionaries(st.text(max_size=2), inner[1], max_size=2)


def _optional(inner: Drawn) -> Drawn:
    return inner[0] | None, st.none() | inner[1]


def _as_model(inner: list[Drawn], *, with_subclass: bool) -> Drawn:
    """A model with these fields. With a subclass, some of the instances are of one that has a field
    more.
    """
    fields: dict[str, Any] = {f"f{i}": (annotation, ...) for i, (annotation, _) in enumerate(inner)}
    model = pydantic.create_model("Inner", **fields)
    sub = pydantic.create_model("Sub", __base__=model, more=(int, 1))
    values = {f"f{i}": each for i, (_, each) in enumerate(inner)}
    instances: st.SearchStrategy[Any] = st.builds(model, **values)
    return model, instances | st.builds(sub, **values) if with_subclass else instances


def drawn(scalars: list[Drawn], *, with_subclass: bool) -> st.SearchStrategy[Drawn]:
    """Annotations with their values."""
    return st.recursive(
        st.sampled_from(scalars),
        lambda inner: st.one_of(
            inner.map(_listed),
            inner.map(_keyed),
            inner.map(_optional),
            st.lists(inner, min_size=1, max_size=3).map(
                lambda each: _as_model(each, with_subclass=with_subclass)
            ),
        ),
        max_leaves=5,
    )


def instance_of(kinds: list[Drawn], data: st.DataObject) -> Any:
    fields: dict[str, Any] = {f"c{i}": (annotation, ...) for i, (annotation, _) in enumerate(kinds)}
    model = pydantic.create_model("M", there=(bool, True), **fields)
    return model(**{f"c{i}": data.draw(values) for i, (_, values) in enumerate(kinds)})


def everything(instance: BaseModel) -> object:
    """All fields of an instance, also those that the class of an inner one adds. Written by
    pydantic.
    """
    return instance.model_dump(serialize_as_any=True, warnings=False)


def read_as_json(model: type[BaseModel], value: Any) -> Any:
    """What `ModelDeserializer` makes of the JSON of a value that `ModelSerializer` accepts."""
    return ModelDeserializer(model)(ModelSerializer(model)(value))


WAYS = pytest.mark.parametrize("way", [read_back, read_as_json])
IN_JSON: list[Drawn] = [  # which has neither infinities nor bytes that are no UTF-8
    *(kind for kind in SCALARS if kind[0] not in (bytes, float)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
]


@WAYS
@given(data=st.data())
def test_any_valid_instance_is_accepted_and_read_back_equal(way: Way, data: st.DataObject) -> None:
    scalars = SCALARS if way is read_back else IN_JSON
    kinds = data.draw(st.lists(drawn(scalars, with_subclass=False), min_size=1, max_size=3))
    instance = instance_of(kinds, data)
    read = way(type(instance), instance)
    assert read == instance
    assert everything(read) == everything(instance)


@WAYS
@given(
    kinds=st.lists(drawn([*SCALARS, CHANGING], with_subclass=True), min_size=1, max_size=3),
    other=st.sampled_from(SCALARS).flatmap(lambda kind: kind[1]) | st.just(SCREW),
    data=st.data(),
)
def test_any_instance_is_read_back_equal_or_refused_by_field(
    way: Way, kinds: list[Drawn], other: object, data: st.DataObject
) -> None:
    instance = instance_of(kinds, data)
    target = data.draw(
        st.sampled_from(sorted(_models_in(instance), key=lambda found: type(found).__name__))
    )
    if data.draw(st.booleans()):
        setattr(target, data.draw(st.sampled_from(sorted(type(target).model_fields))), other)
    try:
        read = way(type(instance), instance)
    except (InvalidValue, SerializationError) as error:
        refusal = error
    else:
        assert everything(read) == everything(instance)
        return
    assert refusal.field is not None or "never validated" in str(refusal) or "utf-8" in str(refusal)


def _models_in(value: object) -> list[BaseModel]:
    """The instances within a value, itself included."""
    if isinstance(value, BaseModel):
        return [value, *(found for _, inner in value for found in _models_in(inner))]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [found for each in inner for found in _models_in(each)]
