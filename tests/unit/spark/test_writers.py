"""The writers as Spark calls them, in this process: what tasks upload, and what the driver
commits.
"""

from __future__ import annotations

import datetime
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

import deltaq
from deltaq import (
    InvalidConfig,
    InvalidValue,
    MessageTooLarge,
    Producer,
    Topic,
    Unavailable,
    UnknownTopic,
)
from deltaq.clock import SYSTEM_CLOCK
from deltaq.partitioner import assign_partitions
from deltaq.spark import sink
from deltaq.spark.data_source import DeltaqDataSource
from deltaq.spark.sink import DeltaqWriter
from deltaq.store import LocalStore, Store
from deltaq.topics.log import TopicLog
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.resolution import resolve_files
from tests.doubles.micro_batches import OfBatch, in_batch, new_worker, stream_writer, task_results
from tests.doubles.unsound import text_of

UTC = datetime.UTC


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker process keeps from micro-batch to micro-batch, it does not keep from test to
    test.
    """
    new_worker(monkeypatch)


def batch_writer(
    root: str, rows: pa.Table, overwrite: bool = False, /, **options: str
) -> DeltaqWriter:
    writer = DeltaqDataSource({"path": root, **options}).writer(
        from_arrow_schema(rows.schema), overwrite
    )
    assert isinstance(writer, DeltaqWriter)
    return writer


def append(root: str, *tasks: pa.Table, **options: str) -> None:
    writer = batch_writer(root, tasks[0], **options)
    writer.commit(task_results(writer, tasks))


def topic_rows(root: str, topic: str, *columns: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        Topic(topic, bootstrap_servers=root).to_arrow().select(list(columns)).to_pylist()
    )
    return rows


def versions(root: str, topic: str) -> int:
    return len(list(Path(root, "topics", topic, "_delta_log").glob("*.json")))


def values(*of: bytes) -> pa.Table:
    return pa.table({"value": pa.array(of, pa.binary())})


def test_the_rows_of_all_tasks_are_one_commit_in_their_order(root: str) -> None:
    append(
        root, values(*[b"%d" % n for n in range(7)]), values(), values(b"7", b"8"), topic="orders"
    )
    assert [row["value"] for row in topic_rows(root, "orders", "value")] == [
        b"%d" % n for n in range(9)
    ]
    assert versions(root, "orders") == 2  # the topic's beginning, and the rows


def test_a_repeated_micro_batch_changes_nothing(root: str) -> None:
    first, second = values(b"1", b"2"), values(b"3")
    writer = stream_writer(root, first, topic="orders")
    writer.commit(task_results(writer, [first]), 0)
    writer.commit(task_results(writer, [second]), 1)
    before = versions(root, "orders")
    for batch_id, again in ((1, second), (0, first)):
        repeated = stream_writer(root, again, topic="orders")
        repeated.commit(task_results(repeated, [again]), batch_id)
    assert versions(root, "orders") == before
    assert [row["value"] for row in topic_rows(root, "orders", "value")] == [b"1", b"2", b"3"]


def test_two_queries_with_the_same_numbers_do_not_disturb_each_other(root: str) -> None:
    for app_id in ("one", "two"):
        rows = values(app_id.encode())
        writer = stream_writer(root, rows, topic="orders", txnAppId=app_id)
        writer.commit(task_results(writer, [rows]), 0)
    assert [row["value"] for row in topic_rows(root, "orders", "value")] == [b"one", b"two"]


def test_a_micro_batch_interrupted_between_two_topics_is_completed(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"topic": ["a", "b", "a"], "value": [b"1", b"2", b"3"]})
    writer = stream_writer(root, rows)
    done = task_results(writer, [rows])
    append_rows = TopicLog.append

    def append_or_die(log: TopicLog, *arguments: Any) -> Any:
        if log.topic == "b":
            raise KeyboardInterrupt
        return append_rows(log, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TopicLog, "append", append_or_die)
        with pytest.raises(KeyboardInterrupt):
            writer.commit(done, 0)
    again = stream_writer(root, rows)
    again.commit(task_results(again, [rows]), 0)
    assert [row["value"] for row in topic_rows(root, "a", "value")] == [b"1", b"3"]
    assert [row["value"] for row in topic_rows(root, "b", "value")] == [b"2"]


def test_a_micro_batch_that_names_topics_is_decided_before_any_of_them_shows_it(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"topic": ["a", "b", "a"], "value": [b"1", b"2", b"3"]})
    append_rows = TopicLog.append

    def append_or_die(log: TopicLog, *arguments: Any, **keywords: Any) -> Any:
        if log.topic == "b":
            raise KeyboardInterrupt
        return append_rows(log, *arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(TopicLog, "append", append_or_die)
        with pytest.raises(KeyboardInterrupt):
            in_batch(monkeypatch, root, rows, 0)
    # The process has ended. Spark repeats the batch, perhaps with other rows.
    new_worker(monkeypatch)
    other = pa.table({"topic": ["a", "c"], "value": [b"x", b"y"]})
    in_batch(monkeypatch, root, other, 0)
    assert [row["value"] for row in topic_rows(root, "a", "value")] == [b"1", b"3"]
    assert [row["value"] for row in topic_rows(root, "b", "value")] == [b"2"]
    assert topic_rows(root, "c", "value") == []
    in_batch(monkeypatch, root, other, 1)
    in_batch(monkeypatch, root, other, 1)
    assert [row["value"] for row in topic_rows(root, "a", "value")] == [b"1", b"3", b"x"]
    assert [row["value"] for row in topic_rows(root, "c", "value")] == [b"y"]
    assert deltaq.cut(["a", "b", "c"], {"bootstrap.servers": root}) == {
        "a": {0: 3},
        "b": {0: 1},
        "c": {0: 1},
    }


def test_two_drivers_of_a_query_commit_a_micro_batch_once(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"topic": ["a", "b"], "value": [b"1", b"2"]})
    in_batch(monkeypatch, root, rows, 0)
    monkeypatch.setattr("deltaq.spark.sink.TaskContext.get", lambda: OfBatch(1))
    writer = stream_writer(root, rows)
    done = task_results(writer, [rows])
    decide = TransactionLog.commit

    def late(log: TransactionLog, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(TransactionLog, "commit", decide)
            new_worker(patch)
            in_batch(monkeypatch, root, rows, 1)  # the other driver is quicker
        return decide(log, *arguments)

    monkeypatch.setattr(TransactionLog, "commit", late)
    writer.commit(done, 1)
    assert len(topic_rows(root, "a", "value")) == len(topic_rows(root, "b", "value")) == 2


def test_orphan_removal_and_a_late_micro_batch_take_the_same_slot(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that was to commit files at the moment of their removal looks at the topic again."""
    rows = pa.table({"topic": ["a", "b"], "value": [b"1", b"2"]})
    in_batch(monkeypatch, root, rows, 0)
    in_batch(monkeypatch, root, rows, 1)
    monkeypatch.setattr("deltaq.spark.sink.TaskContext.get", lambda: OfBatch(0))
    writer = stream_writer(root, rows, txnAppId="query")
    late = task_results(writer, [rows])  # staged under a number that is over
    decide, asked = TransactionLog.commit, []
    store = LocalStore(root)

    def beside_removal(log: TransactionLog, *arguments: Any) -> Any:
        asked.append(arguments[0])
        if len(asked) == 1:
            paths = [segment.path for of in arguments[0].topics for segment in of.segments]
            resolve_files(store, paths, float("inf"), SYSTEM_CLOCK, SYSTEM_CLOCK.monotonic() + 10)
        return decide(log, *arguments)

    monkeypatch.setattr(TransactionLog, "commit", beside_removal)
    writer.commit(late, 2)
    first, second = asked
    assert second.key.number == first.key.number + 1
    assert len(topic_rows(root, "a", "value")) == len(topic_rows(root, "b", "value")) == 3


