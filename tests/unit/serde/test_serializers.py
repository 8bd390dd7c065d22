"""Serializers write the bytes that confluent-kafka's write, and refuse by name what does not
conform.
"""

from __future__ import annotations

import math
import pickle
import re
import subprocess
import sys
from typing import Annotated, Any

import confluent_kafka.serialization as theirs
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import serde
from deltaq.serde import SerializationContext, SerializationError
from deltaq.serde.conversion import MessageDeserializers, MessageSerializers

IN_VALUE = SerializationContext("t", serde.MessageField.VALUE)


class Address(pydantic.BaseModel):
    street: str
    number: int


class Customer(pydantic.BaseModel):
    name: str
    address: Address | None = None


@given(st.text(st.characters(codec="utf-8")))
def test_text_has_the_bytes_of_confluent_kafka(text):
    for codec in ("utf_8", "utf_16"):
        data = serde.StringSerializer(codec)(text, IN_VALUE)
        assert data == theirs.StringSerializer(codec)(text)
        assert serde.StringDeserializer(codec)(data, IN_VALUE) == text


@given(st.integers(-(2**31), 2**31 - 1))
def test_an_integer_has_the_bytes_of_confluent_kafka(number):
    data = serde.IntegerSerializer()(number)
    assert data == theirs.IntegerSerializer()(number)
    assert serde.IntegerDeserializer()(data) == number


@given(st.floats(allow_nan=False))
def test_a_double_has_the_bytes_of_confluent_kafka(number):
    data = serde.DoubleSerializer()(number)
    assert data == theirs.DoubleSerializer()(number)
    assert serde.DoubleDeserializer()(data) == number


@pytest.mark.parametrize(
    "name", [name for name in serde.__all__ if re.fullmatch(r"\w+(S|Des)erializer", name)]
)
def test_none_is_a_tombstone_for_every_serializer(name):
    arguments = [Customer] if name.startswith("Model") else []
    assert getattr(serde, name)(*arguments)(None, IN_VALUE) is None


@pytest.mark.parametrize(
    ("convert", "value", "reason"),
    [
        (serde.IntegerSerializer(), 2**31, "2147483648"),
        (serde.IntegerSerializer(), "1", "required argument is not an integer"),
        (serde.DoubleSerializer(), "1.5", "required argument is not a float"),
        pytest.param(
            serde.DoubleSerializer(), 10**400, "required argument is not a float", id="huge"
        ),
        (serde.StringSerializer(), b"x", "expected str, not bytes"),
        (serde.StringSerializer("ascii"), "ü", "ascii"),
        (serde.StringDeserializer(), b"\xff", "utf-8"),
        (serde.IntegerDeserializer(), b"\0\0\0", "expected 4 bytes, not 3"),
        (serde.DoubleDeserializer(), b"", "expected 8 bytes, not 0"),
        (serde.PlainJSONSerializer(), math.nan, "not JSON compliant"),
        (serde.PlainJSONSerializer(), {"x": object()}, "not JSON serializable"),
        (serde.PlainJSONDeserializer(), b"{", "not JSON"),
        (serde.PlainJSONDeserializer(), b"[" * 100_000, "not JSON"),
        (
            serde.ModelSerializer(Customer),
            Address(street="a", number=1),
            "expected Customer or dict, not Address",
        ),
        (serde.ArrowSerializer(), [1], "expected pyarrow.Table or RecordBatch, not list"),
        (serde.ArrowDeserializer(), b"no stream", "not an Arrow IPC stream"),
    ],
)
def test_what_does_not_conform_is_refused(convert, value, reason):
    with pytest.raises(SerializationError, match=reason):
        convert(value, IN_VALUE)


def test_json_is_read_back_and_is_compact():
    document = {"a": [1, None, "ü"], "b": {"c": 1.5}}
    data = serde.PlainJSONSerializer()(document)
    assert data == b'{"a":[1,null,"\\u00fc"],"b":{"c":1.5}}'
    assert serde.PlainJSONDeserializer()(data) == document


def test_a_model_is_read_back_and_a_wrong_field_is_named():
    customer = Customer(name="Ada", address=Address(street="Main St", number=3))
    data = serde.ModelSerializer(Customer)(customer)
    assert data == b'{"name":"Ada","address":{"street":"Main St","number":3}}'
    assert serde.ModelDeserializer(Customer)(data) == customer
    assert (
        serde.ModelSerializer(Customer)({"name": "Ada", "address": None})
        == b'{"name":"Ada","address":null}'
    )
    for wrong in (
        lambda: serde.ModelSerializer(Customer)(
            {"name": "Ada", "address": {"street": "x", "number": "y"}}
        ),
        lambda: serde.ModelDeserializer(Customer)(
            b'{"name":"Ada","address":{"street":"x","number":"y"}}'
        ),
    ):
        with pytest.raises(SerializationError, match=r"^field 'address\.number': ") as refused:
            wrong()
        assert refused.value.field == "address.number"


