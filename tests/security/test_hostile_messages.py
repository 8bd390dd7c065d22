"""Messages and schemas made to end, freeze or fill the process that reads them: each is refused by name, and the next
message is read."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from deltaq import DeserializingConsumer, Producer
from deltaq.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from deltaq.schema_registry.avro import AvroDeserializer, AvroSerializer
from deltaq.schema_registry.avro_bounds import FREE_VALUES_MAX, OutOfBounds, bounds_of, check_payload
from deltaq.schema_registry.work import VALUE_DEPTH_MAX
from deltaq.serde import MessageField, SerializationContext, SerializationError, ValueDeserializationError
from deltaq.store import MemoryStore
from tests.children import environment_of_child

pytestmark = pytest.mark.fault("K9")

VALUE = SerializationContext("t", MessageField.VALUE)
DEADLINE_S = 60
"""A process that freezes is ended after this time."""

# Reads one message with its schema, and prints what it gets.
READER = """
import json, resource, sys
from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.store import MemoryStore
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
module, name, schema_type, schema, payload, reader = json.load(sys.stdin)
client = SchemaRegistryClient({}, store=MemoryStore("hostile"))
deserializer = getattr(__import__(module, fromlist=[name]), name)
given = [reader] if schema_type == "JSON" else []
try:
    schema_id = client.register_schema("t-value", Schema(schema, schema_type))
    if schema_type == "JSON":
        read = deserializer(None, schema_registry_client=client)
    else:
        read = deserializer(client, reader)
    print(repr(read(b"\\0" + schema_id.to_bytes(4, "big") + bytes.fromhex(payload)))[:200])
except Exception as error:
    print(type(error).__name__, str(error)[:500])
