"""Protobuf: what is registered, which schemas may follow which, and what the serializers write and
refuse.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

from deltaq.errors import InvalidConfig
from deltaq.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
)
from deltaq.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from deltaq.schema_registry.protobuf_format import identity, incompatibilities, parse, schema_text
from deltaq.serde import MessageField, SerializationContext, SerializationError
from deltaq.store import MemoryStore

VALUE = SerializationContext("orders", MessageField.VALUE)
ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message First { int32 x = 1; }
message Order {
  int64 id = 1;               // a comment
  optional string note = 2 [deprecated = true];
  map<string, Line> lines = 3;
  google.protobuf.Timestamp at = 4;
  oneof kind { int32 small = 5; Line big = 6; }
  message Line { repeated double prices = 1 [packed = false]; Color color = 2; }
  enum Color { option allow_alias = true; RED = 0; ROT = 0; BLUE = 2; reserved 5 to max; }
  reserved 9 to 11, 15;
  reserved "old";
}
service Shop { rpc Get(First) returns (stream Order.Line); }
"""


@pytest.fixture
def client() -> SchemaRegistryClient:
    return SchemaRegistryClient({}, store=MemoryStore("test"))


def message_class(text: str, *path: str, references: tuple[Any, ...] = ()) -> Any:
    """The class that protoc would generate for a message."""
    found = parse(text, references)
    descriptor = found.message_types_by_name[path[0]]
    for name in path[1:]:
        descriptor = descriptor.nested_types_by_name[name]
    return GetMessageClass(descriptor)


# --- text ---

PROTO2 = """
syntax = 'proto2';
message A {
  required int32 id = 1 [default = -7];
  optional float ratio = 2 [default = 1.5, json_name = "r"];
  optional bool on = 3 [default = true];
  optional group Inner = 4 { optional bytes data = 1; }
  repeated string names = 6;
  extensions 100 to 199, 500 to max;
}
extend A { optional A more = 100; }
"""


def test_a_text_describes_the_file_that_protoc_describes():
    found = FileDescriptorProto()
    parse(PROTO2, ()).CopyToProto(found)
    assert (
        str(found)
        == 'name: "schema.proto"\nmessage_type {\n  name: "A"\n  field {\n    name: "id"\n   '
        ' number: 1\n    label: LABEL_REQUIRED\n    type: TYPE_INT32\n    default_value: "-7"\n '
        ' }\n  field {\n    name: "ratio"\n    number: 2\n    label: LABEL_OPTIONAL\n    type:'
        ' TYPE_FLOAT\n    default_value: "1.5"\n    json_name: "r"\n  }\n  field {\n    name:'
        ' "on"\n    number: 3\n    label: LABEL_OPTIONAL\n    type: TYPE_BOOL\n   '
        ' default_value: "true"\n  }\n  field {\n    name: "inner"\n    number: 4\n    label:'
        ' LABEL_OPTIONAL\n    type: TYPE_GROUP\n    type_name: ".A.Inner"\n  }\n  field {\n   '
        ' name: "names"\n    number: 6\n    label: LABEL_REPEATED\n    type: TYPE_STRING\n  }\n '
        ' nested_type {\n    name: "Inner"\n    field {\n      name: "data"\n      number: 1\n  '
        "    label: LABEL_OPTIONAL\n      type: TYPE_BYTES\n    }\n  }\n  extension_range {\n   "
        " start: 100\n    end: 200\n  }\n  extension_range {\n    start: 500\n    end:"
        ' 536870912\n  }\n}\nextension {\n  name: "more"\n  extendee: ".A"\n  number: 100\n '
        ' label: LABEL_OPTIONAL\n  type: TYPE_MESSAGE\n  type_name: ".A"\n}\n'
    )