def test_an_instance_that_was_changed_to_something_invalid_is_refused():
    customer = Customer(name="Ada")
    customer.name = 5  # type: ignore[assignment]  # the point of the test
    with pytest.raises(SerializationError, match="field 'name'"):
        serde.ModelSerializer(Customer)(customer)
    address = Address(street="x", number=1)
    address.number = "y"  # type: ignore[assignment]  # as above
    for changed in (Customer(name="Ada", address=address), {"name": "Ada", "address": address}):
        with pytest.raises(SerializationError, match=r"field 'address\.number'"):
            serde.ModelSerializer(Customer)(changed)


class Screw(Address):
    length: int


class Box(pydantic.BaseModel):
    parts: list[Address]


class Hidden(pydantic.BaseModel):
    id: int = 1
    secret: str = pydantic.Field(default="", exclude=True)


class HiddenInside(pydantic.BaseModel):
    by_name: dict[str, Hidden]


class RequiredHidden(pydantic.BaseModel):
    id: int = 1
    secret: str = pydantic.Field(exclude=True)


class Appending(pydantic.BaseModel):
    label: Annotated[str, pydantic.AfterValidator(lambda text: text + "!")]


class Spelled(pydantic.BaseModel):
    """A model whose serializer another program would have to know."""

    count: int

    @pydantic.field_serializer("count")
    def spell(self, count: int) -> str:
        return f"{count} pieces"


class Quoted(pydantic.BaseModel):
    count: int

    @pydantic.field_serializer("count")
    def quote(self, count: int) -> str:
        return str(count)


class Password(pydantic.BaseModel):
    word: pydantic.SecretStr


class Doubled(pydantic.BaseModel, extra="forbid"):
    count: int

    @pydantic.computed_field
    def double(self) -> int:
        return 2 * self.count


class Whole(pydantic.BaseModel):
    count: int

    @pydantic.model_serializer
    def shorten(self) -> dict[str, int]:
        return {}


class AnyList(pydantic.BaseModel):
    items: list[Any]


SCREW = Screw(street="x", number=1, length=20)


