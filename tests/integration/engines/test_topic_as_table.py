"""A topic is a Delta table: another reader, which knows nothing of deltaq, sees the same rows."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pydantic import AwareDatetime, BaseModel, Field

from deltaq import Producer, Topic
from deltaq.store import open_store
from tests.doubles.compaction import compact


class OrderLine(BaseModel):
    sku: str
    count: int


class Order(BaseModel):
    id: int
    price: Decimal = Field(max_digits=10, decimal_places=2)
    at: AwareDatetime
    lines: list[OrderLine]
    labels: dict[str, str] | None = None


def foreign(root: Path, topic: str) -> pa.Table:
    """The rows that delta-rs sees, in an order of their own."""
    return deltalake.DeltaTable(str(root / "topics" / topic)).to_pyarrow_table()


def unordered(table: pa.Table) -> list[str]:
    """Rows as text, sorted; without the offset, which the file of an append does not have."""
    return sorted(repr(sorted(row.items())) for row in table.drop_columns(["_offset"]).to_pylist())


def test_another_reader_sees_the_rows_of_an_untyped_topic(tmp_path):
    topic = Topic("events", partitions=3, bootstrap_servers=str(tmp_path)).create()
    with Producer(bootstrap_servers=str(tmp_path)) as producer:
        for number in range(200):
            headers = {"n": str(number)} if number % 2 else None
            value = None if number % 7 == 0 else f"v{number}"
            producer.produce(
                "events",
                value,
                key=f"k{number}",
                headers=headers,
                timestamp=1_700_000_000_000 + number,
            )
    mine, theirs = topic.to_arrow(), foreign(tmp_path, "events")
    assert mine.num_rows == 200
    assert theirs.schema.names == mine.schema.names
    assert unordered(theirs) == unordered(mine)


def test_another_reader_sees_the_columns_of_a_typed_topic(tmp_path):
    topic = Topic("orders", Order, partitions=2, bootstrap_servers=str(tmp_path)).create()
    at = datetime.fromisoformat("2024-05-06T07:08:09.123456+02:00")
    with Producer(bootstrap_servers=str(tmp_path)) as producer:
        for number in range(20):
            lines = [OrderLine(sku=f"s{n}", count=n) for n in range(number % 3)]
            labels = {"a": "b"} if number % 2 else None
            order = Order(id=number, price=Decimal("1.50"), at=at, lines=lines, labels=labels)
            producer.produce(topic, order, key=str(number))
        producer.produce(topic, None, key="3")
    mine, theirs = topic.to_arrow(), foreign(tmp_path, "orders")
    assert mine.num_rows == 21
    assert unordered(theirs) == unordered(mine)
    assert sorted(mine["id"].drop_null().to_pylist()) == list(range(20))


def test_another_reader_sees_offsets_once_a_topic_is_compacted(tmp_path):
    topic = Topic("events", partitions=2, bootstrap_servers=str(tmp_path)).create()
    with Producer(bootstrap_servers=str(tmp_path)) as producer:
        for number in range(50):
            producer.produce("events", f"v{number}", partition=number % 2)
    before = topic.to_arrow()
    compact(open_store(str(tmp_path)), "events")
    assert topic.to_arrow().equals(before)
    theirs = foreign(tmp_path, "events").sort_by(
        [("_partition", "ascending"), ("_offset", "ascending")]
    )
    assert theirs.select(["_partition", "_offset", "value"]).to_pylist() == [
        {"_partition": p, "_offset": o, "value": f"v{2 * o + p}".encode()}
        for p in (0, 1)
        for o in range(25)
    ]


def test_rows_produced_from_arrow_are_seen_by_another_reader(tmp_path):
    topic = Topic("events", partitions=2, bootstrap_servers=str(tmp_path)).create()
    table = pa.table({"value": [f"v{n}" for n in range(100)], "key": [f"k{n}" for n in range(100)]})
    with Producer(bootstrap_servers=str(tmp_path)) as producer:
        assert producer.produce_arrow("events", table) == 100
    mine = topic.to_arrow()
    assert sorted(mine["value"].to_pylist()) == sorted(
        value.encode() for value in table["value"].to_pylist()
    )
    assert unordered(foreign(tmp_path, "events")) == unordered(mine)


def test_a_deleted_topic_is_an_empty_table_to_another_reader(tmp_path):
    topic = Topic("events", bootstrap_servers=str(tmp_path)).create()
    with Producer(bootstrap_servers=str(tmp_path)) as producer:
        producer.produce("events", "old")
    topic.delete()
    assert foreign(tmp_path, "events").num_rows == 0
    topic.create()
    with Producer(bootstrap_servers=str(tmp_path)) as producer:
        producer.produce("events", "new")
    assert foreign(tmp_path, "events")["value"].to_pylist() == [b"new"]


@pytest.mark.parametrize("partitions", [None, [1]])
def test_settings_and_schema_are_stored_in_the_table(tmp_path, partitions):
    topic = Topic(
        "orders",
        Order,
        partitions=4,
        config={"retention.ms": 5000},
        bootstrap_servers=str(tmp_path),
    ).create()
    table = deltalake.DeltaTable(str(tmp_path / "topics" / "orders"))
    properties = table.metadata().configuration
    assert (properties["deltaq.partitions"], properties["deltaq.retention.ms"]) == ("4", "5000")
    assert [field.name for field in table.schema().fields] == topic.to_arrow(
        partitions
    ).schema.names
