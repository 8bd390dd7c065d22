"""Other engines read all rows of a topic whose schema has changed, whatever schema their files
have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder

from deltaq import Consumer, Topic, TopicPartition
from tests.doubles.evolved_topic import (
    NEW,
    OLD,
    EvolvedTopic,
    Row,
    appended,
    checkpointed,
    compacted,
    key_compacted,
)
from tests.doubles.reading import drain
from tests.integration.engines.test_filtered_reads import _delta_of_duckdb

TABLES: Sequence[Callable[[Path], EvolvedTopic]] = (
    appended,
    checkpointed,
    compacted,
    key_compacted,
)


@pytest.fixture(scope="module", params=TABLES, ids=lambda table: table.__name__)
def topic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EvolvedTopic:
    made: EvolvedTopic = request.param(tmp_path_factory.mktemp("evolved"))
    return made


def pyarrow_dataset(table: str) -> list[Row]:
    return list(DeltaTable(table).to_pyarrow_dataset().to_table().to_pylist())


def datafusion(table: str) -> list[Row]:
    found = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT * FROM t")
    return list(pa.table(found).to_pylist())


def polars_native(table: str) -> list[Row]:
    return list(pl.scan_delta(table).collect().to_dicts())


def polars_over_delta_rs(table: str) -> list[Row]:
    return list(
        pl.scan_pyarrow_dataset(DeltaTable(table).to_pyarrow_dataset()).collect().to_dicts()
    )


def duckdb_native(table: str) -> list[Row]:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute(f"LOAD '{_delta_of_duckdb()}'")
    return list(
        connection.execute(f"SELECT * FROM delta_scan('{table}')").to_arrow_table().to_pylist()
    )


def duckdb_over_delta_rs(table: str) -> list[Row]:
    connection = duckdb.connect(config={"threads": 1})
    connection.register("t", DeltaTable(table).to_pyarrow_dataset())
    return list(connection.execute("SELECT * FROM t").to_arrow_table().to_pylist())


def deltaq_table(table: str) -> list[Row]:
    root = str(Path(table).parent.parent)
    return list(Topic("t", conf={"bootstrap.servers": root}).to_arrow().to_pylist())


ENGINES = (
    pyarrow_dataset,
    datafusion,
    polars_native,
    polars_over_delta_rs,
    duckdb_native,
    duckdb_over_delta_rs,
    deltaq_table,
)


def plain(value: Any) -> Any:
    """A value with maps as dicts, whatever an engine returns them as."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        pairs = [
            tuple(each.values())
            if isinstance(each, dict) and set(each) == {"key", "value"}
            else each
            for each in value
        ]
        is_map = bool(pairs) and all(isinstance(pair, tuple) for pair in pairs)
        return dict(pairs) if is_map else [plain(each) for each in value]
    return value


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
def test_an_engine_reads_the_rows_of_both_schemas(
    topic: EvolvedTopic, engine: Callable[[str], list[Row]]
) -> None:
    found = {
        row["_key"]: {n: plain(v) for n, v in row.items() if not n.startswith("_")}
        for row in engine(topic.table)
    }
    assert found == topic.rows


@pytest.mark.parametrize("schema", [OLD, NEW, None], ids=["old", "new", "by name"])
def test_consumers_of_both_schemas_read_all_rows(
    topic: EvolvedTopic, schema: pa.Schema | None
) -> None:
    handles = [] if schema is None else [Topic("t", schema)]
    with Consumer(topic.conf, group_id="g", topics=handles) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        found = {message.key(): message.value() for message in drain(consumer, len(topic.rows))}
    names = None if schema is None else schema.names
    assert found == {
        key: row if row is None or names is None else {name: row[name] for name in names}
        for key, row in topic.rows.items()
    }


def test_filters_find_rows_of_both_schemas(topic: EvolvedTopic) -> None:
    """A column that was added later has no statistics, and that of a wider type has those of
    both.
    """
    dataset = DeltaTable(topic.table).to_pyarrow_dataset()
    for number in (1, 11):
        key = b"k%03d" % number
        row = topic.rows.get(key)
        if row is None:
            continue
        found = dataset.to_table(filter=ds.field("id") == row["id"])["_key"].to_pylist()
        assert key in found
        native = (
            pl.scan_delta(topic.table).filter(pl.col("id") == row["id"]).select("_key").collect()
        )
        assert key in native["_key"].to_list()
    with_note = {
        key for key, row in topic.rows.items() if row is not None and row["note"] is not None
    }
    assert (
        set(dataset.to_table(filter=ds.field("note").is_valid())["_key"].to_pylist()) == with_note
    )
    assert (
        set(dataset.to_table(filter=ds.field("note").is_null())["_key"].to_pylist())
        == topic.rows.keys() - with_note
    )
    frame = pl.scan_delta(topic.table)
    assert set(frame.filter(pl.col("note").is_not_null()).collect()["_key"].to_list()) == with_note
    assert (
        set(frame.filter(pl.col("note").is_null()).collect()["_key"].to_list())
        == topic.rows.keys() - with_note
    )
