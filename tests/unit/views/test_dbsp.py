"""The rules of views next to pydbsp, another implementation of DBSP that shares no code with them:
each operator gives the same rows at each tick.

pydbsp is on no package index. With Python 3.12 or newer: `pip install
git+https://github.com/brurucy/pydbsp`. In long tests many histories are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from deltaq.views.engine import ViewEngine, engine
from deltaq.views.program import ViewQuery, compiled
from tests.depth import depth
from tests.unit.views.test_rules import PLACE, of_all_sizes, sizes

__all__ = ["sizes"]

pytest.importorskip("pydbsp", reason="pydbsp is not installed: see the docstring")

COLUMNS = pa.schema([("id", pa.int64()), ("x", pa.int64()), ("y", pa.int64()), *PLACE])
SQL = {
    "filtered": "select id, x, y from a where x > 1",
    "mapped": "select x from a",
    "joined": "select a.id, a.y, b.y as z from a join b on a.x = b.x",
    "left_joined": "select a.id, a.x, b.y from a left join b on a.x = b.x",
    "all_of_both": "select x from a union all select x from b",
    "both": "select x from a union select x from b",
    "common": "select x from a intersect select x from b",
    "only_a": "select x from a except select x from b",
    "partnered": "select id, x from a where x in (select x from b)",
    "alone": "select id, x from a where not exists (select 1 from b where b.x = a.x)",
    "distinct_pairs": "select distinct a.x, b.y from a join b on a.x = b.x",
    "sums": "select x, sum(y) as s, count(*) as n from a group by x",
    "sums_of_pairs": (
        "select a.x, sum(b.y) as s, count(*) as n from a join b on a.x = b.x group by 1"
    ),
    "groups_of_groups": "select n, count(*) as c from sums group by n",
    "extremes": "select x, min(y) as least, max(y) as most from a group by x",
}

Row = tuple[int | None, ...]
Weights = dict[Row, int]


def of(module: str) -> Any:
    """A module of pydbsp, which type checkers do not know."""
    return import_module(f"pydbsp.{module}")


class Dbsp:
    """The same views as a circuit of pydbsp."""

    def __init__(self) -> None:
        self._group: Any = of("zset").ZSetAddition()
        self._evaluator: Any = of("evaluate").Evaluator(
            circuit=of("circuit").Circuit(),
            storage=of("storage").DictStorage(),
            ctx=of("compute").ComputeCtx(lattice=of("core").dbsp_time(2)),
            group=self._group,
        )
        self._inputs = {
            name: self._node(
                of("operator").Input(frontier=of("core").Antichain(of("core").dbsp_time(1)))
            )
            for name in ("a", "b")
        }
        streams = (
            self._node(of("operator").LiftStreamIntroduction(group=self._group), node)
            for node in self._inputs.values()
        )
        self._views = {
            name: self._node(of("operator").Integrate(group=self._group), node)
            for name, node in self._built(*streams).items()
        }

    def take(self, changes: dict[str, Weights]) -> None:
        """Give it the changes of a tick."""
        for name, weights in changes.items():
            self._evaluator.push(self._inputs[name], of("zset").ZSet(dict(weights)))

    def rows(self, view: str, tick: int) -> Weights:
        """All rows of a view after a tick, counted from 0."""
        found = self._evaluator.read(self._views[view], (tick, 0)).inner
        return {row: weight for row, weight in found.items() if weight}

    def _node(self, operator: Any, *inputs: Any) -> Any:
        return operator.connect(self._evaluator.circuit, inputs)

    def _built(self, a: Any, b: Any) -> dict[str, Any]:
        pairs = self._join(a, b, _same_x, lambda left, right: (left[1], right[2]))
        both = self._add(self._map(a, _x), self._map(b, _x))
        keys = self._distinct(self._map(b, _x))
        partnered = self._join(a, keys, lambda left, key: left[1] == key[0], lambda left, _: left)
        alone = self._add(a, self._negated(partnered))
        of_a = self._distinct(self._map(a, _x))
        common = self._join(of_a, keys, lambda one, other: one == other, lambda one, _: one)
        sums = self._grouped(a, 1, lambda rows: (_sum(rows, 2), _count(rows)))
        joined = self._join(a, b, _same_x, lambda left, right: (left[0], left[1], right[2]))
        unmatched = self._map(alone, lambda row: (row[0], row[1], None))
        return {
            "filtered": self._filter(a, lambda row: row[1] > 1),
            "mapped": self._map(a, _x),
            "joined": self._join(a, b, _same_x, lambda left, right: (left[0], left[2], right[2])),
            "left_joined": self._add(joined, unmatched),
            "all_of_both": both,
            "both": self._distinct(both),
            "common": common,
            "only_a": self._add(of_a, self._negated(common)),
            "partnered": self._map(partnered, lambda row: row[:2]),
            "alone": self._map(alone, lambda row: row[:2]),
            "distinct_pairs": self._distinct(pairs),
            "sums": sums,
            "sums_of_pairs": self._grouped(pairs, 0, lambda rows: (_sum(rows, 1), _count(rows))),
            "groups_of_groups": self._grouped(sums, 2, lambda rows: (_count(rows),)),
            "extremes": self._grouped(
                a, 1, lambda rows: (min(row[2] for row, _ in rows), max(row[2] for row, _ in rows))
            ),
        }

    def _filter(self, stream: Any, condition: Callable[[Any], bool]) -> Any:
        return self._node(of("relational_operators").LiftLiftSelect(pred=condition), stream)

    def _map(self, stream: Any, change: Callable[[Any], Row]) -> Any:
        return self._node(of("relational_operators").LiftLiftProject(f=change), stream)

    def _distinct(self, stream: Any) -> Any:
        return self._node(
            of("relational_operators").DeltaLiftedDeltaLiftedDistinct(inner_group=self._group),
            stream,
        )

    def _add(self, one: Any, other: Any) -> Any:
        return self._node(of("operator").Lift2(op=self._group.add), one, other)

    def _negated(self, stream: Any) -> Any:
        return self._node(of("operator").Lift1(f=self._group.neg), stream)

    def _join(
        self,
        left: Any,
        right: Any,
        condition: Callable[[Any, Any], bool],
        pair: Callable[[Any, Any], Row],
    ) -> Any:

        groups = dict.fromkeys(("group_a", "group_b", "out_group"), self._group)
        join = of("relational_operators").DeltaLiftedDeltaLiftedJoin(
            pred=condition, proj=pair, **groups
        )
        return self._node(join, left, right)

    def _grouped(self, stream: Any, key: int, result: Callable[[list[Any]], Row]) -> Any:
        def key_of(row: Any) -> Any:
            return row[key]

        by_key = self._node(
            of("indexed_relational_operators").LiftLiftIndex(indexer=key_of), stream
        )
        groups = of("indexed_relational_operators").DeltaLiftedDeltaLiftedGroupBy(
            aggregate=lambda rows: result([*rows]),
            group=of("indexed_zset").IndexedZSetAddition(self._group, key_of),
            out_group=self._group,
        )
        return self._map(self._node(groups, by_key), lambda found: (found[0], *found[1]))


def _x(row: Any) -> Row:
    return (row[1],)


def _same_x(left: Any, right: Any) -> bool:
    return bool(left[1] == right[1])


def _sum(rows: Sequence[Any], column: int) -> int:
    return sum(row[column] * weight for row, weight in rows)


def _count(rows: Sequence[Any]) -> int:
    return sum(weight for _, weight in rows)


class KeyedInputs:
    """Two compacted inputs with random records."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._rows: dict[tuple[str, int], Row] = {}
        self._offset = 0

    def add(self, to: ViewEngine) -> dict[str, Weights]:
        """Add records to the inputs; what they change."""
        changes: dict[str, Weights] = {}
        for name in ("a", "b"):
            changed, records = Counter[Row](), []
            for _ in range(self._chance.choice([0, 1, 2, 5])):
                number = self._chance.randrange(6)
                row = (number, self._chance.randrange(4), self._chance.randrange(5))
                old = self._rows.pop((name, number), None)
                if old is not None:
                    changed[old] -= 1
                is_there = self._chance.random() < 0.7
                if is_there:
                    self._rows[name, number] = row
                    changed[row] += 1
                records.append(self._record(number, row if is_there else (None,) * 3))
            to.add_rows(name, COLUMNS, pa.Table.from_pylist(records, COLUMNS).to_batches())
            changes[name] = {row: weight for row, weight in changed.items() if weight}
        return changes

    def _record(self, number: int, row: Row) -> dict[str, Any]:
        self._offset += 1
        values = dict(zip(("id", "x", "y"), row, strict=True))
        return values | {"_partition": 0, "_offset": self._offset, "_key": b"%d" % number}


