"""`latest_by_key` returns what plain Python finds to be the newest record of each key, before and
after compaction.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

import pydantic
import pytest
from pyspark.sql import SparkSession

from deltaq import AdminClient, InvalidConfig, Producer, Topic
from deltaq.admin import NewPartitions
from deltaq.clock import SYSTEM_CLOCK
from deltaq.spark import latest_by_key
from deltaq.store import LocalStore
from tests.doubles.compaction import compact
from tests.doubles.produced_tables import Produce

pytestmark = pytest.mark.spark


class KeyedRecord(NamedTuple):
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def newest_of(records: list[KeyedRecord]) -> dict[bytes, KeyedRecord]:
    """Played in the order of offsets, each partition has a newest record of a key; of those the
    latest counts.
    """
    of_partitions: dict[int, dict[bytes, KeyedRecord]] = {}
    for record in sorted(records, key=lambda record: record.offset):
        if record.key is not None:
            of_partitions.setdefault(record.partition, {})[record.key] = record
    newest: dict[bytes, KeyedRecord] = {}
    for _, table in sorted(of_partitions.items()):
        for key, record in table.items():
            if key not in newest or record.timestamp >= newest[key].timestamp:
                newest[key] = record
    return {key: record for key, record in newest.items() if record.value is not None}


def found(spark: SparkSession, root: str) -> dict[bytes, KeyedRecord]:
    rows = latest_by_key(spark, "stock", root).selectExpr(
        "partition", "offset", "unix_millis(timestamp) AS timestamp", "key", "value"
    )
    records = [
        KeyedRecord(row.partition, row.offset, row.timestamp, bytes(row.key), bytes(row.value))
        for row in rows.collect()
    ]
    table = {record.key: record for record in records if record.key is not None}
    assert len(table) == len(records)
    return table


def test_it_is_the_newest_record_of_each_key_before_and_after_compaction(
    spark: SparkSession, root: str, produce: Produce
) -> None:
    """Keys move between partitions, times fall, and tombstones and records without a key come in
    between.
    """
    chance = random.Random(5)
    written: list[KeyedRecord] = []
    ends = [0, 0, 0]
    for _ in range(8):
        commit = []
        for _ in range(12):
            partition = chance.randrange(3)
            key = chance.choice([b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", None])
            value = chance.choice([b"1", b"2", None])
            commit.append(
                KeyedRecord(partition, ends[partition], chance.randrange(1, 40), key, value)
            )
            ends[partition] += 1
        _, _, timestamps, keys, values = zip(*commit, strict=True)
        to = [record.partition for record in commit]
        produce("stock", values, to=to, keys=keys, timestamps=timestamps, partitions=3)
        written += commit
    expected = newest_of(written)
    assert 3 < len(expected) < 8
    assert len({record.partition for record in expected.values()}) == 3
    assert found(spark, root) == expected

    last = {(record.partition, record.key): record.offset for record in written}
    kept = {(partition, offset) for (partition, _), offset in last.items()}
    compact(LocalStore(root, SYSTEM_CLOCK), "stock", lambda *place: place in kept)
    assert found(spark, root) == expected


def test_a_key_that_added_partitions_have_moved_is_found_once(
    spark: SparkSession, root: str
) -> None:
    Topic("stock", config={"cleanup.policy": "compact"}, bootstrap_servers=root).create()
    conf = {"bootstrap.servers": root}
    keys = [b"%d" % number for number in range(20)]

    def sell(values: Mapping[bytes, bytes | None], timestamp: int) -> None:
        with Producer(conf) as producer:
            for key, value in values.items():
                producer.produce("stock", value, key=key, timestamp=timestamp)

    sell(dict.fromkeys(keys, b"old"), 1)
    AdminClient(conf).create_partitions([NewPartitions("stock", 4)])["stock"].result()
    sell({key: b"new" if number % 2 else None for number, key in enumerate(keys)}, 2)
    table = found(spark, root)
    assert {key: record.value for key, record in table.items()} == dict.fromkeys(keys[1::2], b"new")
    assert len({record.partition for record in table.values()}) > 1


class Item(pydantic.BaseModel):
    name: str
    left: int | None


def test_a_typed_topic_joins_as_a_table(spark: SparkSession, root: str) -> None:
    items = Topic("items", Item, bootstrap_servers=root).create()
    with Producer({"bootstrap.servers": root}) as producer:
        for key, item in (
            ("t", Item(name="tea", left=1)),
            ("m", Item(name="milk", left=5)),
            ("t", Item(name="tea", left=None)),
            ("m", None),
        ):
            producer.produce(items, item, key=key)
    table = latest_by_key(spark, "items", root, columns="table")
    sold = spark.createDataFrame([("tea", 2), ("milk", 3)], "name string, sold long")
    assert [
        tuple(row) for row in sold.join(table, "name").select("name", "sold", "left").collect()
    ] == [("tea", 2, None)]


def test_options_that_choose_records_are_refused(
    spark: SparkSession, root: str, produce: Produce
) -> None:
    produce("stock", [b"1"], keys=[b"a"])
    for option in ("startingOffsets", "endingtimestamp", "assign", "subscribePattern"):
        with pytest.raises(
            InvalidConfig, match=f"{option} chooses records.*omit it, or use read_topic"
        ):
            latest_by_key(spark, "stock", root, **{option: "earliest"})
    with pytest.raises(InvalidConfig):
        latest_by_key(spark, "stock,items", root)
