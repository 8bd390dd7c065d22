"""Groups are measured as a whole, and what is reckoned from the measurements is right."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from time import monotonic_ns
from typing import Any

import pytest

from benchmarks.distribution import distribution
from benchmarks.groups import (
    CHANGES,
    QUICK_GROUPS,
    Changes,
    Groups,
    Happened,
    MemberProcess,
    close,
    first_after,
    measure_groups,
)
from benchmarks.suite import Place

TINY = replace(
    QUICK_GROUPS,
    rounds=1,
    strategies=("range",),
)


def changes(client: str, ms: float, name: str = CHANGES[0]) -> Changes:
    took = distribution([int(ms * 1e6)])
    return Changes(client, "range", name, took, took)


def found(**parts: Any) -> Groups:
    empty = Groups(QUICK_GROUPS, True, (), (), 0.25)
    return replace(empty, **parts)


def test_the_first_event_of_a_change_is_found_by_time_and_partition():
    events = [
        Happened("assigned", 1, (0, 1)),
        Happened("record", 2, (0,)),
        Happened("assigned", 5, ()),
        Happened("assigned", 6, (1,)),
        Happened("record", 7, (1,)),
    ]
    assert first_after(events, "assigned", 2) == 5
    assert first_after(events, "assigned", 2, frozenset({1})) == 6
    assert first_after(events, "record", 2, frozenset({1})) == 7
    with pytest.raises(LookupError):
        first_after(events, "assigned", 7)


class PromptMember(MemberProcess):
    """Has done what it is told before `tell` returns."""

    def __init__(self) -> None:
        self.events = []

    def tell(self, command: object) -> None:
        assert command == "close"
        self.events.append(Happened("closing", monotonic_ns()))

    def await_event(
        self, kind: str, after_ns: int, partitions: frozenset[int] = frozenset()
    ) -> int:
        return first_after(self.events, kind, after_ns, partitions)


def test_a_member_that_closes_before_the_benchmark_waits_for_it_is_noticed():
    member = PromptMember()
    close(member)  # LookupError: a real member would be waited for until the timeout


def test_changes_are_compared_with_those_of_kafka_and_judged_on_local_disk():
    slow = changes("deltaq", 400.0), changes("Kafka", 800.0), changes("deltaq", 900.0, CHANGES[1])
    outcome = found(changes=slow)
    assert [outcome.ratio(one) for one in slow] == [0.5, 1.0, None]
    assert [(target.found, target.met) for target in outcome.targets()] == [
        ("400.00 ms", False),
        ("900.00 ms", True),
    ]
    assert list(replace(outcome, judged=False).targets()) == []


@pytest.mark.long
def test_a_small_plan_measures_every_part(tmp_path):
    lines: list[str] = []
    (outcome,) = measure_groups(TINY, Place(str(tmp_path), "", lines.append))
    assert json.loads(json.dumps(asdict(outcome)))
    assert outcome.is_clean
    assert outcome.judged
    assert [one.name for one in outcome.changes] == list(CHANGES)
    assert all(0 < one.assigned.p50 <= one.record.p50 for one in outcome.changes)
    assert [one.seconds > one.session_s / 2 for one in outcome.takeovers] == [True]
    assert all(len(row) == len(table.head) for table in outcome.tables() for row in table.rows)
    assert [len(table.rows) for table in outcome.tables()] == [3, 1]
