"""Files that deltaq encodes without Arrow: other engines read the records that were produced."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deltaq import Producer, Topic

Row: TypeAlias = "tuple[int, int | None, bytes | None, bytes]"
"""Partition, timestamp in ms, key and value."""

COLUMNS = ["_partition", "_timestamp", "_key", "value"]


def written(root: Path, config: Mapping[str, str]) -> list[Row]:
    """Produce a batch without keys, one with keys and several partitions, and batches of one
    record; the records.
    """
    Topic("plain", partitions=3, config=config, bootstrap_servers=str(root)).create()
    rows: list[Row] = []
    with Producer(bootstrap_servers=str(root), linger_ms=60_000) as producer:
        for batch, count in enumerate((300, 300, 1, 1)):
            for number in range(count):
                key = b"k%d" % number if batch % 2 else None
                row = (
                    number % 3 if batch == 1 else 2,
                    1_700_000_000_000 + number,
                    key,
                    b"v" * (number % 200),
                )
                rows.append(row)
                producer.produce(
                    "plain", row[3], key=row[2], partition=row[0], timestamp=row[1] or 0
                )
            assert producer.flush(60) == 0
    return rows


def by_pyarrow(table: str) -> list[dict[str, Any]]:
    files = map(str, Path(table).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file, columns=COLUMNS).to_pylist()]


def by_delta_rs(table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(table).to_pyarrow_table(columns=COLUMNS).to_pylist()
    return rows


def by_polars(table: str) -> list[dict[str, Any]]:
    return pl.scan_delta(table).select(COLUMNS).collect().to_dicts()


def by_duckdb(table: str) -> list[dict[str, Any]]:
    package = importlib.util.find_spec("duckdb_extension_delta")
    assert package is not None
    assert package.origin is not None
    (extension,) = Path(package.origin).parent.glob("extensions/*/delta.duckdb_extension")
    connection = duckdb.connect(config={"threads": 1})
    connection.execute(f"LOAD '{extension}'")
    rows: list[dict[str, Any]] = (
        connection.sql(f"SELECT {', '.join(COLUMNS)} FROM delta_scan('{table}')")
        .to_arrow_table()
        .to_pylist()
    )
    return rows


@pytest.mark.parametrize("time", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize(
    "read", [by_pyarrow, by_delta_rs, by_polars, by_duckdb], ids=lambda read: read.__name__
)
def test_another_engine_reads_plain_files(
    tmp_path: Path, read: Callable[[str], list[dict[str, Any]]], time: str
) -> None:
    produced = written(tmp_path, {"message.timestamp.type": time})
    table = tmp_path / "topics" / "plain"
    assert {pq.read_metadata(file).created_by.split()[0] for file in table.glob("*.parquet")} == {
        "deltaq"
    }
    found = []
    for row in read(str(table)):
        at = row["_timestamp"]
        found.append(
            (
                row["_partition"],
                None if at is None else round(at.timestamp() * 1000),
                row["_key"],
                row["value"],
            )
        )
    if time == "LogAppendTime":
        produced = [(partition, None, key, value) for partition, _, key, value in produced]
    assert sorted(found, key=repr) == sorted(produced, key=repr)
