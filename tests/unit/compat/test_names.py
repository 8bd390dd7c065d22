"""The names of `confluent_kafka` in `deltaq.compat.confluent`, compared with the installed package."""

import importlib
import re
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import confluent_kafka.aio
import pytest

import deltaq.compat.confluent
import deltaq.compat.confluent.admin
import deltaq.compat.confluent.aio
import deltaq.schema_registry.avro
import deltaq.serde
from deltaq.compat.confluent import Uuid

# Share groups (Kafka 4) have no counterpart in deltaq.
SHARE_GROUPS = {"Messages"}
# Names with which the modules of a format work on schemas themselves, and errors of fastavro.
OF_ITS_LIBRARIES = {
    "AvroMessage",
    "AvroSchema",
    "DEFAULT_SPEC",
    "JsonMessage",
    "JsonSchema",
    "LocalSchemaRepository",
    "SchemaParseException",
    "UnknownType",
    "decimal_to_protobuf",
    "get_inline_tags",
    "get_type",
    "is_map_field",
    "parse_schema_with_repo",
    "protobuf_to_decimal",
    "protobuf_to_variant",
    "transform",
    "validate_message",
    "variant_to_protobuf",
}
# Modules, and names that confluent_kafka imports for its own use.
INTERNAL = {
    "Any",
    "Dict",
    "List",
    "Optional",
    "Set",
    "Tuple",
    "Union",
    "cimpl",
    "concurrent",
    "deserializing_consumer",
    "deserializing_share_consumer",
    "os",
    "serializing_producer",
    "string_type",
    "warnings",
}
# What needs a server of Confluent's: rules, associations of topics with subjects, and what is asynchronous over HTTP.
OF_A_SERVER = re.compile("Association|Async|OAuth|Rule")
# Experimental: clients that make serializers of their own.
BUILDERS = re.compile("Builder$")


def public(module: object) -> set[str]:
    return {name for name in dir(module) if not name.startswith("_")} - INTERNAL


def test_all_names_of_confluent_kafka_exist():
    missing = {name for name in public(confluent_kafka) if not hasattr(deltaq.compat.confluent, name)}
    assert missing - {"avro"} == SHARE_GROUPS, "avro is the client of before 2019"


@pytest.mark.parametrize(
    "module",
    [
        "error",
        "serialization",
        "schema_registry",
        "schema_registry.avro",
        "schema_registry.error",
        "schema_registry.json_schema",
        "schema_registry.protobuf",
    ],
)
def test_all_names_of_its_modules_of_serializers_exist(module):
    theirs = importlib.import_module(f"confluent_kafka.{module}")
    ours = importlib.import_module(f"deltaq.compat.confluent.{module}")
    names = set(theirs.__all__) if hasattr(theirs, "__all__") else public(theirs) - OF_ITS_LIBRARIES
    expected = {name for name in names if not OF_A_SERVER.search(name) and not BUILDERS.search(name)} - OF_ITS_LIBRARIES
    assert len(expected) >= 1
    assert {name for name in expected if not hasattr(ours, name)} == set()


def test_modules_need_no_import_of_their_own():
    module: Any = deltaq.compat.confluent
    assert module.schema_registry.avro.AvroSerializer is deltaq.schema_registry.avro.AvroSerializer
    assert module.error.ValueSerializationError is deltaq.serde.ValueSerializationError


def test_all_names_of_its_admin_module_exist():
    assert {name for name in public(confluent_kafka.admin) if not hasattr(deltaq.compat.confluent.admin, name)} == set()


def test_all_names_of_its_module_for_asyncio_exist():
    theirs, ours = confluent_kafka.aio, deltaq.compat.confluent.aio
    assert {name for name in theirs.__all__ if not hasattr(ours, name)} == set()


@pytest.mark.parametrize(
    "name", [name for name in public(confluent_kafka.admin) if isinstance(getattr(confluent_kafka.admin, name), int)]
)
def test_constants_have_the_same_value(name):
    assert getattr(deltaq.compat.confluent.admin, name) == getattr(confluent_kafka.admin, name)


@pytest.mark.parametrize(
    "name",
    [
        "AclOperation",
        "AclPermissionType",
        "AlterConfigOpType",
        "ConfigSource",
        "ResourcePatternType",
        "ResourceType",
        "ScramMechanism",
    ],
)
def test_enumerations_have_the_same_members(name):
    ours, theirs = getattr(deltaq.compat.confluent.admin, name), getattr(confluent_kafka.admin, name)
    assert {member: ours[member].value for member in ours.__members__} == {
        member: theirs[member].value for member in theirs.__members__
    }


@pytest.mark.parametrize("function", ["murmur2", "consistent", "fnv1a"])
@pytest.mark.parametrize("key", [b"", b"a", b"key", b"hello world", "ü".encode()])
def test_partition_functions_choose_the_same_partition(function, key):
    assert getattr(deltaq.compat.confluent, function)(key, 10) == getattr(confluent_kafka, function)(key, 10)


@pytest.mark.parametrize("halves", [(1, 2), (-1, -2), (2**63 - 1, -(2**63)), (0, 0)])
def test_a_uuid_has_the_text_and_halves_of_kafkas(halves):
    theirs: Any = confluent_kafka.Uuid(*halves)
    ours = Uuid(*halves)
    assert str(ours) == str(theirs)
    assert ours.get_most_significant_bits() == theirs.get_most_significant_bits()
    assert ours.get_least_significant_bits() == theirs.get_least_significant_bits()
    assert ours == Uuid(*halves)
    assert hash(ours) == hash(Uuid(*halves))


def test_a_name_that_confluent_kafka_lacks_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Prodcuer'"):
        deltaq.compat.confluent.Prodcuer  # noqa: B018 - the access is the test
