"""The time of a tick in the SQL of views: by rules and in full, each tick has the rows that DuckDB
finds with that time written out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaq import Producer, Topic
from deltaq.errors import InvalidConfig
from deltaq.store import Store, forget_memory_store, open_store
from deltaq.testing import ManualClock
from deltaq.views import Views, state
from deltaq.views.engine import engine
from deltaq.views.graph import mermaid
from deltaq.views.modes import Mode, ViewMode
from deltaq.views.program import ViewQuery, compiled
from tests.depth import depth, third
from tests.doubles.views import runner

ROOT = "memory://view-times"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
PEOPLE = pa.schema([("id", pa.int64()), ("since", pa.timestamp("us", "UTC"))])
PLACE = [("_partition", pa.int32()), ("_offset", pa.int64()), ("_key", pa.binary())]


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # State is merged, and sealed as sorted runs, after a few rows.
    monkeypatch.setattr(state, "MERGE_ROWS", 3)
    monkeypatch.setattr(state, "SEAL_ROWS", 5)
    monkeypatch.setattr(state, "PART_ROWS", 3)
    yield
    forget_memory_store("view-times")


# --- drawn SQL over drawn histories, on the engine ---

CONDITIONS = [
    "{e}.ts > {now} - interval 10 second",
    "{e}.ts <= {now} and {e}.ts > {now} - interval 5 second",
    "({e}.ts < {now} - interval 8 second or {e}.n > 1)",
    "{e}.k = 1 and {now} > {e}.ts + interval 3 second",
]
SHAPES = [
    "select e.k, e.n from events e where {where}",
    "select e.k as k, sum(e.n) as s, count(*) as c from events e where {where} group by e.k",
    "select count(*) as c, sum(e.n) as s from events e where {where}",
    "select distinct e.k from events e where {where} and e.n is not null",
    "select e.k, p.since from events e join people p on e.k = p.id where {where}",
    "select e.k, p.since from events e join people p on e.k = p.id and {where}",
    "select e.k, p.id from events e left join people p on e.k = p.id where {where}",
    "select e.k, p.id from events e right join people p on e.k = p.id where {where}",
    "select p.id from people p where exists (select 1 from events e where e.k = p.id and {where})",
    "select p.id from people p where p.id in (select e.k from events e where {where})",
    "select p.id from people p where {now} > p.since union all select e.k from events e",
    (
        "select e.k, max(e.ts) as m from events e group by e.k "
        "having max(e.ts) < {now} - interval 5 second and count(*) > 1"
    ),
    "select e.k, count(*) filter (where {where}) as c from events e group by e.k",
    "select e.k, {now} as t, count(*) as c from events e group by e.k",
    "select e.k, {now} - e.ts as age from events e where e.n > 0",
    "select e.k, u.t from events e, unnest([e.ts, {now}]) as u(t) where u.t <= {now}",
    "select u.t, {now} as time from events e, unnest([e.ts, {now}]) as u(t)",
    "select date_trunc('minute', {now}) as m, count(*) as c from events e group by 1",
    "select e.k, e.n, rank() over (partition by e.k order by e.ts > {now}) as r from events e",
    "select k from (select e.k as k, e.ts as ts from events e where {where}) where ts < {now}",
]
AS_TABLE = [
    "select e.k, e.n from events e, clock where {where}",
    "select e.k, e.n from clock, events e where {where}",
    "select e.k, e.n from events e join clock on {where}",
    "select e.k, e.n from events e cross join clock where {where} and e.n > 0",
    "select e.k, p.id from events e left join people p on e.k = p.id, clock where {where}",
    "select e.k, clock.now as t from events e, clock where {where}",
    "select e.k, clock.now - e.ts as age from events e left join clock on {where}",
    (
        "select p.id from people p, clock where exists "
        "(select 1 from events e where e.k = p.id and {where})"
    ),
    "select c.now as t from clock c",
    "select e.k, p.id from clock, events e join people p on e.k = p.id where {where}",
    "select clock.now as t, c.now as u from clock, clock c where clock.now <= c.now",
    "select k, c.now as t from events, clock c where ts in (select c.since from people c)",
    "select k, c.now as t from events, clock c where ts in (select c.since from (from people) c)",
    "select p.id, clock.now as t from events e cross join clock right join people p on e.k = p.id",
    "select clock.now as t, e.k from clock left join events e on e.k = 7",
    "select e.k, clock.now as t from events e left join clock on e.n > 1",
    (
        "select e.k, p.id from events e cross join clock "
        "left join people p on e.k = p.id and p.since < clock.now"
    ),
    (
        "select e.k, max(e.ts) as m from events e, clock group by e.k, clock.now "
        "having max(e.ts) < clock.now"
    ),
]


@st.composite
def queries(draw: st.DrawFn) -> str:
    if draw(st.booleans()):
        now = draw(st.sampled_from(["now()", "current_timestamp"]))
        shape = draw(st.sampled_from(SHAPES))
    else:
        now, shape = "clock.now", draw(st.sampled_from(AS_TABLE))
    where = draw(st.sampled_from(CONDITIONS)).format(e="e", now=now)
    return shape.format(where=where, now=now)


@dataclass(frozen=True)
class Step:
    """What comes, by how many milliseconds the time moves on, and whether it is published."""

    events: list[tuple[int, int | None, int | None]]
    people: list[tuple[int, int]]
    passed_ms: int
    is_published: bool


small = st.sampled_from([0, 1, 1, 2])
steps = st.lists(
    st.builds(
        Step,
        # Seconds from the begin: some rows are late, some ahead of the clock.
        st.lists(st.tuples(small, st.sampled_from([None, 0, 1, 2]), st.sampled_from(
            [None, *range(-10, 31, 2)])), max_size=4),
        st.lists(st.tuples(small, st.integers(-5, 25)), max_size=2),
        st.sampled_from([0, 400, 1000, 3000, 7500, -2000]),
        st.sampled_from([True, True, True, False]),
    ),
    min_size=2,
    max_size=7,
)  # fmt: skip


def with_place(columns: pa.Schema) -> pa.Schema:
    return pa.schema([*columns, *(pa.field(*of) for of in PLACE)])


def at(second: int | None) -> datetime | None:
    return None if second is None else BEGIN + timedelta(seconds=second)


def written_out(sql: str, time: datetime) -> str:
    """The SQL with a time in the place of all that names it."""
    literal = f"timestamptz '{time.isoformat()}'"
    sql = re.sub(r"now\(\)|current_timestamp", literal, sql)
    if "with clock" in sql:
        return sql
    named = f"(select {literal} as now) as clock"
    return re.sub(r"\bclock\b(?!\.)", named, sql).replace(" as clock c", " as c")


def run(
    sql: str, history: Sequence[Step], wanted: Mapping[str, Mode] | None = None
) -> dict[str, ViewMode]:
    """Keep a view in both modes, and one over it, and compare them in each tick."""
    program = compiled(
        "g",
        [
            ViewQuery("v", sql),
            ViewQuery("f", sql),
            ViewQuery("over", "select count(*) as n from v"),
        ],
    )
    modes: Mapping[str, Mode] = wanted or {"v": "incremental", "over": "incremental"}
    events: list[dict[str, Any]] = []
    people: list[dict[str, Any]] = []
    time_ms, offset = int(BEGIN.timestamp() * 1000), 0
    seen: dict[str, Counter[Any]] = {view.name: Counter() for view in program.views}
    columns = {"events": with_place(EVENTS), "people": with_place(PEOPLE)}
    with engine(program, modes) as found:
        for name in program.inputs:
            found.create_input(name, columns[name], is_keyed=False)
        is_first = True
        for step in history:
            new = {
                "events": [{"k": k, "n": n, "ts": at(ts)} for k, n, ts in step.events],
                "people": [{"id": number, "since": at(ts)} for number, ts in step.people],
            }
            events += new["events"]
            people += new["people"]
            for name in program.inputs:
                for row in new[name]:
                    offset += 1
                    row |= {"_partition": 0, "_offset": offset, "_key": None}
                rows = pa.Table.from_pylist(new[name], columns[name])
                found.add_rows(name, columns[name], rows.to_batches())
            time_ms += step.passed_ms
            found.set_time(time_ms)
            found.evaluate()
            if is_first:
                for view in program.views:
                    found.restore(view.name, found.columns(view.name).empty_table())
                is_first = False
            if not step.is_published:
                continue
            for view in program.views:
                changes = found.changes(view)
                seen[view.name].update(_counted(changes.come))
                seen[view.name].subtract(_counted(changes.gone))
                assert all(count >= 0 for count in seen[view.name].values()), (view, sql)
            found.accept()
            wanted_rows = expected(sql, events, people, time_ms)
            assert +seen["v"] == +seen["f"] == wanted_rows, (sql, time_ms)
            assert +seen["over"] == Counter([(("n", wanted_rows.total()),)])
        return found.modes


def _counted(rows: pa.Table) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for row in rows.to_pylist():
        weight = row.pop("weight", 1)
        found[tuple((name, v) for name, v in row.items() if name != "_key")] += weight
    return found


def expected(
    sql: str, events: list[dict[str, Any]], people: list[dict[str, Any]], time_ms: int
) -> Counter[Any]:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("set TimeZone = 'UTC'")
        connection.register("events", pa.Table.from_pylist(events, EVENTS))
        connection.register("people", pa.Table.from_pylist(people, PEOPLE))
        text = written_out(sql, datetime.fromtimestamp(time_ms // 1000, UTC))
        query = f"select * replace ({_texts(connection, text)}) from ({text})"
        return _counted(connection.execute(query).arrow().read_all())


def _texts(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Columns in the form in which topics have them."""
    columns = connection.execute(f"describe {sql}").fetchall()
    changed = [
        f"cast({name} as {'varchar' if kind == 'INTERVAL' else 'decimal(38,0)'}) as {name}"
        for name, kind, *_ in columns
        if kind in ("INTERVAL", "HUGEINT")
    ]
    return ", ".join(changed or [f"{columns[0][0]} as {columns[0][0]}"])