def test_an_optional_field_of_proto3_has_a_oneof_of_its_own_after_the_others():
    order = parse(ORDER, ()).message_types_by_name["Order"]
    assert [oneof.name for oneof in order.oneofs] == ["kind", "_note"]
    assert order.fields_by_name["note"].has_presence
    assert order.fields_by_name["at"].message_type.full_name == "google.protobuf.Timestamp"
    assert order.fields_by_name["lines"].message_type.GetOptions().map_entry


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("mesage A {}", "line 1, column 1: mismatched input 'mesage'"),
        ('syntax = "proto3"; message A { int32 a 1; }', "line 1, column 40"),
        ('syntax = "proto3"; message A { Nosuch a = 1; }', "Nosuch"),
        ('syntax = "proto3"; message A { int32 a = 1; int32 b = 1; }', "1"),
        ('syntax = "proto3"; message A { required int32 a = 1; }', "cannot be required"),
        ('syntax = "proto3"; message A { int32 a = 1 [packd = true]; }', "packd"),
        ("message A { int32 a = 1; }", "must be optional, required or repeated"),
        ('edition = "2023"; message A {}', "use the syntax proto2 or proto3"),
        (
            'syntax = "proto3"; import "other.proto"; message A {}',
            "'other.proto' is not among the references",
        ),
        (
            'syntax = "proto3"; import "google/protobuf/nosuch.proto"; message A {}',
            "no file of Protobuf",
        ),
    ],
)
def test_an_invalid_schema_is_refused(client, text, reason):
    with pytest.raises(SchemaRegistryError, match=reason) as refused:
        client.register_schema("a", Schema(text, "PROTOBUF"))
    assert refused.value.error_code == 42201


def test_nested_types_have_the_order_that_protoc_gives_them():
    body = (
        "map<string, N> first = 1; message N {} optional group Group = 2 {} message O {} "
        "map<string, O> last = 3;"
    )
    descriptor = parse(message(body, "proto2"), ()).message_types_by_name["M"]
    assert [nested.name for nested in descriptor.nested_types] == [
        "FirstEntry",
        "N",
        "Group",
        "O",
        "LastEntry",
    ]


def test_text_and_descriptor_of_one_file_have_one_id(client):
    generated = schema_text(parse(ORDER, ()))
    assert identity(generated, ()) == identity(ORDER, ())
    first = client.register_schema("a", Schema(ORDER, "PROTOBUF"))
    assert client.register_schema("a", Schema(generated, "PROTOBUF")) == first
    assert (
        client.lookup_schema("a", Schema(ORDER.replace("// a comment", ""), "PROTOBUF")).version
        == 1
    )
    assert (
        client.register_schema("a", Schema(ORDER.replace("prices", "cents"), "PROTOBUF")) != first
    )
    assert "a comment" in client.get_version("a", 1).schema.schema_str


# --- compatibility ---


def message(body: str, syntax: str = "proto3", others: str = "") -> str:
    return f'syntax = "{syntax}"; package p; message M {{ {body} }} {others}'