@pytest.mark.parametrize(("enabled", "versions_with_checkpoint"), [("true", [100]), ("false", [])])
def test_a_sink_writes_the_checkpoints_of_its_topic(
    root: str, enabled: str, versions_with_checkpoint: list[int]
) -> None:
    Topic("orders", bootstrap_servers=root).create()  # version 0
    writer = stream_writer(
        root, values(b""), topic="orders", **{"kafka.maintenance.enable": enabled}
    )
    results = task_results(writer, [values(b"x")])
    for batch in range(101):
        writer.commit(results, batch)
    checkpoints = Path(root, "topics", "orders", "_delta_log").glob("*.checkpoint.parquet")
    assert [int(path.name.partition(".")[0]) for path in checkpoints] == versions_with_checkpoint


def test_an_empty_micro_batch_is_no_commit(root: str) -> None:
    Topic("orders", bootstrap_servers=root).create()
    writer = stream_writer(root, values(), topic="orders")
    writer.commit(task_results(writer, [values(), values()]), 0)
    writer.commit([None], 1)
    assert versions(root, "orders") == 1


def test_a_failed_write_leaves_the_topic_as_it_was(root: str) -> None:
    append(root, values(b"1"), topic="orders")
    writer = batch_writer(root, values(b"2"), topic="orders")
    writer.abort(task_results(writer, [values(b"2")]))
    assert [row["value"] for row in topic_rows(root, "orders", "value")] == [b"1"]


