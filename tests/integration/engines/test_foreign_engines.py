"""delta-rs on a topic: it reads the same rows, and whatever it tries to write is refused and
changes nothing.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from deltaq import Producer, Topic

ROWS = 3_000


@pytest.fixture
def conf(tmp_path) -> dict[str, str]:
    return {"bootstrap.servers": str(tmp_path / "root")}


@pytest.fixture
def table_path(tmp_path) -> str:
    return str(tmp_path / "root" / "topics" / "events")


@pytest.fixture
def topic(conf) -> Topic:
    """A topic with a few commits of random records, tombstones and headers among them."""
    chance = random.Random(3)
    topic = Topic("events", partitions=4, conf=conf)
    topic.create()
    with Producer(conf) as producer:
        for number in range(ROWS):
            value = None if number % 97 == 0 else chance.randbytes(chance.randrange(200))
            headers = [("h", b"1"), ("h", None)] if number % 5 == 0 else None
            producer.produce(
                "events",
                value,
                key=b"%d" % (number % 40),
                timestamp=1 + number * 1000,
                headers=headers,
            )
            if number % 1000 == 999:
                producer.flush()
    return topic


def checksum(table: pa.Table) -> str:
    """Over the columns that do not depend on the writer of `_offset`: all others, in a fixed
    order.
    """
    rows = sorted(
        (
            row["_partition"],
            row["_timestamp"].timestamp(),
            row["_key"],
            [(h["key"], h["value"]) for h in row["_headers"] or ()],
            row["value"],
        )
        for row in table.to_pylist()
    )
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def contents(path: str) -> dict[str, str]:
    """Every file under a folder and its hash."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(Path(path).rglob("*"))
        if file.is_file()
    }


def test_delta_rs_reads_the_same_rows(topic, table_path):
    ours = topic.to_arrow()
    theirs = DeltaTable(table_path).to_pyarrow_table()
    assert ours.num_rows == theirs.num_rows == ROWS
    assert checksum(ours) == checksum(theirs)
    assert theirs.column("_offset").null_count == ROWS, (
        "offsets are the log's to say until a file is compacted"
    )


def test_delta_rs_skips_files_by_our_statistics(topic, table_path):
    late = pa.scalar((ROWS - 500) * 1000, pa.timestamp("ms", tz="UTC"))
    table = DeltaTable(table_path)
    files = table.get_add_actions(flatten=True)
    spans = zip(
        files.column("min._timestamp").to_pylist(),
        files.column("max._timestamp").to_pylist(),
        strict=True,
    )
    assert sum(low <= late.as_py() <= high for low, high in spans) == 1
    found = table.to_pyarrow_table(filters=[("_timestamp", ">", late.as_py())])
    assert found.num_rows == 500


def append(path: str) -> None:
    write_deltalake(path, DeltaTable(path).to_pyarrow_table().slice(0, 5), mode="append")


def overwrite(path: str) -> None:
    write_deltalake(path, DeltaTable(path).to_pyarrow_table().slice(0, 5), mode="overwrite")


WRITES = {
    "append": append,
    "overwrite": overwrite,
    "delete": lambda path: DeltaTable(path).delete("_partition = 0"),
    "update": lambda path: DeltaTable(path).update({"_partition": "1"}, predicate="_partition = 0"),
    "optimize": lambda path: DeltaTable(path).optimize.compact(),
    "z-order": lambda path: DeltaTable(path).optimize.z_order(["_partition"]),
    "restore": lambda path: DeltaTable(path).restore(1),
    "set properties": lambda path: DeltaTable(path).alter.set_table_properties(
        {"delta.appendOnly": "true"}
    ),
    "add a column": lambda path: DeltaTable(path).alter.add_columns(
        [Field("x", PrimitiveType("string"))]
    ),
}


@pytest.mark.fault("W1", "W2", "W3", "W5")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_write_of_delta_rs_is_refused_and_changes_nothing(write, topic, table_path):
    before = contents(table_path)
    with pytest.raises((DeltaError, OSError, ValueError), match=r"(?i)deltaq|feature|writer"):
        write(table_path)
    assert contents(table_path) == before
    assert topic.to_arrow().num_rows == ROWS


@pytest.mark.fault("W4")
def test_a_vacuum_of_delta_rs_removes_no_live_file(topic, table_path):
    before = {path for path in contents(table_path) if path.endswith(".parquet")}
    DeltaTable(table_path).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False
    )
    assert {path for path in contents(table_path) if path.endswith(".parquet")} == before
    assert topic.to_arrow().num_rows == ROWS


def test_a_checkpoint_by_delta_rs_is_used(topic, table_path, conf):
    DeltaTable(table_path).create_checkpoint()
    assert Topic("events", conf=conf).to_arrow().num_rows == ROWS
    with Producer(conf) as producer:
        producer.produce("events", b"one more")
    assert DeltaTable(table_path).to_pyarrow_table().num_rows == ROWS + 1