NUMBERED = "int32 a = 1;"
M = message(NUMBERED)
STRINGS, LONGS, NUMBERS = (f"map<string, {kind}> a = 1;" for kind in ("string", "int64", "int32"))
TWO, ONE_OF_TWO = "int32 a = 1; int32 b = 2;", "oneof o { int32 a = 1; int32 b = 2; }"
ONE_OF_ONE = "oneof o { int32 a = 1; }"
N_AND_O = "message N {} message O {}"
REQUIRED, OPTIONAL = (
    message(f"{label} int32 a = 1;", "proto2") for label in ("required", "optional")
)
# From the old version to the new one: whether the new one reads what the old one wrote, and the
# reverse. The rules are those of Protobuf, "Updating A Message Type", as Confluent publishes them
# in "Schema Evolution and Compatibility".
CASES = [
    ("the same", M, M, True, True),
    ("a field is added", M, message(NUMBERED + "string b = 2;"), True, True),
    ("a field is renamed", M, message("int32 other = 1;"), True, True),
    ("a message is added", M, message(NUMBERED, others="message N {}"), True, False),
    (
        "messages change their order",
        message("", others=N_AND_O),
        message("", others="message O {} message N {}"),
        True,
        True,
    ),
    ("an int32 becomes an int64", M, message("int64 a = 1;"), True, True),
    ("an int32 becomes a bool", M, message("bool a = 1;"), True, True),
    ("an int32 becomes an enum", M, message("E a = 1; enum E { X = 0; }"), True, True),
    ("an int32 becomes a sint32", M, message("sint32 a = 1;"), False, False),
    ("an int32 becomes a fixed32", M, message("fixed32 a = 1;"), False, False),
    (
        "a fixed32 becomes a sfixed32",
        message("fixed32 a = 1;"),
        message("sfixed32 a = 1;"),
        True,
        True,
    ),
    (
        "a fixed32 becomes a fixed64",
        message("fixed32 a = 1;"),
        message("fixed64 a = 1;"),
        False,
        False,
    ),
    ("a float becomes a double", message("float a = 1;"), message("double a = 1;"), False, False),
    ("a string becomes bytes", message("string a = 1;"), message("bytes a = 1;"), True, True),
    ("an int32 becomes a string", M, message("string a = 1;"), False, False),
    ("an int32 becomes a message", M, message("N a = 1; message N {}"), False, False),
    ("an int32 becomes repeated", M, message("repeated int32 a = 1;"), False, False),
    (
        "a string becomes repeated",
        message("string a = 1;"),
        message("repeated string a = 1;"),
        True,
        True,
    ),
    ("a field becomes optional", M, message("optional int32 a = 1;"), True, True),
    (
        "an enumeration gets a value",
        message("enum E { X = 0; }"),
        message("enum E { X = 0; Y = 1; }"),
        True,
        True,
    ),
    (
        "the type changes",
        message("N a = 1;", others=N_AND_O),
        message("O a = 1;", others=N_AND_O),
        False,
        False,
    ),
    (
        "a nested field changes",
        message("message N { int32 x = 1; }"),
        message("message N { string x = 1; }"),
        False,
        False,
    ),
    (
        "a recursive message is widened",
        message("M m = 1; int32 a = 2;"),
        message("M m = 1; int64 a = 2;"),
        True,
        True,
    ),
    ("the values of a map change", message(NUMBERS), message(STRINGS), False, False),
    ("the values of a map are widened", message(NUMBERS), message(LONGS), True, True),
    (
        "a map becomes a message",
        message(NUMBERS),
        message("repeated N a = 1; message N {}"),
        False,
        False,
    ),
    ("the package changes", M, M.replace("package p", "package q"), False, False),
    ("a required field is added", message("", "proto2"), REQUIRED, False, False),
    ("a field becomes required", OPTIONAL, REQUIRED, False, True),
    ("a field moves into a new oneof", M, message(ONE_OF_ONE), True, True),
    (
        "a field joins a oneof",
        message("int32 b = 2; " + ONE_OF_ONE),
        message(ONE_OF_TWO),
        False,
        True,
    ),
    ("two fields move into a oneof", message(TWO), message(ONE_OF_TWO), False, True),
    ("a member is added to a oneof", message(ONE_OF_ONE), message(ONE_OF_TWO), True, False),
    ("a oneof is removed with its members", message(ONE_OF_ONE), message(""), True, True),
]