def test_a_numbered_batch_is_written_once(root: str) -> None:
    for _ in range(3):
        append(root, values(b"1"), topic="orders", txnAppId="nightly", txnVersion="20")
    append(root, values(b"2"), topic="orders", txnAppId="nightly", txnVersion="21")
    assert [row["value"] for row in topic_rows(root, "orders", "value")] == [b"1", b"2"]


def test_a_stream_whose_query_has_no_id_is_refused(root: str) -> None:
    rows = values(b"1")
    writer = DeltaqDataSource({"path": root, "topic": "orders"}).streamWriter(
        from_arrow_schema(rows.schema), False
    )
    with pytest.raises(InvalidConfig, match='set option "txnAppId"'):
        writer.commit(task_results(writer, [rows]), 0)


# --- what becomes of the columns ---


def test_a_row_keeps_its_key_headers_time_and_partition(root: str) -> None:
    time = datetime.datetime(2024, 2, 5, 15, 1, 52, 884_000, UTC)
    headers = [[{"key": "h", "value": b"1"}], None]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = pa.table(
        {
            "key": ["k", None],
            "value": ["text", None],
            "partition": pa.array([2, None], pa.int32()),
            "timestamp": pa.array([time, time], pa.timestamp("us", "UTC")),
            "headers": pa.array(headers, kind),
            "offset": [17, 18],
            "timestampType": [0, 0],
        }
    )
    Topic("orders", partitions=3, bootstrap_servers=root).create()
    append(root, rows, topic="orders")
    written = topic_rows(root, "orders", "_partition", "_timestamp", "_key", "_headers", "value")
    first = next(row for row in written if row["_key"] == b"k")
    assert first == {
        "_partition": 2,
        "_timestamp": time,
        "_key": b"k",
        "_headers": headers[0],
        "value": b"text",
    }
    second = next(row for row in written if row["_key"] is None)
    assert (second["value"], second["_headers"]) == (None, None)


def test_keys_get_the_partitions_that_a_producer_would_choose(root: str) -> None:
    keys = [b"%d" % number for number in range(50)]
    append(
        root,
        pa.table({"key": keys, "value": keys}),
        topic="orders",
        **{"kafka.num.partitions": "5"},
    )
    written = topic_rows(root, "orders", "_partition", "_key")
    chosen = dict(zip(keys, assign_partitions("consistent", keys, 5, 0), strict=True))
    assert {row["_key"]: row["_partition"] for row in written} == chosen


def test_rows_may_name_their_topics(root: str) -> None:
    rows = pa.table({"topic": ["a", "b", "a"], "value": [b"1", b"2", b"3"]})
    append(root, rows)
    assert [row["value"] for row in topic_rows(root, "a", "value")] == [b"1", b"3"]
    assert [row["value"] for row in topic_rows(root, "b", "value")] == [b"2"]
    append(root, rows, topic="all")  # the option wins, as with Kafka's sink
    assert len(topic_rows(root, "all", "value")) == 3


def test_own_columns_make_a_typed_topic(root: str) -> None:
    rows = pa.table({"_key": ["k"], "timestamp": [1724403133066.217], "message": ["0"]})
    append(root, rows, topic="unified", columns="table")
    assert topic_rows(root, "unified", "_key", "timestamp", "message") == [
        {"_key": b"k", "timestamp": 1724403133066.217, "message": "0"}
    ]
    described = Topic("unified", bootstrap_servers=root).describe().schema
    assert described is not None


def test_files_of_every_task_have_statistics_for_other_engines(root: str) -> None:
    tasks = [pa.table({"id": pa.array(range(first, first + 5), pa.int64())}) for first in (0, 10)]
    append(root, *tasks, topic="orders", columns="table")
    dataset = DeltaTable(f"{root}/topics/orders").to_pyarrow_dataset()
    wanted = ds.field("id") == 12
    assert dataset.to_table(filter=wanted)["id"].to_pylist() == [12]
    assert len(list(dataset.get_fragments(wanted))) == 1


