"""Log archive: `_delta_log` stays small on a local store, and no entry is ever missing
meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.delta.log import DeltaLog
from deltaq.delta.slot_proof import CLEAN_UP_GRACE_S
from deltaq.maintenance import log_archive
from deltaq.maintenance.checkpoint import write_checkpoint
from deltaq.maintenance.log_archive import ArchivePlan, LogArchive, listed_bytes, plan_archive
from deltaq.maintenance.log_cleanup import LogCleanup
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.names import (
    checkpoint_file,
    checkpoint_version,
    entry_version,
    last_checkpoint,
    log_entry,
)
from deltaq.store import LocalStore, MemoryStore, Store
from deltaq.testing import Crash, Fault, FaultyStore, ManualClock, Rule
from deltaq.work import finish
from tests.doubles.written_topic import RowToWrite, WrittenTopic

FOLDER = "topics/t/"
LOG = "topics/t/_delta_log/"
ARCHIVE = "topics/t/_deltaq/log/"
ENTRY_BYTES = 48
CHECKPOINT_BYTES = 64
SMALL = MaintenanceSettings(listed_bytes_max=10 * ENTRY_BYTES + 3 * CHECKPOINT_BYTES)
"""Room for ten entries beside three checkpoints, without `_last_checkpoint`."""
DAY_S = 24 * 60 * 60


def log_keys(entries: list[int], checkpoints: list[int]) -> list[str]:
    return [
        *(log_entry(LOG, version) for version in entries),
        *(checkpoint_file(LOG, version) for version in checkpoints),
        last_checkpoint(LOG),
    ]


def taken(keys: list[str]) -> int:
    return sum(map(listed_bytes, keys))


@pytest.fixture
def topic() -> WrittenTopic:
    """Forty entries, with a checkpoint of each tenth version."""
    return grown(WrittenTopic(MemoryStore("test"), ManualClock(auto_advance=True)), 40)


def grown(topic: WrittenTopic, count: int) -> WrittenTopic:
    for _ in range(count):
        topic.append(RowToWrite(b"x"))
        if topic.log.version % 10 == 0:
            write_checkpoint(topic.store, LOG, topic.log.state)
    return topic


def versions(store: Store, folder: str) -> list[int]:
    return [
        version for entry in store.list(folder) if (version := entry_version(entry.key)) is not None
    ]


def state_by_name(store: Store) -> tuple[object, ...]:
    """What a client finds that reads entry after entry, from the first one on."""
    log = DeltaLog(store, FOLDER, ManualClock())
    tokens = []
    while (entry := log.read_next()) is not None:
        tokens.append(entry.txn_id)
    return log.state, *tokens


# --- the plan ---


@pytest.mark.parametrize(
    "name", ["0" * 20 + ".json", "0" * 20 + ".checkpoint.parquet", "_last_checkpoint"]
)
def test_names_are_counted_as_linux_counts_them(name: str) -> None:
    # struct linux_dirent64: inode and offset of 8 bytes, length of 2, kind of 1, the name and its
    # NUL; aligned to 8.
    assert listed_bytes(LOG + name) == (8 + 8 + 2 + 1 + len(name) + 1 + 7) // 8 * 8


def test_as_many_entries_stay_as_are_listed_in_one_piece_with_those_of_a_second() -> None:
    plan = plan_archive(log_keys([*range(3000)], [*range(100, 3000, 100)]), DEFAULT_SETTINGS)
    stay = 3000 - len(plan.versions)
    assert plan.versions == tuple(range(3000 - stay))
    growth = 2 * DEFAULT_SETTINGS.archive_interval
    assert 500 <= stay <= (32 * 1024 - growth * ENTRY_BYTES) // ENTRY_BYTES


@given(
    st.integers(0, 60),
    st.integers(0, 60),
    st.lists(st.integers(0, 130), unique=True).map(sorted),
    st.integers(0, 5000),
)
def test_a_plan_frees_what_it_must_and_never_what_a_reader_needs(
    first: int, count: int, checkpoints: list[int], room: int
) -> None:
    keys = log_keys([*range(first, first + count)], checkpoints)
    settings = MaintenanceSettings(listed_bytes_max=room)
    plan = plan_archive(keys, settings)
    left = [
        key
        for key in keys
        if entry_version(key) not in plan.versions and key not in plan.checkpoints
    ]
    newest = max(checkpoints, default=-1)
    assert all(version < newest for version in plan.versions)
    assert list(plan.versions) == [*range(first, first + len(plan.versions))], (
        "lowest first, and none is left out"
    )
    assert not {checkpoint_file(LOG, version) for version in checkpoints[-3:]} & {*plan.checkpoints}
    needed = [
        key
        for key in keys
        if (entry_version(key) or 0) >= newest or checkpoint_version(key) in checkpoints[-3:]
    ]
    if newest >= 0 and taken(left) > room:
        assert not [v for key in left if (v := entry_version(key)) is not None and v < newest], (
            "nothing more could go"
        )
        assert taken(left) <= taken(needed) + listed_bytes(last_checkpoint(LOG))
    if plan != ArchivePlan():
        last = [log_entry(LOG, version) for version in plan.versions[-1:]] or list(
            plan.checkpoints[-1:]
        )
        assert taken(left) + taken(last) + CHECKPOINT_BYTES > room, "one less would not have done"


# --- moving ---


def test_the_oldest_entries_are_archived_and_every_reader_finds_the_same(
    topic: WrittenTopic,
) -> None:
    before = state_by_name(topic.store)
    assert finish(LogArchive(topic.store, FOLDER, SMALL).move()) > 25
    stay = versions(topic.store, LOG)
    assert stay == [*range(stay[0], 41)]
    assert taken([entry.key for entry in topic.store.list(LOG)]) <= SMALL.listed_bytes_max
    assert versions(topic.store, ARCHIVE) == [*range(stay[0])]
    assert state_by_name(topic.store) == before
    loaded = DeltaLog(topic.store, FOLDER, ManualClock())
    assert loaded.load()
    assert loaded.state == before[0]


def test_a_folder_that_is_small_enough_or_has_no_checkpoint_stays_as_it_is() -> None:
    topic = WrittenTopic(MemoryStore("test"), ManualClock(auto_advance=True))
    for _ in range(40):
        topic.append(RowToWrite(b"x"))
    assert finish(LogArchive(topic.store, FOLDER, SMALL).move()) == 0, "no checkpoint"
    write_checkpoint(topic.store, LOG, topic.log.state)
    assert finish(LogArchive(topic.store, FOLDER, DEFAULT_SETTINGS).move()) == 0, "small"
    assert versions(topic.store, LOG) == [*range(41)]


def test_nothing_is_archived_on_a_remote_store(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic.store, "is_remote", True)
    assert finish(LogArchive(topic.store, FOLDER, SMALL).move()) == 0
    assert versions(topic.store, LOG) == [*range(41)]


def test_no_name_is_removed_before_the_archive_is_synced(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure may keep the removal of a name and lose a link that was not synced."""
    monkeypatch.setattr(log_archive, "MOVED_AT_ONCE", 4)
    synced: set[str] = set()
    store = FaultyStore(topic.store)
    sync, delete = store.sync, store.delete

    def noted_sync(folder: str) -> None:
        sync(folder)
        synced.update(entry.key for entry in topic.store.list(folder))

    def checked_delete(key: str) -> None:
        version = entry_version(key)
        assert version is None or log_entry(ARCHIVE, version) in synced
        delete(key)

    monkeypatch.setattr(store, "sync", noted_sync)
    monkeypatch.setattr(store, "delete", checked_delete)
    assert finish(LogArchive(store, FOLDER, SMALL).move()) > 25


