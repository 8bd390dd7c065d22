"""Messages and schemas made to end, freeze or fill the process that reads them: each is refused by
name, and the next message is read.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from deltaq import DeserializingConsumer, Producer
from deltaq.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    protobuf_bounds,
    state,
)
from deltaq.schema_registry.avro import AvroDeserializer, AvroSerializer
from deltaq.schema_registry.avro_bounds import (
    CHECKED_VALUES_MAX,
    FREE_VALUES_MAX,
    bounds_of,
    check_payload,
)
from deltaq.schema_registry.avro_format import prepared
from deltaq.schema_registry.avro_json import from_json
from deltaq.schema_registry.json_patterns import is_found
from deltaq.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from deltaq.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from deltaq.schema_registry.protobuf_bounds import check_payload as check_payload_of_protobuf
from deltaq.schema_registry.protobuf_format import decode, incompatibilities, parse
from deltaq.schema_registry.state import REFERENCES_MAX
from deltaq.schema_registry.work import SCHEMA_PARTS_MAX, VALUE_DEPTH_MAX, OutOfBounds
from deltaq.serde import (
    MessageField,
    SerializationContext,
    SerializationError,
    ValueDeserializationError,
)
from deltaq.store import MemoryStore
from tests.depth import depth
from tests.doubles.reading import next_message
from tests.security.reader_process import ReaderProcess

pytestmark = pytest.mark.fault("K9")

VALUE = SerializationContext("t", MessageField.VALUE)


@pytest.fixture(scope="module")
def other() -> Iterator[ReaderProcess]:
    """A process of its own: what it reads may end or freeze it."""
    with ReaderProcess() as found:
        yield found


# --- Avro ---


def varint(number: int) -> bytes:
    """A long as Avro writes it."""
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*found, left))


def record(name: str, *types: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(types)],
    }


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def doubled(levels: int, **more: Any) -> dict[str, Any]:
    """A record without fields, in two fields of a record, which is in two fields of another one,
    …
    """
    found = record("R0")
    for level in range(1, levels + 1):
        found = record(f"R{level}", found, f"R{level - 1}")
        found["fields"] = [{**each, **more} for each in found["fields"]]
    return found


COMMENT = record("Comment", "string", array("Comment"))
LINK = record("Link", ["null", "Link"])
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}
TOO_DEEP = f"nested more than {VALUE_DEPTH_MAX} levels deep"
TOO_LONG = f"more than {CHECKED_VALUES_MAX} values are in it"
TOO_MANY = f"more than {FREE_VALUES_MAX} values take no bytes"

ENDLESS = {
    "5,000 replies to a comment": (COMMENT, b"\0\2" * 5000 + b"\0" * 5001, TOO_DEEP),
    "a list of 100,000 links": (LINK, b"\2" * 100_000 + b"\0", TOO_DEEP),
    "a record that is in itself": (record("Self", "Self"), b"", TOO_DEEP),
    "nulls": (array("null"), varint(2**62) + b"\0", TOO_MANY),
    "nulls in a block with a size": (array("null"), varint(-(2**62)) + b"\0\0", TOO_MANY),
    "records without fields": (array(record("Empty")), varint(2**62) + b"\0", TOO_MANY),
    "records of nulls": (array(record("Nulls", "null", "null")), varint(2**62) + b"\0", TOO_MANY),
    "fixed of no bytes": (
        array({"type": "fixed", "name": "None", "size": 0}),
        varint(2**62) + b"\0",
        TOO_MANY,
    ),
    "a record of 2^28 records": (doubled(28), b"", TOO_LONG),
    "a tree of 600,000 parts": (
        record("Tree", array("Tree")),
        varint(600_000) + b"\0" * 600_001,
        TOO_LONG,
    ),
    "a decimal of a megabyte": (
        record("Sum", DECIMAL),
        varint(1_000_000) + b"\x7f" * 1_000_000,
        "20 digits",
    ),
}


@pytest.mark.parametrize(("schema", "payload", "text"), ENDLESS.values(), ids=ENDLESS.keys())
def test_a_payload_of_avro_without_end_is_refused(other, schema, payload, text):
    found = other.reads(AvroDeserializer, "AVRO", json.dumps(schema), payload)
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
def test_a_schema_of_avro_without_end_is_refused(other, schema, text):
    found = other.reads(AvroDeserializer, "AVRO", json.dumps(schema), b"\0")
    assert (
        found == "[]" if text is None else found.startswith("SchemaRegistryError") and text in found
    ), found


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
    links = [
        record("L0", "int"),
        *(record(f"L{level}", f"L{level - 1}") for level in range(1, 150)),
    ]
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


@pytest.mark.parametrize(
    ("kind", "default"), [(array("int"), [7] * 100), ("string", "x" * 6400)], ids=["array", "text"]
)
def test_defaults_of_the_reader_count_as_values(client, kind, default):
    old = record("R", array(record("Item", "boolean")))
    new = record("R", array(record("Item", "boolean", kind)))
    new["fields"][0]["type"]["items"]["fields"][1]["default"] = default
    serializer = AvroSerializer(client, json.dumps(old))
    deserializer = AvroDeserializer(client, json.dumps(new))
    few, many = ({"f0": [{"f0": True}] * count} for count in (100, 20_000))
    assert deserializer(serializer(few, VALUE), VALUE)["f0"][0] == {"f0": True, "f1": default}
    with pytest.raises(SerializationError, match=TOO_MANY):
        deserializer(serializer(many, VALUE), VALUE)


def test_a_payload_that_the_schema_bounds_is_not_walked_through():
    plain = [
        "string",
        record(
            "P",
            "int",
            ["null", "string"],
            array(["null", "double"]),
            {"type": "map", "values": "bytes"},
        ),
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
    # Too short, which the decoder finds.
    check_payload(payload[:0], bounds_of(LINK, {"Link": LINK}))


def test_the_message_after_hostile_ones_is_read(memory_root):
    client = SchemaRegistryClient({"url": memory_root})
    serializer = AvroSerializer(client, json.dumps(LINK))
    good = serializer({"f0": None}, VALUE) or b""
    with Producer({"bootstrap.servers": memory_root, "maintenance.enable": False}) as producer:
        for value in (good[:5] + b"\2" * 5000 + b"\0", good[:5] + b"\1", good):
            producer.produce("t", value)
        assert producer.flush(20) == 0
    conf = {"bootstrap.servers": memory_root, "group.id": "g", "auto.offset.reset": "earliest"}
    with DeserializingConsumer(
        {**conf, "value.deserializer": AvroDeserializer(client)}
    ) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(
            ValueDeserializationError, match=rf"{TOO_DEEP}.*topic 't', partition 0, offset 0"
        ):
            next_message(consumer)
        with pytest.raises(
            ValueDeserializationError,
            match=r"no branch -1, but 2 .*topic 't', partition 0, offset 1",
        ):
            next_message(consumer)
        message = next_message(consumer)
        assert message.value() == {"f0": None}


def test_a_value_of_json_for_unions_in_unions_is_converted_once():
    schema = prepared(
        json.dumps(record("A", ["A", record("B", ["A", "B"], "int")], "int")), ()
    ).parsed
    value: Any = {}  # each level lacks f1, so it is neither A nor B
    for _ in range(60):
        value = {"f0": value}
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"
        assert calls < 10_000

    sys.setprofile(count)
    try:
        assert from_json({"f0": value}, schema) == {"f0": value}
    finally:
        sys.setprofile(None)
    with pytest.raises(ValueError, match="nested more than 100"):
        from_json(comments(300), schema)


# --- JSON Schema ---


def definitions(levels: int, part: Any, last: Any) -> dict[str, Any]:
    """A schema with a chain of definitions, each of which is `part` with `NEXT` in place of the
    next one.
    """
    made = {
        f"d{level}": json.loads(json.dumps(part).replace("NEXT", f"#/$defs/d{level + 1}"))
        for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**made, f"d{levels}": last}}


NEXT = {"$ref": "NEXT"}
BACKTRACKING = "^(?=(a+)+$)"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
STEPS = "it takes too many steps"

HANGING = {
    "2^28 paths of allOf": (
        definitions(28, {"allOf": [NEXT, NEXT]}, {"type": "object"}),
        {},
        STEPS,
    ),
    "2^28 paths of anyOf": (definitions(28, {"anyOf": [NEXT, NEXT]}, {"type": "object"}), 1, STEPS),
    "a path more with each level": (
        {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "required": ["z"]},
        json.loads('{"a":' * 60 + "{}" + "}" * 60),
        STEPS,
    ),
    "a pattern that backtracks": (
        {"pattern": BACKTRACKING},
        "a" * 5000 + "b",
        "may take too long for a text of 5001",
    ),
    "a pattern in a part with a draft": (
        {"$schema": DRAFT_7, "items": {"$schema": DRAFT_7, "pattern": BACKTRACKING}},
        ["a" * 5000 + "b"],
        "may take too long for a text of 5001",
    ),
    "a pattern for names": (
        {"patternProperties": {BACKTRACKING: {}}},
        {"a" * 5000 + "b": 1},
        "may take too long",
    ),
    "a pattern for other names": (
        {"patternProperties": {BACKTRACKING: {}}, "additionalProperties": False},
        {"a" * 5000 + "b": 1},
        "may take too long",
    ),
    "loops beside each other": (
        {"pattern": "a*a*a*a*a*b$"},
        "a" * 5000,
        "str does not conform to pattern",
    ),
    "loops in each other": (
        {"pattern": "^(a+)+$"},
        "a" * 5000 + "b",
        "str does not conform to pattern",
    ),
    "an automaton of many states": ({"pattern": "(a|b)*a(a|b){300}c"}, "ab" * 500_000, STEPS),
    "unique items that cannot be sorted": (
        {"uniqueItems": True},
        [{"a": i % 29_999} for i in range(30_000)],
        "unique",
    ),
    "large texts of errors": (
        {"anyOf": [False] * 300},
        ["x" * 1000] * 1000,
        "does not conform to anyOf",
    ),
    "an enumeration for each item": (
        {"items": {"enum": [f"a{i}" for i in range(9000)]}},
        ["b"] * 20_000,
        "does not conform to enum",
    ),
    "2^28 paths to unevaluated properties": (
        {
            "unevaluatedProperties": False,
            **definitions(28, {"$ref": "NEXT", "$dynamicRef": "NEXT"}, {}),
        },
        {"a": 1},
        STEPS,
    ),
    "unevaluated items beside contains": (
        {"contains": True, "unevaluatedItems": False, "maxItems": 1},
        [1] * 100_000,
        "does not conform to maxItems",
    ),
    "numbers of one hash": (
        {"uniqueItems": True, "maxItems": 1},
        [factor * (2**61 - 1) for factor in range(100_000)],
        "does not conform to maxItems",
    ),
    "many patterns for many names": (
        {"patternProperties": {f"^a{i}$": {} for i in range(3000)}},
        {f"b{i}": 1 for i in range(10_000)},
        STEPS,
    ),
    "parts without keywords": ({"allOf": [{"items": {}}] * 1000}, [1] * 10_000, STEPS),
    "an enumeration of draft 4": (
        {"$schema": DRAFT_4, "enum": ["a", *range(50_000)]},
        "b",
        "does not conform to enum",
    ),
    "arrays in an enumeration": (
        {"items": {"enum": [[*range(400), i] for i in range(500)]}},
        [[*range(400), -1]] * 1000,
        "does not conform to enum",
    ),
    "a large number as a multiple": ({"multipleOf": 0.01}, 10**400 + 1, "multipleOf 0.01"),
    "an infinite number as a multiple": ({"multipleOf": 0.01}, float("inf"), "multipleOf 0.01"),
    "a deep value": ({}, json.loads("[" * 101 + "]" * 101), TOO_DEEP),
}


@pytest.mark.parametrize(("schema", "value", "text"), HANGING.values(), ids=HANGING.keys())
def test_a_value_of_json_that_takes_too_long_to_check_is_refused(other, schema, value, text):
    found = other.reads(JSONDeserializer, "JSON", json.dumps(schema), json.dumps(value).encode())
    assert found.startswith("SerializationError"), found
    assert text in found


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (
            {
                "enum": [{"a": i} for i in range(9000)],
                "$schema": "http://json-schema.org/draft-04/schema#",
            },
            "array in it",
        ),
        ({"type": [{"a": i} for i in range(9000)]}, "array in it"),
        (
            {"properties": {f"a{i}": {"type": "string"} for i in range(SCHEMA_PARTS_MAX)}},
            "objects and arrays",
        ),
        ({"pattern": "a{9999999999999999999}"}, "the repetition number is too large"),
        ({"pattern": "(" * 4900 + ")" * 4900}, "nested"),
        (
            {"patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False},
            "beside unevaluatedProperties",
        ),
        ({"pattern": "(?i)" + "[\0-\uffff]" * 300}, "too many characters and ranges"),
        (
            {"patternProperties": {str(i) + "a" * 9000: {} for i in range(100)}},
            "too many characters and ranges",
        ),
        ({"required": [1, "a"], "type": ["a", *range(20_000)]}, "type"),
        ({"$recursiveRef": "#", "$schema": DRAFT_2019}, "refers to itself"),
        ({"$dynamicRef": "#/$defs/a", "$defs": {"a": {"$dynamicRef": "#"}}}, "refers to itself"),
        ({"$dynamicRef": "#nowhere"}, "leads nowhere"),
        ({"items": {"$schema": DRAFT_7}}, "stands in a schema of the draft"),
    ],
)
def test_a_json_schema_that_takes_too_long_to_check_is_refused(other, schema, text):
    found = other.reads(JSONDeserializer, "JSON", json.dumps(schema), b"{}")
    assert found.startswith("SchemaRegistryError"), found
    assert text in found


def union(name: str, count: int) -> list[Any]:
    return [record(f"{name}{i}", "int") for i in range(count)]


@pytest.mark.parametrize(
    ("schema_type", "old", "new", "text"),
    [
        ("AVRO", union("A", 400), union("B", 400), "more than 30000 pairs"),
        (
            "JSON",
            definitions(28, {"allOf": [NEXT, NEXT]}, {"type": "object"}),
            definitions(28, {"allOf": [NEXT, NEXT]}, {"type": "object", "title": "new"})
            | {"title": "new"},
            "more than 200000 steps",
        ),
    ],
    ids=["a union of Avro", "paths of a JSON schema"],
)
def test_a_comparison_ends_and_counts_as_incompatible(other, schema_type, old, new, text):
    assert text in other.compares(schema_type, old, new)


def test_a_value_of_json_is_written_as_deep_as_it_is_read(client):
    serializer, deserializer = (
        JSONSerializer("{}", client),
        JSONDeserializer(None, schema_registry_client=client),
    )
    deepest = json.loads("[" * VALUE_DEPTH_MAX + "]" * VALUE_DEPTH_MAX)
    assert deserializer(serializer(deepest, VALUE), VALUE) == deepest
    with pytest.raises(SerializationError, match=TOO_DEEP):
        serializer([deepest], VALUE)


TEXTS = st.text("ab1 .@-\n", max_size=12)


@given(
    st.sampled_from(
        ["^(a|b)*$", "a+b+", "^[ab]{2,4}$", r"^(\d+\.)*\d+$", "(a?b?)+1$", "^[^@]+@[^@]+$", r"\.|-"]
    ),
    TEXTS,
)
def test_both_matchers_find_the_same(pattern, text):
    found = re.search(pattern.replace("$", r"\Z"), text) is not None
    readable = text.encode(errors="replace").decode()
    assert bool(pc.match_substring_regex(pa.scalar(readable), pattern).as_py()) == found
    assert is_found(pattern, text) == (re.search(pattern, text) is not None) or text.endswith("\n")


# --- Protobuf ---


def proto(text: str) -> Any:
    """The first message of a file."""
    return GetMessageClass(
        next(iter(parse(f'syntax="proto3"; {text}', ()).message_types_by_name.values()))
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (";" * 500_000, "more than 20000 words and signs"),
        ("message A {" * 101 + "}" * 101, "nested more than 100 levels"),
        ("option (a) = " + "{a: " * 101 + "1" + "}" * 101 + ";", "nested more than 100 levels"),
        ("message A { int32 a = " + "9" * 5000 + "; }", "digits"),
    ],
)
def test_a_proto_file_without_end_is_refused(client, text, reason):
    with pytest.raises(SchemaRegistryError, match=reason):
        client.register_schema("t-value", Schema(f'syntax="proto3"; {text}', "PROTOBUF"))


def test_signs_in_comments_and_texts_of_a_proto_file_do_not_count(client):
    text = (
        f'syntax="proto3"; /* {"{ " * 30_000} */ // {"{ ; " * 30_000}\noption java_package ='
        f' "{"{;" * 15_000}";'
    )
    assert client.register_schema("t-value", Schema(text + " message A {}", "PROTOBUF")) == 1


def test_a_message_of_protobuf_is_written_as_deep_as_it_is_read(client):
    kind = proto("message Link { Link next = 1; }")
    serializer, deserializer = ProtobufSerializer(kind, client), ProtobufDeserializer(kind)
    messages = [kind() for _ in range(2)]
    for message, levels in zip(messages, (99, 110), strict=True):
        for _ in range(levels):
            message = message.next
            message.SetInParent()
    assert deserializer(serializer(messages[0], VALUE), VALUE) == messages[0]
    with pytest.raises(SerializationError, match="no Link"):
        serializer(messages[1], VALUE)


WIDE = """message All { repeated Wide w = 1; map<string, Wide> m = 2; optional In in = 3; }
message In { repeated Wide w = 1; }"""


def test_messages_without_fields_do_not_take_the_memory_of_all_fields():
    kind = proto(
        WIDE + " message Wide {" + "".join(f"double f{i} = {i};" for i in range(1, 3000)) + "}"
    )
    empty, entry = b"\x0a\x00", b"\x12\x02\x12\x00"
    within = b"\x1a" + bytes((0x80 | 100, 1)) + empty * 114
    for payload in (empty * 20_000, entry * 20_000, within * 200):
        with pytest.raises(OutOfBounds, match="more than 536870912 bytes of memory"):
            check_payload_of_protobuf(payload, kind.DESCRIPTOR)
        with pytest.raises(SerializationError, match="bytes of memory"):
            decode(payload, kind)
    for payload in (empty * 10, within + entry):
        assert len(decode(payload, kind).w) in (0, 10)
    filled = (
        kind(w=[{"f1": 1.0, "f7": 2.0}] * 3).SerializeToString()
        + b"\x22\x05other"
        + b"\x1d1234" * 9000
    )
    check_payload_of_protobuf(filled, kind.DESCRIPTOR)


def test_a_payload_of_protobuf_is_walked_through_up_to_a_limit(monkeypatch):
    kind = proto(
        WIDE + " message Wide {" + "".join(f"double f{i} = {i};" for i in range(1, 3000)) + "}"
    )
    monkeypatch.setattr(protobuf_bounds, "CHECKED_FIELDS_MAX", 10_000)
    check_payload_of_protobuf(b"\x28\x01" * 10_000, kind.DESCRIPTOR)
    with pytest.raises(OutOfBounds, match=r"byte 0: .* more than 10000 fields are in it"):
        check_payload_of_protobuf(b"\x28\x01" * 20_000, kind.DESCRIPTOR)


def test_fields_of_messages_without_messages_in_them_are_not_counted(monkeypatch):
    kind = proto(
        "message All { repeated Point p = 1; } message Point { int32 x = 1; int32 y = 2; }"
    )
    monkeypatch.setattr(protobuf_bounds, "CHECKED_FIELDS_MAX", 1_500)
    monkeypatch.setattr(protobuf_bounds, "MESSAGE_BYTES_MAX", 100_000)
    points = kind(p=[{"x": 1, "y": 2}] * 1_000).SerializeToString()
    check_payload_of_protobuf(points, kind.DESCRIPTOR)


def test_a_long_chain_of_messages_counts_as_incompatible():
    chain = "".join(f"message M{i} {{M{i + 1} a = 1;}} " for i in range(500)) + "message M500 {}"
    old, new = (parse(f'syntax = "proto3"; {chain} {more}', ()) for more in ("", "message N {}"))
    assert "too long to be compared" in incompatibilities(new, old)[0]


# --- references ---


def test_a_chain_of_references_is_followed_up_to_a_limit(client, monkeypatch):
    count = depth(30, REFERENCES_MAX)
    monkeypatch.setattr(state, "REFERENCES_MAX", count)

    def schema(level: int) -> Schema:
        references = [SchemaReference(f"R{level - 1}", f"r{level - 1}", 1)] if level else []
        kind = f"R{level - 1}" if level and level % 50 else "int"
        return Schema(json.dumps(record(f"R{level}", kind)), references=references)

    for level in range(count + 1):
        client.register_schema(f"r{level}", schema(level))
    with pytest.raises(SchemaRegistryError, match=f"more than {count} schemas"):
        client.register_schema("last", schema(count + 1))
    with pytest.raises(SerializationError, match=f"more than {count} schemas"):
        AvroSerializer(client, schema(count + 1))