def test_rows_of_a_typed_topic_can_be_written_to_another_as_they_are(root: str) -> None:
    schema = pa.schema([("item", pa.string()), ("price", pa.decimal128(10, 2))])
    for name in ("sales", "copy"):
        Topic(name, schema, bootstrap_servers=root).create()
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce("sales", {"item": "tea", "price": None}, key="k", timestamp=5)
    data_source = DeltaqDataSource({"path": root, "subscribe": "sales", "columns": "table"})
    reader = data_source.reader(data_source.schema())
    (records,) = reader.read(*reader.partitions())
    assert isinstance(records, pa.RecordBatch)
    append(root, pa.Table.from_batches([records]), topic="copy", columns="table")
    columns = ("_partition", "_offset", "_timestamp", "_key", "_headers", "item", "price")
    assert topic_rows(root, "copy", *columns) == topic_rows(root, "sales", *columns)


def test_a_value_column_alone_makes_an_untyped_topic(root: str) -> None:
    append(root, values(b"1"), topic="orders", columns="table")
    assert Topic("orders", bootstrap_servers=root).describe().schema is None


def test_columns_that_kafkas_sink_does_not_know_are_ignored(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pa.table(
        {
            "key": ["k"],
            "value": [b"1"],
            "extra": [[1]],
            "_key": [b"no"],
            "Value": [2],
            "topic": ["t"],
        }
    )
    with caplog.at_level(logging.INFO, "deltaq.spark"):
        append(root, rows)
    assert topic_rows(root, "t", "_key", "value") == [{"_key": b"k", "value": b"1"}]
    assert "names=extra,_key,Value" in caplog.text


# --- what is refused ---


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (pa.table({"key": [b"k"]}), "field 'value'"),
        (pa.table({"value": [1]}), "field 'value': is int64"),
        (
            pa.table({"value": [b"x"], "timestamp": [datetime.datetime(2024, 1, 1)]}),
            "field 'timestamp': has no time zone",
        ),
    ],
)
def test_columns_that_cannot_be_written_are_named_before_any_task_runs(
    root: str, rows: pa.Table, complaint: str
) -> None:
    with pytest.raises(InvalidValue, match=complaint):
        batch_writer(root, rows, topic="orders")
    assert not Path(root, "topics").exists()


def test_a_column_that_a_typed_topic_does_not_have_is_refused(root: str) -> None:
    append(root, pa.table({"item": ["tea"]}), topic="sales", columns="table")
    with pytest.raises(
        InvalidValue,
        match=r"topic 'sales' has no such column: drop it, or set option \"mergeSchema\"",
    ):
        append(root, pa.table({"item": ["tea"], "extra": [1]}), topic="sales", columns="table")


def test_a_topic_gains_columns_fields_and_wider_types_if_the_schemas_are_to_be_merged(
    root: str,
) -> None:
    merging = {"topic": "sales", "columns": "table", "mergeSchema": "true"}
    at = pa.struct([("city", pa.string())])
    rows = pa.table(
        {"item": ["tea"], "cups": pa.array([1], pa.int32()), "at": pa.array([{"city": "A"}], at)}
    )
    append(root, rows, **merging)
    more = pa.struct([("city", pa.string()), ("zip", pa.string())])
    wider = pa.table(
        {"cups": [2**40], "at": pa.array([{"city": "B", "zip": "1"}], more), "price": [1.5]}
    )
    append(root, wider, wider, **merging)
    append(root, rows, **merging)  # of a program that knows the earlier schema
    before = versions(root, "sales")
    append(root, wider, **merging)
    assert versions(root, "sales") == before + 1  # the rows alone
    old = {"item": "tea", "cups": 1, "at": {"city": "A", "zip": None}, "price": None}
    new = {"item": None, "cups": 2**40, "at": {"city": "B", "zip": "1"}, "price": 1.5}
    assert topic_rows(root, "sales", "item", "cups", "at", "price") == [old, new, new, old, new]
    table = DeltaTable(f"{root}/topics/sales").to_pyarrow_table()
    assert sorted(table.column("cups").to_pylist()) == [1, 1, 2**40, 2**40, 2**40]


