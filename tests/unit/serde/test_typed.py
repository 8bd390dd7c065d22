"""Values of a typed topic are read back equal; a lossy value is refused by field name."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import math
import pickle
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, Optional

import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from deltaq.delta.schema import arrow_schema, delta_schema
from deltaq.errors import InvalidConfig, InvalidValue, KafkaError, KafkaException
from deltaq.serde.schema import TopicSchema, Unreadable
from deltaq.serde.source import schema_of

UTC = dt.UTC
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
TIMESTAMP = pa.timestamp("us", tz="UTC")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


Sku = NewType("Sku", str)


class OrderLine(BaseModel):
    sku: Sku
    count: int = Field(ge=1)
    colour: Colour | None = None


class Order(BaseModel):
    """A model with one field of every supported kind."""

    id: int = Field(description="the number on the invoice")
    customer: str
    paid: bool = False
    weight: float | None = None
    total: Decimal = Field(max_digits=10, decimal_places=2)
    at: AwareDatetime
    day: dt.date
    raw: bytes = b""
    colour: Colour = Colour.RED
    level: Level = Level.LOW
    kind: Literal["new", "used"] = "new"
    lines: list[OrderLine] = []
    tags: dict[str, Optional[int]] = {}  # noqa: UP045 - the older spelling is under test
    first: OrderLine | None = None
    discounts: list[Annotated[Decimal, Field(max_digits=4, decimal_places=1)]] | None = None


def order(**changes: Any) -> Order:
    values: dict[str, Any] = {
        "id": 7,
        "customer": "Ann",
        "total": Decimal("9.90"),
        "at": NOON,
        "day": NOON.date(),
    }
    return Order(**(values | changes))


ORDERS = schema_of(Order)


def through_arrow(
    schema: TopicSchema, *rows: dict[str, object] | None
) -> list[dict[str, object] | None]:
    batch = schema.to_arrow(rows)
    batch.validate(full=True)
    assert batch.schema.equals(schema.arrow, check_metadata=True)
    found = [row for row in schema.to_python(batch) if not isinstance(row, Unreadable)]
    assert len(found) == len(rows)
    return found


# --- which columns a model has ---


def test_a_model_becomes_columns() -> None:
    line = pa.struct(
        [
            pa.field("sku", pa.string(), nullable=False),
            pa.field("count", pa.int64(), nullable=False),
            pa.field("colour", pa.string()),
        ]
    )
    expected = pa.schema(
        [
            ("id", pa.int64()),
            ("customer", pa.string()),
            ("paid", pa.bool_()),
            ("weight", pa.float64()),
            ("total", pa.decimal128(10, 2)),
            ("at", TIMESTAMP),
            ("day", pa.date32()),
            ("raw", pa.binary()),
            ("colour", pa.string()),
            ("level", pa.int64()),
            ("kind", pa.string()),
            ("lines", pa.list_(pa.field("element", line, nullable=False))),
            ("tags", pa.map_(pa.string(), pa.int64())),
            ("first", line),
            ("discounts", pa.list_(pa.field("element", pa.decimal128(4, 1), nullable=False))),
        ]
    )
    assert ORDERS.arrow.equals(expected, check_metadata=False)
    assert ORDERS.model is Order


def test_columns_may_be_null_and_remember_that_they_are_required() -> None:
    assert all(column.nullable for column in ORDERS.arrow)
    assert ORDERS.arrow.field("id").metadata == {
        b"deltaq.required": b"true",
        b"comment": b"the number on the invoice",
    }
    assert ORDERS.arrow.field("weight").metadata is None


def test_a_schema_survives_the_log_of_a_table() -> None:
    again = schema_of(arrow_schema(delta_schema(ORDERS.arrow)))
    assert again.arrow.equals(ORDERS.arrow, check_metadata=True)
    row = ORDERS.accept(order())
    assert again.accept(row) == row
    with pytest.raises(InvalidValue, match="customer"):
        again.accept({name: value for name, value in row.items() if name != "customer"})


class TreeNode(BaseModel):
    next: Optional[TreeNode] = None  # noqa: UP045 - the older spelling is under test


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


def model_of(annotation: Any) -> type[BaseModel]:
    return pydantic.create_model("M", a=(annotation, ...))


@pytest.mark.parametrize(
    ("annotation", "remedy"),
    [
        (Any, "which type"),
        (object, "such as str"),
        (int | str, "one type"),
        (Literal["a", 1], "one of these types"),
        (enum.Enum("Mixed", {"A": "a", "B": 2}), "one of these types"),
        (Decimal, "max_digits"),
        (Annotated[Decimal, Field(max_digits=39, decimal_places=2)], "38 digits"),
        (dt.timedelta, "unit"),
        (pydantic.NaiveDatetime, "AwareDatetime"),
        (list, r"list\[\.\.\.\]"),
        (tuple[int, str], "nested model"),
        (set, r"set\[\.\.\.\]"),
        (set[tuple[int]], "nested model"),
        (frozenset[OrderLine], "use list"),
        (dict[int, str], r"dict\[str"),
        (pydantic.SecretStr, "such as str"),
        (TreeNode, "fixed depth"),
        (Open, "forbid"),
        (pydantic.RootModel[list[int]], "BaseModel"),
        (list[list[Any]], "which type"),
    ],
    ids=lambda value: str(value)[-50:],
)
def test_an_annotation_without_a_column_type_is_refused_with_a_remedy(
    annotation: Any, remedy: str
) -> None:
    with pytest.raises(InvalidConfig, match=remedy) as caught:
        schema_of(model_of(annotation))
    assert caught.value.key is not None
    assert caught.value.key.startswith("a")
    assert "column 'a" in caught.value.error.str()


@pytest.mark.parametrize("model", [Open, pydantic.RootModel[int]], ids=["extra", "root"])
def test_a_model_without_columns_is_refused(model: type[BaseModel]) -> None:
    with pytest.raises(InvalidConfig):
        schema_of(model)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.uint8(), "int16"),
        (pa.uint16(), "int32"),
        (pa.uint32(), "int64"),
        (pa.uint64(), r"decimal128\(20, 0\)"),
        (pa.time32("s"), "int64"),
        (pa.duration("us"), "int64"),
        (pa.dictionary(pa.int8(), pa.string()), "use string"),
        (pa.timestamp("us"), "tz='UTC'"),
        (pa.date64(), "date32"),
        (pa.float16(), "float32"),
        (pa.decimal256(50, 2), "decimal128"),
        (pa.decimal128(5, -2), "decimal128"),
        (pa.binary(16), "binary"),
        (pa.list_(pa.int8(), 3), "list"),
        (pa.null(), "type"),
        (pa.map_(pa.int8(), pa.int8()), "string keys"),
        (pa.struct([]), "at least one"),
        (pa.month_day_nano_interval(), "use bool"),
        (functools.reduce(lambda inner, _: pa.list_(inner), range(100), pa.int8()), "nest it less"),
    ],
    ids=str,
)
def test_an_arrow_type_unknown_to_delta_is_refused_with_a_remedy(
    kind: pa.DataType, remedy: str
) -> None:
    for schema in (
        pa.schema([("a", kind)]),
        pa.schema([("a", pa.struct([("b", pa.list_(kind))]))]),
    ):
        with pytest.raises(InvalidConfig, match=remedy) as caught:
            schema_of(schema)
        assert caught.value.key is not None
        assert caught.value.key.startswith("a")


@pytest.mark.parametrize(
    ("given_type", "stored"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.timestamp("ms", tz="Europe/Vienna"), TIMESTAMP),
    ],
    ids=str,
)
def test_equivalent_arrow_types_become_the_plain_ones(
    given_type: pa.DataType, stored: pa.DataType
) -> None:
    assert schema_of(pa.schema([("a", given_type)])).arrow.field("a").type == stored


@pytest.mark.parametrize(
    "names",
    [
        [],
        [""],
        ["_offset"],
        ["a b"],
        ["a,b"],
        ["a;b"],
        ["a{"],
        ["a)"],
        ["a\n"],
        ["a\t"],
        ["a=b"],
        ["a\x00"],
        ["x" * 256],
        ["a", "A"],
        ["a", "a"],
    ],
    ids=str,
)
def test_an_invalid_column_name_is_refused(names: list[str]) -> None:
    with pytest.raises(InvalidConfig):
        schema_of(pa.schema([(name, pa.int8()) for name in names]))


def test_names_within_a_struct_follow_the_rules_but_may_start_with_an_underscore() -> None:
    schema_of(pa.schema([("a", pa.struct([("_b", pa.int8())]))]))
    with pytest.raises(InvalidConfig, match="in case"):
        schema_of(pa.schema([("a", pa.struct([("b", pa.int8()), ("B", pa.int8())]))]))


@pytest.mark.parametrize(
    ("source", "given"),
    [
        (None, "an object of NoneType"),
        (int, "the class int"),
        ("a: int", "an object of str"),
        (order(), "an object of Order"),
        ([("a", pa.int8())], "an object of list"),
    ],
)
def test_a_source_that_is_no_schema_is_a_type_error(source: Any, given: str) -> None:
    with pytest.raises(TypeError, match=rf"pyarrow\.Schema or .* pydantic\.BaseModel, not {given}"):
        schema_of(source)


# --- what is accepted ---


def test_an_instance_becomes_a_row_of_plain_values() -> None:
    row = ORDERS.accept(
        order(
            weight=2,
            colour=Colour.BLUE,
            level=Level.HIGH,
            lines=[OrderLine(sku=Sku("x"), count=1, colour=Colour.RED)],
            tags={"a": None},
            discounts=[Decimal("1.5")],
        )
    )
    assert row == {
        "id": 7,
        "customer": "Ann",
        "paid": False,
        "weight": 2.0,
        "total": Decimal("9.90"),
        "at": NOON,
        "day": NOON.date(),
        "raw": b"",
        "colour": "blue",
        "level": 2,
        "kind": "new",
        "lines": [{"sku": "x", "count": 1, "colour": "red"}],
        "tags": {"a": None},
        "first": None,
        "discounts": [Decimal("1.5")],
    }
    assert list(row) == ORDERS.arrow.names
    assert type(row["level"]) is int
    assert type(row["weight"]) is float


def test_an_instance_comes_back_equal() -> None:
    original = order(
        lines=[OrderLine(sku=Sku("x"), count=3, colour=Colour.BLUE)],
        tags={"a": 1, "b": None},
        raw=b"\x00\xff",
    )
    (row,) = through_arrow(ORDERS, ORDERS.accept(original))
    assert row is not None
    assert ORDERS.restore(row) == original


def test_a_dict_is_validated_by_the_model_and_takes_its_defaults() -> None:
    plain = {"id": 7, "customer": "Ann", "total": Decimal("9.9"), "at": NOON, "day": NOON.date()}
    assert ORDERS.accept(plain) == ORDERS.accept(order())
    assert ORDERS.accept(plain | {"colour": "blue", "level": 2})["colour"] == "blue"
    assert ORDERS.accept(
        plain | {"lines": [{"sku": "x", "count": 1, "colour": "red"}]}
    ) == ORDERS.accept(order(lines=[OrderLine(sku=Sku("x"), count=1, colour=Colour.RED)]))


class PageVisit(BaseModel):
    model_config = ConfigDict(strict=True)

    id: uuid.UUID
    page: pydantic.HttpUrl
    at: dt.time
    colours: set[Colour] = set()
    friends: frozenset[uuid.UUID | None] = frozenset()
    links: dict[str, pydantic.AnyUrl] = {}


def test_types_unknown_to_delta_are_stored_as_text_and_lists_and_come_back_equal() -> None:
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    visit = PageVisit(
        id=first,
        page=pydantic.HttpUrl("https://example.org/a?b=ü"),
        at=dt.time(7, 5, tzinfo=UTC),
        colours={Colour.RED, Colour.BLUE},
        friends=frozenset([second, None, first]),
        links={"home": pydantic.AnyUrl("ftp://example.org")},
    )
    schema = schema_of(PageVisit)
    row = schema.accept(visit)
    assert row == {
        "id": "00000000-0000-0000-0000-000000000001",
        "page": "https://example.org/a?b=%C3%BC",
        "at": "07:05:00.000000+00:00",
        "colours": ["blue", "red"],
        "friends": [
            None,
            "00000000-0000-0000-0000-000000000001",
            "00000000-0000-0000-0000-000000000002",
        ],
        "links": {"home": "ftp://example.org/"},
    }
    (read,) = through_arrow(schema, row)
    assert read is not None
    assert schema.restore(read) == visit
    given = {"id": first, "page": visit.page, "at": visit.at, "colours": {"red", "blue"}}
    assert schema.accept(given)["colours"] == ["blue", "red"]


def test_a_row_that_was_read_can_be_produced_again() -> None:
    (row,) = through_arrow(ORDERS, ORDERS.accept(order(first=OrderLine(sku=Sku("x"), count=1))))
    assert ORDERS.accept(row) == row


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "5"}, "id"),
        ({"id": 5.0}, "id"),
        ({"id": True}, "id"),
        ({"id": 2**63}, "id"),
        ({"id": None}, "id"),
        ({"paid": 1}, "paid"),
        ({"customer": b"Ann"}, "customer"),
        ({"customer": "\ud800"}, "customer"),
        ({"weight": "2"}, "weight"),
        ({"weight": True}, "weight"),
        ({"total": 9.9}, "total"),
        ({"total": Decimal("9.999")}, "total"),
        ({"total": Decimal("NaN")}, "total"),
        ({"total": Decimal("123456789.00")}, "total"),
        ({"at": NOON.replace(tzinfo=None)}, "at"),
        ({"at": NOON.isoformat()}, "at"),
        ({"day": NOON}, "day"),
        ({"raw": "text"}, "raw"),
        ({"colour": "green"}, "colour"),
        ({"colour": 1}, "colour"),
        ({"kind": "old"}, "kind"),
        ({"lines": {}}, "lines"),
        ({"lines": [{"sku": "x", "count": 0}]}, "lines.0.count"),
        ({"lines": [{"sku": "x", "count": 1, "size": 3}]}, "lines.0.size"),
        ({"lines": [None]}, "lines.0"),
        ({"tags": {1: 1}}, "tags.1.[key]"),
        ({"tags": {"a": "1"}}, "tags.a"),
        ({"first": {"sku": "x"}}, "first.count"),
        ({"colour_": "red"}, "colour_"),
    ],
    ids=str,
)
def test_a_dict_that_does_not_fit_is_refused_by_field(
    change: dict[str, object], field: str
) -> None:
    plain = {"id": 7, "customer": "Ann", "total": Decimal("9.9"), "at": NOON, "day": NOON.date()}
    with pytest.raises(InvalidValue) as caught:
        ORDERS.accept(plain | change)
    assert caught.value.field == field
    assert caught.value.args[0] == KafkaError._VALUE_SERIALIZATION


@pytest.mark.fault("K5")
def test_a_missing_field_is_refused_and_no_value_is_shown() -> None:
    with pytest.raises(InvalidValue, match="customer") as caught:
        ORDERS.accept(
            {"id": 7, "total": Decimal("9.9"), "at": NOON, "day": NOON.date(), "raw": b"PLANTED"}
        )
    assert "PLANTED" not in str(caught.value)
    with pytest.raises(InvalidValue) as caught:
        ORDERS.accept({"id": "PLANTED"})
    assert "PLANTED" not in str(caught.value)
    assert caught.value.__cause__ is None


class Bigger(Order):
    extra: int = 1


class Renamed(Order):
    def shout(self) -> str:
        return self.customer.upper()


@pytest.mark.parametrize(
    "value",
    [b"bytes", "text", 5, None, [1], OrderLine(sku=Sku("x"), count=1), object()],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_another_kind_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue, match="expected Order or dict"):
        ORDERS.accept(value)


def test_a_subclass_is_accepted_only_if_nothing_of_it_is_lost() -> None:
    assert ORDERS.accept(Renamed(**dict(order()))) == ORDERS.accept(order())
    with pytest.raises(InvalidValue, match="got Bigger"):
        ORDERS.accept(Bigger(**dict(order())))


def test_an_unvalidated_instance_is_validated() -> None:
    with pytest.raises(InvalidValue, match="'id'"):
        ORDERS.accept(order().model_copy(update={"id": "7"}))
    with pytest.raises(InvalidValue, match="never validated"):
        ORDERS.accept(Order.model_construct(id=7))
    with pytest.raises(InvalidValue, match="never validated"):
        ORDERS.accept(order().model_copy(update={"lines": 5}))


class Aliased(BaseModel):
    model_config = ConfigDict(use_enum_values=True)
    order_id: int = Field(alias="orderId")
    colour: Colour = Field(alias="color")


def test_aliases_are_for_input_and_columns_have_the_names_of_the_fields() -> None:
    schema = schema_of(Aliased)
    assert schema.arrow.names == ["order_id", "colour"]
    for value in (
        {"orderId": 1, "color": "red"},
        {"order_id": 1, "colour": Colour.RED},
        Aliased(orderId=1, color=Colour.RED),
    ):
        row = schema.accept(value)
        assert row == {"order_id": 1, "colour": "red"}
        assert schema.restore(row) == Aliased(orderId=1, color=Colour.RED)


PLAIN = pa.schema(
    [
        pa.field("i8", pa.int8()),
        pa.field("f32", pa.float32()),
        pa.field("f64", pa.float64()),
        pa.field("must", pa.int32(), nullable=False),
        pa.field("at", TIMESTAMP),
        pa.field(
            "s", pa.struct([pa.field("x", pa.int8(), nullable=False), pa.field("y", pa.int8())])
        ),
    ]
)


def test_arrow_columns_alone_are_a_schema_too() -> None:
    schema = schema_of(PLAIN)
    assert schema.model is None
    row = schema.accept({"must": 1, "f32": 2**25 + 4, "f64": 3, "s": {"x": 1}})
    assert row == {
        "i8": None,
        "f32": 33_554_436.0,
        "f64": 3.0,
        "must": 1,
        "at": None,
        "s": {"x": 1, "y": None},
    }
    assert through_arrow(schema, row) == [row]
    assert schema.restore(row) == row


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"i8": 128}, "i8"),
        ({"i8": -129}, "i8"),
        ({"i8": "1"}, "i8"),
        ({"f32": 1e39}, "f32"),
        ({"f32": 2**24 + 1}, "f32"),
        ({"f32": -(2**25) - 2}, "f32"),
        ({"f64": 2**53 + 1}, "f64"),
        ({"f64": 10**400}, "f64"),
        ({"f64": Decimal(1)}, "f64"),
        ({"must": None}, "must"),
        ({"at": dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=5)))}, "at"),
        ({"s": {}}, "s.x"),
        ({"s": {"x": 1, "z": 1}}, "s.z"),
        ({"s": []}, "s"),
        ({"other": 1}, "other"),
    ],
    ids=str,
)
def test_arrow_columns_refuse_what_does_not_fit(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        schema_of(PLAIN).accept({"must": 1} | change)
    assert caught.value.field == field


@pytest.mark.fault("X3")
def test_infinity_and_nan_are_floats() -> None:
    schema = schema_of(PLAIN)
    (row,) = through_arrow(schema, schema.accept({"must": 1, "f32": math.inf, "f64": math.nan}))
    assert row is not None
    assert row["f32"] == math.inf
    assert math.isnan(row["f64"])  # type: ignore[arg-type] # a float, as just accepted


@pytest.mark.parametrize("value", [{}, {"a": None}], ids=str)
def test_a_row_of_nulls_is_refused_because_it_would_read_as_a_tombstone(
    value: dict[str, object],
) -> None:
    with pytest.raises(InvalidValue, match="deletion"):
        schema_of(pa.schema([("a", pa.int8())])).accept(value)


def test_tombstones_are_kept_apart_from_values() -> None:
    schema = schema_of(pa.schema([("a", pa.int8()), ("b", pa.string())]))
    row = schema.accept({"b": ""})
    assert through_arrow(schema, None, row, None) == [None, {"a": None, "b": ""}, None]
    assert through_arrow(schema) == []


def test_other_columns_of_a_batch_are_left_alone() -> None:
    schema = schema_of(pa.schema([("a", pa.int8()), ("b", pa.int8())]))
    batch = pa.RecordBatch.from_pydict({"_offset": [7], "b": [2], "a": [1]})
    assert schema.to_python(batch) == [{"a": 1, "b": 2}]


def test_a_field_unknown_to_the_topic_is_refused_with_name_and_remedy() -> None:
    schema = schema_of(pa.schema([("a", pa.int8()), pa.field("note", pa.string(), nullable=False)]))
    with pytest.raises(KafkaException, match="has no column 'note'; give it a default") as caught:
        schema.to_python(pa.RecordBatch.from_pydict({"a": [1]}))
    assert caught.value.args[0] == KafkaError._VALUE_DESERIALIZATION


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int8())),
        pa.array([2**62], pa.int64()).cast(TIMESTAMP),
    ],
    ids=["key twice", "year 148000"],
)
def test_a_value_that_python_cannot_hold_takes_the_place_of_its_row_alone(column: pa.Array) -> None:
    schema = schema_of(pa.schema([("a", column.type), ("b", pa.int8())]))
    three = pa.concat_arrays([pa.nulls(1, column.type), column, pa.nulls(1, column.type)])
    batch = pa.RecordBatch.from_arrays([three, pa.array([1, 2, 3], pa.int8())], ["a", "b"])
    first, found, last = schema.to_python(batch)
    assert (first, last) == ({"a": None, "b": 1}, {"a": None, "b": 3})
    assert isinstance(found, Unreadable)
    assert found.path == "a"


def test_a_row_older_than_a_field_takes_the_default_of_the_model() -> None:
    row = ORDERS.accept(order())
    assert ORDERS.restore(row | {"kind": None, "lines": None}) == order()
    with pytest.raises(KafkaException, match="customer") as caught:
        ORDERS.restore(row | {"customer": None})
    assert caught.value.args[0] == KafkaError._VALUE_DESERIALIZATION


def test_a_schema_can_be_sent_to_another_process() -> None:
    for schema in (ORDERS, schema_of(PLAIN)):
        twin = pickle.loads(pickle.dumps(schema))
        assert twin == schema
        assert twin.arrow.equals(schema.arrow, check_metadata=True)
    assert "SchemaValidator" not in repr(ORDERS)


def test_a_schema_of_another_model_is_another_schema() -> None:
    assert schema_of(Order) == ORDERS
    assert schema_of(Order) != schema_of(Renamed)
    assert schema_of(ORDERS.arrow) != ORDERS


# --- any schema, any value ---

SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal128(7, 3), st.decimals(-9999, 9999, places=3)),
    (pa.decimal128(38, 0), st.decimals(-(10**38) + 1, 10**38 - 1, places=0)),
    (pa.string(), st.text(max_size=8)),
    (pa.binary(), st.binary(max_size=8)),
    (pa.date32(), st.dates()),
    (
        TIMESTAMP,
        st.datetimes(timezones=st.sampled_from([UTC, dt.timezone(dt.timedelta(hours=-7))])).filter(
            lambda t: 1 < t.year < 9999
        ),
    ),
]
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


@pytest.mark.parametrize("zeros", [60, 100, 300, 10_000])
def test_zeros_at_the_end_of_a_decimal_change_nothing(zeros: int) -> None:
    schema = schema_of(pa.schema([("d", pa.decimal128(10, 2))]))
    row = {"d": Decimal("12.5" + "0" * zeros)}
    assert schema.to_arrow([schema.accept(row)])["d"].to_pylist() == [Decimal("12.5")]


def _list(inner: Typed) -> Typed:
    return pa.list_(inner[0]), st.lists(st.none() | inner[1], max_size=3)


def _map(inner: Typed) -> Typed:
    return pa.map_(pa.string(), inner[0]), st.dictionaries(
        st.text(max_size=3), st.none() | inner[1], max_size=3
    )


def _struct(inner: list[Typed]) -> Typed:
    fields = [pa.field(f"f{i}", kind, nullable=i % 2 == 0) for i, (kind, _) in enumerate(inner)]
    values = {
        f"f{i}": (st.none() | value) if i % 2 == 0 else value for i, (_, value) in enumerate(inner)
    }
    return pa.struct(fields), st.fixed_dictionaries(values)


TYPES: st.SearchStrategy[Typed] = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        inner.map(_list), inner.map(_map), st.lists(inner, min_size=1, max_size=3).map(_struct)
    ),
    max_leaves=6,
)


@pytest.mark.fault("X3")
@given(st.lists(TYPES, min_size=1, max_size=4), st.data())
def test_any_accepted_value_comes_back_equal(types: list[Typed], data: st.DataObject) -> None:
    # One column more, so that no row is all null.
    fields = [pa.field("there", pa.bool_(), nullable=False)]
    fields += [pa.field(f"c{i}", kind) for i, (kind, _) in enumerate(types)]
    schema = schema_of(pa.schema(fields))
    values = st.fixed_dictionaries(
        {"there": st.booleans()},
        optional={f"c{i}": st.none() | value for i, (_, value) in enumerate(types)},
    )
    rows = data.draw(st.lists(st.none() | values, max_size=4))
    accepted = [None if row is None else schema.accept(row) for row in rows]
    assert accepted == [
        None if row is None else dict.fromkeys(schema.arrow.names) | row for row in rows
    ]
    assert through_arrow(schema, *accepted) == accepted


@given(st.sampled_from(SCALARS), st.sampled_from(SCALARS), st.data())
def test_a_value_of_another_type_is_refused_unless_it_is_equal_there(
    mine: Typed, other: Typed, data: st.DataObject
) -> None:
    schema = schema_of(pa.schema([("a", mine[0])]))
    value = data.draw(other[1])
    try:
        accepted = schema.accept({"a": value})
    except InvalidValue as error:
        named = error.field
    else:
        named = "a"
        (row,) = through_arrow(schema, accepted)
        assert row is not None
        if mine[0] != pa.float32():
            assert row["a"] == value
    assert named == "a"


@pytest.mark.fault("X3")
@given(
    st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=4),
            st.binary(max_size=4),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
        ),
    )
)
def test_any_value_becomes_a_row_or_a_named_refusal(value: object) -> None:
    schemas: list[Callable[[object], object]] = [schema_of(PLAIN).accept, ORDERS.accept]
    for accept in schemas:
        try:
            row = accept(value)
        except InvalidValue:
            continue
        assert isinstance(row, dict)
