"""Opening a table: from version 0, from a checkpoint, and from damaged ones. Checkpoints are
written by delta-rs.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from deltaq.clock import SYSTEM_CLOCK
from deltaq.config import topic_properties
from deltaq.delta.actions import Txn, encode_entry, parse_entry
from deltaq.delta.schema import delta_schema
from deltaq.errors import Corrupt, Incompatible
from deltaq.names import log_start_marker
from deltaq.store import Store, open_store
from deltaq.topics.columns import table_schema
from deltaq.topics.log import AlreadyCommitted, Appended, AppendOutcome, TopicLog
from deltaq.topics.state import PendingSegment, TopicChange

LOG = "topics/t/_delta_log/"


def entry(version: int) -> str:
    return f"{LOG}{version:020d}.json"


def segment(number: int, rows: int) -> PendingSegment:
    """A segment that only the log knows: these tests read no data."""
    return PendingSegment(
        f"{number}.parquet", 100, 2 * rows, 0, 10, 0, ((0, rows), (2, rows)), 0, 0, 0
    )


def opened(store) -> TopicLog:
    log = TopicLog(store, "t", indexed=True)
    log.load()
    return log


def append(log: TopicLog, number: int, rows: int = 2, txn: Txn | None = None) -> AppendOutcome:
    return log.append(
        lambda: [segment(number, rows)], log.live_head.topic_id, SYSTEM_CLOCK.monotonic() + 60, txn
    )


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(str(tmp_path / "root"))


@pytest.fixture
def table_path(tmp_path):
    return tmp_path / "root" / "topics" / "t"


@pytest.fixture
def topic(store) -> TopicLog:
    """A topic of three partitions after ten appends."""
    log = TopicLog(store, "t", indexed=True)
    log.create(
        3, delta_schema(table_schema(None)), topic_properties({}), SYSTEM_CLOCK.monotonic() + 60
    )
    for number in range(10):
        append(log, number, txn=Txn("app", number))
    return log


def same(log: TopicLog, other: TopicLog) -> bool:
    return (log.version, log.head, log.metadata, log.index.files) == (
        other.version,
        other.head,
        other.metadata,
        other.index.files,
    )


def test_a_topic_opened_from_version_0_equals_the_writers_state(store, topic):
    assert same(opened(store), topic)
    assert topic.live_head.next_offsets == (20, 0, 20)


def test_a_topic_opened_from_a_foreign_checkpoint_is_the_same(store, topic, table_path):
    DeltaTable(str(table_path)).create_checkpoint()
    append(topic, 10)
    for version in range(10):
        store.delete(entry(version))
    assert same(opened(store), topic)
    assert append(opened(store), 11, txn=Txn("app", 9)) == AlreadyCommitted()


@pytest.mark.parametrize(
    "damage",
    [
        "pointer missing",
        "pointer empty",
        "pointer garbage",
        "pointer to nothing",
        "checkpoint cut",
        "checkpoint empty",
        "checkpoint garbage",
    ],
)
def test_a_damaged_checkpoint_is_skipped_while_the_entries_exist(damage, store, topic, table_path):
    DeltaTable(str(table_path)).create_checkpoint()
    append(topic, 10)
    pointer, checkpoint = LOG + "_last_checkpoint", f"{LOG}{10:020d}.checkpoint.parquet"
    if damage == "pointer missing":
        store.delete(pointer)
    elif damage.startswith("pointer"):
        store.put(
            pointer,
            {"empty": b"", "garbage": b"{nonsense", "to nothing": b'{"version":7,"size":1}'}[
                damage[8:]
            ],
        )
    else:
        data = store.get(checkpoint)
        store.put(
            checkpoint,
            {"cut": data[: len(data) // 2], "empty": b"", "garbage": b"x" * 500}[damage[11:]],
        )
    assert same(opened(store), topic)


def test_a_damaged_checkpoint_without_its_entries_is_an_error_that_names_the_log(
    store, topic, table_path
):
    DeltaTable(str(table_path)).create_checkpoint()
    store.put(f"{LOG}{10:020d}.checkpoint.parquet", b"")
    for version in range(5):
        store.delete(entry(version))
    with pytest.raises(Corrupt, match="first entries are missing") as caught:
        opened(store)
    assert caught.value.path == LOG


def test_an_older_checkpoint_serves_when_the_newest_is_damaged(store, topic, table_path):
    DeltaTable(str(table_path)).create_checkpoint()
    append(topic, 10)
    DeltaTable(str(table_path)).create_checkpoint()
    append(topic, 11)
    for version in range(9):
        store.delete(entry(version))
    store.put(f"{LOG}{11:020d}.checkpoint.parquet", b"cut")
    assert same(opened(store), topic)


@pytest.mark.fault("B1")
def test_a_gap_in_the_log_is_an_error_that_names_the_entry(store, topic):
    store.delete(entry(4))
    with pytest.raises(Corrupt, match="missing") as caught:
        opened(store)
    assert caught.value.version == 4


@pytest.mark.fault("B1")
def test_a_log_start_above_the_readable_entries_is_not_taken_for_an_empty_topic(store, topic):
    store.create(log_start_marker("topics/t/", 5), b"")
    for version in range(11):
        store.delete(entry(version))
    with pytest.raises(Corrupt):
        opened(store)


def test_a_folder_without_a_table_is_no_topic(store):
    log = TopicLog(store, "nothing")
    assert log.load() is False
    assert log.head is None


@pytest.mark.fault("W5")
def test_a_plain_delta_table_is_not_taken_for_a_topic(store, table_path):
    write_deltalake(str(table_path), pa.table({"x": [1]}))
    with pytest.raises(Incompatible):
        opened(store)


@pytest.mark.fault("B1")
@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: b"", "empty"),
        (lambda data: data[:-2], "cannot be parsed"),
        (lambda data: data[: data.rindex(b"\n", 0, -1) + 1], "checksum"),
        (lambda data: data.replace(b'"size":100', b'"size":101'), "checksum"),
        (lambda data: data + b'{"txn":{"appId":"x","version":1}}\n', "checksum"),
    ],
    ids=["empty", "cut in a line", "cut between lines", "a changed digit", "a line too many"],
)
def test_a_damaged_entry_is_an_error_that_names_it(damage, why, store, topic):
    store.put(entry(5), damage(store.get(entry(5))))
    with pytest.raises(Corrupt, match=why) as caught:
        opened(store)
    assert (caught.value.path, caught.value.version) == (entry(5), 5)


@pytest.mark.fault("B1", "W1")
def test_offsets_that_do_not_continue_are_an_error(store, topic):
    """An entry that is sound by itself but belongs elsewhere: entry 5 once more as entry 11."""
    store.put(entry(11), store.get(entry(5)))
    with pytest.raises(Corrupt, match="does not start where its partition ended") as caught:
        opened(store)
    assert caught.value.version == 11


@pytest.mark.fault("K4")
def test_a_path_that_leaves_the_topic_is_refused(store, topic):
    found = parse_entry(store.get(entry(10)), 10, entry(10))
    assert found.info is not None
    hostile = [
        type(action)(
            **{**{f: getattr(action, f) for f in action.__slots__}, "path": "../../other/x.parquet"}
        )
        if hasattr(action, "path")
        else action
        for action in found.actions
    ]
    store.put(entry(10), encode_entry(found.info, hostile))
    with pytest.raises(Corrupt):
        opened(store)


def test_every_entry_is_one_that_delta_rs_understands(store, topic, table_path):
    table = DeltaTable(str(table_path))
    assert table.version() == 10
    assert table.transaction_version(f"app/{topic.live_head.topic_id}") == 9
    live = table.get_add_actions(flatten=True)
    assert json.loads(json.dumps(sorted(live.column("path").to_pylist()))) == sorted(
        f"{n}.parquet" for n in range(10)
    )


def test_a_transaction_of_a_deleted_topic_does_not_count_in_its_successor(store, topic):
    deadline = SYSTEM_CLOCK.monotonic() + 60
    topic.delete(deadline)
    topic.create(3, delta_schema(table_schema(None)), topic_properties({}), deadline)
    append(topic, 20, txn=Txn("app", 0))
    assert topic.live_head.next_offsets == (2, 0, 2)
    assert append(topic, 21, txn=Txn("app", 0)) == AlreadyCommitted()


@pytest.mark.parametrize("timed", [True, False], ids=["records with times", "records without"])
@pytest.mark.parametrize("rule", ["CreateTime", "LogAppendTime"])
def test_the_commits_timestamp_type_applies_and_every_record_has_a_time(timed, rule, store, topic):
    topic.change(
        lambda head, _: TopicChange(head.partitions, {"deltaq.message.timestamp.type": rule}),
        SYSTEM_CLOCK.monotonic() + 60,
    )
    uploaded = replace(segment(20, 2), timed=timed)
    appended = topic.append(
        lambda: [uploaded], topic.live_head.topic_id, SYSTEM_CLOCK.monotonic() + 60
    )
    assert isinstance(appended, Appended)
    assert (appended.files[0].append_time_ms is not None) == (rule == "LogAppendTime" or not timed)