def test_maps_gain_wider_types_and_a_field_that_they_cannot_gain_is_named(root: str) -> None:
    merging = {"topic": "sales", "columns": "table", "mergeSchema": "true"}

    def rows(number: pa.DataType, **more: Any) -> pa.Table:
        cups = pa.map_(pa.string(), pa.list_(number))
        at = pa.map_(
            pa.string(), pa.struct([("x", number), *((name, pa.int64()) for name in more)])
        )
        largest = 2 ** (number.bit_width - 1) - 1
        return pa.table(
            {
                "cups": pa.array([[("tea", [largest])]], cups),
                "at": pa.array([[("a", {"x": largest, **more})]], at),
            }
        )

    for number in (pa.int32(), pa.int64(), pa.int32()):
        append(root, rows(number), **merging)
    sizes = [2**31 - 1, 2**63 - 1, 2**31 - 1]
    expected = [{"cups": [("tea", [size])], "at": [("a", {"x": size})]} for size in sizes]
    assert topic_rows(root, "sales", "cups", "at") == expected
    before = versions(root, "sales")
    with pytest.raises(
        InvalidConfig,
        match=r"column 'at\[value\].y' is new, and not every engine reads maps that gain",
    ):
        append(root, rows(pa.int64(), y=1), **merging)
    assert versions(root, "sales") == before


def test_merging_keeps_what_every_value_has_and_refuses_what_no_topic_can_become(root: str) -> None:
    required = pa.schema([pa.field("item", pa.string(), nullable=False), ("cups", pa.int32())])
    topic = Topic("sales", required, bootstrap_servers=root).create()
    merging = {"topic": "sales", "columns": "table", "mergeSchema": "true"}
    append(root, pa.table({"item": ["tea"], "extra": [1]}), **merging)
    found = topic.describe().schema
    assert found is not None
    assert (found.required, found.arrow.names) == (frozenset({"item"}), ["item", "cups", "extra"])
    before = versions(root, "sales")
    for rows in (
        pa.table({"item": ["tea"], "cups": ["many"]}),
        pa.table({"item": ["tea"], "Cups": [1]}),
        pa.table({"item": pa.array([None], pa.string()), "other": [1]}),
        pa.table({"other": [1]}),
    ):
        with pytest.raises((InvalidValue, InvalidConfig), match=r"cups|Cups|item"):
            append(root, rows, **merging)
    assert topic.describe().next_offsets == {0: 1}
    assert versions(root, "sales") <= before + 2  # `other` was added before a row was refused
    with pytest.raises(InvalidConfig, match='set option "columns" to "table"'):
        batch_writer(root, values(b"1"), topic="orders", mergeSchema="true")


def test_tasks_that_merge_at_once_change_the_schema_once(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    merging = {"topic": "sales", "columns": "table", "mergeSchema": "true"}
    append(root, pa.table({"item": ["tea"]}), **merging)
    rows = pa.table({"item": ["milk"], "extra": [1]})
    writers = [batch_writer(root, rows, **merging) for _ in range(4)]
    barrier = threading.Barrier(4)

    def log_of(store: Store, topic: str, client_id: str) -> TopicLog:
        """A log of its own, as each process has one."""
        return TopicLog(store, topic, client_id=client_id)

    monkeypatch.setattr(sink, "_log_of", log_of)

    def write(writer: DeltaqWriter) -> WriterCommitMessage:
        barrier.wait(20)
        return writer.write(iter(rows.to_batches()))

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(write, writers))
    writers[0].commit(list(done))
    assert topic_rows(root, "sales", "extra") == [{"extra": None}, *[{"extra": 1}] * 4]
    log = TopicLog(LocalStore(root), "sales")
    log.load()
    assert log.version == 3  # the topic, its first row, the schema, the rows


def test_rows_without_a_topic_are_refused(root: str) -> None:
    with pytest.raises(InvalidConfig, match='set option "topic", or add a column "topic"'):
        batch_writer(root, values(b"1"))
    with pytest.raises(InvalidValue, match="the row has no topic"):
        append(root, pa.table({"topic": pa.array([None], pa.string()), "value": [b"1"]}))


def test_a_topic_is_never_overwritten(root: str) -> None:
    with pytest.raises(InvalidConfig, match="can only be appended to"):
        batch_writer(root, values(b"1"), True, topic="orders")


@pytest.mark.parametrize("option", ["txnAppId", "txnVersion"])
def test_application_id_and_batch_number_are_required_together(root: str, option: str) -> None:
    with pytest.raises(InvalidConfig, match="belong together"):
        batch_writer(root, values(b"1"), **{"topic": "orders", option: "1"})


