"""The Avro serializers: what they register, what they refuse, and which schema they read with."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from deltaq import DeserializingConsumer, SerializingProducer
from deltaq.clock import Clock
from deltaq.errors import InvalidConfig
from deltaq.schema_registry import (
    Metadata,
    MetadataProperties,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    header_schema_id_serializer,
    record_subject_name_strategy,
)
from deltaq.schema_registry.avro import AvroDeserializer, AvroSerializer
from deltaq.schema_registry.rules import RuleSet
from deltaq.serde import (
    MessageField,
    SerializationContext,
    SerializationError,
    ValueDeserializationError,
)
from deltaq.serde.errors import ValueSerializationError
from deltaq.store import MemoryStore
from deltaq.testing import ManualClock


def record(*fields: tuple[str, Any] | tuple[str, Any, Any], name: str = "shop.Order") -> str:
    """A record; a field with a third part has it as its default."""
    listed = [
        {"name": f[0], "type": f[1], **({"default": f[2]} if len(f) > 2 else {})} for f in fields
    ]
    return json.dumps({"type": "record", "name": name, "fields": listed})


ONE = record(("id", "int"))
TWO = record(("id", "int"), ("note", "string", "none"))
VALUE = SerializationContext("orders", MessageField.VALUE)


@pytest.fixture
def client() -> SchemaRegistryClient:
    return SchemaRegistryClient({}, store=MemoryStore("test"))


def test_a_message_has_a_prefix_of_a_zero_byte_and_the_id(client):
    data = AvroSerializer(client, ONE)({"id": -2}, VALUE)
    assert data == b"\x00" + b"\x00\x00\x00\x01" + b"\x03"
    assert client.get_subjects() == ["orders-value"]
    assert AvroDeserializer(client)(data, VALUE) == {"id": -2}
    assert AvroSerializer(client, ONE)(None, VALUE) is None
    assert AvroDeserializer(client)(None, VALUE) is None


def test_objects_pass_through_the_callables(client):
    serializer = AvroSerializer(
        client, ONE, lambda number, context: {"id": number + len(context.topic)}
    )
    data = serializer(1, VALUE)
    assert AvroDeserializer(
        client, from_dict=lambda fields, context: (fields["id"], context.topic)
    )(data, VALUE) == (
        7,
        "orders",
    )
    with pytest.raises(TypeError, match="SerializationContext"):
        AvroDeserializer(client, from_dict=lambda fields, context: fields)(data)
    with pytest.raises(InvalidConfig, match="to_dict must be callable"):
        AvroSerializer(client, ONE, to_dict={})  # type: ignore[arg-type]


SUM = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
NESTED = record(
    ("id", "int"),
    ("flag", "boolean", False),
    (
        "address",
        [
            "null",
            {
                "type": "record",
                "name": "Address",
                "fields": [
                    {"name": "zip", "type": "string"},
                    {"name": "paid", "type": {"type": "array", "items": SUM}, "default": []},
                ],
            },
        ],
        None,
    ),
    ("sum", SUM, ""),
    ("ratio", ["null", "float"], None),
    (
        "choice",
        [
            "null",
            *(
                {"type": "record", "name": n, "fields": [{"name": "x", "type": "int"}]}
                for n in "AB"
            ),
        ],
        None,
    ),
)


@pytest.mark.parametrize(
    ("value", "field", "text"),
    [
        ({"id": 1.5}, "shop.Order.id", "expected int, not float"),
        ({"id": 2**31}, "shop.Order.id", "the number does not fit int"),
        ({"id": True}, "shop.Order.id", "expected int"),
        ({"id": 1, "flag": "yes"}, "shop.Order.flag", "expected boolean, not str"),
        ({}, "shop.Order.id", "expected int, not None"),
        ({"id": 1, "address": {"zip": 7}}, "shop.Address.zip", "expected string, not int"),
        ({"id": 1, "sum": Decimal("1.234")}, "shop.Order.sum", "Scale"),
        ({"id": 1, "sum": Decimal("NaN")}, "shop.Order.sum", "a decimal must be finite"),
        ({"id": 1, "sum": Decimal("-Infinity")}, "shop.Order.sum", "a decimal must be finite"),
        ({"id": 1, "sum": Decimal("123.45")}, "shop.Order.sum", "precision"),
        (
            {"id": 1, "address": {"zip": "", "paid": [Decimal(0), Decimal("0.001")]}},
            "shop.Address.paid",
            "Scale",
        ),
        ({"id": 1, "ratio": 1e39}, "shop.Order.ratio", "the number does not fit float"),
        ({"id": 1, "ratio": -(10**39)}, "shop.Order.ratio", "the number does not fit float"),
        ({"id": 1, "ratio": 10**400}, "shop.Order.ratio", "too large"),
        (
            {"id": 1, "choice": {"-type": "shop.C", "x": 1}},
            "shop.Order.choice",
            "no branch of the union",
        ),
        ("text", None, "expected shop.Order, not str"),
        ([], None, "expected shop.Order, not list"),
    ],
)
def test_a_record_that_does_not_conform_is_refused_with_its_field(client, value, field, text):
    with pytest.raises(SerializationError, match=text) as refused:
        AvroSerializer(client, NESTED)(value, VALUE)
    assert refused.value.field == field


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 3.4e38, -3.4e38])
def test_a_number_that_float_has_is_written(client, value):
    data = AvroSerializer(client, NESTED)({"id": 1, "ratio": value}, VALUE)
    assert AvroDeserializer(client)(data, VALUE)["ratio"] == pytest.approx(value)


def test_a_record_may_name_its_branch_as_a_tuple_or_by_its_type(client):
    for place in ("A", "B"):
        named = {"id": 1, "choice": {"-type": f"shop.{place}", "x": 1}}
        data = AvroSerializer(client, NESTED)(named, VALUE)
        assert data == AvroSerializer(client, NESTED)(
            {"id": 1, "choice": (f"shop.{place}", {"x": 1})}, VALUE
        )
        found = AvroDeserializer(client, return_record_name=True)(data, VALUE)["choice"]
        assert found == (f"shop.{place}", {"x": 1})
    assert named == {"id": 1, "choice": {"-type": "shop.B", "x": 1}}


COLOR = {"type": "enum", "name": "shop.Color", "symbols": ["RED"]}
ANY = record(("any", ["string", "bytes", COLOR, {"type": "array", "items": "int"}, "double"]))


@pytest.mark.parametrize(
    ("given", "branch", "value"),
    [
        (("shop.Color", "RED"), 2, "RED"),
        (("array", [1, 2]), 3, [1, 2]),
        (("string", "RED"), 0, "RED"),
        ("RED", 0, "RED"),
        (("double", 1), 4, 1.0),
    ],
)
def test_a_value_can_name_its_branch_of_a_union(client, given, branch, value):
    data = AvroSerializer(client, ANY)({"any": given}, VALUE)
    assert data is not None
    assert data[5] == 2 * branch
    assert AvroDeserializer(client)(data, VALUE) == {"any": value}


@pytest.mark.parametrize(
    "given", [("shop.Nosuch", "RED"), ("array", ["x"]), ("shop.Color", "BLUE"), (1, 2)]
)
def test_a_value_that_is_none_of_its_branch_is_refused(client, given):
    with pytest.raises(SerializationError):
        AvroSerializer(client, ANY)({"any": given}, VALUE)


def test_strictness_is_that_of_the_settings(client):
    assert AvroSerializer(client, TWO)({"id": 1, "more": 2}, VALUE)
    strict = AvroSerializer(client, TWO, conf={"validate.strict": True})
    for value in ({"id": 1, "note": "", "more": 2}, {"id": 1}):
        with pytest.raises(SerializationError, match=r"more|note"):
            strict(value, VALUE)
    lenient = AvroSerializer(client, TWO, conf={"validate.strict.allow.default": True})
    assert lenient({"id": 1}, VALUE)
    with pytest.raises(SerializationError, match="more"):
        lenient({"id": 1, "more": 2}, VALUE)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no schema id"),
        (b"\x00\x00", "no schema id"),
        (b"\x05\x00\x00\x00\x01\x02", "no schema id"),
        (b"\x00\x00\x00\x00\x01", "no record of the schema shop.Order"),
        (b"\x00\x00\x00\x00\x01\xff", "no record of the schema shop.Order"),
        (b"\x00\x00\x00\x00\x01\x02\x02", "1 bytes follow the record"),
    ],
)
def test_bytes_that_are_no_record_are_refused(client, data, text):
    AvroSerializer(client, ONE)({"id": 1}, VALUE)
    with pytest.raises(SerializationError, match=text):
        AvroDeserializer(client)(data, VALUE)


def test_a_message_of_an_unknown_schema_is_an_error_of_the_registry(client):
    with pytest.raises(SchemaRegistryError, match="no schema with id 7"):
        AvroDeserializer(client)(b"\x00\x00\x00\x00\x07\x02", VALUE)


def test_old_records_are_read_with_the_schema_of_the_reader(client):
    data = AvroSerializer(client, ONE)({"id": 1}, VALUE)
    assert AvroDeserializer(client, TWO)(data, VALUE) == {"id": 1, "note": "none"}
    with pytest.raises(SerializationError, match="no record of the schema"):
        AvroDeserializer(client, record(("id", "string")))(data, VALUE)
    client.register_schema("orders-value", Schema(TWO))
    latest = AvroDeserializer(client, conf={"use.latest.version": True})
    assert latest(data, VALUE) == {"id": 1, "note": "none"}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
INNER = {
    "type": "record",
    "name": "shop.Part",
    "fields": [{"name": "code", "type": "bytes", "default": "\u00ff"}],
}
# The type of a field, its default in JSON, and the value that this stands for.
DEFAULTS: list[tuple[Any, Any, Any]] = [
    ("bytes", "\u00ffa", b"\xffa"),
    ({"type": "fixed", "name": "shop.Two", "size": 2}, "\u0000\u0001", b"\x00\x01"),
    (DECIMAL, "\u0001", Decimal("0.01")),
    (["null", DECIMAL], None, None),
    ([DECIMAL, "null"], "\u0001", Decimal("0.01")),
    ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
    ({"type": "long", "logicalType": "timestamp-millis"}, 0, datetime(1970, 1, 1, tzinfo=UTC)),
    ("double", 1, 1.0),
    ("boolean", True, True),
    (["long", "boolean"], True, True),
    ({"type": "array", "items": "bytes"}, ["a"], [b"a"]),
    ({"type": "map", "values": DECIMAL}, {"k": "\u0001"}, {"k": Decimal("0.01")}),
    (INNER, {}, {"code": b"\xff"}),
    ({"type": "enum", "name": "shop.Color", "symbols": ["RED"]}, "RED", "RED"),
]


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS)
@pytest.mark.parametrize("form", ["{}", '["null",{}]', '{{"type":"array","items":{}}}'])
def test_a_default_is_the_value_that_its_json_stands_for(client, kind, default, value, form):
    def of_form(one: Any) -> Any:
        return [one] if "array" in form else one

    old, new = form.format(ONE), form.format(record(("id", "int"), ("more", kind, default)))
    without = AvroSerializer(client, new)(of_form({"id": 1}), VALUE)
    assert AvroDeserializer(client)(without, VALUE) == of_form({"id": 1, "more": value}), (
        "as written"
    )
    client.delete_subject("orders-value")
    earlier = AvroSerializer(client, old)(of_form({"id": 1}), VALUE)
    found = AvroDeserializer(client, new)(earlier, VALUE)
    assert found == of_form({"id": 1, "more": value}), "as read"
    filled = found[0] if isinstance(found, list) else found
    assert type(filled["more"]) is type(value)


def test_a_record_that_an_application_changes_leaves_the_defaults_of_others_alone(client):
    data = AvroSerializer(client, ONE)({"id": 1}, VALUE)
    tags = {"type": "array", "items": "string"}
    deserializer = AvroDeserializer(client, record(("id", "int"), ("tags", tags, [])))
    first = deserializer(data, VALUE)
    first["tags"].append("changed")
    assert deserializer(data, VALUE) == {"id": 1, "tags": []}
    old, new = (f'["null",{each}]' for each in (ONE, record(("id", "int"), ("tags", tags, []))))
    data = AvroSerializer(client, old, conf={"subject.name.strategy": lambda _, name: "union"})(
        {"id": 1}, VALUE
    )
    named = AvroDeserializer(client, new, return_record_name=True)
    named(data, VALUE)[1]["tags"].append("changed")
    assert named(data, VALUE) == ("shop.Order", {"id": 1, "tags": []})


def test_a_default_that_stands_for_no_value_is_refused_only_where_it_is_needed(client):
    serializer = AvroSerializer(client, record(("id", "int"), ("sum", "bytes", "\u20ac")))
    assert serializer({"id": 1, "sum": b"1"}, VALUE)
    with pytest.raises(SerializationError, match="expected bytes, not str"):
        serializer({"id": 1}, VALUE)


def test_without_registration_the_schema_must_be_there(client):
    serializer = AvroSerializer(client, ONE, conf={"auto.register.schemas": False})
    with pytest.raises(SchemaRegistryError, match="orders-value"):
        serializer({"id": 1}, VALUE)
    client.register_schema("other", Schema(TWO))
    client.register_schema("orders-value", Schema(ONE))
    assert serializer({"id": 1}, VALUE) == b"\x00\x00\x00\x00\x02\x02"


def test_an_incompatible_schema_is_not_registered_and_nothing_is_written(client):
    AvroSerializer(client, ONE)({"id": 1}, VALUE)
    with pytest.raises(SchemaRegistryError, match="incompatible"):
        AvroSerializer(client, record(("id", "int"), ("must", "string")))(
            {"id": 1, "must": ""}, VALUE
        )
    assert client.get_versions("orders-value") == [1]


def test_records_are_written_with_the_version_that_the_settings_name(client):
    named = Metadata(properties=MetadataProperties({"team": "red"}))
    one = client.register_schema("orders-value", Schema(ONE, metadata=named))
    two = client.register_schema("orders-value", Schema(TWO))
    chosen: list[tuple[dict[str, Any], int]] = [
        ({"use.latest.version": True}, two),
        ({"use.latest.with.metadata": {"team": "red"}}, one),
        ({"use.schema.id": one}, one),
    ]
    for conf, expected in chosen:
        data = AvroSerializer(client, conf={"auto.register.schemas": False, **conf})(
            {"id": 1}, VALUE
        )
        assert data is not None
        assert int.from_bytes(data[1:5]) == expected
    with pytest.raises(SerializationError, match=r"set use\.latest\.version"):
        AvroSerializer(client)({"id": 1}, VALUE)


@pytest.mark.parametrize(("lifetime", "expected"), [({}, 1), ({"cache.latest.ttl.sec": 5}, 2)])
def test_the_latest_version_is_read_again_after_its_time(lifetime, expected):
    clock: Clock = ManualClock()
    client = SchemaRegistryClient(lifetime, store=MemoryStore("test", clock), clock=clock)
    client.register_schema("orders-value", Schema(ONE))
    conf = {"auto.register.schemas": False, "use.latest.version": True}
    serializer = AvroSerializer(client, conf=conf)

    def schema_id() -> int:
        data = serializer({"id": 1}, VALUE)
        assert data is not None
        return int.from_bytes(data[1:5])

    assert schema_id() == 1
    client.register_schema("orders-value", Schema(TWO))
    assert schema_id() == 1
    clock.advance(6)  # type: ignore[attr-defined]
    assert schema_id() == expected
    client.clear_latest_caches()
    assert schema_id() == 2


def test_subjects_can_have_the_name_of_the_record(client):
    for conf in (
        {"subject.name.strategy": record_subject_name_strategy},
        {"subject.name.strategy.type": "record"},
    ):
        AvroSerializer(client, ONE, conf=conf)({"id": 1})
    AvroSerializer(client, ONE, conf={"subject.name.strategy.type": "TOPIC_RECORD"})(
        {"id": 1}, VALUE
    )
    assert client.get_subjects() == ["orders-shop.Order", "shop.Order"]
    union = AvroSerializer(
        client, '["null","int"]', conf={"subject.name.strategy": record_subject_name_strategy}
    )
    with pytest.raises(SerializationError, match="no name"):
        union(1, VALUE)


def test_the_id_can_be_in_a_header(client):
    headers: list[tuple[str, Any]] = []
    context = SerializationContext("orders", MessageField.KEY, headers)
    data = AvroSerializer(client, ONE, conf={"schema.id.serializer": header_schema_id_serializer})(
        {"id": 1}, context
    )
    assert data == b"\x02"
    (name, guid), found = headers[0], client.get_latest_version("orders-key")
    assert (name, guid) == ("__key_schema_id", b"\x01" + bytes.fromhex(found.guid.replace("-", "")))
    assert AvroDeserializer(client)(data, context) == {"id": 1}


ADDRESS = record(("zip", "string"), name="shop.Address")
PERSON = record(
    ("home", "shop.Address"), ("work", ["null", "shop.Address"], None), name="shop.Person"
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (PERSON, {"home": {"zip": "1"}, "work": None}),
        (
            '["null","shop.Address","shop.Person"]',
            ("shop.Person", {"home": {"zip": "1"}, "work": {"zip": "2"}}),
        ),
        ('{"type":"array","items":"shop.Person"}', [{"home": {"zip": "1"}, "work": None}]),
    ],
)
def test_a_schema_can_refer_to_others(client, text, value):
    client.register_schema("address", Schema(ADDRESS))
    address, person = (
        SchemaReference("shop.Address", "address", 1),
        SchemaReference("shop.Person", "person", 1),
    )
    client.register_schema("person", Schema(PERSON, references=[address]))
    references = [address] if text == PERSON else [address, person]
    data = AvroSerializer(client, Schema(text, references=references))(value, VALUE)
    assert AvroDeserializer(client)(data, VALUE) == (
        value[1] if isinstance(value, tuple) else value
    )
    with pytest.raises(SerializationError, match=r"shop\.(Address|Person)"):
        AvroSerializer(client, text)


def test_a_serializer_refuses_what_it_cannot_use(client):
    with pytest.raises(SerializationError, match="invalid AVRO schema"):
        AvroSerializer(client, '{"type":"record"}')
    with pytest.raises(InvalidConfig, match="type AVRO"):
        AvroSerializer(client, Schema("{}", "JSON"))
    with pytest.raises(TypeError, match="SchemaRegistryClient, not dict"):
        AvroSerializer({}, ONE)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="rules are not supported"):
        AvroSerializer(client, ONE, rule_conf={"a": 1})
    with pytest.raises(InvalidConfig, match="rules are not supported"):
        AvroSerializer(client, ONE, conf={"validation.rules.execution": "BEFORE_DOMAIN_RULES"})
    with pytest.raises(InvalidConfig, match="rules are not supported"):
        AvroSerializer(
            client,
            Schema('"string"', rule_set=RuleSet.from_dict({"domainRules": [{"name": "encrypt"}]})),
        )


def test_messages_pass_through_a_topic_and_a_bad_one_has_its_bytes_and_its_place(memory_root):
    conf = {"bootstrap.servers": memory_root, "maintenance.enable": False}
    client = SchemaRegistryClient({"url": memory_root})
    with SerializingProducer(conf, value_serializer=AvroSerializer(client, ONE)) as producer:
        producer.produce("orders", "a", {"id": 1})
        with pytest.raises(ValueSerializationError, match="expected int, not str") as refused:
            producer.produce("orders", "b", {"id": "x"})
        assert refused.value.field == "shop.Order.id"
        producer.produce("orders", "c", {"id": 2})
    with SerializingProducer(conf) as raw:
        raw.produce("orders", "d", b"\x00\x00\x00\x00\x01")
    reading = {**conf, "group.id": "g", "auto.offset.reset": "earliest"}
    deserializer = AvroDeserializer(SchemaRegistryClient({"url": memory_root}))
    with DeserializingConsumer(reading, value_deserializer=deserializer) as consumer:
        consumer.subscribe(["orders"])
        found = [consumer.poll(30) for _ in range(2)]
        assert [message.value() for message in found if message] == [{"id": 1}, {"id": 2}]
        with pytest.raises(
            ValueDeserializationError, match=r"topic 'orders', partition 0, offset 2"
        ) as failed:
            consumer.poll(30)
        assert failed.value.kafka_message is not None
        assert failed.value.kafka_message.value() == b"\x00\x00\x00\x00\x01"
