"""Serializers compared with those of confluent_kafka: the same settings, bytes and values."""

from __future__ import annotations

import datetime
import decimal
import importlib
import inspect
import json
import re
import uuid
from typing import Any

import confluent_kafka.schema_registry as theirs
import confluent_kafka.schema_registry.avro as their_avro
import confluent_kafka.schema_registry.json_schema as their_json
import confluent_kafka.schema_registry.protobuf as their_protobuf
import confluent_kafka.schema_registry.serde
import confluent_kafka.serialization
import pytest
from google.protobuf.message_factory import GetMessageClass

import deltaq.compat.confluent.schema_registry as compat
import deltaq.schema_registry as ours
import deltaq.schema_registry.avro as our_avro
import deltaq.schema_registry.json_schema as our_json
import deltaq.schema_registry.protobuf as our_protobuf
from deltaq import DeserializingConsumer, SerializingProducer
from deltaq.errors import InvalidConfig
from deltaq.schema_registry.protobuf_format import parse
from deltaq.serde.serializers import MessageField, SerializationContext
from deltaq.store import MemoryStore

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {
                "name": "kind",
                "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]},
                "default": "OLD",
            },
            {"name": "prices", "type": {"type": "map", "values": "double"}, "default": {}},
        ],
    }
)
LOGICAL = json.dumps(
    {
        "type": "record",
        "name": "L",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {
                "name": "sum",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
            },
            {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        ],
    }
)
UNION = json.dumps(
    [
        {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]},
        {"type": "record", "name": "B", "fields": [{"name": "x", "type": "int"}]},
    ]
)
LOGICAL_VALUE = {
    "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.UTC),
    "day": datetime.date(2026, 1, 2),
    "sum": decimal.Decimal("12.34"),
    "key": uuid.UUID(int=7),
}


class Pair:
    """A registry of each package, which give out the same ids."""

    def __init__(self) -> None:
        self.theirs: Any = theirs.SchemaRegistryClient.new_client({"url": f"mock://{uuid.uuid4()}"})
        self.ours = ours.SchemaRegistryClient({}, store=MemoryStore("test"))


@pytest.fixture
def pair() -> Pair:
    return Pair()


@pytest.fixture(scope="module")
def unused_pair() -> Pair:
    """Registries in which nothing is registered."""
    return Pair()


def contexts(topic: str = "orders", headers: Any = None) -> tuple[Any, Any]:
    """The same context for each package."""
    their_field = confluent_kafka.serialization.MessageField.VALUE
    return (
        confluent_kafka.serialization.SerializationContext(topic, their_field, headers),
        SerializationContext(topic, MessageField.VALUE, None if headers is None else list(headers)),
    )


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (ORDER, {"id": 5}),
        (ORDER, {"id": -(2**62), "note": "ü", "kind": "NEW", "prices": {"EUR": 1.5}, "more": 1}),
        (LOGICAL, LOGICAL_VALUE),
        (UNION, ("B", {"x": 1})),
        (UNION, {"x": 1}),
        ('"string"', "text"),
        ('{"type":"string"}', "text"),
        ('"bytes"', b"raw"),
        ('"int"', 5),
        ('{"type":"array","items":"long"}', [1, 2, 3]),
    ],
)
def test_avro_bytes_and_values_are_those_of_confluent_kafka(pair, schema, value):
    their_context, our_context = contexts()
    data = our_avro.AvroSerializer(pair.ours, schema)(value, our_context)
    assert data == their_avro.AvroSerializer(pair.theirs, schema)(value, their_context)
    assert data is not None
    expected = their_avro.AvroDeserializer(pair.theirs)(data, their_context)
    assert our_avro.AvroDeserializer(pair.ours)(data, our_context) == expected
    named = our_avro.AvroDeserializer(pair.ours, return_record_name=True)(data, our_context)
    assert named == their_avro.AvroDeserializer(pair.theirs, return_record_name=True)(
        data, their_context
    )


def test_a_readers_schema_gives_what_it_gives_in_confluent_kafka(pair):
    their_context, our_context = contexts()
    reader = json.dumps(
        {
            "type": "record",
            "name": "Order",
            "namespace": "shop",
            "fields": [
                {"name": "id", "type": "double"},
                {"name": "extra", "type": "string", "default": "none"},
            ],
        }
    )
    data = our_avro.AvroSerializer(pair.ours, ORDER)({"id": 5}, our_context)
    assert their_avro.AvroSerializer(pair.theirs, ORDER)({"id": 5}, their_context) == data
    assert data is not None
    record = our_avro.AvroDeserializer(pair.ours, reader)(data, our_context)
    assert record == {"id": 5.0, "extra": "none"}
    assert record == their_avro.AvroDeserializer(pair.theirs, reader)(data, their_context)