@settings(
    max_examples=depth(12, 4000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    deadline=None,
)
@given(queries(), steps)
def test_views_over_the_time_of_the_tick_are_right_by_rules_and_in_full(
    sql: str, history: list[Step]
):
    run(sql, history)


HISTORY = [
    Step([], [], 0, True),
    Step([(1, 2, 0), (1, None, 4), (2, 1, -3), (0, 0, None)], [(1, 0), (2, 9)], 0, True),
    Step([], [], 2000, True),
    Step([(1, 1, 1)], [], 9000, False),
    Step([(2, 2, 30)], [(0, 30)], 4000, True),
    Step([], [], 30_000, True),
    Step([(1, 2, 40)], [], -20_000, True),
]


@pytest.mark.parametrize("mode", ["incremental", "full"])
@pytest.mark.parametrize("shape", third([*SHAPES, *AS_TABLE]))
def test_each_way_to_read_the_time_is_right(shape: str, mode: Mode):
    now = "now()" if shape in SHAPES else "clock.now"
    sql = shape.format(where=CONDITIONS[1].format(e="e", now=now), now=now)
    found = run(sql, HISTORY, {"v": mode})["v"]
    has_rules = not re.search("left join clock|from clock left join|select c.since", sql)
    assert found.by_rules == (mode == "incremental" and has_rules), found.refused


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (
            "select e.k, p.id from events e left join people p on e.k = p.id and p.since < now()",
            "the time of the tick in the condition of an outer join",
        ),
        (
            "select clock.now as t, k from clock left join events on k = 7",
            "LEFT JOIN without an equality",
        ),
        ("select e.k from events e where now() in (select since from people)", "its rules fail"),
        (
            "select k from (select k, n current_timestamp from events) where current_timestamp = 1",
            "a column named current_timestamp",
        ),
        (
            "select k from (select k, n as _now from events where ts < now())",
            "a column named '_now'",
        ),
    ],
)
def test_what_has_no_rule_over_the_time_is_evaluated_in_full(sql: str, reason: str):
    program = compiled("g", [ViewQuery("v", sql)])
    with engine(program, {"v": "incremental"}) as found:
        for name, schema in (("events", EVENTS), ("people", PEOPLE)):
            if name in program.inputs:
                columns = with_place(schema)
                found.create_input(name, columns, is_keyed=False)
        found.set_time(0)
        found.evaluate()
        found.restore("v", found.columns("v").empty_table())
        found.accept()
        assert reason in found.modes["v"].refused


