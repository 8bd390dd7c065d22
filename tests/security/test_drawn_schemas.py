"""Schemas that hypothesis draws, recursive ones too, and payloads that are damaged or random:
decoding ends within a number of steps, with a value or the documented error, and a consumer goes
on.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaq import DeserializingConsumer, Producer
from deltaq.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from deltaq.schema_registry.avro import AvroDeserializer
from deltaq.schema_registry.json_schema import JSONDeserializer
from deltaq.schema_registry.protobuf import ProtobufDeserializer
from deltaq.schema_registry.protobuf_format import decode, parse
from deltaq.serde import SerializationError, ValueDeserializationError
from deltaq.store import MemoryStore
from deltaq.tools.registry_values import RegistryDecoder
from tests.depth import depth
from tests.doubles.reading import next_message
from tests.security.drawn_avro import Drawn, drawn

pytestmark = pytest.mark.fault("K9")

STEPS_MAX = 2_000_000
"""Calls of Python functions for one payload, some ten times what the largest budget of a decoder
allows.
"""


@contextmanager
def bounded_steps() -> Iterator[None]:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"
        assert calls < STEPS_MAX

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


def check_decoding(deserializer: Any, registry: SchemaRegistryClient, value: bytes) -> None:
    with bounded_steps():
        try:
            deserializer(value)
        except SerializationError:
            pass
        # As `deltaq cat` and the console decode; it raises nothing.
        RegistryDecoder(registry)(value)


@st.composite
def damaged(draw: st.DrawFn, payload: bytes) -> bytes:
    found = bytearray(payload)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(found)))
        found[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return bytes(found)


def registered(text: str, kind: str) -> tuple[SchemaRegistryClient, bytes] | None:
    """The registry, and how its values begin; None if it refuses the schema."""
    registry = SchemaRegistryClient({}, store=MemoryStore("drawn"))
    try:
        number = registry.register_schema("s", Schema(text, kind))
    except SchemaRegistryError:
        return None
    return registry, b"\0" + number.to_bytes(4, "big")


@settings(max_examples=depth(40, 400))
@given(drawn(), st.data())
def test_a_payload_of_a_drawn_avro_schema_is_read_or_refused(found: Drawn, data: st.DataObject):
    about = registered(json.dumps(found.schema), "AVRO")
    assert about is not None
    payload = data.draw(damaged(bytes(found.payload)) | st.binary(max_size=30))
    check_decoding(AvroDeserializer(about[0]), about[0], about[1] + payload)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=10,
)
PATTERNS = st.sampled_from(["^a*$", "^(a|b)+$", "(a+)+$", "b", "[", "^(?=a)a", "a{2,3}"])


def inner_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=1),
            "additionalProperties": inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "pattern": PATTERNS,
            "uniqueItems": st.booleans(),
            "enum": st.lists(JSON_VALUES, min_size=1, max_size=2),
        },
    )


JSON_SCHEMAS = st.recursive(
    st.just({"$ref": "#"})
    | st.booleans()
    | st.sampled_from([{"type": "object"}, {"type": "array"}, {"minimum": 1}]),
    inner_schemas,
    max_leaves=8,
)


@settings(max_examples=depth(40, 400))
@given(JSON_SCHEMAS, JSON_VALUES, st.data())
def test_a_payload_of_a_drawn_json_schema_is_read_or_refused(
    schema: Any, value: Any, data: st.DataObject
):
    about = registered(json.dumps(schema), "JSON")
    if about is not None:
        payload = data.draw(
            st.just(json.dumps(value).encode()) | damaged(json.dumps(value).encode())
        )
        deserializer = JSONDeserializer(None, schema_registry_client=about[0])
        check_decoding(deserializer, about[0], about[1] + payload)


@st.composite
def proto_files(draw: st.DrawFn) -> str:
    """Messages whose fields are of any of them."""
    names = [f"M{number}" for number in range(draw(st.integers(1, 3)))]
    kinds = st.sampled_from(
        [*names, "int32", "sint64", "string", "bytes", "double", "bool", "fixed32"]
    )
    found = 'syntax = "proto3";'
    for name in names:
        fields = ""
        for number in range(1, draw(st.integers(1, 4))):
            kind = draw(kinds)
            whole = draw(
                st.sampled_from([f"repeated {kind}", f"optional {kind}", f"map<string, {kind}>"])
            )
            fields += f" {whole} f{number} = {number};"
        found += f" message {name} {{{fields} }}"
    return found


@settings(max_examples=depth(40, 400))
@given(
    proto_files(),
    st.binary(max_size=40) | st.integers(0, 200).map(lambda count: b"\x0a\x7e" * count),
)
def test_a_payload_of_a_drawn_protobuf_file_is_read_or_refused(text: str, payload: bytes):
    about = registered(text, "PROTOBUF")
    assert about is not None
    kind = GetMessageClass(next(iter(parse(text, ()).message_types_by_name.values())))
    check_decoding(ProtobufDeserializer(kind), about[0], about[1] + b"\0" + payload)
    with bounded_steps():
        try:
            decode(payload, kind)
        except SerializationError:
            pass


@settings(max_examples=depth(5, 100))
@given(drawn(), st.data())
def test_a_consumer_goes_on_after_drawn_payloads(found: Drawn, data: st.DataObject):
    root = f"memory://{uuid.uuid4().hex}"
    registry = SchemaRegistryClient({"url": root})
    prefix = b"\0" + registry.register_schema("t-value", Schema(json.dumps(found.schema))).to_bytes(
        4, "big"
    )
    payloads = data.draw(st.lists(damaged(bytes(found.payload)), min_size=3, max_size=6))
    with Producer({"bootstrap.servers": root, "maintenance.enable": False}) as producer:
        for payload in payloads:
            producer.produce("t", prefix + payload)
        assert producer.flush(20) == 0
    conf = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"}
    with DeserializingConsumer(
        {**conf, "value.deserializer": AvroDeserializer(registry)}
    ) as consumer:
        consumer.subscribe(["t"])
        for number in range(len(payloads)):
            assert f"offset {number}" in next_place(consumer)


def next_place(consumer: Any) -> str:
    try:
        return f"offset {next_message(consumer).offset()}"
    except ValueDeserializationError as error:
        return str(error)
