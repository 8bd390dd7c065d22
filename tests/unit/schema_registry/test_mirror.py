"""Copies of the registry: the same ids and versions in another root, also after lost answers."""

from __future__ import annotations

import json

import pytest

from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import KafkaException, Unavailable
from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.schema_registry.mirror import copy_registry
from deltaq.store import MemoryStore, Store
from deltaq.testing import Fault, FaultyStore, Rule


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


def test_ids_and_versions_are_the_same_in_a_copy(source: Store, target: Store) -> None:
    ids = _registered(source, 1, 2, 3)
    SchemaRegistryClient({}, store=source).delete_subject("orders-value")
    ids += _registered(source, 4)
    assert copy_registry(source, target, SYSTEM_CLOCK) == 5
    copy = SchemaRegistryClient({}, store=target)
    original = SchemaRegistryClient({}, store=source)
    assert [len(json.loads(str(copy.get_schema(number).schema_str))["fields"]) for number in ids] == [1, 2, 3, 4]
    assert [copy.get_schema(number) for number in ids] == [original.get_schema(number) for number in ids]
    assert copy.get_versions("orders-value") == [4]
    assert _registered(source, 5) == [5]
    assert copy_registry(source, target, SYSTEM_CLOCK) == 1
    assert _registered(target, 5) == [5]


def test_an_empty_registry_is_copied_as_nothing(source: Store, target: Store) -> None:
    assert copy_registry(source, target, SYSTEM_CLOCK) == 0
    assert list(target.list("")) == []


def test_lost_answers_change_nothing(source: Store, target: Store) -> None:
    _registered(source, 1, 2, 3)
    faulty = FaultyStore(target, Rule("create", "schemas/*", Fault.error_after(), times=2))
    for _ in range(2):
        with pytest.raises(Unavailable):
            copy_registry(source, faulty, SYSTEM_CLOCK)
    assert copy_registry(source, faulty, SYSTEM_CLOCK) == 1
    assert SchemaRegistryClient({}, store=target).get_versions("orders-value") == [1, 2, 3]


@pytest.mark.parametrize(("here", "there"), [((1,), (2,)), ((1,), (1, 2)), ((), (1,))])
def test_a_registry_with_entries_of_its_own_is_left_alone(
    source: Store, target: Store, here: tuple[int, ...], there: tuple[int, ...]
) -> None:
    _registered(source, *here)
    _registered(target, *there)
    before = {entry.key: target.get(entry.key) for entry in target.list("")}
    with pytest.raises(KafkaException, match="has entries of its own"):
        copy_registry(source, target, SYSTEM_CLOCK)
    assert {entry.key: target.get(entry.key) for entry in target.list("")} == before