def test_a_table_of_the_query_that_is_named_clock_is_no_clock():
    sql = (
        "with clock as (select k, max(ts) as now from events group by k) "
        "select e.k, e.n from events e, clock where e.ts = clock.now"
    )
    assert not compiled("g", [ViewQuery("v", sql)]).reads_clock
    assert run(f"{sql} and clock.now < now() - interval 1 second", HISTORY)["v"].by_rules


def test_rules_touch_only_the_rows_for_which_time_decides_otherwise_than_before():
    sql = "select k, n from events where ts > now() - interval 10 second"
    program = compiled("g", [ViewQuery("v", sql)])
    columns = with_place(EVENTS)
    rows = [
        {"k": second, "n": 1, "ts": at(second), "_partition": 0, "_offset": second, "_key": None}
        for second in range(100)
    ]
    begin_ms = int(BEGIN.timestamp() * 1000)
    with engine(program, {"v": "incremental"}) as found:
        found.create_input("events", columns, is_keyed=False)
        found.add_rows("events", columns, pa.Table.from_pylist(rows, columns).to_batches())
        found.set_time(begin_ms + 50_000)
        found.evaluate()
        found.restore("v", found.columns("v").empty_table())
        assert found.changes(program.views[0]).come.num_rows == 59
        found.accept()
        assert found.rules("v") == (
            ("at the time of the tick", "ts > now() - INTERVAL '10' SECOND"),
        )
        found.set_time(begin_ms + 50_999)
        assert found.query("from change.clock").num_rows == 0
        found.set_time(begin_ms + 53_000)
        found.evaluate()
        (changed,) = found.query("select count(*) as n from rule.change_v_2").to_pylist()
        assert changed == {"n": 3}
        assert sorted(found.changes(program.views[0]).gone["k"].to_pylist()) == [41, 42, 43]