@pytest.mark.parametrize(
    "fault", [Fault.crash_before(), Fault.crash_after()], ids=["before", "after"]
)
def test_a_process_that_dies_while_it_archives_leaves_a_whole_log(fault: Fault) -> None:
    deaths = 0
    while True:
        topic = grown(WrittenTopic(MemoryStore("test"), ManualClock(auto_advance=True)), 25)
        before = state_by_name(topic.store)
        dying = FaultyStore(topic.store, Rule("write", "*", fault, nth=deaths + 1))
        try:
            finish(LogArchive(dying, FOLDER, SMALL).move())
        except Crash:
            deaths += 1
        else:
            break
        assert state_by_name(topic.store) == before
        finish(LogArchive(topic.store, FOLDER, SMALL).move())
        assert state_by_name(topic.store) == before
        assert taken([entry.key for entry in topic.store.list(LOG)]) <= SMALL.listed_bytes_max
    assert deaths > 20


def test_two_processes_archive_the_same_entries(
    topic: WrittenTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_archive, "MOVED_AT_ONCE", 4)
    before = state_by_name(topic.store)
    one, other = (
        LogArchive(topic.store, FOLDER, SMALL).move(),
        LogArchive(topic.store, FOLDER, SMALL).move(),
    )
    next(one)
    finish(other)
    finish(one)
    assert state_by_name(topic.store) == before


