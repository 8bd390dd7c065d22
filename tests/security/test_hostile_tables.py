"""A table made to do harm: nothing outside the topic is touched, no memory is spent, and the error
says where it is.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deltaq import Corrupt, KafkaError, Producer, Topic, TopicPartition
from deltaq.delta.actions import DomainMetadata, Remove, Txn
from deltaq.delta.schema import arrow_schema
from deltaq.delta.table_state import restored_state
from deltaq.groups.offsets import committed_offset
from deltaq.parquet import bounded_decoding, segment_file
from deltaq.serde.columns import NESTING_MAX
from deltaq.serde.json_text import strict_json
from deltaq.store import LocalStore, MemoryStore
from tests.security.forged import (
    LAST,
    Change,
    as_segment,
    bomb,
    entry_key,
    forge,
    in_add,
    in_head,
    in_tag,
    read_until_error,
    refusal,
    replace_file,
    topic_of_three,
)

DEEP = "[" * 100_000


@pytest.fixture
def store() -> MemoryStore:
    return topic_of_three()


# --- what an entry says ---

FORGERIES: dict[str, Change] = {
    "a head nested without end": in_head(lambda head: DEEP),
    "a head with a number of 5000 digits": in_head(
        lambda head: head.replace("[3]", f"[{'9' * 5000}]")
    ),
    "a head with a key twice": in_head(lambda head: head[:-1] + ',"time":1}'),
    "a time that no engine can hold": in_head(lambda head: head.replace('"time":', '"time":9')),
    "a negative time": in_head(lambda head: head.replace('"time":', '"time":-')),
    "batches nested without end": in_tag("deltaq.batches", lambda tag: DEEP),
    "batches that are too few numbers": in_tag("deltaq.batches", lambda tag: "[[0]]"),
    "a negative partition": in_tag("deltaq.batches", lambda tag: "[[-1,2,0,1]]"),
    "a negative row": in_tag("deltaq.batches", lambda tag: "[[0,2,-1,1]]"),
    "a negative number of rows": in_tag("deltaq.batches", lambda tag: "[[0,2,0,-1],[0,1,0,2]]"),
    "a row behind the last one": in_tag("deltaq.batches", lambda tag: "[[0,2,5,1]]"),
    "a row twice": in_tag("deltaq.batches", lambda tag: "[[0,2,0,1],[0,3,0,1]]"),
    "a row without an offset": in_tag(
        "deltaq.file", lambda tag: tag.replace('"rows":1', '"rows":2')
    ),
    "more offsets than a batch has numbers for": in_tag(
        "deltaq.batches", lambda tag: "[[0,2,0,1,2]]"
    ),
    "no batches": in_tag("deltaq.batches", lambda tag: "[]"),
    "a number of rows beyond 64 bits": in_tag(
        "deltaq.file", lambda tag: tag.replace('"rows":1', f'"rows":{10**30}')
    ),
    "a footer larger than the file": in_tag(
        "deltaq.file", lambda tag: tag.replace('"footer":[', '"footer":[99999')
    ),
    "a footer of negative size": in_tag(
        "deltaq.file", lambda tag: tag.replace('"footer":[', '"footer":[-')
    ),
    "an append time that no engine can hold": in_tag(
        "deltaq.file",
        lambda tag: tag.replace('{"version"', '{"append_time":999999999999999999,"version"'),
    ),
    "a file larger than memory": in_add(lambda add: replace(add, size=10**15)),
    "a file of negative size": in_add(lambda add: replace(add, size=-5)),
}


@pytest.mark.fault("B1", "B2", "K6")
@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_sealed_entry_with_impossible_values_is_corrupt(store, forgery):
    forge(store, forgery)
    raised, error = refusal(store)
    assert isinstance(raised, Corrupt), repr(raised)
    assert error.code() == KafkaError._BAD_MSG
    assert "topics/t/" in raised.path


HOSTILE_PATHS = [
    "../u/x.parquet",
    "../../groups/g/x.parquet",
    "%2e%2e/u/x.parquet",
    "a/../../u/x.parquet",
    "./x.parquet",
    "/etc/passwd",
    "//host/x.parquet",
    "file:///etc/passwd",
    "http://169.254.169.254/latest/meta-data",
    "s3://other/x.parquet",
    "_delta_log/00000000000000000001.json",
    "_Delta_Log/00000000000000000001.json",
    "_deltaq/log_start/1",
    "a\\..\\x.parquet",
    "x\0.parquet",
    "x%00.parquet",
    "x\n.parquet",
    "\ud800.parquet",
    "",
]


@pytest.mark.fault("K4")
@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=ascii)
def test_a_path_out_of_the_topic_is_refused_without_a_store_request(store, path, monkeypatch):
    forge(store, in_add(lambda add: replace(add, path=path)))
    asked: list[str] = []
    get = MemoryStore.get

    def noted(self: MemoryStore, key: str, size_max: int | None = None) -> bytes:
        asked.append(key)
        return get(self, key, size_max)

    monkeypatch.setattr(MemoryStore, "get", noted)
    raised, error = refusal(store)
    assert isinstance(raised, Corrupt)
    assert error.code() == KafkaError._BAD_MSG
    assert asked, "the log was read"
    # The second is the archive of the first.
    logs = ("topics/t/_delta_log/", "topics/t/_deltaq/log/", "groups/g/")
    assert [key for key in asked if not key.startswith(logs)] == []
    assert str(raised).isprintable(), "what the path holds is escaped"


@pytest.mark.fault("K4")
def test_a_removal_of_a_path_out_of_the_topic_removes_nothing(tmp_path):
    other = tmp_path / "topics" / "u" / "x.parquet"
    store = LocalStore(str(tmp_path))
    store.put("topics/u/x.parquet", b"theirs")
    with Producer(bootstrap_servers=str(tmp_path), store=store) as producer:
        for number in range(LAST):
            producer.produce("t", b"%d" % number)
            producer.flush(20)
    forge(store, lambda actions: [*actions, Remove("../u/x.parquet", 0, True)])
    Topic("t", store=store).delete()
    assert other.read_bytes() == b"theirs"


# --- checkpoints ---


@pytest.fixture
def checkpointed(tmp_path: Path) -> LocalStore:
    """A topic of three records on disk, with a checkpoint of delta-rs and a fourth record behind
    it.
    """
    store = LocalStore(str(tmp_path))
    with Producer(bootstrap_servers=str(tmp_path), store=store) as producer:
        for number in range(LAST):
            producer.produce("t", b"value %d" % number)
            producer.flush(20)
        DeltaTable(str(tmp_path / "topics" / "t")).create_checkpoint()
        producer.produce("t", b"value 3")
        producer.flush(20)
    return store


POINTERS = {
    "a version beyond 64 bits": b'{"version":1000000000000000000000000000000,"size":1}',
    "a version of 5000 digits": b'{"version":%s,"size":1}' % (b"9" * 5000),
    "nested without end": DEEP.encode(),
    "a version that is true": b'{"version":true}',
    "a negative version": b'{"version":-3}',
    "a path": b'{"version":"../../u/_delta_log/00000000000000000003"}',
    "infinity": b'{"version":1e999}',
    "a key twice": b'{"version":1,"version":3}',
}


@pytest.mark.fault("K4", "K6")
@pytest.mark.parametrize("pointer", POINTERS.values(), ids=POINTERS.keys())
def test_a_hostile_checkpoint_pointer_is_ignored(checkpointed, pointer):
    checkpointed.put("topics/t/_delta_log/_last_checkpoint", pointer)
    assert Topic("t", store=checkpointed).to_arrow().num_rows == 4


@pytest.mark.fault("K4")
@pytest.mark.parametrize("action", ["sidecar", "checkpointMetadata"])
def test_a_checkpoint_with_sidecars_is_skipped_without_losing_files(checkpointed, action):
    """It is sound but for that: without the files that its sidecars name, the topic would look
    empty.
    """
    key = f"topics/t/_delta_log/{LAST:020d}.checkpoint.parquet"
    rows = pq.read_table(pa.BufferReader(checkpointed.get(key)))
    kept = rows.filter(rows["add"].is_null()).drop_columns(list({action} & {*rows.column_names}))
    places = [{"path": "../../../etc/passwd"}, *[None] * (kept.num_rows - 1)]
    sink = io.BytesIO()
    pq.write_table(
        kept.append_column(action, pa.array(places, pa.struct([("path", pa.string())]))), sink
    )
    checkpointed.put(key, sink.getvalue())
    assert Topic("t", store=checkpointed).to_arrow().num_rows == 4


@pytest.mark.fault("X4")
def test_a_checkpoint_that_decodes_to_too_much_memory_is_skipped(checkpointed, monkeypatch):
    key = f"topics/t/_delta_log/{LAST:020d}.checkpoint.parquet"
    sink = io.BytesIO()
    pq.write_table(bomb(), sink, store_schema=False)
    checkpointed.put(key, sink.getvalue())
    monkeypatch.setattr(bounded_decoding, "DECODED_BYTES_MAX", 20_000_000)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    assert Topic("t", store=checkpointed).to_arrow().num_rows == 4
    assert pa.total_allocated_bytes() - before < 20_000_000
    tracemalloc.stop()


# --- data files ---


@pytest.mark.fault("X4")
def test_a_small_file_that_decodes_to_gigabytes_is_corrupt_before_decoding(store):
    rows = 200_000
    data = as_segment(bomb(rows), rows)
    assert len(data) < 1_000_000
    replace_file(store, data, rows)
    peak = pa.default_memory_pool().max_memory()
    raised, error = refusal(store)
    assert isinstance(raised, Corrupt)
    assert re.search(r"20\d{9} bytes of memory", str(raised))
    assert error.code() == KafkaError._BAD_MSG
    assert pa.default_memory_pool().max_memory() < peak + 200_000_000


@pytest.mark.fault("X4")
@pytest.mark.parametrize("whole", [True, False], ids=["read whole", "read in parts"])
def test_long_values_below_a_list_are_counted_too(store, whole, monkeypatch):
    rows = 1000
    if not whole:
        monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 0)
        monkeypatch.setattr(bounded_decoding, "DECODED_BYTES_MAX", 2_000_000)
    else:
        monkeypatch.setattr(bounded_decoding, "DECODED_BYTES_MAX", 2_000_000)
    names = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), pa.array(["h" * 100_000])
    )
    pairs = pa.StructArray.from_arrays([names, pa.array([b""] * rows)], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), pairs)
    table = pa.table({"value": pa.array([b"v"] * rows)})
    data = as_segment(table, rows)
    sink = io.BytesIO()
    pq.write_table(
        pq.read_table(io.BytesIO(data)).set_column(4, "_headers", headers), sink, store_schema=False
    )
    replace_file(store, sink.getvalue(), rows)
    with pytest.raises(Corrupt, match="bytes of memory"):
        Topic("t", store=store).to_arrow(end=3)


@pytest.mark.fault("X4")
def test_often_referenced_long_values_that_fit_are_read(store, monkeypatch):
    """The worst case is far beyond the limit, what the rows refer to is not: counting must tell the
    two apart.
    """
    rows = 1000
    value = pa.DictionaryArray.from_arrays(
        pa.array([0] * (rows - 1) + [1], pa.int32()), pa.array([b"", b"x" * 100_000])
    )
    replace_file(store, as_segment(pa.table({"value": value}), rows), rows)
    monkeypatch.setattr(bounded_decoding, "DECODED_BYTES_MAX", 1_000_000)
    assert Topic("t", store=store).to_arrow().num_rows == LAST - 1 + rows


@pytest.mark.fault("X4")
def test_a_footer_with_an_absurd_number_of_rows_is_corrupt_before_anything_is_decoded(store):
    data = as_segment(pa.table({"value": [b"v"]}), 1)
    replace_file(store, data, 1)
    forge(store, in_tag("deltaq.file", lambda tag: tag.replace('"rows": 1', f'"rows": {2**40}')))
    forge(store, in_tag("deltaq.batches", lambda tag: json.dumps([[0, LAST - 1, 0, 2**40]])))
    forge(store, in_head(lambda head: head.replace(f"[{LAST}]", f"[{LAST - 1 + 2**40}]")))
    with pytest.raises(Corrupt, match=f"1 rows instead of {2**40}"):
        Topic("t", store=store).to_arrow()
    found, error = read_until_error(store)
    assert (found, error.code()) == ([b"value 0", b"value 1"], KafkaError._BAD_MSG)


class Trap:
    """Records that it was unpickled."""

    sprung = False

    def __reduce__(self):
        return Trap.spring, ()

    @staticmethod
    def spring() -> str:
        Trap.sprung = True
        return "sprung"


@pytest.mark.fault("K6")
def test_an_extension_type_in_a_file_runs_no_code(store):
    """Old versions of Arrow unpickled what a file's schema says about a Python extension type."""
    field = pa.field(
        "value",
        pa.binary(),
        metadata={
            "ARROW:extension:name": "arrow.py_extension_type",
            "ARROW:extension:metadata": pickle.dumps(Trap()),
        },
    )
    table = pa.table({"value": [b"v"]}).cast(pa.schema([field]))
    columns = pq.read_table(io.BytesIO(as_segment(table, 1)))
    sink = io.BytesIO()
    pq.write_table(
        columns.cast(pa.schema([*list(columns.schema)[:-1], field])), sink, store_schema=True
    )
    replace_file(store, sink.getvalue(), 1)
    assert Topic("t", store=store).to_arrow()["value"].to_pylist() == [b"value 0", b"value 1", b"v"]
    assert not Trap.sprung
    assert pickle.loads(pickle.dumps(Trap())) == "sprung"
    assert Trap.sprung, "the trap works"


