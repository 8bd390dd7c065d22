"""Maintenance of the schema registry's log."""

from __future__ import annotations

from deltaq.maintenance.run import Maintenance
from deltaq.maintenance.schemas import SchemasPass
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.names import LOG_FOLDER, SCHEMAS_FOLDER
from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.store import MemoryStore
from deltaq.testing import ManualClock

SMALL = MaintenanceSettings(
    checkpoint_interval=4, log_retention_ms=1000, keep_entries_min=2, clean_up_grace_s=60
)


def entries(store: MemoryStore) -> list[str]:
    return [e.key for e in store.list(SCHEMAS_FOLDER + LOG_FOLDER) if e.key.endswith(".json")]


def test_entries_that_a_checkpoint_replaces_are_removed_and_schemas_stay():
    clock = ManualClock()
    store = MemoryStore("test", clock)
    client = SchemaRegistryClient({}, store=store, clock=clock)
    ids = [
        client.register_schema(
            f"s{number}", Schema(f'{{"type":"fixed","name":"F","size":{number}}}')
        )
        for number in range(1, 9)
    ]
    old = SchemaRegistryClient({}, store=store, clock=clock)
    assert old.get_subjects() == [f"s{number}" for number in range(1, 9)]
    clock.advance(10)
    rounds = SchemasPass(store, clock, SMALL)
    assert rounds.plan()["actions planned"] == 1
    assert rounds.run()["checkpoints"] == 1
    client.register_schema("late", Schema('"int"'))
    client.register_schema("later", Schema('"long"'))
    clock.advance(3600)
    rounds.run()
    assert rounds.is_waiting()
    clock.advance(3600)
    assert rounds.finish()["log objects deleted"] > 0
    assert len(entries(store)) == 3
    for reader in (SchemaRegistryClient({}, store=store, clock=clock), old):
        assert reader.get_subjects() == ["late", "later", *(f"s{number}" for number in range(1, 9))]
    assert client.get_schema(ids[0]).schema_str == '{"type":"fixed","name":"F","size":1}'
    assert old.register_schema("more", Schema('"string"')) == 11


def test_the_registry_is_maintained_with_its_root():
    clock = ManualClock()
    store = MemoryStore("test", clock)
    lines: list[str] = []
    maintenance = Maintenance(store, clock, SMALL, notify=lines.append)
    assert not maintenance.round()
    assert not maintenance.is_of_use
    client = SchemaRegistryClient({}, store=store, clock=clock)
    for number in range(1, 6):
        client.register_schema(f"s{number}", Schema('"int"'))
    assert maintenance.plan()["actions planned"] == 1
    assert lines == ["registry schemas: write a checkpoint of version 4"]
    assert maintenance.round()["checkpoints"] == 1
    assert maintenance.is_of_use