def test_a_stream_numbers_its_batches_itself(root: str) -> None:
    with pytest.raises(InvalidConfig, match="numbers its batches itself"):
        stream_writer(root, values(b"1"), topic="orders", txnVersion="1")


def test_a_topic_is_not_created_if_creation_is_disabled(root: str) -> None:
    with pytest.raises(UnknownTopic, match="does not exist, and auto"):
        append(root, values(b"1"), topic="orders", **{"kafka.auto.create.topics.enable": "false"})


def test_a_typed_topic_takes_no_kafka_value(root: str) -> None:
    Topic("sales", pa.schema([("item", pa.string())]), bootstrap_servers=root).create()
    with pytest.raises(InvalidConfig, match='set option "columns" to "table"'):
        append(root, values(b"1"), topic="sales")


def test_a_row_that_is_too_large_is_refused(root: str) -> None:
    Topic("orders", config={"max.message.bytes": 100}, bootstrap_servers=root).create()
    with pytest.raises(MessageTooLarge):
        append(root, values(b"x" * 101), topic="orders")


def test_rows_for_a_topic_that_was_recreated_meanwhile_are_not_appended(root: str) -> None:
    topic = Topic("orders", bootstrap_servers=root).create()
    writer = batch_writer(root, values(b"1"), topic="orders")
    done = task_results(writer, [values(b"1")])
    topic.delete()
    with pytest.raises(UnknownTopic, match="was deleted"):
        writer.commit(done)
    topic.create()
    with pytest.raises(UnknownTopic, match="deleted and created again"):
        writer.commit(done)
    assert topic_rows(root, "orders", "value") == []


@pytest.mark.fault("M5")
def test_rows_with_possibly_expired_files_are_refused_and_can_be_written_again(root: str) -> None:
    """An executor was done days before the driver came to its commit."""
    Topic("orders", bootstrap_servers=root).create()
    writer = batch_writer(root, values(b"1"), topic="orders")
    done = task_results(writer, [values(b"1")])
    log = MaintenanceLog(LocalStore(root, SYSTEM_CLOCK), "orders")
    log.load()
    log.raise_min_upload_version(log.version + 1, SYSTEM_CLOCK.monotonic() + 60)
    with pytest.raises(
        Unavailable, match=r"1 files for topic 'orders' waited .* run the batch again"
    ):
        writer.commit(done)
    assert topic_rows(root, "orders", "value") == []
    writer.commit(task_results(writer, [values(b"1")]))
    assert topic_rows(root, "orders", "value") == [{"value": b"1"}]


def test_tasks_that_met_two_topics_of_one_name_write_to_neither(root: str) -> None:
    topic = Topic("orders", bootstrap_servers=root).create()
    writer = stream_writer(root, values(b"1"), topic="orders")
    done = task_results(writer, [values(b"1")])
    topic.delete()
    topic.create()
    done += task_results(writer, [values(b"2")])
    for messages in (done, done[::-1]):
        with pytest.raises(UnknownTopic, match="during the write"):
            writer.commit(messages, 0)
    assert topic_rows(root, "orders", "value") == []


def test_a_large_task_is_uploaded_in_pieces(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "SEGMENT_BYTES_MAX", 1000)
    append(root, values(*[b"%0100d" % number for number in range(50)]), topic="orders")
    assert [row["value"] for row in topic_rows(root, "orders", "value")] == [
        b"%0100d" % number for number in range(50)
    ]
    assert len(list(Path(root, "topics", "orders").glob("*.parquet"))) >= 5
    assert versions(root, "orders") == 2


def test_a_value_that_no_reader_could_return_fails_its_task_and_nothing_is_written(
    root: str,
) -> None:
    append(root, values(b"1"), topic="orders")
    texts = pa.table({"value": text_of(b"2", b"\xfc")})
    writer = batch_writer(root, texts, topic="orders")
    with pytest.raises(InvalidValue, match=r"field 'value\[1\]': has bytes that are no UTF-8"):
        task_results(writer, [texts])
    typed = pa.table({"at": pa.array([0, 576 * 10**15]).cast(pa.timestamp("us", "UTC"))})
    writer = batch_writer(root, typed, topic="times", columns="table")
    with pytest.raises(InvalidValue, match=r"field 'at\[1\]': is outside the years 1 to 9999"):
        task_results(writer, [typed])
    assert [row["value"] for row in topic_rows(root, "orders", "value")] == [b"1"]
