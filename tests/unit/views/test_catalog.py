"""What DuckDB knows about views that another engine evaluates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from deltaq.clock import SYSTEM_CLOCK
from deltaq.views.catalog import ViewCatalog, catalog
from deltaq.views.program import KEY, WEIGHT, ViewProgram, ViewQuery, compiled

QUERIES = (
    ViewQuery("number", "select count(*) as n, sum(price) as s from sales"),
    ViewQuery("items", "select item, n, sum(price) as s from sales, number group by all"),
    ViewQuery("dear", "select item, price from sales where price = (select max(price) from sales)"),
)
SALES = pa.schema([("item", pa.string()), ("price", pa.int64())])


@pytest.fixture
def program() -> ViewProgram:
    return compiled("shop", QUERIES)


@pytest.fixture
def found(program: ViewProgram) -> Iterator[ViewCatalog]:
    with catalog(program, {"items": "auto"}, SYSTEM_CLOCK) as found:
        found.create_input("sales", SALES, is_keyed=False)
        found.plan()
        yield found


def weighed(*rows: tuple[int, int | None, int]) -> pa.Table:
    """Rows of `number` with weights."""
    names = ["n", "s", "_w"]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])


def test_views_over_empty_inputs_have_rows_state_and_rules(found: ViewCatalog):
    assert found.first_rows("number").to_pylist() == [{"n": 0, "s": None}]
    assert found.first_rows("items").num_rows == 0
    ruled = found.ruled("number")
    assert ruled is not None
    (state,) = ruled.plan.states
    assert found.first_state(state.name).num_rows == 1
    assert found.types_of(state.name)["_n"] == "BIGINT"
    assert found.types["number"] == {"n": "BIGINT", "s": "HUGEINT"}
    assert found.columns("number") == pa.schema([("n", pa.int64()), ("s", pa.decimal128(38, 0))])
    assert found.ruled("items") is not None
    assert found.ruled("dear") is None


def test_a_view_that_is_to_be_evaluated_in_full_has_no_rules(program: ViewProgram):
    with catalog(program, {"number": "full"}, SYSTEM_CLOCK) as found:
        found.create_input("sales", SALES, is_keyed=False)
        found.plan()
        assert found.ruled("number") is None


@pytest.mark.parametrize(
    ("before", "come", "gone"),
    [([], [3], []), ([{"n": 2, "s": 5}], [3], [2]), ([{"n": 3, "s": 7}], [], [])],
)
def test_the_first_changes_are_what_differs_from_the_rows_that_are_published(
    found: ViewCatalog, program: ViewProgram, before: list[Any], come: list[int], gone: list[int]
):
    view = program.view("number")
    found.restore("number", pa.Table.from_pylist(before, found.columns("number")))
    changes = found.changes_of(view, weighed((0, None, -1), (3, 7, 1)))
    assert changes.come["n"].to_pylist() == come
    assert changes.gone["n"].to_pylist() == gone


def test_later_changes_are_those_of_the_other_engine(found: ViewCatalog, program: ViewProgram):
    found.restore("number", found.columns("number").empty_table())
    found.published()
    changes = found.changes_of(program.view("number"), weighed((3, 7, -1), (4, 9, 1), (5, 9, 0)))
    (row,) = changes.come.to_pylist()
    assert (row["n"], row["s"], row[KEY]) == (4, 9, b"[]")
    assert changes.come.schema.field("s").type == pa.decimal128(38, 0)
    assert changes.gone["n"].to_pylist() == [3]


def test_rows_of_a_view_without_a_key_have_weights(found: ViewCatalog, program: ViewProgram):
    rows = pa.table({"item": ["a", "b"], "price": [1, 2], "_w": [2, -1]})
    changes = found.changes_of(program.view("dear"), rows)
    assert changes.come.to_pylist() == [{"item": "a", "price": 1, WEIGHT: 2}]
    assert changes.gone.to_pylist() == [{"item": "b", "price": 2, WEIGHT: 1}]


def test_expressions_over_records_are_as_duckdb_has_them(found: ViewCatalog):
    batch = pa.record_batch({"item": ["a", None], "price": [1, 2]}, schema=SALES)
    (part,) = found.selected(SALES, [batch], "item is null as i, price::hugeint as p")
    assert part.to_pydict() == {"i": [False, True], "p": [1, 2]}
    assert part.schema.field("p").type == pa.decimal128(38, 0)