@pytest.mark.parametrize(
    ("old", "new", "backward", "forward"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_schema_may_follow_another_one_if_messages_can_be_read(old, new, backward, forward):
    before, after = parse(old, ()), parse(new, ())
    assert (not incompatibilities(after, before), not incompatibilities(before, after)) == (
        backward,
        forward,
    )


def test_an_incompatible_schema_is_refused_with_its_field(client):
    client.register_schema("orders-value", Schema(M, "PROTOBUF"))
    with pytest.raises(
        SchemaRegistryError, match=r"M\.a: field 1 changed from int32, .* to string or bytes"
    ):
        client.register_schema("orders-value", Schema(message("string a = 1;"), "PROTOBUF"))


# --- messages ---


def test_a_message_is_found_by_its_indexes(client):
    kinds = [message_class(ORDER, *path) for path in (["First"], ["Order"], ["Order", "Line"])]
    prefixes = []
    for kind in kinds:
        data = ProtobufSerializer(kind, client)(kind(), VALUE)
        assert ProtobufDeserializer(kind, schema_registry_client=client)(data, VALUE) == kind()
        prefixes.append(data)
    lines = list(parse(ORDER, ()).message_types_by_name["Order"].nested_types_by_name).index("Line")
    assert prefixes == [
        b"\x00\x00\x00\x00\x01\x00",  # the first message of the file has a short form
        b"\x00\x00\x00\x00\x01\x02\x02",
        b"\x00\x00\x00\x00\x01\x04\x02" + bytes([2 * lines]),
    ]
    assert client.get_versions("orders-value") == [1]


def test_messages_come_back_as_they_were(client):
    order = message_class(ORDER, "Order")
    given = order(id=5, note="", small=7)
    given.lines["a"].prices.extend([1.5, 2.5])
    data = ProtobufSerializer(order, client)(given, VALUE)
    found = ProtobufDeserializer(order, schema_registry_client=client)(data, VALUE)
    assert found == given
    assert found.HasField("note")
    assert ProtobufDeserializer(order)(data, VALUE) == given, (
        "without a client, the class alone is enough"
    )
    assert (
        ProtobufSerializer(order, client)(None, VALUE)
        is ProtobufDeserializer(order)(None, VALUE)
        is None
    )


def test_imports_are_registered_as_references(client):
    base = 'syntax = "proto3"; package b; message Base { int32 x = 1; }'
    middle = 'syntax = "proto3"; import "base.proto"; message Middle { b.Base base = 1; }'
    top = 'syntax = "proto3"; import "middle.proto"; message Top { Middle middle = 1; }'
    references = (("base.proto", base), ("middle.proto", middle))
    kind = message_class(top, "Top", references=references)
    data = ProtobufSerializer(kind, client)(kind(middle={"base": {"x": 3}}), VALUE)
    assert client.get_subjects() == ["base.proto", "middle.proto", "orders-value"]
    assert client.get_latest_version("orders-value").schema.references == [
        SchemaReference("middle.proto", "middle.proto", 1)
    ]
    assert ProtobufDeserializer(kind, schema_registry_client=client)(data, VALUE).middle.base.x == 3
    named = {
        "reference.subject.name.strategy": lambda context, file: f"{context.topic}/{file.name}"
    }
    ProtobufSerializer(kind, client, named)(kind(), VALUE)
    assert "orders/base.proto" in client.get_subjects()
    absent = ProtobufSerializer(
        kind, SchemaRegistryClient({}, store=MemoryStore("other")), {"auto.register.schemas": False}
    )
    with pytest.raises(SchemaRegistryError, match=r"base\.proto"):
        absent(kind(), VALUE)


def test_a_message_is_looked_for_in_the_version_that_is_written_with(client):
    old, new = (
        'syntax = "proto3"; message M { int32 a = 1; }',
        'syntax = "proto3"; message N {} message M { int32 a = 1; }',
    )
    client.register_schema("orders-value", Schema(old, "PROTOBUF"))
    client.register_schema("orders-value", Schema(new, "PROTOBUF"))
    kind, conf = (
        message_class(old, "M"),
        {"auto.register.schemas": False, "use.latest.version": True},
    )
    assert (
        ProtobufSerializer(kind, client, conf)(kind(a=1), VALUE)
        == b"\x00\x00\x00\x00\x02\x02\x02\x08\x01"
    )
    other = message_class('syntax = "proto3"; message Other {}', "Other")
    with pytest.raises(SerializationError, match="no message Other"):
        ProtobufSerializer(other, client, conf)(other(), VALUE)


def test_messages_that_do_not_conform_are_refused(client):
    kind = message_class('syntax = "proto2"; message M { required int32 a = 1; }', "M")
    serializer = ProtobufSerializer(kind, client)
    with pytest.raises(SerializationError, match="required"):
        serializer(kind(), VALUE)
    with pytest.raises(SerializationError, match="expected M, not dict"):
        serializer({"a": 1}, VALUE)
    assert client.get_subjects() == [], "a refused message registers nothing"
    serializer(kind(a=1), VALUE)
    reader = ProtobufDeserializer(kind, schema_registry_client=client)
    prefix = b"\x00\x00\x00\x00\x01"
    bad = [
        (prefix, "message indexes"),
        (prefix + b"\x00\x08", "no M"),
        (prefix + b"\x00\xff\xff", "no M"),
        (prefix + b"\x02\x0a\x08\x01", r"no message at \[5\]"),
        (prefix + b"\xfe\xff\xff\xff\x0f", "message indexes"),
        (prefix + b"\x01", "negative"),
    ]
    for data, reason in bad:
        with pytest.raises(SerializationError, match=reason):
            reader(data, VALUE)
    with pytest.raises(SchemaRegistryError, match="no schema with id 9"):
        reader(b"\x00\x00\x00\x00\x09\x00", VALUE)


def test_a_serializer_refuses_what_it_cannot_use(client):
    kind = message_class(M, "M")
    with pytest.raises(TypeError, match="must be a class that protoc has generated"):
        ProtobufSerializer(kind(), client)
    with pytest.raises(InvalidConfig, match="no longer supported"):
        ProtobufDeserializer(kind, {"use.deprecated.format": True})