def test_what_a_late_writer_left_in_an_archived_slot_is_removed(topic: WrittenTopic) -> None:
    before = state_by_name(topic.store)
    finish(LogArchive(topic.store, FOLDER, SMALL).move())
    topic.store.put(log_entry(LOG, 3), b"late")
    grown(topic, 5)
    finish(LogArchive(topic.store, FOLDER, SMALL).move())
    assert 3 not in versions(topic.store, LOG)
    assert state_by_name(topic.store)[1 : len(before)] == before[1:]


def test_entries_of_another_user_that_cannot_be_linked_are_copied(topic: WrittenTopic) -> None:
    before = state_by_name(topic.store)
    store = FaultyStore(topic.store, Rule("link", "*", Fault.refused(), times=1000))
    assert finish(LogArchive(store, FOLDER, SMALL).move()) > 25
    assert taken([entry.key for entry in topic.store.list(LOG)]) <= SMALL.listed_bytes_max
    assert state_by_name(topic.store) == before


def test_an_archive_on_a_disk_has_the_entries_themselves(tmp_path: Path) -> None:
    topic = grown(WrittenTopic(LocalStore(str(tmp_path)), ManualClock(auto_advance=True)), 30)
    bodies = {entry.name: entry.read_bytes() for entry in (tmp_path / LOG).glob("*.json")}
    assert finish(LogArchive(topic.store, FOLDER, SMALL).move()) > 15
    here = {entry.name: entry.read_bytes() for entry in (tmp_path / LOG).glob("*.json")}
    there = {entry.name: entry.read_bytes() for entry in (tmp_path / ARCHIVE).iterdir()}
    assert here.keys().isdisjoint(there)
    assert here | there == bodies


# --- clean-up ---


def test_clean_up_removes_archived_entries_after_its_grace_period(topic: WrittenTopic) -> None:
    clock = ManualClock(auto_advance=True)
    settings = MaintenanceSettings(
        listed_bytes_max=SMALL.listed_bytes_max,
        keep_entries_min=5,
        keep_entries_max=12,
        log_retention_ms=DAY_S * 1000,
    )
    finish(LogArchive(topic.store, FOLDER, settings).move())
    archived = versions(topic.store, ARCHIVE)
    before = state_by_name(topic.store)[0]
    cleanup = LogCleanup(topic.store, FOLDER, clock, settings)
    log = DeltaLog(topic.store, FOLDER, clock)
    log.load()
    start = finish(cleanup.mark(log))
    assert start == 40 + 1 - 12, "an archived entry needs no checkpoint of its own"
    assert start in archived
    finish(cleanup.remove())
    assert versions(topic.store, ARCHIVE) == archived, "the grace period is not over"
    clock.advance(CLEAN_UP_GRACE_S)
    finish(cleanup.remove())
    assert versions(topic.store, ARCHIVE) == [*range(start, archived[-1] + 1)]
    log.load()
    assert log.state == before


def test_clean_up_keeps_archived_entries_that_no_readable_checkpoint_replaces(
    topic: WrittenTopic,
) -> None:
    clock = ManualClock(auto_advance=True)
    settings = MaintenanceSettings(
        listed_bytes_max=SMALL.listed_bytes_max, keep_entries_min=5, keep_entries_max=12
    )
    finish(LogArchive(topic.store, FOLDER, settings).move())
    for entry in [*topic.store.list(LOG)]:
        if checkpoint_version(entry.key) is not None:
            topic.store.put(entry.key, b"damaged")
    log = DeltaLog(topic.store, FOLDER, clock)
    log.load()
    assert log.state.version == 40
    assert finish(LogCleanup(topic.store, FOLDER, clock, settings).mark(log)) is None
