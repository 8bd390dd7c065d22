"""Other engines filter a topic's table by every type of column, and find what plain Python finds.

Each engine leaves out files by the statistics in the log, so a wrong or missing one loses rows
without an error.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltaq import Producer, Topic
from deltaq.parquet.column_bounds import STATISTICS_PROPERTY
from tests.depth import depth, third
from tests.doubles.filtered_topic import (
    FILTERS,
    SCHEMA,
    Written,
    appended,
    checkpointed,
    committed_by_peer,
    compacted,
    corrected,
    key_compacted,
    rows_of_files,
    wholly_compacted,
)
from tests.doubles.filters import Filter

FEW_FILTERS = [wanted for wanted in FILTERS if wanted.name in {"is null", "eq"}]
FEW_FILTERS += {wanted.column: wanted for wanted in FILTERS if wanted.name == "gt"}.values()
TABLES: Sequence[Callable[[Path], Written]] = (
    checkpointed,
    compacted,
    wholly_compacted,
    key_compacted,
    committed_by_peer,
    corrected,
)


@pytest.fixture(scope="module", params=TABLES, ids=lambda table: table.__name__)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    made: Written = request.param(tmp_path_factory.mktemp("filtered"))
    return made


# --- engines
# --------------------------------------------------------------------------------------------------

Found: TypeAlias = "list[bytes]"
Engine: TypeAlias = "Callable[[str], Callable[[Filter], Found]]"
"""Opens a table; what it returns finds the keys of the rows that a filter picks."""


def delta_rs(table: str) -> Callable[[Filter], Found]:
    dataset = DeltaTable(table).to_pyarrow_dataset()
    return lambda wanted: list(
        dataset.to_table(columns=["_key"], filter=wanted.in_arrow())["_key"].to_pylist()
    )


def duckdb_native(table: str) -> Callable[[Filter], Found]:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute(f"LOAD '{_delta_of_duckdb()}'")
    # Reads the log once, not for each filter.
    connection.execute(f"ATTACH '{table}' AS t (TYPE delta, PIN_SNAPSHOT)")
    return lambda wanted: _keys(connection, "t", wanted)


def duckdb_over_delta_rs(table: str) -> Callable[[Filter], Found]:
    connection = duckdb.connect(config={"threads": 1})
    connection.register("t", DeltaTable(table).to_pyarrow_dataset())
    return lambda wanted: _keys(connection, "t", wanted)


def polars_native(table: str) -> Callable[[Filter], Found]:
    frame = pl.scan_delta(table)
    return lambda wanted: (
        frame.filter(wanted.in_polars()).select("_key").collect()["_key"].to_list()
    )


def polars_over_delta_rs(table: str) -> Callable[[Filter], Found]:
    frame = pl.scan_pyarrow_dataset(DeltaTable(table).to_pyarrow_dataset())
    return lambda wanted: (
        frame.filter(wanted.in_polars()).select("_key").collect()["_key"].to_list()
    )


def _delta_of_duckdb() -> str:
    """DuckDB's extension for Delta, of the package from the index: it needs no network."""
    package = importlib.util.find_spec("duckdb_extension_delta")
    assert package is not None
    assert package.origin is not None
    (found,) = Path(package.origin).parent.glob("extensions/*/delta.duckdb_extension")
    return str(found)


def _keys(connection: duckdb.DuckDBPyConnection, table: str, wanted: Filter) -> Found:
    where = wanted.in_sql('"')
    return [
        key for (key,) in connection.execute(f"SELECT _key FROM {table} WHERE {where}").fetchall()
    ]


ENGINES: Sequence[Engine] = (
    delta_rs,
    duckdb_native,
    duckdb_over_delta_rs,
    polars_native,
    polars_over_delta_rs,
)
READERS_OF_THE_LOG: Sequence[Engine] = (delta_rs, duckdb_native, polars_native)
"""Which files are left out is decided by these; an engine over delta-rs only filters what delta-rs
has read.
"""

NAN_IS_LARGEST = {duckdb_native, polars_native}
"""Over a dataset of delta-rs it is Arrow that compares, and for Arrow NaN is in no relation to any
number.
"""


def mismatches(engine: Engine, written: Written, filters: Sequence[Filter]) -> Iterator[str]:
    find = engine(written.table)
    for wanted in filters:
        expected = written.picked(wanted, nan_is_largest=engine in NAN_IS_LARGEST)
        found = sorted(find(wanted))
        if found != expected:
            yield f"{wanted}: {found} instead of {expected}"


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
def test_every_filter_of_another_engine_agrees_with_plain_python(
    tmp_path: Path, engine: Engine
) -> None:
    filters: Sequence[Filter] = FILTERS if engine in READERS_OF_THE_LOG else FEW_FILTERS
    if engine is duckdb_native:  # the slowest
        filters = third(filters)
    assert list(mismatches(engine, appended(tmp_path), filters)) == []


@pytest.mark.parametrize("engine", READERS_OF_THE_LOG, ids=lambda engine: engine.__name__)
def test_filters_find_all_rows_after_files_were_rewritten(written: Written, engine: Engine) -> None:
    assert len(written.rows) > 40
    # The statistics of a table are the same for every engine: in short tests, each filter is left
    # to one of them.
    filters = third(FEW_FILTERS[depth(READERS_OF_THE_LOG.index(engine), 0) :])
    assert list(mismatches(engine, written, filters)) == []


def test_a_filter_on_a_value_column_skips_the_files_that_cannot_match(tmp_path: Path) -> None:
    written = Written(tmp_path).create().append(rows_of_files()[:2])
    fragments = list(DeltaTable(written.table).to_pyarrow_dataset().get_fragments(_equal("id", 35)))
    assert len(fragments) == 1
    assert sum(stats["minValues"]["id"] == 30 for stats in written.stats()) == 1


def _equal(column: str, literal: Any) -> Any:
    return Filter(column, SCHEMA.field(column).type, "eq", literal).in_arrow()


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
def test_a_filter_on_a_column_too_far_behind_for_statistics_finds_its_row(
    tmp_path: Path, engine: Engine
) -> None:
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(100)])
    topic = Topic("t", schema, conf={"bootstrap.servers": str(tmp_path)}).create()
    with Producer({"bootstrap.servers": str(tmp_path)}) as producer:
        for row in range(3):
            producer.produce(topic, dict.fromkeys(schema.names, row), key=b"%d" % row)
            producer.flush(60)
    find = engine(str(tmp_path / "topics" / "t"))
    assert [find(Filter(name, pa.int64(), "eq", 1)) for name in ("c0", "c28", "c29", "c99")] == [
        [b"1"]
    ] * 4


def test_a_table_names_its_columns_with_statistics_and_has_no_others(tmp_path: Path) -> None:
    written = Written(tmp_path).create().append(rows_of_files()[:1])
    named = DeltaTable(written.table).metadata().configuration[STATISTICS_PROPERTY].split(",")
    (stats,) = written.stats()
    assert sorted(stats["nullCount"]) == sorted(named)
    assert not {"größe", "raw", "price", "tags", "labels", "place", "_key", "_headers"} & set(named)
    assert set(named) - set(stats["minValues"]) == {"_offset", "nothing", "no_text"}
