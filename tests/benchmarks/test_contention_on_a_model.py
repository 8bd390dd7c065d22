"""Producers of one topic on a simulated clock wait for requests alone; a lost or doubled message is
noticed.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.contention_model import (
    QUICKER_STORE,
    Contended,
    ModelPlan,
    OnAModel,
    measure_on_a_model,
)
from benchmarks.distribution import distribution

PLAN = ModelPlan((1, 3), rate=50, seconds=1.0, seeds=1, models=(QUICKER_STORE,))


def contended(producers: int, p99_ms: float) -> Contended:
    return Contended(producers, distribution([int(p99_ms * 1e6)]), 30, is_complete=True)


def test_producers_wait_for_requests_alone_and_repeat_from_their_seed() -> None:
    lines: list[str] = []
    found = measure_on_a_model(PLAN, lines.append)
    alone, three = found.found[QUICKER_STORE.name]
    assert found.is_clean
    assert lines == ["contention on a model: a quicker store"]
    assert (alone.acknowledged.count, three.acknowledged.count) == (50, 150)
    put_ms = QUICKER_STORE.latencies["PUT"].p50
    assert 1.5 * put_ms < alone.acknowledged.p50 <= three.acknowledged.p50, (
        "an upload, then a create"
    )
    assert measure_on_a_model(PLAN, lines.append) == found


def test_the_tail_of_many_producers_is_compared_with_that_of_one_producer() -> None:
    found = OnAModel(
        replace(PLAN, seeds=2),
        {"store": (contended(1, 10), contended(1, 30), contended(3, 100), contended(3, 160))},
    )
    (table,) = found.tables()
    assert [row[2:] for row in table.rows] == [("20", "20", "1.0"), ("130", "130", "6.5")]
    (target,) = found.targets()
    assert (target.name, target.met) == ("p99 of 3 producers/one's, store", True)
    assert not next(
        iter(replace(found, found={"store": (contended(1, 10), contended(3, 81))}).targets())
    ).met


def test_a_message_that_is_not_there_once_makes_the_figures_void() -> None:
    found = OnAModel(
        PLAN, {"store": (contended(1, 10), replace(contended(3, 10), is_complete=False))}
    )
    assert not found.is_clean
    assert "LOST" in next(iter(found.tables())).title
