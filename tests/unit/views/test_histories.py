"""Views of many shapes over random histories: each tick equals DuckDB's own result over the same
rows, which a plain Python model keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaq import Producer, Topic
from deltaq.store import MemoryStore
from deltaq.views import Views
from deltaq.views.modes import Mode
from tests.depth import depth
from tests.doubles.views import runner

EVENTS = pa.schema([("k", pa.int64()), ("s", pa.string()), ("n", pa.int64()), ("x", pa.float64())])
PEOPLE = pa.schema([("id", pa.int64()), ("city", pa.string())])

SHAPES = {
    "plain": "select k, n from events where n > 1",
    "doubled": "select k, s from events union all select k, s from events",
    "sums": "select k, sum(n) as total, count(*) as c, count(n) as m from events group by k",
    "extremes": "select s, min(n) as low, max(x) as high, avg(n) as mean from events group by s",
    "filtered": "select k, sum(n) filter (where n > 1) as f from events group by k",
    "crowded": "select k, count(*) as c from events group by k having count(*) > 1",
    "one_row": "select sum(n) as total, count(distinct k) as keys from events",
    "distinct_rows": "select distinct k, s from events",
    "by_two": "select k, s, sum(n) as total from events group by all",
    "joined": "select e.n, p.city from events e join people p on e.k = p.id",
    "kept": "select e.k, e.n, p.city from events e left join people p on e.k = p.id",
    "full_join": "select a.k as a, b.id as b from sums a full join people b on a.k = b.id",
    "cities": "select city, count(*) as n from people group by city",
    "per_city": "select city, sum(total) as t from sums join people on k = id group by city",
    "known": "select k, n from events where exists (select 1 from people where id = k)",
    "unknown": "select k from events where k not in (select id from people)",
    "common": "select k from events intersect select id from people",
    "missing": "select id from people except all select k from events",
    "ranked": "select k, n, rank() over (partition by k order by n desc) as r from events",
    "running": "select k, n, sum(n) over (partition by k order by n) as r from events",
    "top": "select k, total from sums order by total desc, k limit 2",
    "of_top": "select sum(total) as t, count(*) as c from top",
    "names": "select k, string_agg(s order by s) as all_names from events group by k",
    "with_cte": "with big as (select * from sums where total > 2) select count(*) as n from big",
    "scalar": "select k, total - (select avg(total) from sums) as above from sums",
}

small = st.one_of(st.none(), st.integers(0, 3))
events = st.builds(
    lambda k, s, n, x: {"k": k, "s": s, "n": n, "x": x},
    st.integers(0, 3),
    st.one_of(st.none(), st.sampled_from("ab")),
    small,
    st.one_of(st.none(), st.sampled_from([0.5, 1.25, -2.0])),
)
people = st.tuples(st.integers(0, 3), st.one_of(st.none(), st.sampled_from("uv")))
"""A person, or with None a tombstone."""
steps = st.lists(
    st.tuples(st.lists(events, max_size=6), st.lists(people, max_size=4), st.booleans()),
    min_size=1,
    max_size=4,
)
"""Before each tick what is written, and whether the runner is a new one."""


NEEDED = {
    "full_join": ["sums"],
    "per_city": ["sums"],
    "top": ["sums"],
    "of_top": ["sums", "top"],
    "with_cte": ["sums"],
    "scalar": ["sums"],
}


def some_shapes(store: MemoryStore, chosen: Mapping[str, Mode]) -> Views:
    views = Views("g", store=store)
    for name in dict.fromkeys([*chosen, *(other for of in chosen for other in NEEDED.get(of, []))]):
        views.view(name, SHAPES[name], mode=chosen.get(name, "incremental"))
    return views


def batch(
    views: Views, rows: list[dict[str, Any]], living: dict[int, str]
) -> dict[str, Counter[tuple[Any, ...]]]:
    """All views by DuckDB, each as a view over the others."""
    with duckdb.connect(config={"threads": 1}) as connection:
        there = [{"id": number, "city": city} for number, city in living.items()]
        connection.register("e", pa.Table.from_pylist(rows, EVENTS))
        connection.register("p", pa.Table.from_pylist(there, PEOPLE))
        connection.execute("create table events as from e; create table people as from p")
        for view in views.program.views:
            connection.execute(f"create view {view.name} as {view.sql}")
        return {
            view.name: Counter(map(_plain, connection.execute(f"from {view.name}").fetchall()))
            for view in views.program.views
        }


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(int(v) if isinstance(v, Decimal) and v == int(v) else v for v in row)


@settings(max_examples=depth(3, 400), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(SHAPES)),
        st.sampled_from(["incremental", "full"]),
        min_size=3,
        max_size=6,
    ),
    steps,
)
def test_each_tick_equals_the_batch_over_its_cut(chosen, history):
    store = MemoryStore(uuid4().hex)
    conf = {"bootstrap.servers": store.url}
    Topic("events", EVENTS, store=store, partitions=2).create()
    Topic("people", PEOPLE, store=store, config={"cleanup.policy": "compact"}).create()
    rows: list[dict[str, Any]] = []
    living: dict[int, str] = {}
    expected = {}
    views, running = some_shapes(store, chosen), None
    for new_events, new_people, is_new in history:
        with Producer(conf, store=store) as producer:
            for row in new_events:
                producer.produce("events", row)
            for number, city in new_people:
                value = None if city is None else {"id": number, "city": city}
                producer.produce("people", value, key=str(number))
        rows += new_events
        for number, city in new_people:
            living.pop(number, None)
            if city is not None:
                living[number] = city
        if running is None or is_new:
            if running is not None:
                running.__exit__()
            running = runner(views).__enter__()
        running.tick()
        assert running.last is not None
        expected[running.last.number] = batch(views, rows, living)
    assert running is not None
    running.__exit__()
    assert views.check() == []
    for number, by_view in expected.items():
        cut = views.read(number)
        for name, counted in by_view.items():
            found = cut[name].to_arrow().to_pylist()
            assert Counter(_plain(tuple(row.values())) for row in found) == counted, (number, name)
