"""JSON Schema: what is registered, which schemas may follow which, and what the serializers
refuse.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltaq.errors import InvalidConfig
from deltaq.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
)
from deltaq.schema_registry.json_format import incompatibilities, parse
from deltaq.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from deltaq.serde import MessageField, SerializationContext, SerializationError
from deltaq.store import MemoryStore

VALUE = SerializationContext("orders", MessageField.VALUE)
DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    7: "http://json-schema.org/draft-07/schema#",
}


@pytest.fixture
def client() -> SchemaRegistryClient:
    return SchemaRegistryClient({}, store=MemoryStore("test"))


def text(schema: Any, draft: int | None = None) -> str:
    return json.dumps({"$schema": DRAFTS[draft], **schema} if draft else schema)


def can_read(reader: Any, writer: Any, draft: int | None = None) -> bool:
    return not incompatibilities(parse(text(reader, draft), ()), parse(text(writer, draft), ()))


# --- compatibility ---


def of(
    open_: bool | None = None, required: list[str] | None = None, **properties: Any
) -> dict[str, Any]:
    """An object; closed, open, or partially open by a schema for other properties."""
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if open_ is not None:
        found["additionalProperties"] = open_
    if required:
        found["required"] = required
    return found


INT, STR, NUM, NULL = {"type": "integer"}, {"type": "string"}, {"type": "number"}, {"type": "null"}
WORDS = {"type": "object", "additionalProperties": STR, "properties": {"a": INT}}
TREE = {
    "$ref": "#/$defs/t",
    "$defs": {"t": of(False, v=INT, sub={"type": "array", "items": {"$ref": "#/$defs/t"}})},
}
WIDE_TREE = json.loads(json.dumps(TREE).replace("integer", "number"))
CAT = of(required=["kind"], kind={"const": "cat"}, lives=INT)
DOG = of(required=["kind"], kind={"const": "dog"}, name=STR)

LONG_IF_TEXT = {"if": STR, "then": {"minLength": 1}}
A_IF_B = {"if": {"required": ["b"]}, "then": {"required": ["a"]}}
FEW = {"contains": INT, "maxContains": 2}

# From the schema of the old version to that of the new one; whether the new one reads all that the
# old one wrote, and the reverse: what BACKWARD and FORWARD accept. The rules are Confluent's,
# "Schema Evolution and Compatibility".
CASES = [
    ("the same", of(a=INT), of(a=INT), True, True),
    (
        "title and description differ",
        {"type": "string", "title": "a"},
        {"type": "string", "description": "b"},
        True,
        True,
    ),
    ("an optional property is added to an open model", of(a=INT), of(a=INT, b=STR), False, True),
    ("a property of any value is added to an open model", of(a=INT), of(a=INT, b={}), True, True),
    (
        "an optional property is added to a closed model",
        of(False, a=INT),
        of(False, a=INT, b=STR),
        True,
        False,
    ),
    (
        "a required property is added",
        of(False, a=INT),
        of(False, ["b"], a=INT, b=STR),
        False,
        False,
    ),
    (
        "a required property with a default is added to a closed model",
        of(False, a=INT),
        of(False, ["b"], a=INT, b={"type": "string", "default": ""}),
        True,
        False,
    ),
    ("a model is closed", of(a=INT), of(False, a=INT), False, True),
    (
        "a property is added that a partially open model covers",
        WORDS,
        {**WORDS, "properties": {"a": INT, "b": STR}},
        True,
        True,
    ),
    (
        "a property is added that it does not cover",
        WORDS,
        {**WORDS, "properties": {"a": INT, "b": INT}},
        False,
        False,
    ),
    ("a property becomes optional", of(required=["a"], a=INT), of(a=INT), True, False),
    ("a required property becomes forbidden", of(a=INT, b=False), of(a=INT), True, False),
    ("an integer becomes a number", of(a=INT), of(a=NUM), True, False),
    ("a string becomes an integer", STR, INT, False, False),
    ("null is admitted", of(a=STR), of(a={"type": ["string", "null"]}), True, False),
    (
        "a list of types becomes anyOf",
        {"type": ["string", "null"]},
        {"anyOf": [NULL, STR]},
        True,
        True,
    ),
    ("an enumeration grows", {"enum": ["a", "b"]}, {"enum": ["b", "a", "c"]}, True, False),
    ("an enumeration becomes a type", {"enum": ["a", "b"]}, STR, True, False),
    ("a constant joins an enumeration", {"const": 1}, {"enum": [1, 2]}, True, False),
    ("a maximum grows", {**INT, "maximum": 5}, {**INT, "maximum": 6}, True, False),
    ("a minimum is excluded", {**NUM, "minimum": 5}, {**NUM, "exclusiveMinimum": 5}, False, True),
    ("multipleOf is reduced", {**NUM, "multipleOf": 4}, {**NUM, "multipleOf": 2}, True, False),
    (
        "a fraction of multipleOf changes",
        {**NUM, "multipleOf": 0.3},
        {**NUM, "multipleOf": 0.1},
        False,
        False,
    ),
    ("a pattern is removed", {**STR, "pattern": "^a"}, STR, True, False),
    ("a pattern changes", {**STR, "pattern": "^a"}, {**STR, "pattern": "^b"}, False, False),
    ("maxLength shrinks", {**STR, "maxLength": 5}, {**STR, "maxLength": 4}, False, True),
    ("minItems is removed", {"type": "array", "minItems": 1}, {"type": "array"}, True, False),
    (
        "items must be unique",
        {"type": "array"},
        {"type": "array", "uniqueItems": True},
        False,
        True,
    ),
    ("items get a schema", {"type": "array"}, {"type": "array", "items": STR}, False, True),
    (
        "an item is added to a closed list",
        {"items": False},
        {"prefixItems": [STR], "items": False},
        True,
        False,
    ),
    ("contains is widened", {"contains": INT}, {"contains": NUM}, True, False),
    ("maxProperties grows", {"maxProperties": 1}, {"maxProperties": 2}, True, False),
    ("a dependency is removed", {"dependentRequired": {"a": ["b"]}}, {}, True, False),
    (
        "a dependency becomes a requirement",
        {"dependentRequired": {"a": ["b"]}},
        {"required": ["b"]},
        False,
        True,
    ),
    ("names of properties are limited", {}, {"propertyNames": {"maxLength": 3}}, False, True),
    (
        "a pattern of properties is widened",
        {"patternProperties": {"^x": INT}},
        {"patternProperties": {"^x": NUM}},
        True,
        False,
    ),
    ("a branch is added to anyOf", {"anyOf": [INT]}, {"anyOf": [STR, INT]}, True, False),
    (
        "a branch is added to oneOf that excludes the others",
        {"oneOf": [CAT]},
        {"oneOf": [CAT, DOG]},
        True,
        False,
    ),
    (
        "a branch is added to oneOf that overlaps",
        {"oneOf": [of(a=INT)]},
        {"oneOf": [of(a=INT), of(b=INT)]},
        False,
        False,
    ),
    (
        "branches of oneOf change their order",
        {"oneOf": [CAT, DOG, INT]},
        {"oneOf": [INT, DOG, CAT]},
        True,
        True,
    ),
    ("a part of allOf is removed", {"allOf": [INT, {"minimum": 1}]}, {"allOf": [INT]}, True, False),
    ("not is narrowed", {"not": NUM}, {"not": INT}, True, False),
    ("a definition is inlined", {"$ref": "#/$defs/x", "$defs": {"x": INT}}, INT, True, True),
    ("a recursive schema is the same", TREE, TREE, True, True),
    ("a recursive schema is widened", TREE, WIDE_TREE, True, False),
    (
        "unevaluatedProperties closes a model",
        of(a=INT),
        {**of(a=INT), "unevaluatedProperties": False},
        False,
        True,
    ),
    ("if is new", INT, {**INT, "if": {"minimum": 3}, "then": {"maximum": 9}}, False, True),
    (
        "if stays the same",
        {"if": STR, "then": {"minLength": 1}},
        {"if": STR, "then": {"minLength": 1}},
        True,
        True,
    ),
    (
        "a title changes beside if",
        {**LONG_IF_TEXT, "title": "a"},
        {**LONG_IF_TEXT, "title": "b"},
        True,
        True,
    ),
    (
        "a property is added beside if",
        {**of(False, a=INT), **A_IF_B},
        {**of(False, a=INT, c=STR), **A_IF_B},
        True,
        False,
    ),
    ("then changes", LONG_IF_TEXT, {**LONG_IF_TEXT, "then": {"minLength": 2}}, False, False),
    ("maxContains stays the same", {**FEW, "minItems": 1}, FEW, True, False),
    ("maxContains changes", FEW, {**FEW, "maxContains": 3}, False, False),
    ("everything is allowed", {"type": "object"}, True, True, False),
    ("nothing is allowed", False, STR, True, False),
]


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_schema_may_follow_another_one_if_values_stay_valid(old, new, backward, forward):
    assert (can_read(new, old), can_read(old, new)) == (backward, forward)


VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        5,
        6,
        0.5,
        0.1,
        0.3,
        "",
        "a",
        "ab",
        "abc",
        "bcd",
        "aaaaaa",
        "x",
    ),
    *(
        [],
        [1],
        [1, 1],
        [""],
        ["a", "b"],
        [0.5],
        [1, "a"],
        [None],
        {},
        {"a": 1},
        {"a": "1"},
        {"a": 0.5},
        {"a": None},
    ),
    *(
        {"b": "x"},
        {"a": 1, "b": "x"},
        {"a": 1, "b": 2},
        {"x": 1},
        {"x1": 0.5},
        {"long name": 1},
        {"kind": "cat"},
    ),
    *(
        {"kind": "cat", "lives": 9},
        {"kind": "dog", "name": ""},
        {"kind": "dog", "lives": "x"},
        {"v": 1, "sub": [{"v": 2}]},
    ),
    *(
        {"v": 0.5, "sub": []},
        {"v": 1, "sub": [{"v": 0.5}]},
        {"v": "x"},
        {"a": 1, "c": "x"},
        {"a": 1, "c": 2},
    ),
]


def test_no_value_contradicts_a_verdict():
    """Whatever pair of schemas is accepted: each value that the old one admits, the new one
    admits.
    """
    texts = {
        json.dumps(schema): schema
        for case in CASES
        for schema in case[1:3]
        if "default" not in str(schema)
    }
    nodes = [parse(text, ()) for text in texts]
    admitted = [
        {number for number, value in enumerate(VALUES) if node.admits(value)} for node in nodes
    ]
    accepted = [
        (reader, writer)
        for reader in range(len(nodes))
        for writer in range(len(nodes))
        if not incompatibilities(nodes[reader], nodes[writer])
    ]
    assert len(accepted) > 2 * len(nodes)
    wrong = [
        (
            nodes[reader].schema,
            nodes[writer].schema,
            VALUES[min(admitted[writer] - admitted[reader])],
        )
        for reader, writer in accepted
        if admitted[writer] - admitted[reader]
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("draft", "old", "new", "backward"),
    [
        (4, {**NUM, "minimum": 1, "exclusiveMinimum": True}, {**NUM, "minimum": 1}, True),
        (4, {**NUM, "minimum": 1}, {**NUM, "minimum": 1, "exclusiveMinimum": True}, False),
        (4, {"const": 1}, {"const": 2}, True),  # draft 4 does not know the keyword
        (7, {"const": 1}, {"const": 2}, False),
        (
            7,
            {"items": [INT], "additionalItems": False},
            {"items": [INT, STR], "additionalItems": False},
            True,
        ),
        (7, {"items": [INT]}, {"items": [INT, STR]}, False),
        (7, LONG_IF_TEXT, {**LONG_IF_TEXT, "title": "a"}, True),
        (7, {"dependencies": {"a": ["b"]}}, {"dependencies": {"a": ["b", "c"]}}, False),
        (7, {"definitions": {"x": STR}, "$ref": "#/definitions/x", "type": "integer"}, STR, True),
    ],
)
def test_keywords_mean_what_they_mean_in_the_draft(draft, old, new, backward):
    assert can_read(new, old, draft) is backward


def test_an_incompatible_schema_is_refused_with_its_place(client):
    client.register_schema("orders-value", Schema(text(of(False, a=INT)), "JSON"))
    with pytest.raises(SchemaRegistryError, match=r"#/properties/a: type integer is not admitted"):
        client.register_schema("orders-value", Schema(text(of(False, a=STR)), "JSON"))
    assert client.register_schema("orders-value", Schema(text(of(False, a=NUM)), "JSON")) == 2
    with pytest.raises(SchemaRegistryError, match="version 2 is JSON, not AVRO"):
        client.register_schema("orders-value", Schema('"int"'))


# --- registering ---


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("[]", "an object or a boolean"),
        ("{", "JSON"),
        ('{"type":"strnig"}', "strnig"),
        ('{"$schema":"http://example.org/x"}', "draft 'http://example.org/x' is not known"),
        ('{"$schema":"http://json-schema.org/draft-03/schema#"}', "is not known"),
        ('{"properties":{"a":{"$ref":"#/nowhere"}}}', "leads nowhere"),
        ('{"$ref":"https://example.org/other.json"}', "leads nowhere"),
        ('{"$ref":"#/title","title":"x"}', "leads to what is no schema"),
        ('{"$ref":"#/parts/x","parts":{"x":{"items":{"$ref":"#/nowhere"}}}}', "leads nowhere"),
        (r'{"pattern":"\\p{L}"}', "is no regular expression"),
        (
            r'{"$schema":"http://json-schema.org/draft-04/schema#","patternProperties":{"\\p":{}}}',
            "no regular expression",
        ),
        ('{"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#"}]}}}', "refers to itself"),
        ('{"a":1,"a":2}', "repeated"),
        (
            '{"$schema":"http://json-schema.org/draft-04/schema#","items":{"$ref":5}}',
            "a reference is no text",
        ),
    ],
)
def test_an_invalid_schema_is_refused(client, schema, reason):
    with pytest.raises(SchemaRegistryError, match=reason) as refused:
        client.register_schema("a", Schema(schema, "JSON"))
    assert refused.value.error_code == 42201
    with pytest.raises(SerializationError, match=reason):
        JSONSerializer(schema, client)


@pytest.mark.parametrize("draft", [None, 4, 7])
@pytest.mark.parametrize(
    "name", ["id", "$id", "$ref", "pattern", "patternProperties", "not", "enum", "items"]
)
def test_a_property_can_have_the_name_of_a_keyword(client, draft, name):
    def closed(kind: dict[str, str]) -> str:
        return text({**of(False, [name]), "properties": {name: kind}}, draft)

    serializer = JSONSerializer(closed(INT), client)
    assert JSONDeserializer(None, schema_registry_client=client)(
        serializer({name: 1}, VALUE), VALUE
    ) == {name: 1}
    with pytest.raises(SerializationError, match="does not conform"):
        serializer({name: "x"}, VALUE)
    assert client.register_schema("orders-value", Schema(closed(NUM), "JSON")) == 2


def test_a_chain_of_references_can_be_long(client):
    chain = {f"d{n}": of(next={"$ref": f"#/$defs/d{n + 1}"}) for n in range(1000)}
    assert client.register_schema(
        "a", Schema(text({"$ref": "#/$defs/d0", "$defs": {**chain, "d1000": INT}}), "JSON")
    )


def test_white_space_makes_no_other_schema_and_order_only_without_normalisation(client):
    one, two = (
        Schema('{"type": "object", "title": "x"}', "JSON"),
        Schema('{"title":"x","type":"object"}', "JSON"),
    )
    assert client.register_schema("a", one) == client.register_schema(
        "a", Schema('{"type":"object","title":"x"}', "JSON")
    )
    assert client.register_schema("a", two) == 2
    assert client.register_schema("b", one, normalize_schemas=True) == client.register_schema(
        "b", two, normalize_schemas=True
    )


# --- values ---

ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": INT,
        "address": {"$ref": "address.json"},
        "tags": {"type": "array", "items": STR},
    },
    "required": ["id"],
    "additionalProperties": False,
}


@pytest.fixture
def order(client: SchemaRegistryClient) -> Schema:
    address = client.register_schema_full_response("address", Schema(text(of(zip=STR)), "JSON"))
    return Schema(
        text(ORDER), "JSON", [SchemaReference("address.json", "address", address.version)]
    )


@pytest.mark.parametrize(
    ("value", "field", "reason"),
    [
        ({"id": "secret"}, "id", 'str does not conform to type "integer"'),
        ({"id": 1, "address": {"zip": 7}}, "address.zip", "int does not conform to type"),
        ({"id": 1, "tags": ["a", 2]}, "tags.1", "int does not conform"),
        ({}, None, "'id' is a required property"),
        ({"id": 1, "more": 2}, None, "'more' was unexpected"),
    ],
)
def test_a_value_that_does_not_conform_is_refused_with_its_field(
    client, order, value, field, reason
):
    with pytest.raises(SerializationError, match=reason) as refused:
        JSONSerializer(order, client)(value, VALUE)
    assert refused.value.field == field
    assert "secret" not in str(refused.value)
    data = JSONSerializer(order, client, conf={"validate": False})(value, VALUE)
    assert (
        JSONDeserializer(order, schema_registry_client=client, conf={"validate": False})(
            data, VALUE
        )
        == value
    )
    with pytest.raises(SerializationError, match=reason):
        JSONDeserializer(None, schema_registry_client=client)(data, VALUE)


def test_values_pass_through_the_callables(client, order):
    serializer = JSONSerializer(
        order, client, lambda number, _: {"id": number}, json_encode=lambda v: f" {json.dumps(v)}"
    )
    data = serializer(7, VALUE)
    assert data is not None
    assert data[5:] == b' {"id": 7}'
    reader = JSONDeserializer(order, lambda fields, _: fields["id"], client, json_decode=json.loads)
    assert reader(data, VALUE) == 7
    assert serializer(None, VALUE) is reader(None, VALUE) is None


def test_bytes_that_are_no_json_and_values_that_json_lacks_are_refused(client):
    anything = JSONSerializer("true", client)
    assert anything({"a": [1, None]}, VALUE) == b"\x00\x00\x00\x00\x01" + b'{"a":[1,null]}'
    for value in (float("nan"), b"bytes", object()):
        with pytest.raises(SerializationError):
            anything(value, VALUE)
    for data in (
        b"",
        b"\x00\x00\x00\x00\x01",
        b"\x00\x00\x00\x00\x01{",
        b"\x00\x00\x00\x00\x01\xff",
    ):
        with pytest.raises(SerializationError, match=r"no schema id|not JSON"):
            JSONDeserializer(None, schema_registry_client=client)(data, VALUE)


def test_a_message_of_another_format_is_refused(client):
    client.register_schema("a", Schema('"int"'))
    with pytest.raises(SerializationError, match="schema is AVRO, not JSON"):
        JSONDeserializer("true", schema_registry_client=client)(b"\x00\x00\x00\x00\x01{}", VALUE)
    with pytest.raises(InvalidConfig, match="schema_registry_client is needed"):
        JSONDeserializer(None)
    assert JSONDeserializer("true")(b"\x00\x00\x00\x00\x01{}", VALUE) == {}


def test_the_newest_version_can_judge_old_values(client):
    data = JSONSerializer("true", client)({"id": "x"}, VALUE)
    client.set_compatibility("orders-value", "NONE")
    client.register_schema("orders-value", Schema(text(of(id=INT)), "JSON"))
    latest = JSONDeserializer(
        None, schema_registry_client=client, conf={"use.latest.version": True}
    )
    with pytest.raises(SerializationError, match="type"):
        latest(data, VALUE)
