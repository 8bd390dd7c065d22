"""Views of drawn SQL over drawn histories, kept by rules: after each tick they have the rows that
DuckDB finds by the same SQL over all records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlglot import parse_one

from deltaq.views import planning, runs, state
from deltaq.views.engine import ViewEngine, engine
from deltaq.views.incremental import unequal_floats
from deltaq.views.modes import Mode, ViewMode
from deltaq.views.parse_trees import SqlReader
from deltaq.views.planning_parts import order_by
from deltaq.views.program import ViewProgram, ViewQuery, compiled
from deltaq.views.rules import NoRule
from tests.depth import depth, third

PLACE = [("_partition", pa.int32()), ("_offset", pa.int64()), ("_key", pa.binary())]
EVENTS = pa.schema(
    [
        ("k", pa.int64()),
        ("s", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("d", pa.decimal128(8, 2)),
        *PLACE,
    ]
)
PEOPLE = pa.schema([("id", pa.int64()), ("city", pa.string()), ("age", pa.int32()), *PLACE])
KINDS = {
    "events": {"k": "int", "s": "text", "n": "int", "x": "float", "d": "decimal"},
    "people": {"id": "int", "city": "text", "age": "int"},
}

# --- histories ---

small = st.sampled_from([0, 1, 1, 2, 2, 3, None])
events = st.fixed_dictionaries(
    {
        "k": small,
        "s": st.sampled_from([None, "a", "b"]),
        "n": small,
        # Sums of these are exact in any order.
        "x": st.sampled_from([None, 0.5, 1.25, -2.0]),
        "d": st.sampled_from([None, Decimal("0.10"), Decimal("2.25"), Decimal("-1.00")]),
    }
)
people = st.tuples(
    st.integers(0, 3),
    st.sampled_from([True, True, True, False]).flatmap(
        lambda is_there: (
            st.fixed_dictionaries({"city": st.sampled_from("ab"), "age": small})
            if is_there
            else st.none()
        )
    ),
    st.sampled_from([0, 0, 0, 1]),
)
"""A person, or a tombstone, and the partition. A key that is in two counts in each."""


@dataclass(frozen=True)
class Step:
    """What comes, what retention removes, and whether it is published."""

    events: list[dict[str, Any]]
    people: list[tuple[int, dict[str, Any] | None] | tuple[int, dict[str, Any] | None, int]]
    removed: int
    is_published: bool


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from([0, 3, 6]).flatmap(lambda n: st.lists(events, min_size=n, max_size=n)),
        st.sampled_from([0, 1, 4]).flatmap(lambda n: st.lists(people, min_size=n, max_size=n)),
        st.sampled_from([0, 0, 0, 1, 3]),
        st.sampled_from([True, True, True, False]),
    ),
    min_size=3,
    max_size=6,
)


# --- SQL ---


@dataclass
class Query:
    """A query and the kinds of its columns, which are named c0, c1 ..."""

    sql: str
    kinds: list[str]

    @property
    def columns(self) -> dict[str, str]:
        """The kinds by name."""
        return {f"c{number}": kind for number, kind in enumerate(self.kinds)}


def drawn_value(draw: st.DrawFn, columns: Mapping[str, str], kind: str) -> str | None:
    """An expression of a kind over columns, if there is one."""
    own = sorted(name for name, of in columns.items() if of == kind)
    if kind == "int" and own:
        one, other = draw(st.sampled_from(own)), draw(st.sampled_from(own))
        forms = ["{a}", "{a}", "{a} + {b}", "coalesce({a}, 7)", "case when {a} > 1 then {b} end"]
        return draw(st.sampled_from(forms)).format(a=one, b=other)
    if kind == "text" and own:
        forms = ["{a}", "{a}", "upper({a})", "{a} || 'z'"]
        return draw(st.sampled_from(forms)).format(a=draw(st.sampled_from(own)))
    return draw(st.sampled_from(own)) if own else None


def drawn_condition(draw: st.DrawFn, columns: Mapping[str, str]) -> str:
    ints = sorted(name for name, of in columns.items() if of == "int")
    texts = sorted(name for name, of in columns.items() if of == "text")
    forms = [f"{name} is not null" for name in columns]
    forms += [f"{name} {op}" for name in ints for op in ("> 0", "<> 1", "<= 2", "< 3")]
    forms += [f"{name} in ('a', 'az', 'A')" for name in texts]
    # Of regular expressions, sqlglot reads one form in another way than DuckDB.
    forms += [f"{name} {op} 'A|a'" for name in texts for op in ("~", "!~")]
    forms += [f"regexp_matches({name}, 'A|a')" for name in texts]
    forms += [f"({a} < {b} or {b} is null)" for a in ints for b in ints if a != b]
    return draw(st.sampled_from(forms))


AGGREGATES = {
    "int": [
        *("sum({v})", "count({v})", "min({v})", "max({v})", "count(distinct {v})", "avg({v})"),
        *("to_json(max({v}, 2))::varchar", "to_json(min({v}, 2))::varchar"),
    ],
    "text": ["count({v})", "min({v})", "string_agg({v}, ',' order by {v})"],
    "float": ["sum({v})", "avg({v})", "max({v})"],
    "decimal": ["sum({v})", "avg({v})", "count(distinct {v})"],
}
RESULTS = {"sum": "same", "min": "same", "max": "same", "count": "int", "avg": "float"}


def drawn_aggregate(draw: st.DrawFn, columns: Mapping[str, str]) -> tuple[str, str]:
    if draw(st.integers(0, 3)) == 0:
        return "count(*)", "int"
    name = draw(st.sampled_from(sorted(columns)))
    form = draw(st.sampled_from(AGGREGATES[columns[name]]))
    kind = RESULTS.get(form.partition("(")[0], "text")
    text = form.format(v=name)
    if text.endswith(")") and draw(st.integers(0, 4)) == 0:
        text += f" filter (where {drawn_condition(draw, columns)})"
    return text, columns[name] if kind == "same" else kind


def drawn_from(
    draw: st.DrawFn, tables: Mapping[str, Mapping[str, str]], deep: int
) -> tuple[str, dict[str, str], str]:
    """What stands in FROM, its columns by the names with which they are read, and a condition."""
    if draw(st.integers(0, 7)) == 0:
        return *drawn_chain(draw, tables), ""
    first, columns = drawn_item(draw, tables, "a", deep)
    if draw(st.booleans()):
        return first, columns, ""
    second, others = drawn_item(draw, tables, "b", deep)
    kind = draw(st.sampled_from(["join", "join", "left join", "right join", "full join", ","]))
    pairs = [(a, b) for a, x in columns.items() for b, y in others.items() if x == y != "float"]
    both = {**columns, **others}
    if not pairs:
        return f"{first} cross join {second}", both, ""
    a, b = draw(st.sampled_from(pairs))
    condition = f"{a} = {b}"
    if draw(st.integers(0, 4)) == 0:
        condition += f" and {drawn_condition(draw, both)}"
    if kind == ",":
        return f"{first}, {second}", both, condition
    return f"{first} {kind} {second} on {condition}", both, ""


def drawn_chain(
    draw: st.DrawFn, tables: Mapping[str, Mapping[str, str]]
) -> tuple[str, dict[str, str]]:
    """Three tables joined by the name of a column."""
    sides = [(name, c) for name, of in tables.items() for c in of if of[c] == "int"] or [
        ("events", "k")
    ]
    text, columns = "", {"u": "int"}
    for alias in "abc":
        name, column = draw(st.sampled_from(sides))
        of = tables.get(name, KINDS["events"])
        other = draw(st.sampled_from(sorted(of)))
        item = f"(select {column} as u, {other} as {alias}_ from {name}) as {alias}"
        kind = draw(st.sampled_from(["join", "left join", "right join", "full join"]))
        if draw(st.booleans()):
            text += f" natural {kind} {item}" if text else item
        else:
            text += f" {kind} {item} using (u)" if text else item
        columns[f"{alias}_"] = of[other]
    return text, columns


def drawn_item(
    draw: st.DrawFn, tables: Mapping[str, Mapping[str, str]], alias: str, deep: int
) -> tuple[str, dict[str, str]]:
    if deep > 0 and draw(st.integers(0, 3)) == 0:
        inner = drawn_query(draw, tables, deep - 1)
        return f"({inner.sql}) as {alias}", {f"{alias}.{n}": k for n, k in inner.columns.items()}
    name = draw(st.sampled_from(sorted(tables)))
    return f"{name} as {alias}", {f"{alias}.{n}": kind for n, kind in tables[name].items()}


def drawn_semi_join(
    draw: st.DrawFn, columns: Mapping[str, str], tables: Mapping[str, Mapping[str, str]]
) -> str:
    """A condition with a query in it."""
    name = draw(st.sampled_from(sorted(tables)))
    pairs = [(a, b) for a, x in columns.items() for b, y in tables[name].items() if x == y]
    if not pairs:
        return "true"
    a, b = draw(st.sampled_from(pairs))
    own = {f"i.{column}": kind for column, kind in tables[name].items()}
    inner = drawn_condition(draw, own)
    forms = [
        f"{a} in (select {b} from {name} as i where {inner})",
        f"exists (select 1 from {name} as i where i.{b} = {a} and {inner})",
        f"not exists (select 1 from {name} as i where i.{b} = {a} and {inner})",
        # Without a rule: of a query within another one, only that is evaluated in full.
        f"{a} not in (select i.{b} from {name} as i where {inner} and i.{b} is not null)",
    ]
    return draw(st.sampled_from(forms))


def drawn_select(draw: st.DrawFn, tables: Mapping[str, Mapping[str, str]], deep: int) -> Query:
    source, columns, tied = drawn_from(draw, tables, deep)
    conditions = [tied] if tied else []
    if draw(st.integers(0, 3)) == 0:
        conditions.append(drawn_condition(draw, columns))
    if draw(st.integers(0, 5)) == 0:
        conditions.append(drawn_semi_join(draw, columns, tables))
    tail = f" from {source}" + (f" where {' and '.join(conditions)}" if conditions else "")
    form = draw(st.sampled_from(["rows", "rows", "groups", "groups", "all", "windows"]))
    outputs: list[tuple[str, str]] = []
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["int", "text", "decimal", "float"]))
        value = drawn_value(draw, columns, kind)
        if value is not None:
            outputs.append((value, kind))
    if not outputs:
        outputs = [drawn_any(draw, columns)]
    if form == "groups":
        groups = ", ".join(str(number + 1) for number in range(len(outputs)))
        tail += f" group by {groups}"
        if draw(st.integers(0, 4)) == 0:
            tail += " having count(*) > 1"
        outputs += [drawn_aggregate(draw, columns) for _ in range(draw(st.integers(0, 2)))]
    elif form == "all":
        outputs = [drawn_aggregate(draw, columns) for _ in range(draw(st.integers(1, 2)))]
    elif form == "windows":
        value, by = drawn_any(draw, columns)[0], drawn_any(draw, columns)[0]
        parts = draw(st.sampled_from([f"partition by {by} ", f"partition by {by} ", ""]))
        outputs.append((f"count(*) over ({parts}order by {value})", "int"))
    distinct = "distinct " if form == "rows" and draw(st.integers(0, 3)) == 0 else ""
    listed = ", ".join(f"{sql} as c{number}" for number, (sql, _) in enumerate(outputs))
    return Query(f"select {distinct}{listed}{tail}", [kind for _, kind in outputs])


def drawn_any(draw: st.DrawFn, columns: Mapping[str, str]) -> tuple[str, str]:
    name = draw(st.sampled_from(sorted(columns)))
    return name, columns[name]


def drawn_query(draw: st.DrawFn, tables: Mapping[str, Mapping[str, str]], deep: int) -> Query:
    form = draw(st.sampled_from(["select"] * 5 + ["set", "with"])) if deep else "select"
    first = drawn_select(draw, tables, deep)
    # The last digits of floats, and so their order, may differ.
    if "float" not in first.kinds and draw(st.integers(0, 5)) == 0:
        first = limited(draw, first)
    if form == "set":
        found = drawn_set_operation(draw, tables)
        return limited(draw, found) if draw(st.booleans()) else found
    if form == "with":
        outer = drawn_select(draw, {"w": first.columns}, 0)
        return Query(f"with w as ({first.sql}) {outer.sql}", outer.kinds)
    return first


def limited(draw: st.DrawFn, query: Query) -> Query:
    """The first rows of a query, over all of its columns: rows that are left are equal."""
    kinds = [draw(st.sampled_from(["", " desc", " nulls first"])) for _ in query.kinds]
    order = ", ".join(f"c{number}{kind}" for number, kind in enumerate(kinds))
    tail = draw(st.sampled_from(["limit 1", "limit 3", "limit 2 offset 1"]))
    return Query(f"{query.sql} order by {order} {tail}", query.kinds)


def drawn_set_operation(draw: st.DrawFn, tables: Mapping[str, Mapping[str, str]]) -> Query:
    kind = draw(st.sampled_from(["int", "text"]))
    sides = [
        (name, column) for name, of in tables.items() for column in of if of[column] == kind
    ] or [("events", "k" if kind == "int" else "s")]
    (a, x), (b, y) = draw(st.sampled_from(sides)), draw(st.sampled_from(sides))
    word = draw(st.sampled_from(["union", "intersect", "except"]))
    suffix = draw(st.sampled_from(["", " all"]))
    return Query(f"select {x} as c0 from {a} {word}{suffix} select {y} from {b}", [kind])


@st.composite
def programs(draw: st.DrawFn) -> list[ViewQuery]:
    """Views over topics and over each other."""
    tables: dict[str, Mapping[str, str]] = dict(KINDS)
    views = []
    for number in range(draw(st.integers(1, 3))):
        query = drawn_query(draw, tables, 1)
        views.append(ViewQuery(f"v{number}", query.sql))
        tables[f"v{number}"] = query.columns
    return views


# --- comparison ---


@dataclass
class World:
    """The records that came, and what a reader of the views has seen."""

    events: list[dict[str, Any]] = field(default_factory=list)
    people: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    offset: int = 0
    seen: dict[str, Counter[tuple[Any, ...]]] = field(default_factory=dict)

    def take(self, step: Step, found: ViewEngine) -> None:
        """Give a step to the engine."""
        rows = [row | self._place() for row in step.events]
        self.events += rows
        if rows:
            found.add_rows("events", EVENTS, pa.Table.from_pylist(rows, EVENTS).to_batches())
        records = []
        for number, person, *in_partition in step.people:
            (partition,) = in_partition or (0,)
            self.people.pop((partition, number), None)
            if person is not None:
                self.people[partition, number] = {"id": number} | person
            value = {"id": None, "city": None, "age": None} if person is None else {"id": number}
            place = self._place(str(number).encode(), partition)
            records.append(value | (person or {}) | place)
        if records:
            found.add_rows("people", PEOPLE, pa.Table.from_pylist(records, PEOPLE).to_batches())
        if step.removed:
            start = self.events[step.removed]["_offset"] if step.removed < len(self.events) else 0
            self.events = [row for row in self.events if row["_offset"] >= start]
            found.remove_before("events", [start])

    def _place(self, key: bytes | None = None, partition: int = 0) -> dict[str, Any]:
        self.offset += 1
        return {"_partition": partition, "_offset": self.offset, "_key": key}

    def publish(self, program: ViewProgram, found: ViewEngine) -> None:
        """Publish what has changed."""
        for view in program.views:
            changes, rows = found.changes(view), self.seen.setdefault(view.name, Counter())
            for row in map(plain, changes.come.to_pylist()):
                rows[row[1]] += row[0]
            for row in map(plain, changes.gone.to_pylist()):
                rows[row[1]] -= row[0]
            assert all(weight >= 0 for weight in rows.values()), view

    def expected(self, program: ViewProgram) -> dict[str, Counter[tuple[Any, ...]]]:
        """All views by DuckDB, each as a view over the others."""
        # With two threads DuckDB 1.5.5 has other rows at times for a LIMIT below a join.
        with duckdb.connect(config={"threads": 1}) as connection:
            connection.register("e", pa.Table.from_pylist(self.events, EVENTS))
            connection.register("p", pa.Table.from_pylist([*self.people.values()], PEOPLE))
            connection.execute("create table events as from e; create table people as from p")
            for view in program.views:
                connection.execute(f"create view {view.name} as {view.sql}")
            return {
                view.name: Counter(
                    plain(row)[1]
                    for row in connection.execute(f"from {view.name}")
                    .arrow()
                    .read_all()
                    .to_pylist()
                )
                for view in program.views
            }


def plain(row: dict[str, Any]) -> tuple[int, tuple[Any, ...]]:
    """The weight of a row, and its values in a form of which equal ones are equal."""
    weight = row.pop("weight", 1)
    row.pop("_key", None)
    return weight, tuple(float(v) if isinstance(v, Decimal) else v for v in row.values())


def run(
    views: Sequence[ViewQuery],
    history: Sequence[Step],
    modes: Mapping[str, Mode],
    choices: Iterator[bool] | None = None,
) -> dict[str, ViewMode]:
    """Keep the views over a history and compare them in each tick. `choices` are those of views in
    the mode `auto`, in the place of measured times.
    """
    program, world = compiled("g", views), World()
    is_removed = any(step.removed for step in history)

    def decided(mode: ViewMode) -> bool:
        if mode.wanted == "auto" and not mode.refused:
            assert choices is not None
            return next(choices)
        return mode.wanted == "incremental" and not mode.refused

    with (
        engine(program, modes, keeps_inputs=is_removed) as found,
        patch.object(ViewMode, "decided", decided),
    ):
        found.create_input("events", EVENTS, is_keyed=False)
        found.create_input("people", PEOPLE, is_keyed=True)
        is_first = True
        for step in history:
            world.take(step, found)
            found.evaluate()
            if is_first:
                for view in program.views:
                    found.restore(view.name, found.columns(view.name).empty_table())
                is_first = False
            if step.is_published:
                world.publish(program, found)
                found.accept()
                expected = world.expected(program)
                for view in program.views:
                    assert +world.seen[view.name] == +expected[view.name], view.sql
        return found.modes


@pytest.fixture(autouse=True)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """State is merged, or sealed and its runs merged, after a few rows."""
    if getattr(request, "param", "tables") == "tables":
        monkeypatch.setattr(state, "MERGE_ROWS", 3)
        return
    monkeypatch.setattr(state, "SEAL_ROWS", 4)
    monkeypatch.setattr(state, "RUNS", 2)
    monkeypatch.setattr(state, "PART_ROWS", 3)
    monkeypatch.setattr(state, "MOST_ROWS", 3)
    monkeypatch.setattr(state, "_PER_ROW", 1)
    monkeypatch.setattr(runs, "BLOCK_ROWS", 2)


of_all_sizes = pytest.mark.parametrize("sizes", ["tables", "runs"], indirect=True)


@of_all_sizes
@pytest.mark.timeout(depth(120, 7200))
@settings(
    max_examples=depth(14, 2000),
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        # The sizes are the same for each history.
        HealthCheck.function_scoped_fixture,
    ],
    deadline=None,
)
@given(programs(), steps, st.data())
def test_rules_give_what_the_sql_gives(
    views: list[ViewQuery], history: list[Step], data: st.DataObject
):
    modes: dict[str, Mode] = {
        view.name: data.draw(st.sampled_from(["incremental", "incremental", "auto", "full"]))
        for view in views
    }

    def choices() -> Iterator[bool]:
        while True:
            yield data.draw(st.booleans())

    run(views, history, modes, choices())


def an_event(k: int, n: int) -> dict[str, Any]:
    return {"k": k, "s": "ab"[k % 2], "n": n, "x": 0.5, "d": Decimal(f"{n}.00")}


@of_all_sizes
@pytest.mark.parametrize(
    "sql",
    third(
        [
            "select e.k, e.n, p.city from events e join people p on e.k = p.id",
            "select e.k, e.n, p.city from events e left join people p on e.k = p.id",
            "select e.k, e.n, p.city from events e full join people p on e.k = p.id and e.n > p.age",  # noqa: E501
            "select e.k, e.n from events e where not exists (select 1 from people p where p.id = e.k)",  # noqa: E501
            "select e.k, e.n from events e where e.k in (select id from people)",
            "select k, n from events where (k, n) in (select id, age from people)",
            "select e.n, p.age as n from events e left join people p on e.k = p.id",
            "select s, to_json(max(n, 2))::varchar as m from events group by s",
            "select k, to_json({'A': n})::varchar as j from events",
            # Equal values of different types, of which some have one hash.
            "select e.k, p.id from events e join people p on e.k = p.age",
            "select e.k, p.id from events e left join people p on e.d = p.age",
            "select e.k, p.id from events e left join people p on e.x * 2 = p.age",
            "select e.k, p.id from events e join people p on '0' || e.k = p.age",
            "select e.k, p.id from events e join people p on e.k = p.age and '0' || e.n = p.id",
            "select s, max(n) as m, count(distinct k) as c from events group by s",
            "select e.k, e.n from events e order by n desc, _partition, _offset desc limit 3",
            "select max(n) as m, count(distinct s) as c from events where k < 9",
            "select k, row_number() over (order by _partition, _offset) as r from events",
            "select k from events where k in (select id from people where age not in (select id from people))",  # noqa: E501
            "with w as (select k, max(n) as m from events group by rollup (k)) select m, age from w join people on k = id",  # noqa: E501
        ]
    ),
)
def test_rules_find_what_lies_in_runs(sql: str):
    history = [
        Step([], [], 0, True),
        Step([an_event(k, k % 3) for k in range(8)], [], 0, True),
        Step([], [(k, {"city": "ab"[k % 2], "age": k % 4}) for k in range(2, 10)], 0, True),
        # New rows on the left, with partners that have been there for long.
        Step([an_event(k, 2) for k in (1, 3, 9, 11)], [], 0, True),
        # New rows, other ones and none in the place of old ones, on the right.
        Step([], [(0, {"city": "a", "age": 1}), (4, {"city": "b", "age": 0}), (5, None)], 0, True),
        Step([an_event(0, 1)], [(9, None), (11, {"city": "b", "age": 3})], 0, True),
        Step([], [], 2, True),
    ]
    assert run([ViewQuery("v", sql)], history, {"v": "incremental"})["v"].by_rules


@pytest.mark.parametrize("auto", ["v0", "v1"])
def test_a_view_goes_back_to_full_beside_one_by_rules_that_it_reads_or_is_read_by(auto: str):
    views = [
        ViewQuery("v0", "select distinct city as c0 from people"),
        ViewQuery("v1", "select a.age as c0 from people as a join v0 as b on a.city = b.c0"),
    ]
    history = [
        Step([], [], 0, True),
        Step([], [(0, {"city": "a", "age": 0})], 0, True),
        Step([], [], 0, True),
        Step([], [(1, {"city": "b", "age": 1})], 0, True),
    ]
    wanted: dict[str, Mode] = {"v0": "incremental", "v1": "incremental"}
    modes = run(views, history, wanted | {auto: "auto"}, iter([True, False, False, False]))
    assert {name for name, mode in modes.items() if mode.by_rules} == {"v0", "v1"} - {auto}


# --- which SQL has rules ---


def explained(sql: str, key: str | None = None) -> ViewMode:
    """The mode of a view over some history, in which it is right."""
    history = [
        Step([{"k": 1, "s": "a", "n": 2, "x": 0.5, "d": Decimal("1.00")}] * 2, [], 0, True),
        Step([], [(1, {"city": "u", "age": 2}), (2, {"city": "v", "age": 0})], 0, True),
        Step([{"k": 2, "s": None, "n": 0, "x": None, "d": None}], [(1, None)], 0, True),
    ]
    given = None if key is None else (key,)
    return run([ViewQuery("v", sql, given)], history, {"v": "incremental"})["v"]


@pytest.mark.parametrize(
    "sql",
    [
        "select k, n + 1 as m from events where s = 'a'",
        "select e.k, p.city from events e join people p on e.k = p.id and e.n < p.age",
        "select e.k, p.city from events e, people p where e.k = p.id",
        "select k, city from events join (select id as k, city from people) using (k)",
        "select e.k, p.city from events e cross join people p",
        "select k from events natural join (select id as k from people)",
        "select k, c from events full join (select id as k, age as c from people) as a using (k)",
        "select k from events join (select id as k from people) as a using (k) natural left join (select id as k from people) as b",  # noqa: E501
        "select k, count(*) as c from events group by all having k > 1 and c > 0 and sum(n) > 0",
        "select e.k from events e anti join people p on e.k = p.id",
        "select s, sum(n) as a, avg(d) as b, count(n) filter (n > 1) as c from events group by 1",
        "select s, k, sum(x) as t from events group by all having count(*) > 1",
        "select count(*) as n from events",
        "select s, max(n) as m, count(distinct k) as c from events group by s",
        "select distinct s from events",
        "select k from events union select id from people",
        "select k from events intersect all select id from people",
        "select k from events except select id from people",
        "with w as (select k from events) select a.k from w a join w b on a.k = b.k",
        "select k, row_number() over (partition by s order by k, _partition, _offset) as r from events",  # noqa: E501
        "select k, s from events qualify rank() over (partition by s order by k) = 1",
        "select k, unnest([k, n, k]) as u, unnest([s]) as t from events",
        "select k, unnest([k, count(*)]) as u, sum(n) as t from events group by k",
        "select k, unnest([n]) as u, count(*) over (partition by k) as c from events",
        "select distinct unnest(range(n)) as u from events where n > 0",
        "select k, u.y from events, unnest([n, k]) as u(y)",
        "select k from events cross join unnest(range(n)) as u(y)",
        "select y, age from events join unnest([n, k]) as u(y) on y > 0 left join people on id = y",
        "select y, count(*) as c from events, unnest([n, k]) as u(y) group by y",
        "select k from events where k in (select k from events where n > 1)",
        "select k from events e where exists (select 1 from people where id = e.k)",
        "select k from events e where not exists (select 1 from people p where p.id = e.k)",
        "select k, n from events order by k, _partition, _offset limit 2",
        "select k as a, n from events order by _partition desc, _offset, a limit 2 offset 1",
        "(select k from events union select id from people) order by k limit 3",
        "select s, c from (select s, count(*) as c from events group by s) order by c, s limit 1",
        "select max(n) as m, count(distinct s) as c from events",
        "select sum(x) as m, max(k) as k from events having max(k) > 1",
        "select k, row_number() over (order by k, _partition, _offset) as r from events",
        "select k, count(*) over () as c, max(n) over (partition by s) as m from events",
        "select k % 3 as q, count(*) as c from events group by q having c > 1",
        "select row_number() over (order by k, _partition, _offset) as r from events qualify r = 1",
        "select lower(s) as q, count(*) as c from events where q <> 'a' group by q",
        "select list_sum(list_transform([k], lambda y: y + 1)) as z from events",
        # A part of it is evaluated in full.
        "select a.k from events a join (from events where k not in (select 1)) b on a.k = b.k",
        "with w as (select k, count(*) as c from events group by rollup (k)) select c from w",
        "select k from events union all (select n from events where k = (select max(id) from people))",  # noqa: E501
        "select n from events where k in (select id from people where age = (select 1))",
    ],
)
def test_these_forms_of_sql_have_rules(sql: str):
    mode = explained(sql)
    assert mode.by_rules, mode.refused


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (
            "select distinct k, n from events order by k + n, k, n limit 2",
            "LIMIT over an order that is none of its columns",
        ),
        ("select k from events order by k, _partition, _offset limit 1 + 1", "LIMIT of this form"),
        ("select k from events where k not in (select id from people)", "a query in an expression"),
        ("select k, (select max(id) from people) as m from events", "a query in an expression"),
        ("select k, s, count(*) as n from events group by rollup (k, s)", "GROUPING SETS"),
        ("select distinct on (k) k, s from events order by k, _partition, _offset", "DISTINCT ON"),
        ("select sum(sum(n)) over () as t from events group by k", "window function over an agg"),
        ("select e.k from events e left join people p on e.k < p.id", "without an equality"),
        (
            "select p.id, q.id as i from people p, events e right join people q on e.k = q.id",
            "a comma in FROM before a RIGHT or FULL JOIN",
        ),
        ("select k, s from events where s !~ 'a'", "regexp_full_match as regexp_matches"),
        (
            (
                "select k from events full join (select id as k from people) as a using (k) "
                "full join (select id as k from people) as b using (k)"
            ),
            "USING after a FULL JOIN by names",
        ),
        (
            (
                "select k from events natural right join (select id as k from people) as a "
                "natural left join (select id as k from people) as b"
            ),
            "NATURAL after a RIGHT JOIN by names",
        ),
        (
            "select q.id from people q, events e join (select id as k from people) as a using (k)",
            "USING after a comma in FROM",
        ),
        (
            "select k from events join (select id::double as k from people) as a using (k)",
            "USING or NATURAL with columns of several types",
        ),
        (
            (
                "select k, max(i)::varchar as m from (select k, n, [to_days(n)] as i from events) "
                "group by k"
            ),
            "INTERVAL in its state",
        ),
        ("select ({'A': k}).A as a from events", "sqlglot reads 'a', which is not in the SQL"),
        (
            "select k % 2 as k, count(*) as c from events group by all having k >= 1",
            "GROUP BY ALL with 'k' in HAVING",
        ),
        (
            "select k as n, count(*) as c from events group by all having n >= 1",
            "GROUP BY ALL with 'n' in HAVING",
        ),
        (
            "select k from events where (k, n) in (select (id, age) from people)",
            "IN of other columns than its query has",
        ),
        (
            "select k from events where (k, x) in (select id, age from people)",
            "IN of a row with values of DOUBLE and INTEGER",
        ),
        (
            (
                "select k from events asof join (select id from people group by id) as p "
                "on events.k >= p.id"
            ),
            "ASOF JOIN",
        ),
        ("select u.y from events left join unnest([k, n]) as u(y) on true", "FROM UNNEST"),
        ("select y from events, unnest([k]) with ordinality as u(y, o)", "UNNEST of this form"),
        ("select unnest({'a': k, 'b': n}) from events", "other columns than DuckDB"),
        ("select r.range as r from events, range(3) as r", "FROM"),
        (
            "with recursive t as (select 1 as a union select a + 1 from t where a < 3) from t",
            "RECUR",
        ),
        ("select _w as m from (select k as _w from events)", "a column named '_w'"),
        # Parts without a rule that cannot be evaluated alone.
        (
            (
                "select k from events e where k in (select id from people where age not in "
                "(select n from events where k = e.k))"
            ),
            "a query in an expression",
        ),
        (
            (
                "select k from (with people as (from events) select k from people where k not in "
                "(select 1))"
            ),
            "a query in an expression",
        ),
        (
            (
                "select k, n as k from events where k not in (select 1) union all select 1, id "
                "from people"
            ),
            "two columns named 'k'",
        ),
        ("select x from (select 1 as x, 2 as y) union select k from events", "without FROM"),
        ("select s, entropy(n) as h from events group by s", "its rules fail"),
        ("select lower(s) as q, q[2] as z, k + 1 as j from events", "it reads 'q', the name of"),
        ("select s || '-' as q, k from events where q like 'a%'", "it reads 'q', the name of"),
        ("select 1 as q, [k, n][q] as z, 2 as w from events", "it reads 'q', the name of"),
        ("select k + n as q, n - q as z from events", "it reads 'q', the name of"),
        ("select k % 2 as q, count(*) as c from events group by q having q > 0", "it reads 'q'"),
        (
            "select list_sum(list_transform([k], lambda n: n + 1)) as z from events",
            "the variable 'n' of a lambda has the name",
        ),
        (
            "select list_sum(list_transform([k], lambda events: events + 1)) as z from events",
            "the variable 'events' of a lambda has the name",
        ),
        (
            "select list_sum([n for n in [k, 1] if n > 1]) as z from events",
            "the variable 'n' of a lambda has the name",
        ),
        (
            "select k from events e where exists (select 1 from people p where p.id < e.k)",
            "more than equalities",
        ),
        (
            "select k from events e where exists (select max(id) from people p where p.id = e.k)",
            "EXISTS of this form",
        ),
        (
            (
                "select k from events e where exists (select 1 from people p where p.id = e.k "
                "order by _partition, _offset limit 1)"
            ),
            "EXISTS of this form",
        ),
    ],
)
def test_what_has_no_rules_is_evaluated_in_full_with_a_reason(sql: str, reason: str):
    mode = explained(sql)
    assert not mode.by_rules
    assert reason in mode.refused


def test_a_column_with_a_name_of_orders_has_no_rules():
    whole = sqlglot.parse_one("select k as _o0 from events", dialect="duckdb")
    ordered = sqlglot.parse_one("select k as _o0 from events order by -n", dialect="duckdb")
    with pytest.raises(NoRule, match="a column named '_o0'"):
        order_by(ordered, whole)


def test_rules_that_cannot_begin_or_have_ended_leave_no_changes_to_note():
    sql = {"v0": "select city as c0 from people", "v1": "select entropy(n) as c0 from events"}
    program = compiled("g", [ViewQuery(name, text) for name, text in sql.items()])
    with engine(program, {"v0": "auto", "v1": "incremental"}) as found:
        found.create_input("events", EVENTS, is_keyed=False)
        found.create_input("people", PEOPLE, is_keyed=True)
        for by_rules in (True, False):
            found.evaluate()
            for view in program.views:
                if by_rules:
                    found.restore(view.name, found.columns(view.name).empty_table())
            with patch.object(ViewMode, "decided", lambda mode: by_rules and not mode.refused):  # noqa: B023
                found.accept()
            assert found._rules.is_tracked("people") == by_rules
            assert not found._rules.is_tracked("events")


def test_what_is_nested_too_deeply_is_evaluated_in_full():
    mode = explained(f"select {'(' * 150}n{')' * 150} as m from events")
    assert not mode.by_rules
    assert mode.refused == "it is nested too deeply"


# --- what sqlglot reads in another way than DuckDB ---


@pytest.fixture(scope="module")
def reader() -> Iterator[SqlReader]:
    """That of an engine, whose columns are not asked for."""
    with engine(compiled("g", [ViewQuery("v", "select k from events")])) as found:
        yield found._rules.reader


@pytest.mark.parametrize(
    "expression",
    [
        *("a IS NOT NULL", "a NOTNULL", "now()", "Current_Timestamp", "ifnull(a, b)", ".5", "1e3"),
        *("a::json", "a::decimal(10, 2)", "a::struct(x int)", "a[1:2]", "a.b", "a['b']", "a[1]"),
        *(
            "interval 1 day",
            "interval '2' month",
            "interval '5 minutes'",
            "interval (a) hour",
            "interval '1.5 hours'",
        ),
        *("date_trunc('day', a)", "datediff('hour', a, b)", "extract(epoch from a)"),
        *("date_add(a, interval 1 week)", "time_bucket(interval 1 hour, a)", "strftime(a, '%Y')"),
        *("string_agg(a)", "string_agg(a, ';' order by b desc nulls last)", "group_concat(a)"),
        *("list(a order by a desc)", "list(distinct a order by b)", "array_agg(a)"),
        *("list(a) over (partition by b)", "bool_and(a)", "bool_or(a = b)", "count()", "mode(a)"),
        *("percentile_cont(0.5) within group (order by a)", "quantile_disc(a, [0.1, 0.5])"),
        *("a->'b'", "a->>'b c'", "a->>'$.b.c'", "a->0", "json_extract(a, '$.b')"),
        *("json_extract_string(a, 'b')", "list_transform(a, x -> x + 1)", "substr(a, 2)"),
        *("position('a' in b)", "array_append(a, 1)", "range(a)", "{'A': a}", "map {'a': b}"),
        *("max(a, 2)", "a // b", "a ** b", "a ^@ b", "a IN (1, 2)", "a BETWEEN 1 AND 2", "-a"),
        *("CASE a WHEN 1 THEN b END", "count(*) FILTER (b)", "lag(a) OVER (ORDER BY b)"),
    ],
)
def test_usual_sql_is_written_as_duckdb_reads_it(reader: SqlReader, expression: str):
    sql = f"select {expression} as x from t"
    reader.check_written(sql, parse_one(sql, dialect="duckdb").sql("duckdb"))


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("s ~ 'a'", "regexp_full_match as regexp_matches"),
        ("s !~ 'a'", "regexp_full_match as regexp_matches"),
        ("regexp_replace(s, 'a', 'b', 'gl')", "'gl' as 'g'"),
        ("regexp_extract(s, 'a', 0, 'l')", "regexp_extract in another way"),
        ("jaro_winkler_similarity(a, b, 0.9)", "jaro_winkler_similarity in another way"),
        ("decode(a, b)", "decode in another way"),
        ("a <=> b", "list_cosine_distance as COMPARE_NOT_DISTINCT_FROM"),
        ("a->>'b.c'", "'b.c' as '$.b.c'"),
        ("floor(log10(a))", "log10 as log"),
        ("percentile_cont(0.5) within group (order by a desc)", "quantile_cont in another way"),
    ],
)
def test_sql_that_sqlglot_writes_in_another_way_has_no_rules(
    reader: SqlReader, expression: str, reason: str
):
    sql = f"select {expression} as x from t"
    with pytest.raises(NoRule, match=re.escape(reason)):
        reader.check_written(sql, parse_one(sql, dialect="duckdb").sql("duckdb"))


def test_names_and_constants_that_sqlglot_changes_later_have_no_rules(reader: SqlReader):
    sql = "select to_json({'A': a, 'b': 'x'}) from t"
    reader.check_qualified(sql, "select to_json({'A': t.a, 'b': 'x'}) from t where true")
    for written, reason in (("{'a': a}", "struct_pack(a)"), ("{'A': a, 'b': 'y'}", "'y'")):
        with pytest.raises(NoRule, match=re.escape(reason)):
            reader.check_qualified(sql, f"select to_json({written}) from t")


def test_rules_with_other_floats_than_duckdb_are_refused(monkeypatch: pytest.MonkeyPatch):
    plan_of = planning.plan_of

    def misread(name: str, sql: str, *args: Any) -> Any:
        return plan_of(name, sql.replace("x as", "2 * x as"), *args)

    monkeypatch.setattr(planning, "plan_of", misread)
    mode = explained("select k, x as y from events")
    assert "its floats differ from DuckDB's in more than their last digits" in mode.refused


@pytest.mark.parametrize(
    ("own", "others", "are_equal"),
    [
        (0.3, 0.1 + 0.2, True),
        # The limit between two numbers of 12 digits lies between these.
        (1.0000000000149998, 1.000000000015, True),
        (0.0, -0.0, True),
        (float("nan"), float("nan"), True),
        (1.0, 1.00000000001, False),
        (1.0, None, False),
    ],
)
def test_floats_are_equal_in_as_many_digits_as_check_compares(
    own: float, others: float | None, are_equal: bool
):
    rows = pa.table({"k": [1, 1], "x": [own, others], "_w": [1, -1]})
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        query = unequal_floats(["k"], ["x"], "from rows")
        assert (not connection.execute(query).fetchall()) == are_equal