"""


def outcome(deserializer: type, schema_type: str, schema: str, payload: bytes, reader: str | None = None) -> str:
    """What a process of its own prints that reads the payload: it may end or freeze."""
    about = [deserializer.__module__, deserializer.__name__, schema_type, schema, payload.hex(), reader]
    child = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(about),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment_of_child(),
        check=False,
    )
    assert child.returncode == 0, f"ended by {child.returncode}: {child.stderr[-500:]}"
    return child.stdout.strip()


# --- Avro ---


def varint(number: int) -> bytes:
    """A long as Avro writes it."""
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*found, left))


def record(name: str, *types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)]}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def doubled(levels: int, **more: Any) -> dict[str, Any]:
    """A record without fields, in two fields of a record, which is in two fields of another one, …"""
    found = record("R0")
    for level in range(1, levels + 1):
        found = record(f"R{level}", found, f"R{level - 1}")
        found["fields"] = [{**each, **more} for each in found["fields"]]
    return found


COMMENT = record("Comment", "string", array("Comment"))
LINK = record("Link", ["null", "Link"])
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}
TOO_DEEP = f"nested more than {VALUE_DEPTH_MAX} levels deep"
TOO_MANY = f"more than {FREE_VALUES_MAX} values take no bytes"

ENDLESS = {
    "5,000 replies to a comment": (COMMENT, b"\0\2" * 5000 + b"\0" * 5001, TOO_DEEP),
    "a list of 100,000 links": (LINK, b"\2" * 100_000 + b"\0", TOO_DEEP),
    "a record that is in itself": (record("Self", "Self"), b"", TOO_DEEP),
    "nulls": (array("null"), varint(2**62) + b"\0", TOO_MANY),
    "nulls in a block with a size": (array("null"), varint(-(2**62)) + b"\0\0", TOO_MANY),
    "records without fields": (array(record("Empty")), varint(2**62) + b"\0", TOO_MANY),
    "records of nulls": (array(record("Nulls", "null", "null")), varint(2**62) + b"\0", TOO_MANY),
    "fixed of no bytes": (array({"type": "fixed", "name": "None", "size": 0}), varint(2**62) + b"\0", TOO_MANY),
    "a record of 2^28 records": (doubled(28), b"", TOO_MANY),
    "a decimal of a megabyte": (record("Sum", DECIMAL), varint(1_000_000) + b"\x7f" * 1_000_000, "1000 digits"),
}


@pytest.mark.parametrize(("schema", "payload", "text"), ENDLESS.values(), ids=ENDLESS.keys())
def test_a_payload_of_avro_without_end_is_refused(schema, payload, text):
    found = outcome(AvroDeserializer, "AVRO", json.dumps(schema), payload)
    assert found.startswith("SerializationError"), found
    assert text in found


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (array(array(array("int"))) | {"default": "[" * 10}, None),
        (doubled(28, default={}), "defaults"),
        (record("D", DECIMAL | {"precision": 10**9, "scale": 10**9}), "more than 1000 digits"),
    ],
    ids=["a default that is no value", "defaults of 2^28 values", "a decimal of 10^9 digits"],
)
def test_a_schema_of_avro_without_end_is_refused(schema, text):
    found = outcome(AvroDeserializer, "AVRO", json.dumps(schema), b"\0")
    assert found == "[]" if text is None else found.startswith("SchemaRegistryError") and text in found, found


@pytest.fixture
def client() -> SchemaRegistryClient:
    return SchemaRegistryClient({}, store=MemoryStore("test"))


def nested(schema: str, levels: int) -> str:
    """Arrays in arrays, around a schema."""
    return '{"type":"array","items":' * levels + schema + "}" * levels


@pytest.mark.parametrize("levels", [101, 300, 10_000])
def test_a_schema_of_avro_that_is_nested_too_deeply_is_not_registered(client, levels):
    with pytest.raises(SchemaRegistryError, match="nested"):
        client.register_schema("t-value", Schema(nested('"int"', levels)))
    assert client.get_subjects() == []


def test_names_do_not_hide_how_deeply_types_are_nested(client):
    links = [record("L0", "int"), *(record(f"L{level}", f"L{level - 1}") for level in range(1, 150))]
    branches = [{"type": "array", "items": link} for link in links]
    for found in (json.dumps(record("All", *branches)), json.dumps(links)):
        with pytest.raises(SchemaRegistryError, match="nested more than 100"):
            client.register_schema("t-value", Schema(found))


def comments(levels: int) -> dict[str, Any]:
    """A comment with replies; two levels are two dicts and the list between."""
    found: dict[str, Any] = {"f0": "last", "f1": []}
    for _ in range(levels - 1):
        found = {"f0": "", "f1": [found]}
    return found


def test_a_value_of_avro_is_written_as_deep_as_it_is_read(client):
    serializer, deserializer = AvroSerializer(client, json.dumps(COMMENT)), AvroDeserializer(client)
    deepest = comments(VALUE_DEPTH_MAX // 2)
    assert deserializer(serializer(deepest, VALUE), VALUE) == deepest
    for levels in (VALUE_DEPTH_MAX // 2 + 1, 100_000):
        with pytest.raises(SerializationError, match=TOO_DEEP):
            serializer(comments(levels), VALUE)
    circle = comments(2)
    circle["f1"].append(circle)
    with pytest.raises(SerializationError, match=TOO_DEEP):
        serializer(circle, VALUE)
    nulls = AvroSerializer(client, json.dumps(array("null")))
    context = SerializationContext("nulls", MessageField.VALUE)
    assert deserializer(nulls([None] * 1000, context), context) == [None] * 1000
    with pytest.raises(SerializationError, match=TOO_MANY):
        nulls([None] * (FREE_VALUES_MAX + 1), context)


def test_defaults_of_the_reader_count_as_values(client):
    old = record("R", array(record("Item", "boolean")))
    new = record("R", array(record("Item", "boolean", {"type": "array", "items": "int"})))
    new["fields"][0]["type"]["items"]["fields"][1]["default"] = [7] * 100
    serializer = AvroSerializer(client, json.dumps(old))
    deserializer = AvroDeserializer(client, json.dumps(new))
    few, many = ({"f0": [{"f0": True}] * count} for count in (100, 20_000))
    assert deserializer(serializer(few, VALUE), VALUE)["f0"][0] == {"f0": True, "f1": [7] * 100}
    with pytest.raises(SerializationError, match=TOO_MANY):
        deserializer(serializer(many, VALUE), VALUE)


def test_a_payload_that_the_schema_bounds_is_not_walked_through():
    plain = [
        "string",
        record("P", "int", ["null", "string"], array(["null", "double"]), {"type": "map", "values": "bytes"}),
        record("N", "null", array(record("I", "null", "boolean"))),
    ]
    for schema in plain:
        assert not bounds_of(schema, {}).are_unknown(1000, 0)
    assert not bounds_of(record("D", DECIMAL), {}).are_unknown(1000, 0)
    assert bounds_of(COMMENT, {"Comment": COMMENT}).are_unknown(1, 0)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"\2" * VALUE_DEPTH_MAX, "byte 100: it is nested"),
        (b"\4", "byte 0: a union has no branch 2"),
        (b"\1", "byte 0: a union has no branch -1"),
        (b"\xff" * 10, "byte 0: a number has more than 10 bytes"),
    ],
)
def test_an_error_of_a_payload_names_the_byte(payload, text):
    with pytest.raises(OutOfBounds, match=text):
        check_payload(payload, bounds_of(LINK, {"Link": LINK}))
    check_payload(payload[:0], bounds_of(LINK, {"Link": LINK}))  # too short, which the decoder finds


def test_the_message_after_one_without_end_is_read(memory_root):
    client = SchemaRegistryClient({"url": memory_root})
    serializer = AvroSerializer(client, json.dumps(LINK))
    good = serializer({"f0": None}, VALUE)
    with Producer({"bootstrap.servers": memory_root, "maintenance.enable": False}) as producer:
        for value in (good[:5] + b"\2" * 5000 + b"\0", good):
            producer.produce("t", value)
        assert producer.flush(20) == 0
    conf = {"bootstrap.servers": memory_root, "group.id": "g", "auto.offset.reset": "earliest"}
    with DeserializingConsumer({**conf, "value.deserializer": AvroDeserializer(client)}) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(ValueDeserializationError, match=rf"{TOO_DEEP}.*topic 't', partition 0, offset 0"):
            while consumer.poll(1) is None:
                pass
        while (message := consumer.poll(1)) is None:
            pass
        assert message.value() == {"f0": None}
