"""A crowd of producers on a simulated clock waits for requests alone; a lost or doubled message is noticed."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.crowd import QUICKER_STORE, Crowd, CrowdPlan, Crowds, measure_crowds
from benchmarks.distribution import distribution

PLAN = CrowdPlan((1, 3), rate=50, seconds=1.0, seeds=1, models=(QUICKER_STORE,))


def crowd(producers: int, p99_ms: float) -> Crowd:
    return Crowd(producers, distribution([int(p99_ms * 1e6)]), 30, is_complete=True)


def test_a_crowd_waits_for_requests_alone_and_repeats_from_its_seed() -> None:
    lines: list[str] = []
    found = measure_crowds(PLAN, lines.append)
    alone, three = found.found[QUICKER_STORE.name]
    assert found.is_clean
    assert lines == ["crowd: a quicker store"]
    assert (alone.acknowledged.count, three.acknowledged.count) == (50, 150)
    put_ms = QUICKER_STORE.latencies["PUT"].p50
    assert 1.5 * put_ms < alone.acknowledged.p50 <= three.acknowledged.p50, "an upload, then a create"
    assert measure_crowds(PLAN, lines.append) == found


def test_the_tail_of_a_crowd_is_compared_with_that_of_one_producer() -> None:
    found = Crowds(replace(PLAN, seeds=2), {"store": (crowd(1, 10), crowd(1, 30), crowd(3, 100), crowd(3, 160))})
    (table,) = found.tables()
    assert [row[2:] for row in table.rows] == [("20", "20", "1.0"), ("130", "130", "6.5")]
    (target,) = found.targets()
    assert (target.name, target.met) == ("p99 of 3 producers/one's, store", True)
    assert not next(iter(replace(found, found={"store": (crowd(1, 10), crowd(3, 81))}).targets())).met


def test_a_message_that_is_not_there_once_makes_the_figures_void() -> None:
    found = Crowds(PLAN, {"store": (crowd(1, 10), replace(crowd(3, 10), is_complete=False))})
    assert not found.is_clean
    assert "LOST" in next(iter(found.tables())).title