# --- control objects ---


@pytest.mark.fault("K6")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a":1,"a":2}', "repeated"),
        ('{"a":{"b":1,"b":1}}', "repeated"),
        ("NaN", "NaN"),
        ("[Infinity]", "Infinity"),
        ("[-Infinity]", "Infinity"),
        ("1e999", "infinite"),
        (str(2**63), "64 bits"),
        (str(-(2**63) - 1), "64 bits"),
        ("9" * 1_000_000, "64 bits"),
        ("-" + "9" * 5000, "64 bits"),
        (DEEP, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
    ids=lambda text: text[:20],
)
def test_ambiguous_json_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        strict_json(text)


@pytest.mark.fault("K6")
def test_json_at_the_limits_is_read():
    text = f'{{"a":[{2**63 - 1},{-(2**63)},1.5e300,null,true,"x"]}}'
    assert strict_json(text) == json.loads(text)


@pytest.mark.fault("K6")
def test_a_schema_with_a_key_twice_is_refused():
    with pytest.raises(ValueError, match="repeated"):
        arrow_schema('{"type":"struct","type":"struct","fields":[]}')


@pytest.mark.fault("K6")
@pytest.mark.parametrize(
    ("levels", "is_read"), [(NESTING_MAX - 1, True), (NESTING_MAX, False), (5_000, False)]
)
def test_a_schema_of_types_within_types_is_read_up_to_a_limit(levels, is_read):
    struct = '{"type":"struct","fields":[{"name":"a","nullable":true,"metadata":{},"type":'
    text = struct + struct * levels + '"string"' + "}]}" * (levels + 1)
    with nullcontext() if is_read else pytest.raises(ValueError, match="nested too deeply"):
        assert arrow_schema(text).names == ["a"]