# --- groups ---


def written(*rows: tuple[int, int]) -> None:
    """Write events: a number, and seconds from the begin."""
    with Producer(bootstrap_servers=ROOT) as producer:
        for k, second in rows:
            producer.produce("events", {"k": k, "n": 1, "ts": at(second)})


def recent(store: Store, clock: ManualClock, mode: Mode = "auto") -> Views:
    views = Views("g", store=store, clock=clock)
    views.view("recent", "select k from events where ts > now() - interval 1 minute", mode=mode)
    views.view("time", "select now as t from clock", mode=mode)
    return views


def a_clock() -> ManualClock:
    return ManualClock(start_ms=int(BEGIN.timestamp() * 1000), auto_advance=True)


def keys(views: Views, tick: int | None = None) -> list[int]:
    return sorted(views.read(tick)["recent"].to_arrow()["k"].to_pylist())


def time(views: Views, tick: int | None = None) -> datetime:
    (row,) = views.read(tick)["time"].to_arrow().to_pylist()
    found = row["t"]
    assert isinstance(found, datetime)
    return found


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_group_that_reads_the_clock_has_a_tick_when_it_shows_a_later_second(mode: Mode):
    Topic("events", EVENTS, bootstrap_servers=ROOT).create()
    clock = a_clock()
    views = recent(open_store(ROOT), clock, mode)
    written((1, 0), (2, 40))
    with runner(views) as running:
        first = running.tick()
        assert first is not None
        begin = first.time_ms
        assert running.tick() is None or running.last != first
        clock.advance(45)
        running.tick()
        assert keys(views) == [1, 2]
        clock.advance(45)
        third = running.tick()
        assert third is not None
        assert third.inputs == first.inputs
        assert keys(views) == [2]
        written((3, 50))
        clock.advance(1)
        running.tick()
        assert keys(views) == [2, 3]
    assert views.check() == []
    for number in range(1, views.read().tick + 1):
        cut = views.read(number)
        assert time(views, number) == datetime.fromtimestamp(cut.published.time_ms // 1000, UTC)
        with_sql = cut.sql("select k from events where ts > now() - interval 1 minute")
        assert sorted(with_sql["k"].to_pylist()) == keys(views, number)
    assert begin // 1000 * 1000 == time(views, 1).timestamp() * 1000


def test_a_group_without_the_clock_has_no_tick_because_of_time():
    Topic("events", EVENTS, bootstrap_servers=ROOT).create()
    clock = a_clock()
    views = Views("g", store=open_store(ROOT), clock=clock)
    views.view("v", "select k from events")
    with runner(views) as running:
        running.tick()
        clock.advance(10)
        assert running.tick() is None


def test_the_clock_shows_whole_seconds_and_has_one_tick_in_each():
    Topic("events", EVENTS, bootstrap_servers=ROOT).create()
    clock = ManualClock(start_ms=int(BEGIN.timestamp() * 1000) + 200)
    views = recent(open_store(ROOT), clock)
    with runner(views) as running:
        assert running.tick() is not None
        assert time(views) == BEGIN
        clock.advance(0.7)
        assert running.tick() is None
        written((1, 0))
        assert running.tick() is not None
        assert time(views) == BEGIN
        clock.advance(0.1)
        assert running.tick() is not None
        assert time(views) == BEGIN + timedelta(seconds=1)


def test_the_clock_never_goes_back():
    Topic("events", EVENTS, bootstrap_servers=ROOT).create()
    store, clock = open_store(ROOT), a_clock()
    with runner(recent(store, clock)) as running:
        tick = running.tick()
    assert tick is not None
    behind = ManualClock(start_ms=tick.time_ms - 60_000)
    views = recent(store, behind)
    with runner(views) as running:
        assert running.tick() is None
        written((1, 0))
        later = running.tick()
        assert later is not None
        assert later.time_ms == tick.time_ms
        behind.advance(62)
        assert running.tick() is not None
    assert time(views, 3) > time(views, 2) == time(views, 1)
    assert views.check() == []


def test_a_topic_that_is_named_clock_is_refused_where_the_sql_names_it():
    Topic("events", EVENTS, bootstrap_servers=ROOT).create()
    Topic("Clock", EVENTS, bootstrap_servers=ROOT).create()
    views = recent(open_store(ROOT), a_clock())
    with pytest.raises(InvalidConfig, match=r"view 'time' reads 'clock'.* a topic 'Clock'"):
        views.run(until="now")
    with pytest.raises(InvalidConfig, match="view 'time' reads 'clock'"):
        views.explain()
    views = Views("g", ROOT)
    views.view("v", "select k from events where ts > now()")
    views.run(until="now")
    assert views.check() == []


def test_a_view_cannot_be_named_clock():
    views = Views("g", ROOT)
    views.view("Clock", "select 1 as a")
    with pytest.raises(InvalidConfig, match="not 'ticks' or 'clock'"):
        _ = views.program


def test_a_view_reads_the_clock():
    views = Views("g", ROOT)
    views.view("v", "select k from events, Clock where ts > clock.now")
    views.view("w", "select k from events where ts > CURRENT_TIMESTAMP")
    views.view("x", "select count(*) as n from w")
    assert {view.name: view.reads for view in views.program.views} == {
        "v": ("clock", "events"),
        "w": ("clock", "events"),
        "x": ("w",),
    }
    assert views.program.inputs == ("events",)
    lines = mermaid(views.program).splitlines()
    assert "  clock((clock))" in lines
    assert sum("clock -->" in line for line in lines) == 2


def test_rules_over_the_time_are_explained():
    Topic("events", EVENTS, bootstrap_servers=ROOT).create()
    views = recent(open_store(ROOT), a_clock(), "incremental")
    views.view("ages", "select k, count(*) as n, now() as t from events group by k")
    views.view("all", "select count(*) as n, now() as t from events")
    assert {str(found) for found in views.explain()} == {
        "recent: by rules: at the time of the tick (ts > now() - INTERVAL '1' MINUTE)",
        "time: by rules: map",
        "ages: by rules where that is quicker: aggregate (k), join (the time of the tick)",
        "all: by rules where that is quicker: aggregate (all rows), join (the time of the tick)",
    }


def test_a_runner_goes_on_from_a_checkpoint_at_a_later_time():
    Topic("events", EVENTS, bootstrap_servers=ROOT).create()
    store, clock = open_store(ROOT), a_clock()
    views = recent(store, clock, "incremental")
    written((1, 0), (2, 40))
    with runner(views) as running:
        running.tick()
        clock.advance(1)
        running.tick()
    # It publishes a tick after the checkpoint, and ends without another one.
    running = runner(views).__enter__()
    clock.advance(30)
    written((3, 70))
    running.tick()
    running.__exit__(ZeroDivisionError)
    clock.advance(40)
    with runner(views) as running:
        running.tick()
        assert running._engine is not None
        assert running._engine.by_rules() == {"recent": True, "time": True}
        assert keys(views) == [2, 3]
        clock.advance(55)
        running.tick()
        assert keys(views) == [3]
    assert views.check() == []
