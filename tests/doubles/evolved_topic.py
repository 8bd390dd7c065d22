"""A typed topic that producers of two schemas write by turns, and the rows that every reader must
find in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.maintenance.throttle import Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.store import open_store
from tests.doubles.short_log import checkpoint_and_clean_up

__all__ = [
    "NEW",
    "OLD",
    "EvolvedTopic",
    "Row",
    "appended",
    "checkpointed",
    "compacted",
    "key_compacted",
]

Row: TypeAlias = "dict[str, Any]"

OLD = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("ratio", pa.float32()),
        pa.field("price", pa.decimal128(5, 2)),
        pa.field("gone", pa.string(), nullable=False),
        pa.field(
            "place",
            pa.struct(
                [pa.field("city", pa.string()), pa.field("level", pa.int8(), nullable=False)]
            ),
        ),
        pa.field("lines", pa.list_(pa.struct([("count", pa.int16())]))),
        pa.field("by_name", pa.map_(pa.string(), pa.int8())),
    ]
)
NEW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("note", pa.string()),
        pa.field("ratio", pa.float64()),
        pa.field("price", pa.decimal128(20, 2)),
        pa.field("place", pa.struct([("city", pa.string()), ("tags", pa.list_(pa.string()))])),
        pa.field("lines", pa.list_(pa.struct([("count", pa.int32()), ("sku", pa.string())]))),
        pa.field("by_name", pa.map_(pa.string(), pa.int64())),
        pa.field("extra", pa.struct([("x", pa.float64())])),
    ]
)
"""Adds `note`, `extra`, `place.tags` and `lines[].sku`, drops `gone` and `place.level`, and widens
all numbers.
"""

_FROM_OLD = {"note": None, "extra": None}


def old_row(number: int) -> Row:
    return {
        "id": number,
        "ratio": number / 4,
        "price": Decimal(number) + Decimal("0.25"),
        "gone": f"g{number}",
        "place": {"city": f"c{number}", "level": number % 100} if number % 3 else None,
        "lines": [{"count": number}] * (number % 3) if number % 5 else None,
        "by_name": {"a": number % 100},
    }


def new_row(number: int) -> Row:
    return {
        "id": 2**40 + number,
        "note": f"n{number}",
        "ratio": 1e300,
        "price": Decimal("12345678901234.50"),
        "place": {"city": None, "tags": ["t"] * (number % 3)},
        "lines": [{"count": 2**20, "sku": f"s{number}"}, None],
        "by_name": {"b": 2**50},
        "extra": {"x": 0.5} if number % 2 else None,
    }


def as_read(row: Row) -> Row:
    """An accepted row with all columns and fields of the topic."""
    row = _FROM_OLD | {"gone": None} | row
    if row["place"] is not None:
        row["place"] = {"city": None, "level": None, "tags": None} | row["place"]
    if row["lines"] is not None:
        row["lines"] = [
            None if line is None else {"count": None, "sku": None} | line for line in row["lines"]
        ]
    return row


class EvolvedTopic:
    """The topic `t` under a folder. `rows` has by key what is in it; None is a tombstone."""

    def __init__(self, root: Path, **config: str) -> None:
        self.root = str(root)
        self.conf = {"bootstrap.servers": self.root, "maintenance.enable": False}
        self.table = str(root / "topics" / "t")
        self.rows: dict[bytes, Row | None] = {}
        self.config = {"retention.ms": "-1", **config}

    def write(
        self, schema: pa.Schema, numbers: Sequence[int], *, arrow: bool = False
    ) -> EvolvedTopic:
        """Produce rows with these numbers in one commit by a producer with this schema."""
        row_of = old_row if schema is OLD else new_row
        with Producer(self.conf, linger_ms=60_000) as producer:  # its end ends the batch
            topic = Topic("t", schema, config=self.config)
            keys = [b"k%03d" % number for number in numbers]
            values = [row_of(number) for number in numbers]
            if arrow:
                table = pa.Table.from_pylist([_paired(row) for row in values], schema=schema)
                producer.produce_arrow(topic, table.append_column("_key", pa.array(keys)))
            else:
                for key, value in zip(keys, values, strict=True):
                    producer.produce(topic, value, key=key)
        self.rows |= {key: as_read(value) for key, value in zip(keys, values, strict=True)}
        return self

    def maintain(self) -> dict[str, int]:
        """One round of maintenance, which merges all that it can."""
        store = open_store(self.root)
        settings = MaintenanceSettings(merge_files=2)
        return dict(TopicPass(store, "t", SYSTEM_CLOCK, settings, Throttle(SYSTEM_CLOCK)).run())

    def checkpoint(self) -> EvolvedTopic:
        """Write a checkpoint, and remove the entries before it: each reader has to understand
        it.
        """
        checkpoint_and_clean_up(open_store(self.root), "t")
        return self


def _paired(row: Row) -> Row:
    return {**row, "by_name": list(row["by_name"].items())}


def appended(root: Path) -> EvolvedTopic:
    """Files of both schemas by turns."""
    topic = (
        EvolvedTopic(root).write(OLD, range(4)).write(NEW, range(10, 14)).write(OLD, range(20, 24))
    )
    return topic.write(OLD, range(30, 33), arrow=True).write(NEW, range(40, 43), arrow=True)


def checkpointed(root: Path) -> EvolvedTopic:
    return appended(root).checkpoint().write(OLD, range(50, 52))


def compacted(root: Path) -> EvolvedTopic:
    """One file of rows of both schemas, and appended ones after it."""
    topic = appended(root)
    assert topic.maintain()["files merged"] == 5
    return topic.write(OLD, range(60, 62)).write(NEW, range(70, 72))


def key_compacted(root: Path) -> EvolvedTopic:
    """Keys that a producer of the other schema has written anew, and only their newest rows."""
    topic = EvolvedTopic(root, **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    topic.write(OLD, range(6)).write(NEW, range(3, 9)).write(OLD, range(8, 12))
    assert topic.maintain()["records superseded"] == 4
    return topic
