"""Data files whose columns are not those of their table: Corrupt, by file and column, whatever way
they are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from deltaq import Consumer, Corrupt, KafkaError, KafkaException, Topic, TopicPartition
from deltaq.clock import SYSTEM_CLOCK
from deltaq.delta.actions import Metadata
from deltaq.delta.schema import arrow_schema, delta_schema
from deltaq.maintenance.file_compaction import FileRewrite, cut
from deltaq.maintenance.key_compaction import KeyCleaner, KeyCleaning
from deltaq.maintenance.rewrite import Rewriter
from deltaq.parquet import segment_file
from deltaq.store import MemoryStore
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.time_lookup import offset_for_time
from deltaq.work import finish
from tests.doubles.reading import next_message
from tests.security.forged import Change, as_segment, forge, in_tag, replace_file, topic_of_three

pytestmark = pytest.mark.fault("X4", "B2")

CONF = {"bootstrap.servers": "memory://forged", "group.id": "g", "auto.offset.reset": "earliest"}
VALUE = {"value": [b"v"]}
TIME = pa.timestamp("us", tz="UTC")

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "value is a number": ({"value": [7]}, "column 'value' is int64 instead of binary"),
    "value is text": ({"value": ["v"]}, "column 'value' is string instead of binary"),
    "value is a struct": (
        {"value": [{"a": 1}]},
        "column 'value' is struct<a: int64> instead of binary",
    ),
    "value is of fixed length": (
        {"value": pa.array([b"v"], pa.binary(1))},
        "column 'value' is fixed_size_binary",
    ),
    "no value": ({"other": [b"v"]}, "column 'value' is missing"),
    "partition is a long": (
        VALUE | {"_partition": pa.array([0], pa.int64())},
        "column '_partition' is int64",
    ),
    "partition is null": (
        VALUE | {"_partition": pa.nulls(1, pa.int32())},
        "partitions contradict the log",
    ),
    "offset is text": (VALUE | {"_offset": ["2"]}, "column '_offset' is string"),
    "timestamp is local": (
        VALUE | {"_timestamp": pa.array([0], pa.timestamp("us"))},
        "column '_timestamp' is timestamp",
    ),
    "timestamp is null": (
        VALUE | {"_timestamp": pa.nulls(1, TIME)},
        "column '_timestamp' has nulls",
    ),
    "key is text": (VALUE | {"_key": ["k"]}, "column '_key' is string"),
    "headers are bytes": (VALUE | {"_headers": [b"h"]}, "column '_headers' is binary"),
    "headers without values": (
        VALUE | {"_headers": [[{"key": "k"}]]},
        "column '_headers' is list<",
    ),
}


def by_poll(store: MemoryStore) -> Exception:
    with Consumer(CONF, store=store) as consumer:
        consumer.assign([TopicPartition("t", 0, 2)])
        return KafkaException(next_message(consumer).error())


def by_arrow(store: MemoryStore) -> Exception:
    with Consumer(CONF, store=store) as consumer:
        consumer.assign([TopicPartition("t", 0, 2)])
        with pytest.raises(KafkaException) as caught:
            consumer.consume_arrow(timeout=20)
        return caught.value


def by_table(store: MemoryStore) -> Exception:
    with pytest.raises(Corrupt) as caught:
        Topic("t", store=store).to_arrow()
    return caught.value


def by_batches(store: MemoryStore) -> Exception:
    with pytest.raises(Corrupt) as caught:
        list(Topic("t", store=store).to_batches())
    return caught.value


def _log(store: MemoryStore) -> MaintenanceLog:
    log = MaintenanceLog(store, "t")
    log.load()
    return log


def by_file_compaction(store: MemoryStore) -> Exception:
    log = _log(store)
    files = tuple(log.index.files.values())
    with pytest.raises(Corrupt) as caught:
        finish(
            Rewriter(store, log, SYSTEM_CLOCK).rewrite(
                FileRewrite(files, cut(files, log.live_head, 2**30))
            )
        )
    return caught.value


def by_key_compaction(store: MemoryStore) -> Exception:
    log = _log(store)
    plan = KeyCleaning((), tuple((file,) for file in log.index.files.values()))
    with pytest.raises(Corrupt) as caught:
        finish(
            KeyCleaner(store, log, SYSTEM_CLOCK, Rewriter(store, log, SYSTEM_CLOCK)).clean(
                plan, log.settings
            )
        )
    return caught.value


WAYS: list[Callable[[MemoryStore], Exception]] = [
    by_poll,
    by_arrow,
    by_table,
    by_batches,
    by_file_compaction,
    by_key_compaction,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("columns", "reason"), WRONG.values(), ids=WRONG.keys())
def test_a_file_with_other_columns_than_its_table_is_reported_by_file_and_column(
    way, columns, reason
):
    store = topic_of_three()
    replace_file(store, as_segment(pa.table(columns), 1), 1)
    error = way(store)
    assert error.args[0].code() == KafkaError._BAD_MSG
    assert reason in str(error)
    assert ".parquet (version 3)" in str(error)


def test_a_large_file_with_other_columns_is_corrupt_too(monkeypatch):
    monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 0)
    store = topic_of_three()
    replace_file(store, as_segment(pa.table({"value": [7]}), 1), 1)
    assert "column 'value' is int64 instead of binary" in str(by_poll(store))
    with pytest.raises(Corrupt, match="int64 instead of binary"):
        Topic("t", store=store).to_arrow(start=2)


def test_a_column_that_occurs_twice_is_corrupt():
    store = topic_of_three()
    whole = pq.read_table(pa.BufferReader(as_segment(pa.table(VALUE), 1)))
    twice = pa.Table.from_arrays([*whole.columns, whole["value"]], [*whole.column_names, "value"])
    sink = pa.BufferOutputStream()
    pq.write_table(twice, sink, store_schema=False)
    replace_file(store, sink.getvalue().to_pybytes(), 1)
    assert "column 'value' occurs 2 times" in str(by_table(store))


def test_reading_null_timestamps_of_a_file_reports_corruption():
    store = topic_of_three()
    replace_file(store, as_segment(pa.table(VALUE | {"_timestamp": pa.nulls(1, TIME)}), 1), 1)
    forge(
        store,
        in_tag("deltaq.file", lambda tag: json.dumps(json.loads(tag) | {"timestamps": [0, 2**42]})),
    )
    with pytest.raises(Corrupt, match="'_timestamp' has nulls"):
        offset_for_time(store, _log(store), 0, 2**41)


def test_null_timestamps_become_the_commit_time_if_the_log_has_one():
    store = topic_of_three()
    replace_file(store, as_segment(pa.table(VALUE | {"_timestamp": pa.nulls(1, TIME)}), 1), 1)
    forge(store, in_tag("deltaq.file", lambda tag: tag[:-1] + ',"append_time":5}'))
    assert (
        pc.cast(Topic("t", store=store).to_arrow()["_timestamp"], pa.int64()).to_pylist()[2] == 5000
    )


# --- typed topics ---

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field(
            "at", pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.int32())])
        ),
    ]
)


def with_column(column: pa.Field) -> Change:
    """The table gets another column, as when its schema evolves."""

    def widened(schema_string: str) -> str:
        return delta_schema(arrow_schema(schema_string).append(column))

    return lambda actions: [
        replace(action, schema_string=widened(action.schema_string))
        if isinstance(action, Metadata)
        else action
        for action in actions
    ]


def test_a_column_added_to_the_table_later_is_null_in_older_files():
    store = topic_of_three(SCHEMA)
    forge(store, with_column(pa.field("later", pa.list_(pa.int8()))), version=0)
    table = Topic("t", store=store).to_arrow()
    assert table["id"].to_pylist() == [0, 1, 2]
    assert table["later"].to_pylist() == [None, None, None]
    assert table.schema.field("later").type == pa.list_(pa.int8())
    with Consumer(CONF, store=store) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert next_message(consumer).value() == {
            "id": 0,
            "name": None,
            "tags": None,
            "at": None,
            "later": None,
        }
        consumer.seek(TopicPartition("t", 0, 0))
        rows = consumer.consume_arrow(timeout=20)
    assert rows is not None
    assert rows.column("later").null_count == len(rows)
    log = _log(store)
    files = tuple(log.index.files.values())
    finish(
        Rewriter(store, log, SYSTEM_CLOCK).rewrite(
            FileRewrite(files, cut(files, log.live_head, 2**30))
        )
    )
    assert Topic("t", store=store).to_arrow().equals(table)


def test_a_required_column_is_never_missing():
    store = topic_of_three(SCHEMA)
    column = pa.field("later", pa.int8(), metadata={"deltaq.required": "true"})
    forge(store, with_column(column), version=0)
    assert "column 'later' is missing" in str(by_table(store))


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"id": pa.array([1.0])}, "column 'id' is double instead of int64"),
        ({"id": [1], "name": [b"n"]}, "column 'name' is binary instead of string"),
        ({"id": [1], "tags": [[1]]}, "column 'tags' is list<"),
        ({"id": [1], "at": [{"x": 1}]}, "column 'at' is struct<x"),
        ({"id": [1], "at": pa.array([{"y": 1, "x": 1}])}, "column 'at' is struct<y"),
        (
            {
                "id": [1],
                "at": pa.array(
                    [{"x": None, "y": 1}], pa.struct([("x", pa.int32()), ("y", pa.int32())])
                ),
            },
            "column 'at' is struct<x",
        ),
        ({"name": ["n"]}, "column 'id' is missing"),
    ],
    ids=[
        "number",
        "bytes",
        "elements",
        "field missing",
        "fields in another order",
        "null allowed",
        "required",
    ],
)
@pytest.mark.parametrize("way", [by_poll, by_arrow, by_table, by_file_compaction])
def test_a_typed_column_of_another_type_is_corrupt(way, columns, reason):
    store = topic_of_three(SCHEMA)
    replace_file(store, as_segment(pa.table(columns), 1), 1)
    error = way(store)
    assert reason in str(error)
    assert error.args[0].code() == KafkaError._BAD_MSG


def test_the_arrow_schema_embedded_in_a_file_is_ignored():
    store = topic_of_three(SCHEMA)
    columns = {
        "at": pa.array(
            [{"x": 1, "y": 2}],
            pa.struct(
                [
                    pa.field("x", pa.int32(), nullable=False),
                    pa.field("y", pa.int32(), nullable=False),
                ]
            ),
        ),
        "tags": pa.array([["a", None]], pa.large_list(pa.large_string())),
        "id": pa.array([9], pa.int64()),
        "name": pa.array(["n"], pa.string_view()),
    }
    replace_file(store, as_segment(pa.table(columns), 1, store_schema=True), 1)
    last = Topic("t", store=store).to_arrow().slice(2)
    found = last.select(SCHEMA.names).to_pylist()
    assert found == [{"id": 9, "name": "n", "tags": ["a", None], "at": {"x": 1, "y": 2}}]
    assert last.select(SCHEMA.names).schema.types == SCHEMA.types
