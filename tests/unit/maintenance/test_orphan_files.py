"""Orphan files: removal of unreferenced files after a grace period, and new uploads by late
writers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import KafkaError, Producer
from deltaq.errors import Unavailable
from deltaq.maintenance.orphan_files import (
    OrphanFileRemover,
    OrphanScan,
    never_live,
    older_than,
    parse_orphan_scan,
)
from deltaq.names import orphan_scan_key, orphan_scan_part, orphan_scans_folder
from deltaq.store import MemoryStore, ObjectEntry
from deltaq.testing import Crash, Effect, Fault, FaultyStore, ManualClock, Rule, messages_of
from deltaq.topics.log import TopicLog, UploadsExpired
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.work import finish
from tests.doubles.written_topic import SMALL, RowToWrite, WrittenTopic, seen_by_consumers

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
DATA = "topics/t/*.parquet"
NAMES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 5))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


@pytest.fixture
def topic(clock: ManualClock) -> WrittenTopic:
    written = WrittenTopic(MemoryStore("test", clock), clock)
    written.append(RowToWrite(b"0"))
    return written


def swept_after(topic: WrittenTopic, clock: ManualClock, seconds: float) -> int:
    """How many files go in a round that comes so much later."""
    clock.advance(seconds)
    return topic.maintain()["files deleted"]


# --- rules
# --------------------------------------------------------------------------------------------------


def test_a_large_scan_is_saved_in_parts_and_removed_in_one_pass(
    topic: WrittenTopic, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaq.maintenance.orphan_files.NAMES_OF_NOTE_MAX", 4)
    for number in range(10):
        topic.store.put(f"topics/t/orphan-{number}.parquet", b"x")
    clock.advance(HOUR_S)
    assert topic.maintain()["files noted"] == 10
    assert [
        orphan_scan_part(entry.key) for entry in topic.store.list(orphan_scans_folder("topics/t/"))
    ] == [(1, n) for n in range(3)]
    topic.store.put("topics/t/later.parquet", b"x")
    clock.advance(HOUR_S)
    assert topic.maintain()["files noted"] == 1, "though nothing was written meanwhile"
    assert orphan_scan_key("topics/t/", 1, 3) in [
        entry.key for entry in topic.store.list(orphan_scans_folder("topics/t/"))
    ]
    before = topic.fresh_log().version
    assert swept_after(topic, clock, DAY_S) == 11
    assert topic.stored() == topic.live()
    assert topic.fresh_log().version == before + 1, "one entry voids the uploads of all parts"


def test_files_committed_during_a_scan_are_not_saved(
    topic: WrittenTopic, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very many files one note is written as the others are still being listed."""
    monkeypatch.setattr("deltaq.maintenance.orphan_files.NAMES_OF_NOTE_MAX", 1)
    late = topic.upload(RowToWrite(b"late"))
    for number in range(2):
        topic.store.put(f"topics/t/-{number}.parquet", b"x")  # before all others
    whole = topic.store.list

    def committing(prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        for entry in whole(prefix, start_after):
            if prefix == "topics/t/" and entry.key == "topics/t/-1.parquet":
                topic.commit(late)
            yield entry

    monkeypatch.setattr(topic.store, "list", committing)
    log = MaintenanceLog(topic.store, "t", clock)
    log.load()
    remover = OrphanFileRemover(topic.store, log, clock, SMALL)
    assert finish(remover.scan()) == 2
    assert [(look.version, *look.names) for look in remover.scans()] == [
        (1, "-0.parquet"),
        (2, "-1.parquet"),
    ]


def test_a_scan_yields_while_listing_and_can_be_stopped(
    topic: WrittenTopic, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaq.maintenance.orphan_files.LISTED_AT_ONCE", 3)
    for number in range(10):
        topic.store.put(f"topics/t/orphan-{number}.parquet", b"x")
    log = MaintenanceLog(topic.store, "t", clock)
    log.load()
    remover = OrphanFileRemover(topic.store, log, clock, SMALL)
    with closing(remover.scan()) as work:
        for _ in range(3):
            next(work)
    assert list(remover.scans()) == []


def test_scans_that_are_not_due_are_read_once_and_not_in_each_round(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    for number in range(3):
        topic.store.put(f"topics/t/{number}.parquet", b"x")
        clock.advance(HOUR_S)
        topic.maintain()
    counting = FaultyStore(topic.store, clock=clock)
    log = MaintenanceLog(counting, "t", clock)
    log.load()
    remover = OrphanFileRemover(counting, log, clock, SMALL)
    gets = []
    for _ in range(3):
        before = counting.operations["get"]
        assert not any(remover.due(clock.time_ms(), round(DAY_S * 1000)))
        gets.append(counting.operations["get"] - before)
    assert gets == [3, 0, 0]


def test_the_age_of_a_file_is_taken_at_the_begin_of_the_scan(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    """However long the listing takes: on a large topic of a slow store that may be minutes."""
    topic.store.put("topics/t/old.parquet", b"x")
    clock.advance(90)
    topic.store.put("topics/t/young.parquet", b"x")
    slow = FaultyStore(topic.store, Rule("list", "topics/t/", Fault.slow(600)), clock=clock)
    log = MaintenanceLog(slow, "t", clock)
    log.load()
    remover = OrphanFileRemover(slow, log, clock, SMALL)
    assert finish(remover.scan()) == 2
    (look,) = remover.scans()
    assert older_than(look, 60_000) == {"old.parquet"}


@given(
    st.dictionaries(st.integers(0, 99), st.integers(0, 100), max_size=6),
    st.integers(0, 200),
    st.integers(0, 50),
)
def test_scans_are_due_after_the_grace_period_oldest_first(
    times_ms: dict[int, int], now_ms: int, grace_ms: int
) -> None:
    store, clock = MemoryStore("test"), ManualClock()
    for version, time_ms in times_ms.items():
        body = {"version": version, "time": time_ms, "took": 0, "names": {}}
        store.put(orphan_scan_key("topics/t/", version), json.dumps(body).encode())
    remover = OrphanFileRemover(store, MaintenanceLog(store, "t", clock), clock)
    due = [version for version in sorted(times_ms) if now_ms - times_ms[version] >= grace_ms]
    for _ in range(2):  # what is remembered of the first time makes no difference
        assert [scan.version for scan in remover.due(now_ms, grace_ms) if scan is not None] == due


def test_a_file_that_was_young_in_its_scan_is_not_removed() -> None:
    look = OrphanScan(1, 0, {"old": 39, "just": 40, "young": 41, "future": 500}, noted_ms=100)
    assert older_than(look, 60) == {"old", "just"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"version":1,"took":0,"time":5}',
        b'{"version":1,"took":0,"time":5,"names":["a"]}',
        b'{"version":2,"took":0,"time":5,"names":{}}',
        b'{"version":"1","took":0,"time":5,"names":{}}',
        b'{"version":1,"took":0,"time":null,"names":{}}',
        b'{"version":1,"took":0,"time":1e3,"names":{}}',
        b'{"version":1,"took":0,"time":5,"names":{"a":"b"}}',
        *(
            json.dumps({"version": 1, "took": 0, "time": 5, "names": {name: 0}}).encode()
            for name in (
                "_delta_log/00000000000000000000.json",
                "_DELTA_LOG/x",
                "_deltaq/log_start/00000000000000000000",
                "../u/a.parquet",
                "a/../../u/a",
                "/a",
                "",
                "./_delta_log/x",
                "a//b",
            )
        ),
        b'{"version":1,"took":0,"time":5,"names":{},"names":{}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_or_hostile_scan_is_ignored(topic: WrittenTopic, body: bytes) -> None:
    key = orphan_scan_key("topics/t/", 1)
    with pytest.raises((ValueError, KeyError, TypeError)):
        parse_orphan_scan(body, ObjectEntry(key, len(body), 0))
    before = {entry.key for entry in topic.store.list("topics/")}
    topic.store.put(key, body)
    topic.maintain()
    assert {entry.key for entry in topic.store.list("topics/")} == before, (
        "it is dropped, and nothing else"
    )
    assert len(seen_by_consumers(topic.store)) == 1


def test_a_scan_that_names_live_files_deletes_none_of_them(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    names = dict.fromkeys([*topic.live(), "orphan.parquet"], 0)
    topic.store.put("topics/t/orphan.parquet", b"x")
    body = {"version": 1, "took": 0, "time": clock.time_ms(), "names": names}
    clock.advance(HOUR_S)
    topic.store.create(orphan_scan_key("topics/t/", 1), json.dumps(body).encode())
    assert swept_after(topic, clock, DAY_S) == 1
    assert topic.stored() == topic.live()


@pytest.mark.parametrize("version", [50, 2**63 - 1])
def test_a_scan_of_a_missing_version_stops_no_writer(
    topic: WrittenTopic, clock: ManualClock, version: int
) -> None:
    body = {"version": version, "took": 0, "time": 0, "names": {"a.parquet": 0}}
    topic.store.create(orphan_scan_key("topics/t/", version), json.dumps(body).encode())
    clock.advance(HOUR_S)
    topic.maintain()
    assert list(topic.store.list(orphan_scans_folder("topics/t/"))) == []
    assert topic.log.live_head.min_upload_version == 0
    topic.append(RowToWrite(b"1"))
    assert len(seen_by_consumers(topic.store)) == 2


# --- what goes
# --------------------------------------------------------------------------------------------------


FOREIGN = [
    "part-00000-1b9b3f0e-c000.snappy.parquet",
    ".part-00000-1b9b3f0e-c000.snappy.parquet.crc",
    "year=2024/month=05/part-1.parquet",
    "deletion_vector_1.bin",
    "_change_data/cdc-1.parquet",
    "_spark_metadata/0",
    "_SUCCESS",
    "notes.txt",
]


@pytest.mark.fault("P2", "M5")
def test_unreferenced_files_are_removed_after_the_grace_period_only(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    for name in FOREIGN:
        topic.store.put(f"topics/t/{name}", b"x")
    topic.upload(RowToWrite(b"never committed"))
    before = topic.stored() | set(FOREIGN)
    ours = {e.key for e in topic.store.list("") if "/_delta" in e.key}
    clock.advance(HOUR_S)
    assert topic.maintain()["files noted"] == len(FOREIGN) + 1
    assert swept_after(topic, clock, DAY_S - 2) == 0
    assert before <= {
        entry.key.removeprefix("topics/t/") for entry in topic.store.list("topics/t/")
    }
    assert swept_after(topic, clock, 2) == len(FOREIGN) + 1
    keys = {entry.key for entry in topic.store.list("topics/")}
    assert {key.removeprefix("topics/t/") for key in keys if "/_delta" not in key} == topic.live()
    assert ours <= keys
    assert not list(topic.store.list(orphan_scans_folder("topics/t/")))
    assert len(seen_by_consumers(topic.store)) == 1


@pytest.mark.fault("P2")
def test_an_upload_of_a_process_killed_before_its_commit_is_removed(clock: ManualClock) -> None:
    store = MemoryStore("test", clock)
    topic = WrittenTopic(store, clock)
    faulty = FaultyStore(
        store, Rule("create", "*/_delta_log/*.json", Fault.crash_before()), clock=clock
    )
    dying = TopicLog(faulty, "t", clock)
    dying.load()
    orphan = topic.upload(RowToWrite(b"x"))
    with pytest.raises(Crash):
        dying.append(lambda: [orphan], topic.log.live_head.topic_id, clock.monotonic() + 60)
    assert faulty.effects[Effect.CRASHED_BEFORE] == 1
    assert seen_by_consumers(store) == []
    clock.advance(HOUR_S)
    topic.maintain()
    assert topic.stored() == {orphan.path}
    assert swept_after(topic, clock, DAY_S) == 1
    assert topic.stored() == set()


def test_replaced_files_are_removed_after_the_grace_period(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    for number in range(1, 6):
        topic.append(RowToWrite(b"%d" % number))
    clock.advance(HOUR_S)
    assert topic.maintain()["files merged"] == 6
    assert len(topic.stored()) == 7
    assert swept_after(topic, clock, DAY_S) == 6
    assert topic.stored() == topic.live()
    assert len(seen_by_consumers(topic.store)) == 6


def test_scans_continue_after_a_clock_was_a_year_ahead(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    """On a local disk the store's clock is the same one, so a wrong time cannot be noticed."""
    topic.configure(retention_ms=-1)
    work = topic.maintenance(scan_interval_ms=3 * 3600 * 1000)
    clock.set_wall_clock(clock.time_ms() + 365 * 24 * 3600 * 1000)
    work.run()
    clock.set_wall_clock(clock.time_ms() - 365 * 24 * 3600 * 1000)
    topic.store.put("topics/t/orphan.parquet", b"x")
    clock.advance(HOUR_S)
    assert work.run()["files noted"] == 0
    clock.advance(2 * HOUR_S)
    assert work.run()["files noted"] == 1
    clock.advance(DAY_S)
    assert work.run()["files deleted"] == 1
    assert "orphan.parquet" not in topic.stored()


def test_the_files_of_a_deleted_topic_go_too(topic: WrittenTopic, clock: ManualClock) -> None:
    topic.log.delete(clock.monotonic() + 60)
    clock.advance(HOUR_S)
    topic.maintain()
    assert len(topic.stored()) == 1
    assert swept_after(topic, clock, DAY_S) == 1
    assert topic.stored() == set()


def test_the_grace_period_is_a_topic_setting(clock: ManualClock) -> None:
    topic = WrittenTopic(
        MemoryStore("test", clock), clock, file_delete_delay_ms=int(3 * DAY_S * 1000)
    )
    topic.upload(RowToWrite(b"x"))
    clock.advance(HOUR_S)
    topic.maintain()
    assert swept_after(topic, clock, 2 * DAY_S) == 0
    assert swept_after(topic, clock, DAY_S) == 1


@pytest.mark.fault("M5")
@pytest.mark.parametrize("merged_after_s", [2 * HOUR_S, DAY_S - HOUR_S, DAY_S, 2 * DAY_S])
@pytest.mark.parametrize("by", ["one", "newcomers"])
def test_a_file_committed_after_its_scan_gets_a_new_grace_period(
    clock: ManualClock, merged_after_s: float, by: str
) -> None:
    """It stays for its readers, as any other file."""
    topic = WrittenTopic(MemoryStore("test", clock), clock, retention_ms=-1)
    topic.append(RowToWrite(b"0"))
    topic.store.put("topics/t/orphan.parquet", b"x")
    pending = topic.upload(RowToWrite(b"1"))
    work = topic.maintenance()

    def noted(seconds: float) -> Counter[str]:
        clock.advance(seconds)
        return work.run() if by == "one" else topic.maintain()

    noted(120)
    topic.commit(pending)
    clock.advance(merged_after_s - 1)
    for number in range(2, 4):
        topic.append(RowToWrite(b"%d" % number))
    done = noted(1)
    assert done["files merged"] == 4
    assert done["files deleted"] == (merged_after_s >= DAY_S), "the orphan goes in its time"
    for _ in range(23):
        noted(HOUR_S)
        assert pending.path in topic.stored()
    noted(HOUR_S + 1)
    assert pending.path not in topic.stored()
    noted(DAY_S)
    assert topic.stored() == topic.live(), "what was young as it was merged too"


def test_a_dry_run_counts_newly_found_files(topic: WrittenTopic, clock: ManualClock) -> None:
    late = topic.upload(RowToWrite(b"late"))
    topic.store.put("topics/t/old.parquet", b"x")
    clock.advance(120)
    topic.store.put("topics/t/young.parquet", b"x")
    assert topic.maintain()["files noted"] == 3
    topic.commit(late)
    remover = OrphanFileRemover(topic.store, topic.fresh_log(), clock, SMALL)
    assert remover.plan(clock.time_ms(), round(DAY_S * 1000)) == (0, 1)
    assert topic.maintain()["files noted"] == 1
    assert sorted(name for look in remover.scans() for name in look.names) == [
        "old.parquet",
        "young.parquet",
    ]


def test_a_scan_saved_late_is_dropped(topic: WrittenTopic, clock: ManualClock) -> None:
    topic.store.put("topics/t/young.parquet", b"x")
    slow = FaultyStore(
        topic.store, Rule("create", "*/unreferenced/*", Fault.slow(40), times=1), clock=clock
    )
    log = MaintenanceLog(slow, "t", clock)
    log.load()
    remover = OrphanFileRemover(slow, log, clock, SMALL)
    assert finish(remover.scan()) == 0
    assert slow.effects[Effect.DELAYED] == 1
    assert list(remover.scans()) == []
    assert finish(remover.scan()) == 1


@given(NAMES, st.sets(st.sampled_from("abcdefgh")), st.integers(0, 5), st.integers(0, 9))
def test_a_repeated_scan_keeps_old_files_that_were_not_live_since(
    found: dict[str, int], live: set[str], noted_ms: int, later_ms: int
) -> None:
    look = OrphanScan(3, 7, found, noted_ms, took_ms=1, part=2)
    left = never_live(look, live, 1)
    expected = older_than(look, 1) - live
    assert older_than(left, 1) == expected
    if older_than(look, 1) & live:
        assert older_than(replace(left, noted_ms=noted_ms + later_ms), 1) == expected, (
            "whenever that is"
        )
        assert replace(left, names=found) == look
    else:
        assert left == look


# --- late writers
# --------------------------------------------------------------------------------------------------


@pytest.mark.fault("M5")
@pytest.mark.parametrize("after", ["the scan", "the removal"])
def test_a_commit_that_comes_days_after_its_upload_is_refused_once_the_file_may_be_gone(
    topic: WrittenTopic, clock: ManualClock, after: str
) -> None:
    waiting = topic.upload(RowToWrite(b"late"))
    clock.advance(HOUR_S)
    topic.maintain()
    if after == "the scan":
        topic.commit(waiting)
        assert swept_after(topic, clock, 2 * DAY_S) == 0
    else:
        assert swept_after(topic, clock, 2 * DAY_S) == 1
        assert topic.try_commit(waiting) == UploadsExpired(frozenset({waiting.path}))
        topic.append(RowToWrite(b"late"))
    assert topic.stored() >= topic.live()
    assert [seen[4] for seen in seen_by_consumers(topic.store)] == [b"0", b"late"]


@pytest.mark.fault("M5")
def test_a_commit_during_the_removal_keeps_the_file(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    """The commit comes between the remover's reading of the log and its entry."""
    waiting = topic.upload(RowToWrite(b"late"))
    clock.advance(HOUR_S)
    topic.maintain()
    clock.advance(DAY_S)
    faulty = FaultyStore(topic.store, clock=clock)
    log = MaintenanceLog(faulty, "t", clock)
    log.load()
    remover = OrphanFileRemover(faulty, log, clock, SMALL)
    (look,) = remover.scans()
    assert set(look.names) == {waiting.path}

    committed: list[str] = []
    raise_min_upload_version = log.raise_min_upload_version

    def commit_first(min_upload_version: int, deadline: float) -> None:
        committed.extend(file.path for file in topic.commit(waiting))
        raise_min_upload_version(min_upload_version, deadline)

    log.raise_min_upload_version = commit_first  # type: ignore[method-assign]
    assert finish(remover.remove(look)) == 0
    assert committed == [waiting.path]
    assert [seen[4] for seen in seen_by_consumers(topic.store)] == [b"0", b"late"]


@pytest.fixture
def stalled(
    clock: ManualClock,
) -> Iterator[tuple[WrittenTopic, FaultyStore, Producer, list[object]]]:
    """A producer that was stopped between an upload and its commit."""
    store = MemoryStore("test", clock)
    topic = WrittenTopic(store, clock)
    faulty = FaultyStore(store, Rule("create", "*/_delta_log/*.json", Fault.slow()), clock=clock)
    reports: list[object] = []
    with Producer(
        {"bootstrap.servers": "memory://test", "linger.ms": 0, "maintenance.enable": False},
        store=faulty,
    ) as producer:
        yield topic, faulty, producer, reports


@pytest.mark.fault("M5")
def test_a_producer_that_was_stopped_for_days_uploads_again_and_its_commit_does_not_dangle(
    stalled: tuple[WrittenTopic, FaultyStore, Producer, list[object]], clock: ManualClock
) -> None:
    topic, faulty, producer, reports = stalled
    producer.produce(
        "t", b"late", on_delivery=lambda error, message: reports.append(error or message.offset())
    )
    while not faulty.blocked:
        producer.poll(0.001)
    (orphan,) = topic.stored()
    clock.advance(HOUR_S)
    assert topic.maintain()["files noted"] == 1
    assert swept_after(topic, clock, 2 * DAY_S) == 1
    assert orphan not in topic.stored()
    faulty.release()
    assert producer.flush(20) == 0
    assert reports == [0]
    assert faulty.effects[Effect.DELAYED] == 1
    assert topic.stored() == topic.live() != {orphan}
    assert [message.value() for message in messages_of(topic.store, "t")] == [b"late"]
    assert faulty.operations["put"] == 2, "uploaded again"


@pytest.mark.fault("M5")
def test_a_store_that_lists_late_loses_no_file(topic: WrittenTopic, clock: ManualClock) -> None:
    """The newest keys are not shown: then they are noted later."""
    faulty = FaultyStore(topic.store, clock=clock)
    for number in range(1, 5):
        topic.append(RowToWrite(b"%d" % number))
    topic.upload(RowToWrite(b"x"))
    clock.advance(HOUR_S)
    faulty.add(Rule("list", "topics/t/", Fault.stale_list(3)))
    log = MaintenanceLog(faulty, "t", clock)
    log.load()
    finish(OrphanFileRemover(faulty, log, clock, SMALL).scan())
    assert faulty.effects[Effect.KEYS_HIDDEN] == 1
    for _ in range(2):
        clock.advance(DAY_S)
        topic.maintain()
    assert topic.stored() == topic.live()
    assert len(seen_by_consumers(topic.store)) == 5


def test_a_refused_removal_is_reported_as_unavailable(
    topic: WrittenTopic, clock: ManualClock
) -> None:
    faulty = FaultyStore(
        topic.store, Rule("list", "topics/t/_deltaq/unref*", Fault.error_before()), clock=clock
    )
    log = MaintenanceLog(faulty, "t", clock)
    log.load()
    with pytest.raises(Unavailable) as raised:
        list(OrphanFileRemover(faulty, log, clock).scans())
    assert raised.value.error.code() == KafkaError._TRANSPORT
    assert faulty.effects[Effect.ERROR_BEFORE] == 1
