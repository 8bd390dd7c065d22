"""Copies of the registry: the same ids and versions in another root, after lost answers and
clean-up too.
"""

from __future__ import annotations

import json
from functools import partial

import pytest

from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import KafkaException
from deltaq.maintenance.schemas import SchemasPass
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaRegistryClient,
    ServerConfig,
)
from deltaq.schema_registry.log import RegistryLog
from deltaq.schema_registry.mirror import RegistryCopier, may_continue, plan_copy
from deltaq.schema_registry.state import Registry
from deltaq.store import MemoryStore, ObjectMissing, Store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule


def _schema(number: int) -> Schema:
    fields = [{"name": f"f{at}", "type": ["null", "int"], "default": None} for at in range(number)]
    return Schema(json.dumps({"type": "record", "name": "Order", "fields": fields}))


def _registered(store: Store, *numbers: int) -> list[int]:
    client = SchemaRegistryClient({}, store=store)
    return [client.register_schema("orders-value", _schema(number)) for number in numbers]


@pytest.fixture
def source() -> Store:
    return MemoryStore("source")


@pytest.fixture
def target() -> Store:
    return MemoryStore("target")


def copied(source: Store, target: Store) -> int:
    return RegistryCopier(source, target, SYSTEM_CLOCK).run()


def read(store: Store) -> Registry:
    return RegistryLog(store, SYSTEM_CLOCK).read()


def test_ids_and_versions_are_the_same_in_a_copy(source: Store, target: Store) -> None:
    ids = _registered(source, 1, 2, 3)
    SchemaRegistryClient({}, store=source).delete_subject("orders-value")
    ids += _registered(source, 4)
    assert copied(source, target) == 4 + 1, "schemas and subjects"
    copy = SchemaRegistryClient({}, store=target)
    original = SchemaRegistryClient({}, store=source)
    assert [
        len(json.loads(str(copy.get_schema(number).schema_str))["fields"]) for number in ids
    ] == [1, 2, 3, 4]
    assert [copy.get_schema(number) for number in ids] == [
        original.get_schema(number) for number in ids
    ]
    assert copy.get_versions("orders-value") == [4]
    assert _registered(source, 5) == [5]
    assert copied(source, target) == 1 + 1
    assert copied(source, target) == 0
    assert _registered(target, 5) == [5]


def test_settings_and_removals_are_copied(source: Store, target: Store) -> None:
    (first,) = _registered(source, 1)
    client = SchemaRegistryClient({}, store=source)
    client.register_schema("gone", Schema('"int"'))
    copied(source, target)
    client.set_config(config=ServerConfig(ConfigCompatibilityLevel.FULL))
    client.delete_subject("gone")
    client.delete_subject("gone", permanent=True)
    assert copied(source, target) == 2, "the subject and its schema"
    copy = SchemaRegistryClient({}, store=target)
    assert copy.get_subjects() == ["orders-value"]
    assert copy.get_config().compatibility_level is ConfigCompatibilityLevel.FULL
    assert read(target).domains() == read(source).domains()
    assert _registered(source, 2) == [first + 2], "an id is never used again"


def test_an_empty_registry_is_copied_as_nothing(source: Store, target: Store) -> None:
    assert copied(source, target) == 0
    assert list(target.list("")) == []


def test_lost_answers_change_nothing(source: Store, target: Store) -> None:
    _registered(source, 1, 2, 3)
    faulty = FaultyStore(target, Rule("create", "schemas/*", Fault.error_after(), times=2))
    assert copied(source, faulty) == 3 + 1
    assert copied(source, target) == 0
    assert SchemaRegistryClient({}, store=target).get_versions("orders-value") == [1, 2, 3]


def test_a_registry_whose_older_entries_were_cleaned_up_is_copied_as_a_whole() -> None:
    clock = ManualClock()
    source, early, late = (MemoryStore(name, clock) for name in ("source", "early", "late"))
    client = SchemaRegistryClient({}, store=source, clock=clock)
    for number in range(1, 9):
        client.register_schema(f"s{number}", Schema('"int"'))
    RegistryCopier(source, early, clock).run()
    settings = MaintenanceSettings(checkpoint_interval=4, log_retention_ms=1000, keep_entries_min=2)
    maintenance = SchemasPass(source, clock, settings)
    maintenance.run()
    client.register_schema("s9", Schema('"long"'))
    for _ in range(2):
        clock.advance(24 * 3600)
        maintenance.run()
    with pytest.raises(ObjectMissing):
        source.get("schemas/_delta_log/00000000000000000000.json")
    for target in (early, late):
        RegistryCopier(source, target, clock).run()
        copy = SchemaRegistryClient({}, store=target, clock=clock)
        assert copy.get_subjects() == [f"s{number}" for number in range(1, 10)]


def test_a_copy_in_many_steps_may_end_after_any_of_them(source: Store, target: Store) -> None:
    _registered(source, 1, 2, 3)
    client = SchemaRegistryClient({}, store=source)
    client.register_schema("gone", Schema('"int"'))
    log = RegistryLog(target, SYSTEM_CLOCK)
    for _ in range(2):
        wanted = read(source)
        for _ in range(10):
            assert may_continue(wanted, log.read())
            log.change("COPY REGISTRY", partial(plan_copy, wanted, at_once=1), 60.0)
        assert read(target).domains() == wanted.domains()
        if "gone" in client.get_subjects():
            client.delete_subject("gone")
            client.delete_subject("gone", permanent=True)
    assert copied(source, target) == 0


@pytest.mark.parametrize(
    ("here", "there"), [((1,), (2,)), ((1,), (1, 2)), ((1,), (1,)), ((), (1,))]
)
def test_a_registry_with_entries_of_its_own_is_left_alone(
    source: Store, target: Store, here: tuple[int, ...], there: tuple[int, ...]
) -> None:
    _registered(source, *here)
    _registered(target, *there)
    _assert_left_alone(source, target)


def test_a_copy_that_was_changed_or_is_of_another_source_is_left_alone(
    source: Store, target: Store
) -> None:
    _registered(source, 1)
    copied(source, target)
    other = MemoryStore("other")
    _registered(other, 2, 3)
    _assert_left_alone(other, target)
    SchemaRegistryClient({}, store=target).set_config(
        config=ServerConfig(ConfigCompatibilityLevel.NONE)
    )
    _assert_left_alone(source, target)


def _assert_left_alone(source: Store, target: Store) -> None:
    before = {entry.key: target.get(entry.key) for entry in target.list("")}
    with pytest.raises(KafkaException, match="has entries of its own"):
        copied(source, target)
    assert {entry.key: target.get(entry.key) for entry in target.list("")} == before