@pytest.mark.parametrize(
    ("model", "value", "field", "reason"),
    [
        (Box, Box(parts=[SCREW]), "parts.0.length", "Screw has the field 'length'"),
        (Box, {"parts": [SCREW]}, "parts.0.length", "Screw has the field 'length'"),
        (Address, SCREW, "length", "Screw has the field 'length'"),
        (Hidden, Hidden(id=2, secret="x"), "secret", "exclude keeps it out"),
        (Hidden, {"secret": "x"}, "secret", "exclude keeps it out"),
        (
            HiddenInside,
            {"by_name": {"k": {"secret": "x"}}},
            "by_name.k.secret",
            "exclude keeps it out",
        ),
        (RequiredHidden, {"secret": "x"}, "secret", "exclude keeps it out"),
        (Appending, Appending(label="x"), "label", "would be read back as another value"),
        (Appending, {"label": "x"}, "label", "would be read back as another value"),
        (Spelled, Spelled(count=2), "count", "valid integer"),
        (Whole, Whole(count=2), "count", "Field required"),
        (Doubled, Doubled(count=2), "double", "Extra inputs are not permitted"),
        (
            Password,
            Password(word=pydantic.SecretStr("hunter2")),
            "word",
            "would be read back as another value",
        ),
        (Address, Address.model_construct(street="x"), "number", "Field required"),
        (Hidden, Hidden.model_construct(id="5"), "id", "would be read back as another value"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_model_that_its_json_does_not_give_back_is_refused_by_field(model, value, field, reason):
    with pytest.raises(SerializationError, match=reason) as refused:
        serde.ModelSerializer(model)(value)
    assert refused.value.field == field
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("value", [Quoted(count=2), Hidden(id=3), Hidden(secret="")], ids=repr)
def test_serializers_and_excluded_fields_that_are_read_back_equal_hold(value):
    data = serde.ModelSerializer(type(value))(value)
    assert serde.ModelDeserializer(type(value))(data) == value


def test_a_value_without_end_is_refused():
    box, anything = Box(parts=[]), AnyList(items=[])
    box.parts.append(box)  # type: ignore[arg-type]  # the point of the test
    anything.items.append(anything.items)
    for value, reason in (
        (box, "field 'parts.0.street': Field required"),
        (anything, "Circular reference"),
    ):
        with pytest.raises(SerializationError, match=reason):
            serde.ModelSerializer(type(value))(value)


def test_a_model_with_a_root_is_read_back_alone_and_inside_another():
    class Tags(pydantic.RootModel[list[str]]):
        pass

    class Tagged(pydantic.BaseModel):
        tags: Tags

    for instance, data in (
        (Tags(["a", "b"]), b'["a","b"]'),
        (Tagged(tags=Tags(["a"])), b'{"tags":["a"]}'),
    ):
        assert serde.ModelSerializer(type(instance))(instance) == data
        assert serde.ModelDeserializer(type(instance))(data) == instance


def test_arrow_tables_are_read_back_and_a_column_of_another_type_is_named():
    table = pa.table({"x": pa.array([1, 2, None]), "y": ["a", "b", "c"]})
    data = serde.ArrowSerializer(table.schema)(table)
    assert serde.ArrowDeserializer(table.schema)(data) == table
    assert serde.ArrowDeserializer()(serde.ArrowSerializer()(table.to_batches()[0])) == table
    other = table.set_column(1, "y", pa.array([1, 2, 3]))
    for refusing in (
        serde.ArrowSerializer(table.schema),
        lambda t: serde.ArrowDeserializer(t.schema)(data),
    ):
        with pytest.raises(SerializationError, match="field 'y'"):
            refusing(other)
    with pytest.raises(SerializationError, match="field 'z'"):
        serde.ArrowSerializer(table.schema)(table.append_column("z", pa.array([1, 2, 3])))


def test_a_serializer_may_append_headers_without_changing_those_of_the_application():
    def sign(value: bytes, ctx: SerializationContext) -> bytes:
        ctx.headers.append((f"signed-{ctx.field}", b"1"))
        return value

    serializers = MessageSerializers(sign, sign)
    mine = [("h", b"x")]
    assert serializers.serialize("t", b"k", b"v", mine).headers == [
        ("h", b"x"),
        ("signed-key", b"1"),
        ("signed-value", b"1"),
    ]
    assert mine == [("h", b"x")]
    assert serializers.serialize("t", b"k", b"v", None).headers == [
        ("signed-key", b"1"),
        ("signed-value", b"1"),
    ]
    assert MessageSerializers(value=serde.StringSerializer()).serialize("t", b"k", "v", None) == (
        b"k",
        b"v",
        None,
    )


def test_serializers_of_a_topic_come_before_those_of_the_client():
    text, number = serde.StringSerializer(), serde.IntegerSerializer()
    assert MessageSerializers(value=text).over(
        MessageSerializers(number, number)
    ) == MessageSerializers(number, text)
    assert not MessageDeserializers()
    assert MessageDeserializers(key=serde.StringDeserializer())


def test_errors_can_be_pickled_and_have_the_bases_of_confluent_kafka():
    cause = SerializationError("too short", field="a.b")
    error = serde.ValueSerializationError(cause)
    assert isinstance(error, serde.ProduceError)
    assert isinstance(error, SerializationError)
    assert (error.field, error.code, error.name) == ("a.b", -161, "_VALUE_SERIALIZATION")
    assert "field 'a.b': too short" in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.field, str(copy), str(copy.exception)) == (
        type(error),
        "a.b",
        str(error),
        str(cause),
    )
    assert {cls.__name__ for cls in serde.KeyDeserializationError.__mro__} >= {
        cls.__name__
        for cls in confluent_error("KeyDeserializationError").__mro__
        if not cls.__name__.startswith("_")
    }


def confluent_error(name: str) -> type:
    import confluent_kafka.error

    found: type = getattr(confluent_kafka.error, name)
    return found


def test_text_and_numbers_load_no_other_library():
    program = (
        "import deltaq.serde, sys; assert not {'pyarrow', 'pydantic', 'fastavro'} & "
        "set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


class Measurement(pydantic.BaseModel):
    value: float | None = None
    history: list[float] = []
    by_sensor: dict[int, float] = {}


class SpelledMeasurement(Measurement):
    model_config = {"ser_json_inf_nan": "strings"}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("field", "wrap"),
    [
        ("value", lambda number: {"value": number}),
        ("history.1", lambda number: {"history": [1.0, number]}),
        ("by_sensor.7", lambda number: {"by_sensor": {7: number}}),
    ],
)
def test_a_number_of_a_model_that_would_become_null_is_refused(number, field, wrap):
    with pytest.raises(
        serde.SerializationError, match=rf"field '{field}': NaN and infinities would become null"
    ):
        serde.ModelSerializer(Measurement)(wrap(number))
    spelled = SpelledMeasurement(**wrap(number))
    data = serde.ModelSerializer(SpelledMeasurement)(spelled)
    assert repr(serde.ModelDeserializer(SpelledMeasurement)(data)) == repr(spelled)
