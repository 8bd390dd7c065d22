"""Queues are measured as a whole, and what is reckoned from the measurements is right."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.distribution import distribution
from benchmarks.queues import (
    KINDS,
    QUICK_QUEUES,
    QueuePast,
    QueueRate,
    Queues,
    QueuesPlan,
    QueueWait,
    Worked,
    measure_queues,
    rate_of,
)
from benchmarks.suite import Place

RATE = QueueRate("deltaq", 100, 0, 0, 50.0)


def found(**parts: Any) -> Queues:
    return replace(Queues(QUICK_QUEUES, True, (RATE,), (), (), 0.25), **parts)


def waits(consumer_ms: float, share_ms: float, client: str = "deltaq") -> tuple[QueueWait, ...]:
    times = zip(KINDS, (consumer_ms, share_ms), strict=True)
    return tuple(QueueWait(client, kind, distribution([int(ms * 1e6)])) for kind, ms in times)


def test_the_rate_is_that_from_the_first_message_to_the_last():
    workers = [Worked({1: 60}, 1_000_000_000, 2_000_000_000), Worked({1: 40}, 0, 1_500_000_000)]
    assert rate_of("deltaq", 100, workers) == RATE


@pytest.mark.parametrize(
    ("deliveries", "again", "missing"),
    [({1: 100}, 0, 0), ({1: 98, 2: 1}, 1, 2), ({1: 99}, 0, 1), ({1: 100, 2: 3}, 3, 0)],
)
def test_messages_that_came_again_or_never_are_counted(deliveries, again, missing):
    rate = rate_of("deltaq", 100, [Worked(deliveries, 0, 1_000_000_000)])
    assert (rate.again, rate.missing) == (again, missing)
    assert found(rates=(rate,)).is_clean is (again == missing == 0)


def test_a_worker_is_compared_with_a_consumer_of_the_same_client():
    both = found(waits=waits(2.0, 3.0) + waits(1.0, 9.0, "Kafka"))
    assert both.wait_ratio("deltaq") == 1.5
    assert both.wait_ratio("Kafka") == 9.0
    assert found().wait_ratio("deltaq") is None
    (target,) = both.targets()
    assert target.met
    (target,) = found(waits=waits(2.0, 5.0)).targets()
    assert not target.met
    assert list(replace(both, judged=False).targets()) == []


def test_a_past_may_cost_little():
    new = QueuePast(500, 900, 40.0)
    for opening_ms, met in ((30.0, True), (89.0, True), (91.0, False)):
        (target,) = found(pasts=(new, QueuePast(1_000_000, 900, opening_ms))).targets()
        assert target.met is met


@pytest.mark.long
def test_a_small_plan_is_measured_as_a_whole(tmp_path: Path):
    plan = QueuesPlan(1_000, 2, 100, 3)
    (outcome,) = measure_queues(plan, Place(f"{tmp_path}/root", "", lambda _: None))
    assert outcome.is_clean
    assert [of.messages for of in outcome.rates] == [1_000]
    assert {of.kind: of.times.count for of in outcome.waits} == dict.fromkeys(KINDS, 3)
    assert [of.messages for of in outcome.pasts] == [1_000, 1_000]
    assert len([table for table in outcome.tables() if table.rows]) == 3
    assert json.loads(json.dumps(asdict(outcome)))["judged"] is True