@pytest.mark.parametrize("draft", [None, "http://json-schema.org/draft-07/schema#"])
@pytest.mark.parametrize("value", [{"id": 5, "note": "ü"}, {"id": 2**40}, {"id": 1.0}])
def test_json_bytes_and_values_are_those_of_confluent_kafka(pair, draft, value):
    their_context, our_context = contexts()
    schema = {
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "number"}},
        "required": ["id"],
    }
    text = json.dumps(schema if draft is None else {"$schema": draft, **schema})
    data = our_json.JSONSerializer(text, pair.ours)(value, our_context)
    assert data == their_json.JSONSerializer(text, pair.theirs)(value, their_context)
    assert data is not None
    for ours_reads, theirs_reads in ((None, None), (text, text)):
        found = our_json.JSONDeserializer(ours_reads, schema_registry_client=pair.ours)(
            data, our_context
        )
        assert found == value
        expected = their_json.JSONDeserializer(theirs_reads, schema_registry_client=pair.theirs)(
            data, their_context
        )
        assert found == expected


@pytest.mark.parametrize("path", [["First"], ["Order"], ["Order", "Line"]])
def test_protobuf_bytes_and_messages_are_those_of_confluent_kafka(pair, path):
    their_context, our_context = contexts()
    text = (
        'syntax = "proto3"; package shop; message First { int32 x = 1; } message Order { message'
        " Note { } message Line { int32 x = 1; } optional string id = 1; int32 x = 2; }"
    )
    descriptor = parse(text, ()).message_types_by_name[path[0]]
    for name in path[1:]:
        descriptor = descriptor.nested_types_by_name[name]
    kind = GetMessageClass(descriptor)
    data = our_protobuf.ProtobufSerializer(kind, pair.ours)(kind(x=7), our_context)
    assert data == their_protobuf.ProtobufSerializer(kind, pair.theirs)(kind(x=7), their_context)
    assert data is not None
    conf: dict[str, Any] = {}
    expected = their_protobuf.ProtobufDeserializer(kind, conf, pair.theirs)(data, their_context)
    assert (
        our_protobuf.ProtobufDeserializer(kind, conf, pair.ours)(data, our_context)
        == expected
        == kind(x=7)
    )


@pytest.mark.parametrize(
    "conf",
    [
        {"auto.register.schemas": "yes"},
        {"normalize.schemas": 1},
        {"use.latest.version": True},
        {"use.latest.with.metadata": "x"},
        {"use.schema.id": "5"},
        {"subject.name.strategy": "TOPIC"},
        {"subject.name.strategy.type": "NONE"},
        {"subject.name.strategy.type": "SIDEWAYS"},
        {"schema.id.serializer": 5},
        {"validate.strict": "yes"},
        {"validate.strict.allow.default": None},
        {"no.such.setting": 1},
    ],
)
def test_settings_that_confluent_kafka_refuses_are_refused(unused_pair, conf):
    with pytest.raises(ValueError, match=r"must|annot|nvalid|nrecognized"):
        their_avro.AvroSerializer(unused_pair.theirs, ORDER, conf=conf)
    with pytest.raises(ValueError, match=next(iter(conf))) as refused:
        our_avro.AvroSerializer(unused_pair.ours, ORDER, conf=conf)
    assert isinstance(refused.value, InvalidConfig)


def test_a_registry_without_an_address_is_refused_as_by_confluent_kafka():
    for client in (theirs.SchemaRegistryClient, ours.SchemaRegistryClient):
        with pytest.raises(ValueError, match="Missing required configuration property url"):
            client({})


def test_a_value_that_does_not_conform_can_be_caught_as_by_programs_for_confluent_kafka(pair):
    their_context, our_context = contexts()
    file = parse(
        'syntax = "proto3"; package shop; message A { int32 x = 1; } message C { int32 x = 1; }', ()
    )
    kinds = [GetMessageClass(file.message_types_by_name[name]) for name in ("A", "C")]
    for serializers, client, context in [
        ((their_avro, their_protobuf), pair.theirs, their_context),
        ((our_avro, our_protobuf), pair.ours, our_context),
    ]:
        avro, protobuf = serializers
        with pytest.raises((TypeError, ValueError)):
            avro.AvroSerializer(client, ORDER)({"id": "x"}, context)
        with pytest.raises(ValueError, match=r"A\b.*\bC\b"):
            protobuf.ProtobufSerializer(kinds[0], client)(kinds[1](), context)


