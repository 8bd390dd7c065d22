"""Checkpoints: they say what the state says, every Delta reader understands them, and damage to one
is noticed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deltaq.clock import SYSTEM_CLOCK
from deltaq.config import topic_properties
from deltaq.delta import checkpoint_columns
from deltaq.delta.actions import Action, Add, DomainMetadata, Entry, Metadata, Txn
from deltaq.delta.checkpoint import parse_checkpoint, pointed_version, read_newest_checkpoint
from deltaq.delta.log import DeltaLog
from deltaq.delta.schema import delta_schema
from deltaq.delta.table_state import FORGOTTEN_VERSION, PROTOCOL, TableState, restored_state
from deltaq.errors import Corrupt
from deltaq.maintenance.checkpoint import CheckpointFailed, encode_checkpoint, write_checkpoint
from deltaq.maintenance.throttle import Stopped
from deltaq.names import checkpoint_file, last_checkpoint, log_entry
from deltaq.store import MemoryStore, Store, StoreUnavailable, open_store
from deltaq.testing import Crash, Effect, Fault, FaultyStore, Rule
from deltaq.topics.columns import table_schema
from deltaq.topics.log import TopicLog
from deltaq.topics.state import PendingSegment

FOLDER = "topics/t/"
LOG = "topics/t/_delta_log/"


def state_at(version: int, files: int = 3) -> TableState:
    """A state with something of everything, as no JSON text or Parquet file likes it."""
    metadata = Metadata(
        "id", delta_schema(table_schema(None)), {"deltaq.partitions": "1", "a": ""}, 17, name="t"
    )
    domains = DomainMetadata("deltaq", '{"x":"é\\u0000"}'), DomainMetadata("other", "ü\n")
    txns = Txn("a/b", 2**62, 17), Txn("a/c", 0)
    adds = [
        Add(
            f"{n}%20ä.parquet",
            n,
            2**52 + n,
            n % 2 == 0,
            '{"numRecords":1}',
            {"deltaq.batches": f"[[0,{n},0,1]]"},
        )
        for n in range(files)
    ]
    adds.append(Add("plain.parquet", 1, 2, data_change=True))
    return restored_state(version, [PROTOCOL, metadata, *domains, *txns, *adds])


def state_of(data: bytes, version: int) -> TableState:
    found = parse_checkpoint(data, version, "key")
    return restored_state(found.version, found.actions)


def following(state: TableState, *actions: Action) -> TableState:
    return state.after(Entry(state.version + 1, None, actions))


def pointer(store: Store) -> dict[str, int]:
    found = json.loads(store.get(last_checkpoint(LOG)))
    assert isinstance(found, dict)
    return found


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("test")


@pytest.mark.parametrize("version", [0, 100, 2**62])
def test_a_checkpoint_has_all_actions_of_the_state(version):
    state = state_at(version)
    data = encode_checkpoint(state)
    assert state_of(data, version) == state
    assert parse_checkpoint(data, version, "key").is_sealed


def test_files_keep_their_order_in_a_checkpoint():
    state = state_at(7, files=500)
    assert list(state_of(encode_checkpoint(state), 7).files) == list(state.files)


def test_removed_transactions_are_in_no_state_and_no_checkpoint():
    state = following(
        state_at(7), Txn("a/b", FORGOTTEN_VERSION, 18), Txn("never known", FORGOTTEN_VERSION)
    )
    assert set(state.txns) == {"a/c"}
    assert set(state_of(encode_checkpoint(state), 8).txns) == {"a/c"}


def test_an_entry_leaves_the_state_before_it_as_it_was():
    state = state_at(7)
    later = following(
        state, Txn("new", 1), Add("new.parquet", 1, 1, True), DomainMetadata("new", "")
    )
    assert (state, len(later.files)) == (state_at(7), len(state.files) + 1)


@pytest.fixture
def topic(tmp_path: Path) -> TopicLog:
    """A topic on disk after ten appends."""
    log = TopicLog(open_store(str(tmp_path)), "t")
    deadline = SYSTEM_CLOCK.monotonic() + 60
    log.create(2, delta_schema(table_schema(None)), topic_properties({}), deadline)
    for number in range(10):
        pending = PendingSegment(f"{number}.parquet", 100, 4, 0, 10, 0, ((0, 2), (1, 2)), 0, 9, 0)
        log.append([pending].copy, log.live_head.topic_id, deadline, Txn("app", number))
    return log


@pytest.mark.fault("M6")
def test_delta_rs_reads_the_checkpoint_when_the_entries_before_it_are_gone(topic, tmp_path):
    store = open_store(str(tmp_path))
    log = DeltaLog(store, FOLDER)
    log.load()
    write_checkpoint(store, LOG, log.state)
    for version in range(10):
        store.delete(log_entry(LOG, version))
    table = DeltaTable(str(tmp_path / "topics" / "t"))
    assert table.version() == 10
    live = table.get_add_actions(flatten=True)
    assert sorted(live.column("path").to_pylist()) == sorted(f"{n}.parquet" for n in range(10))
    assert live.column("num_records").to_pylist() == [4] * 10
    assert table.metadata().name == "t"
    assert table.transaction_version(f"app/{topic.live_head.topic_id}") == 9
    assert DeltaTable(str(tmp_path / "topics" / "t"), version=10).version() == 10


def test_another_parquet_reader_finds_the_actions_of_the_state(topic, tmp_path):
    """The seal lies in a gap of the file, where no reader may fail on it."""
    log = DeltaLog(open_store(str(tmp_path)), FOLDER)
    log.load()
    rows = pq.read_table(pa.BufferReader(encode_checkpoint(log.state))).to_pylist(
        maps_as_pydicts="strict"
    )
    adds = {row["add"]["path"]: row["add"] for row in rows if row["add"] is not None}
    assert {path: add["tags"] for path, add in adds.items()} == {
        a.path: a.tags for a in log.state.files.values()
    }
    assert {path: add["stats"] for path, add in adds.items()} == {
        a.path: a.stats for a in log.state.files.values()
    }
    assert [row["remove"] for row in rows if row["remove"] is not None] == []


def test_the_pointer_names_the_checkpoint_and_counts_its_actions(store):
    state = state_at(100)
    write_checkpoint(store, LOG, state)
    rows = pq.read_table(pa.BufferReader(store.get(checkpoint_file(LOG, 100)))).num_rows
    size = len(store.get(checkpoint_file(LOG, 100)))
    assert pointer(store) == {"version": 100, "size": rows, "sizeInBytes": size, "numOfAddFiles": 4}


def test_the_pointer_moves_forward_and_never_back(store):
    for version in (100, 300, 200):
        write_checkpoint(store, LOG, state_at(version))
    assert pointer(store)["version"] == 300
    found = read_newest_checkpoint(store, LOG)
    assert found is not None
    assert found.version == 300


@pytest.mark.parametrize(
    "damaged", [b"", b"{", b'{"version":-1}', b'{"version":"7"}', b'{"version":900}']
)
def test_a_damaged_or_dangling_pointer_is_rewritten(damaged, store):
    store.put(last_checkpoint(LOG), damaged)
    write_checkpoint(store, LOG, state_at(100))
    assert pointer(store)["version"] == 100


@pytest.mark.fault("M6")
def test_two_maintainers_at_one_version_leave_one_checkpoint(store):
    write_checkpoint(store, LOG, state_at(100))
    first = store.get(checkpoint_file(LOG, 100))
    reordered = restored_state(100, reversed(state_at(100).actions()))
    assert encode_checkpoint(reordered) != first
    write_checkpoint(store, LOG, reordered)
    assert store.get(checkpoint_file(LOG, 100)) == first
    assert pointer(store)["version"] == 100


@pytest.mark.fault("M6")
def test_a_damaged_checkpoint_gives_way_to_a_sound_one_of_its_version(store):
    store.put(checkpoint_file(LOG, 100), encode_checkpoint(state_at(100))[:-5])
    write_checkpoint(store, LOG, state_at(100))
    assert state_of(store.get(checkpoint_file(LOG, 100)), 100) == state_at(100)


@pytest.mark.fault("M6")
def test_a_crash_before_the_pointer_leaves_a_readable_log_and_is_repaired_later(store):
    write_checkpoint(store, LOG, state_at(100))
    dying = FaultyStore(store, Rule("put", "*_last_checkpoint", Fault.crash_before()))
    with pytest.raises(Crash):
        write_checkpoint(dying, LOG, state_at(200))
    assert dying.effects[Effect.CRASHED_BEFORE] == 1
    assert pointed_version(store, LOG) == 100
    found = read_newest_checkpoint(store, LOG)
    assert found is not None
    assert found.version == 100
    write_checkpoint(store, LOG, state_at(200))
    assert pointed_version(store, LOG) == 200


@pytest.mark.fault("M6")
@pytest.mark.parametrize("key", ["*.checkpoint.parquet", "*_last_checkpoint"])
def test_a_lost_answer_is_reported_and_the_checkpoint_can_be_written_again(key, store):
    faulty = FaultyStore(store, Rule("write", key, Fault.error_after()))
    with pytest.raises(StoreUnavailable):
        write_checkpoint(faulty, LOG, state_at(100))
    assert faulty.effects[Effect.ANSWER_LOST] == 1
    write_checkpoint(faulty, LOG, state_at(100))
    assert pointed_version(store, LOG) == 100


@pytest.mark.fault("M6")
def test_no_flipped_bit_of_a_checkpoint_changes_what_is_read():
    state = state_at(100)
    data = bytearray(encode_checkpoint(state))
    refused = 0
    for bit in range(3, len(data) * 8, 61):
        data[bit // 8] ^= 1 << bit % 8
        try:
            assert state_of(bytes(data), 100) == state
        except Corrupt:
            refused += 1
        data[bit // 8] ^= 1 << bit % 8
    assert refused > len(data) * 8 // 61 - 20, "only in the seal itself a flipped bit means nothing"


@pytest.mark.fault("M6")
def test_a_checkpoint_that_is_cut_anywhere_is_refused():
    data = encode_checkpoint(state_at(100))
    for length in range(0, len(data), 97):
        with pytest.raises(Corrupt):
            parse_checkpoint(data[:length], 100, "key")


@pytest.mark.fault("M6")
def test_a_checkpoint_at_the_place_of_another_version_is_refused():
    with pytest.raises(Corrupt, match="it is the checkpoint of version 100"):
        parse_checkpoint(encode_checkpoint(state_at(100)), 200, "key")


@pytest.mark.parametrize(
    "lie",
    [
        lambda actions: [
            replace(a, size=7) if isinstance(a, Add) and a.size == 1 else a for a in actions
        ],
        lambda actions: [
            action for action in actions if getattr(action, "path", "") != "plain.parquet"
        ],
        lambda actions: [replace(a, app_id="a/d") if isinstance(a, Txn) else a for a in actions],
    ],
    ids=["another size", "a file less", "another transaction"],
)
def test_a_checkpoint_that_says_something_else_is_not_written(lie, store, monkeypatch):
    real = checkpoint_columns.encode_actions
    monkeypatch.setattr(checkpoint_columns, "encode_actions", lambda actions: real(lie(actions)))
    with pytest.raises(CheckpointFailed, match="version 100"):
        write_checkpoint(store, LOG, state_at(100))
    assert list(store.list("")) == []


def test_a_checkpoint_that_is_no_parquet_file_is_not_written(store, monkeypatch):
    monkeypatch.setattr(
        checkpoint_columns, "encode_actions", lambda actions: b"".join(b"." for _ in actions)
    )
    with pytest.raises(CheckpointFailed, match="version 100"):
        write_checkpoint(store, LOG, state_at(100))
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    "wrong", [Add("\udc00.parquet", 1, 1, True), Add("big.parquet", 2**63, 1, True)]
)
def test_a_value_that_no_checkpoint_can_hold_fails_as_an_ordinary_error(wrong):
    state = following(state_at(99), wrong)
    with pytest.raises(CheckpointFailed, match="version 100"):
        encode_checkpoint(state)


def test_a_foreign_checkpoint_is_read_but_not_sealed(topic, tmp_path):
    table = DeltaTable(str(tmp_path / "topics" / "t"))
    table.create_checkpoint()
    store = open_store(str(tmp_path))
    found = read_newest_checkpoint(store, LOG)
    assert found is not None
    assert not found.is_sealed
    log = DeltaLog(store, FOLDER)
    store.delete(last_checkpoint(LOG))
    log.load()
    assert state_of(store.get(checkpoint_file(LOG, 10)), 10) == log.state


def test_a_file_with_a_deletion_vector_is_refused(tmp_path):
    data = encode_checkpoint(state_at(100))
    table = pq.read_table(pa.BufferReader(data))
    rows = table.to_pylist()
    at = table.schema.get_field_index("add")
    kinds = {"storageType": pa.string(), "pathOrInlineDv": pa.string(), "offset": pa.int32()}
    vectors = pa.field(
        "deletionVector", pa.struct({**kinds, "sizeInBytes": pa.int32(), "cardinality": pa.int64()})
    )
    schema = table.schema.set(
        at, pa.field("add", pa.struct([*table.schema.field(at).type, vectors]))
    )
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "x",
        "offset": 1,
        "sizeInBytes": 1,
        "cardinality": 1,
    }
    next(row["add"] for row in rows if row["add"])["deletionVector"] = vector
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "c.parquet")
    with pytest.raises(Corrupt, match="deletion vector"):
        parse_checkpoint((tmp_path / "c.parquet").read_bytes(), 100, "key")


@pytest.mark.parametrize(
    ("column", "field", "value", "what"),
    [
        ("add", "tags", [("a", "1"), ("a", "2")], "repeated"),
        ("metaData", "configuration", [("a", "1"), ("a", "2")], "damaged"),
        ("protocol", None, None, "missing"),
        ("metaData", None, None, "missing"),
    ],
)
def test_a_checkpoint_that_contradicts_itself_is_refused(column, field, value, what, tmp_path):
    table = pq.read_table(pa.BufferReader(encode_checkpoint(state_at(100))))
    rows = table.to_pylist()
    for row in rows:
        if row[column] is not None:
            row[column] = None if field is None else {**row[column], field: value}
    pq.write_table(pa.Table.from_pylist(rows, table.schema), tmp_path / "c.parquet")
    with pytest.raises(Corrupt, match=what):
        parse_checkpoint((tmp_path / "c.parquet").read_bytes(), 100, "key")


@pytest.mark.parametrize("name", ["path", "size", "modificationTime", "dataChange"])
@pytest.mark.parametrize("how", ["missing", "null", "of another type"])
def test_a_file_that_lacks_a_field_is_refused(name, how, tmp_path):
    table = pq.read_table(pa.BufferReader(encode_checkpoint(state_at(100))))
    rows = [
        row
        for row in table.to_pylist()
        if row["add"] is None or row["add"]["path"] != "plain.parquet"
    ]
    kinds = {
        "path": pa.string(),
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
    }
    if how == "of another type":
        kinds[name] = pa.float64()
    wrong: dict[str, object] = {} if how == "missing" else {name: None if how == "null" else 1.5}
    for row in rows:
        if row["add"] is not None:
            row["add"] = {
                key: value for key, value in row["add"].items() if key in kinds and key != name
            } | wrong
    if how == "missing":
        del kinds[name]
    schema = table.schema.set(
        table.schema.get_field_index("add"), pa.field("add", pa.struct(kinds.items()))
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "c.parquet")
    with pytest.raises(Corrupt, match=name):
        parse_checkpoint((tmp_path / "c.parquet").read_bytes(), 100, "key")


def test_structs_of_nulls_are_no_actions(tmp_path):
    """So write some what others write as null."""
    state = state_at(100)
    table = pq.read_table(pa.BufferReader(encode_checkpoint(state)))
    kinds = {field.name: field.type for field in table.schema}
    rows = [
        {name: value or {part.name: None for part in kinds[name]} for name, value in row.items()}
        for row in table.to_pylist()
    ]
    nullable = [
        pa.field(name, pa.struct([part.with_nullable(True) for part in kind]))
        for name, kind in kinds.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(nullable)), tmp_path / "c.parquet")
    assert state_of((tmp_path / "c.parquet").read_bytes(), 100) == state


@pytest.mark.parametrize("seed", range(8))
def test_actions_in_any_order_are_found(seed, tmp_path):
    """As other writers may order them. A column of the type null is one that no file of theirs
    has.
    """
    state = state_at(100, files=40)
    table = pq.read_table(pa.BufferReader(encode_checkpoint(state)))
    rows = table.to_pylist()
    random.Random(seed).shuffle(rows)
    at = table.schema.get_field_index("add")
    adds = pa.struct([*table.schema.field(at).type, pa.field("clusteringProvider", pa.null())])
    schema = table.schema.set(at, pa.field("add", adds))
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "c.parquet", row_group_size=7)
    assert state_of((tmp_path / "c.parquet").read_bytes(), 100) == state


def test_a_state_that_is_not_a_table_makes_no_checkpoint():
    with pytest.raises(CheckpointFailed):
        encode_checkpoint(replace(state_at(7), metadata=None))


def test_a_forked_child_writes_checkpoints_as_its_parent_did():
    program = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from deltaq.maintenance.checkpoint import encode_checkpoint
from tests.unit.delta.test_checkpoint import state_at, state_of
encode_checkpoint(state_at(100))
child = os.fork()
if child == 0:
    os._exit(3 if state_of(encode_checkpoint(state_at(200)), 200) == state_at(200) else 4)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3, done.stderr


def test_checkpointing_yields_and_can_be_stopped() -> None:
    state = following(
        state_at(99), *(Add(f"{n}.parquet", 10, 5, True, "{}", {"a": "b"}) for n in range(500))
    )
    asked: list[None] = []
    encode_checkpoint(state, lambda: asked.append(None))
    assert len(asked) > 500, (
        "at each file as it is written down, and now and then as all is read again"
    )
    for limit in (1, 250, len(asked) - 2, len(asked)):
        left = iter(range(limit - 1))

        def stopping(left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise Stopped

        with pytest.raises(Stopped):
            encode_checkpoint(state, stopping)
