"""When a view is evaluated in full, and when by rules."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.maintenance.run import Maintenance
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.store import forget_memory_store, open_store
from deltaq.views import Views
from deltaq.views.engine import ViewEngine
from deltaq.views.modes import RELOAD, TRIAL_TICKS, TRY_S, Mode, ViewMode, are_outgrown
from tests.depth import depth
from tests.doubles.views import runner

ROOT = "memory://modes"


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    yield
    forget_memory_store("modes")


def ticks(
    mode: ViewMode, *, full_s: float, rules_s: float, count: int, rows: int = 1000
) -> list[bool]:
    """Spend that time in ticks; for each, whether it was by rules."""
    found = []
    for _ in range(count):
        found.append(mode.by_rules)
        mode.spent(rules_s if mode.by_rules else full_s, rows)
        mode.by_rules = mode.decided()
    return found


def test_a_mode_that_is_given_is_kept():
    assert ticks(ViewMode("full"), full_s=9.0, rules_s=0.1, count=3) == [False] * 3
    given = ViewMode("incremental")
    assert ticks(given, full_s=0.1, rules_s=9.0, count=3) == [False, True, True]
    assert given.stays_by_rules


def test_a_view_without_rules_stays_in_full():
    for wanted in ("incremental", "auto"):
        mode = ViewMode(wanted, refused="LIMIT")
        assert ticks(mode, full_s=9.0, rules_s=0.1, count=3) == [False] * 3
        assert not mode.stays_by_rules


def test_rules_are_not_tried_for_a_view_that_takes_no_time():
    assert not any(ticks(ViewMode("auto"), full_s=TRY_S / 2, rules_s=0.0, count=30))


def test_rules_that_are_quicker_stay_after_a_trial():
    mode = ViewMode("auto")
    assert ticks(mode, full_s=2 * TRY_S, rules_s=TRY_S, count=1) == [False]
    assert ticks(mode, full_s=0.0, rules_s=TRY_S, count=TRIAL_TICKS - 1) == [True] * 7
    assert not mode.stays_by_rules
    assert ticks(mode, full_s=0.0, rules_s=TRY_S, count=30) == [True] * 30
    assert mode.stays_by_rules


def test_rules_that_are_slower_are_tried_again_when_a_view_takes_twice_as_long():
    mode = ViewMode("auto")
    spent = ticks(mode, full_s=TRY_S, rules_s=3 * TRY_S, count=40)
    assert spent == [False] + [True] * TRIAL_TICKS + [False] * 31
    assert not any(ticks(mode, full_s=1.9 * TRY_S, rules_s=0.0, count=5))
    assert ticks(mode, full_s=2 * TRY_S, rules_s=0.0, count=3) == [False, True, True]


def test_one_slow_tick_does_not_end_a_trial():
    mode = ViewMode("auto")
    ticks(mode, full_s=2 * TRY_S, rules_s=0.0, count=1)
    ticks(mode, full_s=0.0, rules_s=100.0, count=1)
    assert ticks(mode, full_s=0.0, rules_s=TRY_S, count=20) == [True] * 20


def by_rules(wanted: Mode) -> ViewMode:
    """A view that stays by rules, and took TRY_S in full with 1000 rows."""
    mode = ViewMode(wanted)
    ticks(mode, full_s=TRY_S, rules_s=0.0, count=1 + TRIAL_TICKS)
    assert mode.stays_by_rules
    return mode


def outgrown(*modes: ViewMode, rules_s: float, count: int, rows: int = 1000) -> bool:
    for mode in modes:
        ticks(mode, full_s=0.0, rules_s=rules_s, count=count, rows=rows)
    return are_outgrown(modes, rows)


def test_rules_that_have_become_slow_end_when_that_has_cost_as_much_as_to_load_the_inputs():
    assert not outgrown(by_rules("auto"), rules_s=3 * TRY_S, count=RELOAD // 2)
    assert outgrown(by_rules("auto"), rules_s=3 * TRY_S, count=RELOAD // 2 + 1)
    # Both are loaded, and one of them saves.
    some = by_rules("auto"), by_rules("incremental")
    assert not outgrown(*some, rules_s=3 * TRY_S, count=RELOAD - 1)
    assert outgrown(*some, rules_s=3 * TRY_S, count=2)


def test_rules_that_were_chosen_do_not_end():
    assert not outgrown(by_rules("incremental"), rules_s=9.0, count=1000)


def test_ticks_that_rules_make_quickly_make_good_for_slow_ones():
    mode = by_rules("auto")
    for _ in range(10):
        assert not outgrown(mode, rules_s=3 * TRY_S, count=10)
        assert not outgrown(mode, rules_s=TRY_S / 2, count=40)


def test_a_full_evaluation_is_taken_to_last_longer_where_there_are_more_rows():
    assert not outgrown(by_rules("auto"), rules_s=3 * TRY_S, count=1000, rows=3000)
    assert outgrown(by_rules("auto"), rules_s=4 * TRY_S, count=100, rows=3000)


def test_rules_of_a_checkpoint_end_by_the_cost_that_it_has():
    for cost, expected in (((TRY_S, 1000), True), ((0.0, 0), False)):
        resumed = ViewMode("auto", by_rules=True)
        resumed.resume(cost)
        assert outgrown(resumed, rules_s=3 * TRY_S, count=RELOAD) == expected


def test_a_group_that_has_outgrown_its_rules_begins_again_in_full():
    Topic("t", pa.schema([("a", pa.int64())]), bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    views.view("v", "select a, count(*) as n from t group by a", mode="incremental")
    ruled, starts = [], []
    with runner(views) as running:
        for number in range(6):
            with Producer(bootstrap_servers=ROOT) as producer:
                producer.produce("t", {"a": number % 3})
            if number == 4:
                running._save()
            tick = running.tick()
            assert tick is not None
            engine = running._engine
            if isinstance(engine, ViewEngine):
                assert engine.full_cost().rows == {"t": number + 1}
                mode = engine.modes["v"]
                if number == 3:
                    mode.wanted = "auto"
                    mode.resume((1e-9, 1))
            ruled.append(tick.ruled)
            starts.append(engine is None)
            assert views.check() == []
    assert ruled == [(), ("v",), ("v",), ("v",), ("v",), ()]
    assert starts == [False] * 4 + [True, False]


FLOATS = {
    "only": "select sum(d) as s from t group by a",
    "keyed": "select a, avg(d) as s, max(d) as m, sum(n) as i from t group by a",
    "behind": "select count(*) as n, max(s) as m from keyed",
    "each": "select n, sum(d) over (partition by a) as w from t",
    "whole": "select n, avg(d) over () as w from t",
    "running": "select n, sum(d) over (partition by a order by n) as w from t",
    "some": "select a, sum(d) filter (n > 3) as s, sum(distinct d) as u from t group by a",
    "moments": "select a, stddev(d) as s, covar_pop(d, n + d) as c from t group by a",
}
IN_FULL = "select a, s from keyed where a not in (select a from t group by a having product(d) > 2)"


@pytest.mark.parametrize("way", ["one runner", "a runner for each tick", "with a view in full"])
@pytest.mark.parametrize("seed", range(depth(1, 30)))
def test_views_of_floats_keep_no_row_whose_last_digits_were_others(way: str, seed: int):
    """Sums of floats depend on the order of the rows, and rules have them in another one."""
    chance = random.Random(seed)
    columns = pa.schema([("a", pa.int64()), ("d", pa.float64()), ("n", pa.int64())])
    policy = {"cleanup.policy": "compact"} if seed % 2 else {}
    Topic("t", columns, config=policy, bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    for name, sql in FLOATS.items():
        views.view(name, sql, mode="incremental")
    if way == "with a view in full":
        views.view("in_full", IN_FULL, mode="incremental")
    # In this order the sum is 1.5000000000000002, and in that of the values 1.5.
    first = [{"a": 1, "d": d, "n": n} for d, n in ((1.1, 3), (0.1, 4), (0.3, 4))]
    with Producer(bootstrap_servers=ROOT) as producer:
        for number, row in enumerate(first):
            producer.produce("t", row, str(number))
    with ExitStack() as open_:
        running = open_.enter_context(runner(views)) if way == "one runner" else None
        for _ in range(4):
            tick = views.run(until="now") if running is None else running.tick()
            assert views.check() == []
            with Producer(bootstrap_servers=ROOT) as producer:
                for _ in range(chance.randint(1, 4)):
                    d = chance.choice([0.1, 0.2, 0.3, 0.7, 1.1])
                    row = {"a": chance.randrange(3), "d": d, "n": chance.randrange(9)}
                    producer.produce("t", row, str(chance.randrange(9)))
    assert tick is not None
    if way == "one runner":
        assert {*tick.ruled} == {*FLOATS}


def test_rows_that_other_rules_have_keep_their_last_digits():
    Topic("t", pa.schema([("d", pa.float64())]), bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    views.view("sums", "select sum(d) as s from t group by d > 5", mode="full")
    views.view("count", "select count(*) as n, max(s) as m from sums", mode="incremental")
    with runner(views, moves_with_retention=True) as running:
        for number in (1.1, 0.1, 0.3, 0.7):
            with Producer(bootstrap_servers=ROOT) as producer:
                producer.produce("t", {"d": number})
            running.tick()
            assert isinstance(running._engine, ViewEngine)
            mode = running._engine.modes["sums"]
            if number == 0.1:
                mode.wanted = "incremental"
            assert views.check() == []
        assert "last digits" in mode.refused
        assert views.read()["count"].to_arrow()["n"].to_pylist() == [1]


def test_a_checkpoint_from_before_a_view_was_in_full_is_not_used_for_its_floats():
    Topic("t", pa.schema([("d", pa.float64())]), bootstrap_servers=ROOT).create()
    # At the third tick the sum is 1.5000000000000002 in full, and 1.5 by rules.
    steps: list[tuple[float, Mode]] = [
        (1.1, "incremental"),
        (0.1, "incremental"),
        (0.3, "full"),
        (0.7, "incremental"),
        (0.2, "incremental"),
    ]
    for number, mode in steps:
        with Producer(bootstrap_servers=ROOT) as producer:
            producer.produce("t", {"d": number})
        views = Views("g", ROOT)
        views.view("v", "select sum(d) as s from t group by d > 5", mode=mode)
        views.run(until="now")
        assert views.check() == []


def test_floats_of_a_view_in_full_leave_no_row_when_a_new_runner_has_them_in_another_order():
    """Maintenance has merged files, so that a new runner reads one partition after the other."""
    assert 0.1 + 0.3 + 0.7 != 0.1 + 0.7 + 0.3
    Topic("t", pa.schema([("d", pa.float64())]), bootstrap_servers=ROOT, partitions=2).create()
    views = Views("g", ROOT)
    views.view("sums", "select sum(d) as s from t group by d > 5", mode="full")
    views.view("counts", "select count(*) as n from t", mode="incremental")
    with runner(views) as running, Producer(bootstrap_servers=ROOT) as producer:
        for d, partition in ((0.1, 0), (0.3, 1), (0.7, 0)):
            producer.produce("t", {"d": d}, partition=partition)
            producer.flush()
            running.tick()
        running._save()
        store = open_store(ROOT)
        settings = MaintenanceSettings(merge_files=2)
        assert Maintenance(store, settings=settings).round()["files merged"]
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce("t", {"d": 1.1}, partition=0)
    views.run(until="now")
    assert views.check() == []


def test_a_view_that_is_in_full_again_keeps_no_row_whose_last_digits_were_others():
    Topic("t", pa.schema([("d", pa.float64())]), bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    views.view("v", "select sum(d) as s from t group by d > 5", mode="incremental")
    by_rules = []
    with runner(views, moves_with_retention=True) as running:
        for number in (0.7, 0.1, 0.2, 0.3, 0.1):
            with Producer(bootstrap_servers=ROOT) as producer:
                producer.produce("t", {"d": number})
            tick = running.tick()
            assert tick is not None
            by_rules.append(bool(tick.ruled))
            assert views.check() == []
            engine = running._engine
            assert isinstance(engine, ViewEngine)
            if len(by_rules) == 2:
                engine.modes["v"].wanted = "full"
    assert by_rules == [False, True, True, False, False]
