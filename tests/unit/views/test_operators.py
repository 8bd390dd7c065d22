"""Operators on rows: each has the rows of a plain Python model, in full and by rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.errors import InvalidConfig
from deltaq.store import forget_memory_store
from deltaq.views import Selection, Views, source
from deltaq.views.modes import Mode
from tests.doubles.views import runner

ROOT = "memory://view-operators"
PAIRS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
Rows: TypeAlias = list[tuple[Any, ...]]

A: Rows = [(1, 10), (1, 10), (2, 20), (3, None)]
B: Rows = [(1, 10), (2, 21), (2, 20), (2, 20), (4, 40)]
LATER: Rows = [(1, 10), (4, 41)]


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    yield
    forget_memory_store("view-operators")


def pairs(a: Rows, b: Rows) -> Rows:
    return [(k, n, m) for k, n in a for j, m in b if k == j]


def sums(rows: Rows) -> Rows:
    keys = {k for k, _ in rows}
    return [(k, sum(n or 0 for j, n in rows if j == k)) for k in keys]


ROWS_A, ROWS_B = source("a").map("k", "n"), source("b").map("k", "n")

SHAPES: dict[str, tuple[Selection, Callable[[Rows, Rows], Rows]]] = {
    "mapped": (ROWS_A.map("k + 1 AS m"), lambda a, b: [(k + 1,) for k, _ in a]),
    "filtered": (ROWS_A.filter("n > 10"), lambda a, b: [r for r in a if r[1] and r[1] > 10]),
    "joined": (ROWS_A.join(ROWS_B.map("k", "n AS m"), on=["k"]), pairs),
    "tied": (
        ROWS_A.join(ROWS_B.map("k AS j", "n AS m"), on="l.k = r.j").map("k", "n", "m"),
        pairs,
    ),
    "kept": (
        ROWS_A.join(ROWS_B.map("k", "n AS m"), on=["k"], kind="left"),
        lambda a, b: (
            pairs(a, b) + [(k, n, None) for k, n in a if k not in {other for other, _ in b}]
        ),
    ),
    "both": (ROWS_A.union(ROWS_B), lambda a, b: a + b),
    "common": (
        ROWS_A.intersect(ROWS_B),
        lambda a, b: [*(Counter(a) & Counter(b)).elements()],
    ),
    "fewer": (
        ROWS_B.difference(ROWS_A),
        lambda a, b: [*(Counter(b) - Counter(a)).elements()],
    ),
    "grouped": (
        ROWS_A.group_by_agg(["k"], "coalesce(sum(n), 0) AS s"),
        lambda a, b: sums(a),
    ),
    "grouped_by_one": (
        ROWS_B.filter("n > 0").group_by_agg("k AS j", "sum(n) AS s"),
        lambda a, b: sums(b),
    ),
    "keys": (ROWS_B.group_by_agg("k"), lambda a, b: [*{(k,) for k, _ in b}]),
    "total": (ROWS_B.agg("sum(n) AS s", "count(*) AS c"), lambda a, b: [
        (sum(n for _, n in b), len(b))]),
    "once": (ROWS_A.distinct(), lambda a, b: [*set(a)]),
    "chained": (
        ROWS_A.union(ROWS_B).filter("n IS NOT NULL").map("k").distinct(),
        lambda a, b: [*{(k,) for k, n in a + b if n is not None}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_each_operator_has_the_rows_that_its_name_says(mode: Mode):
    views = Views("g", ROOT)
    for name in "ab":
        Topic(name, PAIRS, bootstrap_servers=ROOT).create()
    for name, (rows, _) in SHAPES.items():
        views.view(name, rows.sql, mode=mode)
    there: dict[str, Rows] = {"a": [], "b": []}
    with runner(views) as running:
        for step in ({}, {"a": A, "b": B}, {"a": LATER}):
            with Producer(bootstrap_servers=ROOT) as producer:
                for topic, new in step.items():
                    there[topic] = there[topic] + new
                    for k, n in new:
                        producer.produce(topic, {"k": k, "n": n})
            running.tick()
            for name, (_, oracle) in SHAPES.items():
                found = views.read()[name].to_arrow().to_pylist()
                expected = Counter(oracle(there["a"], there["b"]))
                if name == "total" and not there["b"]:
                    expected = Counter([(None, 0)])
                assert Counter(tuple(row.values()) for row in found) == expected, name
    refused = {found.view: found.refused for found in views.explain() if found.refused}
    assert refused == {}


def test_views_of_operators_have_the_keys_of_their_groups():
    views = Views("g", ROOT)
    for name, (rows, _) in SHAPES.items():
        views.view(name, rows.sql)
    keys = {view.name: view.key for view in views.program.views}
    assert keys["grouped"] == ("k",)
    assert keys["grouped_by_one"] == ("j",)
    assert keys["total"] == ()
    assert keys["mapped"] is None


def test_a_name_with_a_dot_is_quoted():
    assert source("orders.eu").filter("n > 1").sql == 'SELECT * FROM "orders.eu" WHERE n > 1'


@pytest.mark.parametrize(
    ("call", "method"),
    [
        (lambda rows: rows.map(), "map"),
        (lambda rows: rows.agg(), "agg"),
        (lambda rows: rows.group_by_agg([], "count(*)"), "group_by_agg"),
        (lambda rows: rows.join(rows, on=[]), "join"),
    ],
)
def test_an_operator_without_an_expression_is_refused(
    call: Callable[[Selection], Selection], method: str
):
    with pytest.raises(InvalidConfig, match=f"{method} needs one expression"):
        call(source("a"))
