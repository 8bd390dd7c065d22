"""Objects made so large that a process that reads them ends: refused by their size, before they are
read, with path, size and limit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from deltaq import Corrupt, KafkaError, KafkaException, Topic
from deltaq.delta import checkpoint, entries
from deltaq.groups.log import GroupLog
from deltaq.names import (
    SCHEMAS_FOLDER,
    checkpoint_file,
    group_folder,
    last_checkpoint,
    log_archive_folder,
    log_entry,
    topic_folder,
    topic_log,
)
from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.store import MemoryStore, Store, open_store
from deltaq.testing import ManualClock
from tests.security.forged import LAST, produce_three, read_until_error
from tests.servers.s3_stub import S3Stub

pytestmark = pytest.mark.fault("K10")

SMALL_LIMIT = 100_000
LARGE, HUGE = 1_000_000, 10 * 2**30
VALUES = [b"value %d" % number for number in range(LAST)]


@dataclass
class Place:
    """A store in which objects of a size can be made. Local files are sparse, and take no room."""

    store: Store
    folder: str = ""

    @property
    def size(self) -> int:
        return HUGE if self.folder else LARGE

    def make(self, key: str) -> str:
        if not self.folder:
            self.store.put(key, b"{" * LARGE)
        else:
            self.store.put(key, b"")
            os.truncate(f"{self.folder}/{key}", HUGE)
        return key


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3)])
def place(
    request: pytest.FixtureRequest, local_root: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "local":
        yield Place(open_store(local_root), local_root)
        return
    monkeypatch.setattr(entries, "ENTRY_BYTES_MAX", SMALL_LIMIT)
    monkeypatch.setattr(checkpoint, "CHECKPOINT_BYTES_MAX", SMALL_LIMIT)
    monkeypatch.setattr(checkpoint, "POINTER_BYTES_MAX", SMALL_LIMIT)
    if request.param == "memory":
        yield Place(MemoryStore("large"))
        return
    with S3Stub() as stub:
        yield Place(open_store("s3://deltaq/large", stub.options()))


def refused(place: Place, key: str) -> str:
    return rf"{key}.*it has {place.size} bytes, more than \d+"


def test_a_large_log_entry_is_not_read(place: Place):
    produce_three(place.store)
    key = place.make(log_entry(topic_log("t"), LAST + 1))
    with pytest.raises(Corrupt, match=refused(place, key)) as raised:
        Topic("t", store=place.store).to_arrow()
    assert (raised.value.path, raised.value.version) == (key, LAST + 1)
    found, error = read_until_error(place.store)
    assert found == []
    assert error.code() == KafkaError._BAD_MSG
    assert "bytes, more than" in error.str()
    place.store.delete(key)
    assert Topic("t", store=place.store).to_arrow()["value"].to_pylist() == VALUES


def test_a_large_archived_entry_is_not_read(place: Place):
    produce_three(place.store)
    key = place.make(log_entry(log_archive_folder(topic_folder("t")), 1))
    if place.store.is_remote:  # has no archive
        assert Topic("t", store=place.store).to_arrow()["value"].to_pylist() == VALUES
        return
    with pytest.raises(Corrupt, match=refused(place, key)):
        Topic("t", store=place.store).to_arrow()


def test_a_pointer_and_a_checkpoint_are_passed_over(place: Place, caplog: pytest.LogCaptureFixture):
    produce_three(place.store)
    key = place.make(checkpoint_file(topic_log("t"), 2))
    place.store.put(last_checkpoint(topic_log("t")), json.dumps({"version": 2}).encode())
    assert Topic("t", store=place.store).to_arrow()["value"].to_pylist() == VALUES
    assert f"{key} (version 2): it has {place.size} bytes, more than" in caplog.text
    place.make(last_checkpoint(topic_log("t")))
    assert Topic("t", store=place.store).to_arrow()["value"].to_pylist() == VALUES
    assert "ignoring a damaged _last_checkpoint" in caplog.text


def test_a_large_checkpoint_does_not_replace_entries(place: Place):
    produce_three(place.store)
    place.make(checkpoint_file(topic_log("t"), 1))
    place.store.delete(log_entry(topic_log("t"), 0))
    with pytest.raises(Corrupt):
        Topic("t", store=place.store).to_arrow()


def test_a_large_data_file_is_not_read(place: Place):
    produce_three(place.store)
    (key, *_) = [
        found.key for found in place.store.list(topic_folder("t")) if found.key.endswith(".parquet")
    ]
    place.make(key)
    with pytest.raises(Corrupt, match=refused(place, key)):
        Topic("t", store=place.store).to_arrow()
    _, error = read_until_error(place.store)
    assert f"it has {place.size} bytes" in error.str()


def test_large_entries_of_groups_and_of_the_registry_are_not_read(place: Place):
    client = SchemaRegistryClient({}, store=place.store)
    client.register_schema("s", Schema('"int"'))
    key = place.make(log_entry(SCHEMAS_FOLDER + "_delta_log/", 1))
    with pytest.raises(Corrupt, match=refused(place, key)):
        SchemaRegistryClient({}, store=place.store).get_subjects()
    key = place.make(log_entry(group_folder("g") + "_delta_log/", 0))
    with pytest.raises(Corrupt, match=refused(place, key)):
        GroupLog(place.store, "g", ManualClock()).head()


def test_an_entry_that_no_client_would_read_is_not_written(monkeypatch: pytest.MonkeyPatch):
    store = MemoryStore("large")
    produce_three(store)
    monkeypatch.setattr("deltaq.delta.log.ENTRY_BYTES_MAX", 100)
    with pytest.raises(KafkaException, match="more than 100"):
        Topic("t", store=store).delete()
    monkeypatch.undo()
    assert Topic("t", store=store).to_arrow()["value"].to_pylist() == VALUES