@of_all_sizes
@pytest.mark.parametrize("seed", range(depth(5, 100)))
def test_rules_give_what_dbsp_gives(seed: int) -> None:
    program = compiled("g", [ViewQuery(name, sql) for name, sql in SQL.items()])
    inputs, other = KeyedInputs(seed), Dbsp()
    seen = {name: Counter[Row]() for name in SQL}
    with engine(program, dict.fromkeys(SQL, "incremental"), keeps_inputs=False) as found:
        for name in ("a", "b"):
            found.create_input(name, COLUMNS, is_keyed=True)
        for tick in range(8):
            other.take(inputs.add(found))
            found.evaluate()
            if tick == 0:
                for view in program.views:
                    found.restore(view.name, found.columns(view.name).empty_table())
            for view in program.views:
                changes = found.changes(view)
                seen[view.name].update(_rows(changes.come))
                seen[view.name].subtract(_rows(changes.gone))
            found.accept()
            for name in SQL:
                expected = other.rows(name, tick)
                assert {row: n for row, n in seen[name].items() if n} == expected, (tick, name)
        assert all(mode.by_rules for mode in found.modes.values())


def _rows(table: pa.Table) -> Weights:
    rows = Counter[Row]()
    for row in table.to_pylist():
        weight = row.pop("weight", 1)
        row.pop("_key", None)
        rows[tuple(None if value is None else int(value) for value in row.values())] += weight
    return rows
