"""The names of `confluent_kafka` in `deltaq.compat.confluent`, compared with the installed
package.
"""

import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path
from types import ModuleType
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

GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/migrate-from-kafka.md"
WHOLE = "the module"


def named_as_missing() -> dict[str, set[str]]:
    """The table of the guide: by module, "" for `confluent_kafka` itself, the names that deltaq
    does not have.
    """
    section = GUIDE.read_text().partition("## Names that are missing\n")[2].partition("\n## ")[0]
    found: dict[str, set[str]] = {}
    for line in section.splitlines()[5:]:
        if line.startswith("| `"):
            modules, names, _ = line.strip("| ").split(" | ")
            for module in re.findall("`([^`]+)`", modules):
                own = re.findall("`([^`]+)`", names) or [WHOLE]
                found.setdefault("" if module == "confluent_kafka" else module, set()).update(own)
    return found


def submodules() -> set[str]:
    """The public modules of confluent-kafka; only the outermost of those that the guide names as
    missing.
    """
    whole = {module for module, names in named_as_missing().items() if names == {WHOLE}}
    found = set()
    for module in pkgutil.walk_packages(
        confluent_kafka.__path__, "confluent_kafka.", onerror=lambda _: None
    ):
        name = module.name.removeprefix("confluent_kafka.")
        parts = name.split(".")
        # Its own tests.
        if parts[0] != "kafkatest" and not any(part.startswith("_") for part in parts):
            found.add(next((each for each in whole if name.startswith(f"{each}.")), name))
    return found


MODULES = sorted(
    submodules() - {module for module, names in named_as_missing().items() if names == {WHOLE}}
)


def own_names(module: ModuleType) -> set[str]:
    """The names that a module exports, or those of its own and of other modules of
    confluent-kafka.
    """
    if hasattr(module, "__all__"):
        return {
            name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)
        }
    found = set()
    for name, value in vars(module).items():
        home = str(getattr(value, "__module__", "confluent_kafka"))  # constants have none
        if not (name.startswith("_") or isinstance(value, ModuleType)) and re.match(
            "confluent_kafka|cimpl", home
        ):
            found.add(name)
    return found - {"TYPE_CHECKING", "K", "V", "T"}  # of `typing`


def test_every_module_of_confluent_kafka_is_there_or_named_as_missing():
    assert {
        module for module, names in named_as_missing().items() if names == {WHOLE}
    } <= submodules()
    assert {"admin", "aio", "cimpl", "error", "schema_registry.avro", "serialization"} <= set(
        MODULES
    )
    ours = "deltaq.compat.confluent."
    assert [module for module in MODULES if importlib.util.find_spec(ours + module) is None] == []


# Programs import from these only the names that they define. What else is in them stands in other
# modules, too.
INNER = {
    "deserializing_consumer": {"DeserializingConsumer"},
    "serializing_producer": {"SerializingProducer"},
    "schema_registry.schema_registry_client": {
        "AsyncSchemaRegistryClient",
        "Schema",
        "SchemaRegistryClient",
    },
}


@pytest.mark.parametrize("module", ["", *MODULES])
def test_every_name_of_a_module_is_there_or_named_as_missing(module):
    suffix = f".{module}" if module else ""
    theirs = importlib.import_module(f"confluent_kafka{suffix}")
    ours = importlib.import_module(f"deltaq.compat.confluent{suffix}")
    names = INNER.get(module) or own_names(theirs)
    assert names <= own_names(theirs)
    assert names
    assert {name for name in names if not hasattr(ours, name)} == named_as_missing().get(
        module, set()
    )


def test_modules_need_no_import_of_their_own():
    module: Any = deltaq.compat.confluent
    assert module.schema_registry.avro.AvroSerializer is deltaq.schema_registry.avro.AvroSerializer
    assert module.error.ValueSerializationError is deltaq.serde.ValueSerializationError


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in own_names(confluent_kafka.admin)
        if isinstance(getattr(confluent_kafka.admin, name), int)
    ],
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
    ours, theirs = (
        getattr(deltaq.compat.confluent.admin, name),
        getattr(confluent_kafka.admin, name),
    )
    assert {member: ours[member].value for member in ours.__members__} == {
        member: theirs[member].value for member in theirs.__members__
    }


@pytest.mark.parametrize("function", ["murmur2", "consistent", "fnv1a"])
@pytest.mark.parametrize("key", [b"", b"a", b"key", b"hello world", "ü".encode()])
def test_partition_functions_choose_the_same_partition(function, key):
    assert getattr(deltaq.compat.confluent, function)(key, 10) == getattr(
        confluent_kafka, function
    )(key, 10)


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
        deltaq.compat.confluent.Prodcuer  # type: ignore[attr-defined]  # noqa: B018 - the access is the test