RULES = {
    "migrationRules": [{"name": "rename", "kind": "TRANSFORM", "mode": "UPGRADE", "type": "JSONATA", "expr": "$"}],  # noqa: E501
    "domainRules": [
        {"name": "secret", "doc": "d", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "ENCRYPT", "tags": ["PII"],  # noqa: E501
         "params": {"key": "k"}, "onSuccess": "NONE", "onFailure": "DLQ", "disabled": False},
    ],
    "encodingRules": [],
}  # fmt: skip


def test_rules_are_the_values_that_they_are_in_confluent_kafka():
    described = {"schema": '"string"', "schemaType": "AVRO", "references": [], "ruleSet": RULES}
    their_schema, our_schema = (
        theirs.Schema.from_dict(described),
        compat.Schema.from_dict(described),
    )
    assert repr(our_schema) == repr(their_schema)
    assert our_schema.to_dict() == their_schema.to_dict() == described


@pytest.mark.parametrize("module", ["avro", "json_schema", "protobuf"])
def test_serializers_take_their_arguments_by_the_names_of_confluent_kafka(module):
    for name, kind in vars(
        importlib.import_module(f"confluent_kafka.schema_registry.{module}")
    ).items():
        if re.fullmatch("(Avro|JSON|Protobuf)(De)?[Ss]erializer", name):
            our_kind = getattr(importlib.import_module(f"deltaq.schema_registry.{module}"), name)
            for method in ("__init__", "__call__"):
                expected = list(inspect.signature(getattr(kind, method)).parameters)
                assert list(inspect.signature(getattr(our_kind, method)).parameters) == expected


@pytest.mark.parametrize("name", [name for name in dir(theirs) if name.endswith("_strategy")])
def test_subjects_have_the_names_of_confluent_kafka(name):
    for_reference = name.startswith("reference")
    argument = theirs.SchemaReference("a.proto", "s", 1) if for_reference else "shop.Order"
    ours_argument: Any = ours.SchemaReference("a.proto", "s", 1) if for_reference else "shop.Order"
    their_context, our_context = contexts()
    assert getattr(ours, name)(our_context, ours_argument) == getattr(theirs, name)(
        their_context, argument
    )


def test_a_schema_id_in_a_header_has_the_form_of_confluent_kafka():
    guid = "89791762-2336-4186-9674-299b90a802e2"
    headers: list[Any] = []
    packages: list[tuple[Any, Any]] = [(theirs, theirs.serde.SchemaId), (ours, ours.SchemaId)]
    for (package, kind), context in zip(packages, contexts(headers=headers), strict=True):
        schema_id = kind("PROTOBUF", 5, guid, [2, 0, 300])
        assert package.header_schema_id_serializer(b"x", context, schema_id) == b"x"
        found = ours.SchemaId("PROTOBUF")
        assert ours.dual_schema_id_deserializer(b"x", context, found).read() == b"x"
        assert (found.guid, list(found.message_indexes or ())) == (guid, [2, 0, 300])
        prefixed = package.prefix_schema_id_serializer(b"x", context, schema_id)
        assert prefixed.hex() == "000000000506" + "0400d804" + "78"


def test_serializing_clients_take_the_serializers_of_confluent_kafka_with_its_registry(
    memory_root: str,
):
    registry = theirs.SchemaRegistryClient.new_client({"url": "mock://registry"})
    with SerializingProducer(
        bootstrap_servers=memory_root, value_serializer=their_avro.AvroSerializer(registry, ORDER)
    ) as producer:
        producer.produce("orders", value={"id": 7, "kind": "NEW", "prices": {}})
    conf = {
        "bootstrap.servers": memory_root,
        "group.id": "billing",
        "auto.offset.reset": "earliest",
    }
    with DeserializingConsumer(
        conf, value_deserializer=their_avro.AvroDeserializer(registry)
    ) as consumer:
        consumer.subscribe(["orders"])
        message = consumer.poll(30)
    assert message is not None
    assert message.value() == {"id": 7, "note": None, "kind": "NEW", "prices": {}}