@pytest.mark.fault("K6")
def test_a_negative_committed_offset_is_not_taken_for_a_logical_offset():
    state = restored_state(4, [Txn("t/id/0", -2)])
    with pytest.raises(Corrupt, match="negative"):
        committed_offset(state, "t", "id", 0)


@pytest.mark.fault("K6")
@pytest.mark.parametrize("notes", ["{", DEEP, '{"a":1,"a":2}'], ids=["cut", "deep", "a key twice"])
def test_damaged_metadata_of_committed_offsets_is_corrupt(notes):
    state = restored_state(4, [Txn("t/id/0", 5), DomainMetadata("deltaq.offset_metadata", notes)])
    with pytest.raises(Corrupt, match="notes"):
        committed_offset(state, "t", "id", 0)


@pytest.mark.fault("B2")
def test_offsets_in_a_file_that_contradict_the_log_stop_the_consumer_at_that_offset(store):
    table = pq.read_table(io.BytesIO(as_segment(pa.table({"value": [b"v", b"w"]}), 2)))
    sink = io.BytesIO()
    pq.write_table(table.set_column(1, "_offset", pa.array([2, 4])), sink, store_schema=False)
    replace_file(store, sink.getvalue(), 2)
    raised, _ = refusal(store)
    assert isinstance(raised, Corrupt)
    assert raised.version == LAST
    found, error = read_until_error(store)
    assert found == [b"value 0", b"value 1"]
    assert "offsets contradict the log" in error.str()


