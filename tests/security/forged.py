"""Topics with entries and files that no deltaq would write: sealed like its own, so that only
checks can find them.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from deltaq import Consumer, KafkaError, Producer, Topic, TopicPartition
from deltaq.delta.actions import Action, Add, DomainMetadata, encode_entry, parse_entry
from deltaq.store import MemoryStore, Store
from deltaq.topics.columns import table_schema
from tests.doubles.reading import next_message

__all__ = [
    "LAST",
    "Change",
    "as_parquet",
    "as_segment",
    "bomb",
    "entry_key",
    "forge",
    "in_add",
    "in_head",
    "in_tag",
    "produce_three",
    "read_until_error",
    "refusal",
    "replace_file",
    "topic_of_three",
]

LAST = 3
"""The version of the entry with the last of three records, which the forgers change."""

Change = Callable[[Sequence[Action]], list[Action]]


def entry_key(version: int = LAST) -> str:
    """Where an entry of the topic `t` is."""
    return f"topics/t/_delta_log/{version:020d}.json"


def topic_of_three(schema: pa.Schema | None = None) -> MemoryStore:
    """A store with the topic `t`: one partition, one record per commit, as entries 1 to 3.

    With a `schema`, the values are rows of nulls but for the first column, which has the number of
    the record.
    """
    store = MemoryStore("forged")
    produce_three(store, schema)
    return store


def produce_three(store: Store, schema: pa.Schema | None = None) -> None:
    """Make the topic of `topic_of_three` in a store that has none."""
    topic = Topic("t", schema)
    with Producer({"bootstrap.servers": "memory://forged"}, store=store) as producer:
        for number in range(LAST):
            value = b"value %d" % number if schema is None else {schema.names[0]: number}
            producer.produce(topic, value)
            assert producer.flush(20) == 0


def forge(store: Store, change: Change, version: int = LAST) -> None:
    """Change the actions of an entry and seal it again."""
    entry = parse_entry(store.get(entry_key(version)), version, entry_key(version))
    assert entry.info is not None
    sealed = encode_entry(entry.info, change(entry.actions))
    assert sealed != store.get(entry_key(version))
    store.put(entry_key(version), sealed)


def in_head(change: Callable[[str], str]) -> Change:
    """Change the topic's head."""
    return lambda actions: [
        replace(action, configuration=change(action.configuration))
        if isinstance(action, DomainMetadata)
        else action
        for action in actions
    ]


def in_add(change: Callable[[Add], Add]) -> Change:
    """Change the file that is added."""
    return lambda actions: [
        change(action) if isinstance(action, Add) else action for action in actions
    ]


def in_tag(tag: str, change: Callable[[str], str]) -> Change:
    """Change what a tag says about the file."""
    return in_add(lambda add: replace(add, tags={**add.tags, tag: change(add.tags[tag])}))


def replace_file(
    store: Store, data: bytes, rows: int, batches: list[list[int]] | None = None
) -> None:
    """Put another file in the place of the last record's, with all sums as they ought to be."""
    footer = int.from_bytes(data[-8:-4], "little") + 8
    about = {
        "rows": rows,
        "crc32": zlib.crc32(data),
        "footer": [footer, zlib.crc32(data[-footer:])],
    }

    def exchanged(add: Add) -> Add:
        store.put(f"topics/t/{add.path}", data)
        tags = {"deltaq.file": json.dumps(json.loads(add.tags["deltaq.file"]) | about)}
        tags["deltaq.batches"] = json.dumps(batches or [[0, LAST - 1, 0, rows]])
        return replace(add, size=len(data), tags=tags)

    def counted(actions: Sequence[Action]) -> list[Action]:
        ends = f'"next_offsets":[{LAST}]', f'"next_offsets":[{LAST - 1 + rows}]'
        return in_head(lambda head: head.replace(*ends))(in_add(exchanged)(actions))

    forge(store, counted)


def bomb(rows: int = 200_000, value_bytes: int = 100_000) -> pa.Table:
    """A table of 20 GB that is a Parquet file of a few KB: every row refers to one long value."""
    value = pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), pa.array([b"x" * value_bytes])
    )
    return pa.table({"value": value})


def as_segment(table: pa.Table, rows: int, **options: Any) -> bytes:
    """The table with deltaq's columns before its own, as Parquet; `options` are those of
    `write_table`.
    """
    columns = {
        "_partition": pa.repeat(pa.scalar(0, pa.int32()), rows),
        "_offset": pa.nulls(rows, pa.int64()),
        "_timestamp": pa.repeat(pa.scalar(0, pa.timestamp("us", tz="UTC")), rows),
        "_key": pa.nulls(rows, pa.binary()),
        "_headers": pa.nulls(rows, table_schema(None).field("_headers").type),
    }
    return as_parquet(
        pa.table(columns | dict(zip(table.column_names, table.columns, strict=True))), **options
    )


def as_parquet(table: pa.Table, **options: Any) -> bytes:
    """The table as Parquet, without Arrow's own schema unless the options of `write_table` ask for
    it.
    """
    sink = io.BytesIO()
    pq.write_table(table, sink, **{"store_schema": False} | options)
    return sink.getvalue()


def read_until_error(store: Store) -> tuple[list[bytes], KafkaError]:
    """The values that a consumer gets before an error, and that error."""
    conf = {
        "bootstrap.servers": "memory://forged",
        "group.id": "g",
        "auto.offset.reset": "earliest",
    }
    conf["enable.auto.commit"] = "false"  # so that it can be read again from the start
    found: list[bytes] = []
    with Consumer(conf, store=store) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        while (message := next_message(consumer)).error() is None:
            found.append(message.value())
    return found, message.error()


def refusal(store: Store) -> tuple[Exception, KafkaError]:
    """The errors of a table read and of a consumer."""
    error_of_table: Exception | None = None
    try:
        table: pa.Table = Topic("t", store=store).to_arrow()
    except Exception as error:  # noqa: BLE001 - which one is for the test to judge
        error_of_table = error
    assert error_of_table is not None, f"read {table.num_rows} rows"
    _, error_of_consumer = read_until_error(store)
    return error_of_table, error_of_consumer
