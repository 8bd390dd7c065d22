"""State of rules in a table and in sorted runs: what a lookup finds is what was added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import InvalidConfig
from deltaq.tools.duckdb_tables import fetched, registered
from deltaq.views import runs, state
from deltaq.views.rules import SCHEMA, Lookup, RulePlan, StateTable, Zset
from deltaq.views.runs import HASH, RunFolder, RunMerge, SortedRun
from deltaq.views.state import StateRows, due
from tests.depth import depth

Change: TypeAlias = tuple[int, str | None, int]
"""A key, a value and a weight."""

ROWS = "select k, v, _w from came"
SOURCE = Zset(("k", "v"), ROWS, ROWS, frozenset(["came"]))
ASKED = (1, 4, 7)

changes = st.tuples(st.integers(0, 9), st.sampled_from("ab") | st.none(), st.sampled_from([1, -1]))
ticks = st.lists(st.lists(changes, max_size=8), min_size=1, max_size=12)


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """State is sealed, and runs are merged, after a few rows."""
    monkeypatch.setattr(state, "SEAL_ROWS", 4)
    monkeypatch.setattr(state, "PART_ROWS", 3)
    monkeypatch.setattr(state, "MOST_ROWS", 3)
    monkeypatch.setattr(state, "_PER_ROW", 1)
    monkeypatch.setattr(runs, "BLOCK_ROWS", 3)


@dataclass
class ModelledRows:
    """Rows of state, and the lines that a model has of them."""

    rows: StateRows
    most_runs: int = 0
    lines: Counter[tuple[object, ...]] = field(default_factory=Counter)

    def take(self, came: Sequence[Change]) -> None:
        """A tick."""
        put(self.rows.connection, came)
        self.rows.grow()
        self.most_runs = max(self.most_runs, len(self.rows.runs))
        for key, value, weight in came:
            self.lines[key, value] += weight

    def found(self, query: str, asked: Sequence[int] = ASKED) -> list[tuple[object, ...]]:
        """What a query has of the rows that a lookup has found, for the keys that it asked for."""
        values = ", ".join(f"({key})" for key in asked)
        lookup = Lookup(self.rows.table.name, ((f"from (values {values}) as _t(x)", ("x",)),))
        with self.rows.found(lookup, "_found") as name:
            rows = fetched(self.rows.connection, query.format(rows=name)).to_pylist()
        return sorted((tuple(row.values()) for row in rows if row["k"] in asked), key=repr)


def put(connection: duckdb.DuckDBPyConnection, came: Sequence[Change]) -> None:
    columns = zip(*came, strict=True) if came else ([], [], [])
    types = (pa.int64(), pa.string(), pa.int64())
    rows = [pa.array(values, of) for values, of in zip(columns, types, strict=True)]
    with registered(connection, pa.table(rows, ["k", "v", "_w"])) as source:
        connection.execute(f"create or replace table came as from {source}")


@contextmanager
def kept(table: StateTable, folder: Path) -> Iterator[ModelledRows]:
    with duckdb.connect() as connection, RunFolder(SYSTEM_CLOCK, folder) as of_runs:
        connection.execute(f"create schema {SCHEMA}")
        put(connection, [])
        found = ModelledRows(StateRows(connection, table, of_runs))
        found.rows.build()
        yield found


def of_rows() -> StateTable:
    plan = RulePlan("v")
    plan.state(SOURCE, ('"k"',))
    return plan.states[0]


def of_sums() -> StateTable:
    plan = RulePlan("v")
    plan.aggregate(SOURCE, ["k"], {"s": "ascii(coalesce(v, 'c'))"}, "")
    # Without the statement of the rule the changes are sums of what came.
    return replace(plan.states[0], change=plan.states[0].build)


checked = settings(
    max_examples=depth(20, 3000),
    deadline=None,
    # The sizes and the folder are the same for each history.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.timeout(depth(120, 3600))
@checked
@given(ticks)
def test_rows_are_found_by_their_keys(tmp_path: Path, history: list[list[Change]]):
    with kept(of_rows(), tmp_path) as found:
        for came in history:
            found.take(came)
            rows = found.found("select k, v, sum(_w)::int as w from {rows} group by all")
            lines = [(*key, weight) for key, weight in found.lines.items() if key[0] in ASKED]
            assert [row for row in rows if row[2]] == sorted(
                (li for li in lines if li[2]), key=repr
            )


@pytest.mark.timeout(depth(120, 3600))
@checked
@given(ticks)
def test_sums_are_found_by_their_keys(tmp_path: Path, history: list[list[Change]]):
    with kept(of_sums(), tmp_path) as found:
        for came in history:
            found.take(came)
            query = "select k, sum(_n)::int as n, sum(s)::int as s from {rows} group by all"
            expected = Counter[int](), Counter[int]()
            for (key, value), weight in found.lines.items():
                expected[0][int(str(key))] += weight
                expected[1][int(str(key))] += weight * ord(str(value or "c"))
            both = [(key, expected[0][key], expected[1][key]) for key in ASKED]
            rows = found.found(query)
            assert [row for row in rows if row[1] or row[2]] == [
                row for row in both if row[1] or row[2]
            ]


def test_runs_of_one_size_are_merged_and_their_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(state, "_PER_ROW", 16)
    with kept(of_rows(), tmp_path) as found:
        for number in range(64):
            found.take([(number * 4 + n, "a", 1) for n in range(4)])
        folder = next(tmp_path.iterdir())
        names = {path.name for run in found.rows.runs for path in (run.rows_path, run.hashes_path)}
        assert found.most_runs >= state.RUNS
        assert len(found.rows.runs) < 2 * state.RUNS
        # One merge may be under way.
        assert len(names) <= len({*folder.iterdir()}) <= len(names) + 2
    assert not folder.exists()


def test_rows_that_cancel_each_other_leave_no_run(tmp_path: Path):
    with kept(of_rows(), tmp_path) as found:
        found.take([(1, "a", 1), (1, "a", -1), (2, "b", 1), (2, "b", -1)])
        assert found.rows.runs == []
        assert found.found("from {rows}") == []


def test_a_table_without_a_key_keeps_no_rows_that_cancel_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(state, "MERGE_ROWS", 3)
    with kept(replace(of_rows(), key=()), tmp_path) as found:
        for _ in range(20):
            found.take([(1, "a", 1), (1, "a", -1), (2, "a", 1)])
        rows = fetched(found.rows.connection, f"from {found.rows.table.name}")
        assert rows.num_rows < 12
        assert found.found("select k, sum(_w)::int as w from {rows} group by 1", [2]) == [(2, 20)]


@pytest.mark.parametrize("kind", ["tinyint", "hugeint", "decimal(9, 2)"])
def test_equal_numbers_of_other_types_are_found(tmp_path: Path, kind: str):
    with kept(of_rows(), tmp_path) as found:
        found.take([(1, "a", 1), (2, "a", 1), (3, "a", 1), (4, "a", 1)])
        query = f"select 2::{kind} as x union all select null"
        lookup = Lookup(found.rows.table.name, ((query, ("x",)),))
        with found.rows.found(lookup, "_found") as name:
            assert fetched(found.rows.connection, f"from {name}").column("k").to_pylist() == [2]


@pytest.mark.parametrize(
    ("kind", "values", "is_sealed"),
    [
        ("hugeint", ["-12345678901234567890123456789", "7"], True),
        ("uuid", ["'5898bb7a-1f1e-439a-9098-cd76c8c5f14a'", "null"], True),
        ("enum('x', 'y')", ["'x'", "'y'"], True),
        ("timestamp_ns", ["'2020-01-01 00:00:00.123456789'", "null"], True),
        ("struct(a integer)[]", ["[{'a': 1}, null]", "[]"], True),
        ("time with time zone", ["'12:00:00+02'", "'12:00:00+03'"], False),
        ("bit", ["'101'", "'11'"], False),
    ],
)
def test_values_are_found_as_they_were_whatever_their_type(
    tmp_path: Path, kind: str, values: list[str], is_sealed: bool
):
    table = StateTable(
        f"{SCHEMA}.s",
        build=f"select {values[0]}::{kind} as k, 1::bigint as _w limit 0",
        change=f"select {values[0]}::{kind}, 5 union all select {values[1]}::{kind}, 6",
        reads=frozenset(["came"]),
        merged=lambda rows: f"from ({rows})",
        superfluous="false",
        key=("k",),
    )
    with kept(table, tmp_path) as found:
        found.rows.grow()
        found.rows.grow()
        assert bool(found.rows.runs) == is_sealed
        asked = Lookup(table.name, ((f"select {values[0]}::{kind} as x", ("x",)),))
        with found.rows.found(asked, "_found") as name:
            query = f"select sum(_w)::int as w from {name} where k = {values[0]}::{kind}"
            assert fetched(found.rows.connection, query).to_pylist() == [{"w": 10}]


def test_rules_share_rows_that_they_find_by_the_same_key():
    plan = RulePlan("v")
    names = [plan.state(SOURCE, key) for key in (("k",), ("v",), ("k",), ())]
    assert names[0] == names[2]
    assert len({*names}) == len(plan.states) == 3


def test_state_that_is_dropped_leaves_nothing(tmp_path: Path):
    with kept(of_rows(), tmp_path) as found:
        for number in range(9):
            found.take([(number * 4 + n, "a", 1) for n in range(4)])
        folder = next(tmp_path.iterdir())
        assert found.rows.runs
        found.rows.drop()
        assert not [*folder.iterdir()]


# --- runs ---


SCHEMA_OF_RUNS = pa.schema([("v", pa.string()), (HASH, pa.uint64())])


def a_run(folder: RunFolder, hashes: Sequence[int], rows_at_once: int) -> SortedRun:
    values = [f"{h}-{n}" for n, h in enumerate(hashes)]
    table = pa.table({"v": values, HASH: hashes}, SCHEMA_OF_RUNS)
    writer = folder.writer(SCHEMA_OF_RUNS)
    writer.add(table.to_batches(max_chunksize=rows_at_once))
    return writer.runs()[0]


sorted_hashes = st.lists(st.integers(0, 12), min_size=1, max_size=40).map(sorted)


@checked
@given(sorted_hashes, st.integers(1, 9), st.sets(st.integers(0, 13)))
def test_a_run_has_the_rows_of_each_hash(
    tmp_path: Path, hashes: list[int], at_once: int, wanted: set[int]
):
    with RunFolder(SYSTEM_CLOCK, tmp_path) as folder:
        run = a_run(folder, hashes, at_once)
        found = run.found(np.array(sorted(wanted), np.uint64)).column("v").to_pylist()
        assert found == [f"{h}-{n}" for n, h in enumerate(hashes) if h in wanted]


@checked
@given(st.lists(sorted_hashes, min_size=1, max_size=4), st.integers(1, 9))
def test_a_merge_has_all_rows_once_and_each_hash_in_one_part(
    tmp_path: Path, several: list[list[int]], rows: int
):
    with RunFolder(SYSTEM_CLOCK, tmp_path) as folder:
        merge = RunMerge.of([a_run(folder, hashes, 5) for hashes in several])
        parts = []
        while not merge.is_done:
            parts.append(merge.part(rows))
        values = Counter(value for part in parts for value in part.column("v").to_pylist())
        assert values == Counter(f"{h}-{n}" for hashes in several for n, h in enumerate(hashes))
        ranges = [part.column(HASH).to_pylist() for part in parts]
        assert all(ranges)
        for one, other in pairwise(ranges):
            assert max(one) < min(other)


def test_runs_are_merged_from_the_smallest_size_of_which_there_are_enough(tmp_path: Path):
    with RunFolder(SYSTEM_CLOCK, tmp_path) as folder:
        small, large = (
            [a_run(folder, [*range(length)], 9) for _ in range(4)] for length in (4, 17)
        )
        assert due(small[:3]) == []
        assert due([*large[:2], *small[:3]]) == []
        assert due([*large, *small]) == small
        assert due([*large, *small[:3]]) == large


def test_a_damaged_run_is_refused(tmp_path: Path):
    with RunFolder(SYSTEM_CLOCK, tmp_path) as folder:
        run = a_run(folder, [1, 2, 3], 9)
        run.hashes_path.write_bytes(run.hashes_path.read_bytes()[:8])
        with pytest.raises(pa.ArrowInvalid, match="3 rows and 1 hashes"):
            SortedRun.opened(run.rows_path, run.hashes_path)


def test_a_folder_without_room_is_named(tmp_path: Path):
    with (
        RunFolder(SYSTEM_CLOCK, tmp_path / "missing") as folder,
        pytest.raises(InvalidConfig, match=r"missing.*: give another state_dir"),
    ):
        a_run(folder, [1], 9)
    with RunFolder(SYSTEM_CLOCK, tmp_path) as folder:
        writer = folder.writer(SCHEMA_OF_RUNS)
        writer._hashes.close()
        rows = pa.table({"v": ["a"], HASH: [1]}, SCHEMA_OF_RUNS).to_batches()
        with Path("/dev/full").open("wb", buffering=0) as full:
            writer._hashes = full  # type: ignore[assignment]
            with pytest.raises(InvalidConfig, match=r"No space left.*: give another state_dir"):
                writer.add(rows)