@pytest.mark.fault("B2")
def test_partitions_in_a_file_that_contradict_the_log_stop_the_consumer_at_that_offset(store):
    table = pq.read_table(io.BytesIO(as_segment(pa.table({"value": [b"v"]}), 1)))
    sink = io.BytesIO()
    pq.write_table(
        table.set_column(0, "_partition", pa.array([1], pa.int32())), sink, store_schema=False
    )
    replace_file(store, sink.getvalue(), 1)
    found, error = read_until_error(store)
    assert found == [b"value 0", b"value 1"]
    assert "partitions contradict the log" in error.str()


@pytest.mark.fault("B1")
def test_an_entry_in_two_slots_is_delivered_once(store):
    store.put(entry_key(LAST + 1), store.get(entry_key(LAST)))
    raised, error = refusal(store)
    assert isinstance(raised, Corrupt)
    assert (raised.version, error.code()) == (LAST + 1, KafkaError._BAD_MSG)


@pytest.mark.fault("B1")
def test_a_second_spelling_of_a_version_is_no_entry(store):
    for name in (
        "3.json",
        "+0000000000000000003.json",
        "00000000000000000004.JSON",
        "00000000000000000004.json.tmp",
    ):
        store.put(f"topics/t/_delta_log/{name}", store.get(entry_key(LAST)))
    topic = Topic("t", store=store)
    assert topic.to_arrow()["value"].to_pylist() == [b"value 0", b"value 1", b"value 2"]
    assert TopicPartition("t", 0).partition in topic.describe().next_offsets
