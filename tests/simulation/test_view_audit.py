"""The checker of views finds each defect in a history that has no other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deltaq.views.ticks import InputCut, Tick
from tests.simulation.actors.view_runners import Offsets, SeenViews
from tests.simulation.audit.views import (
    InputRecord,
    Place,
    WrittenInputs,
    audit_views,
    expected,
)
from tests.simulation.scenario import OTHER, TOPIC


def transfer(source: int, target: int, amount: int) -> InputRecord:
    return InputRecord(None, {"source": source, "target": target, "amount": amount})


def owner(account: int, name: str | None) -> InputRecord:
    key = b"%d" % account
    return InputRecord(key, None if name is None else {"account": account, "owner": name})


RECORDS: dict[Place, InputRecord] = {
    (TOPIC, 0, 0): transfer(1, 2, 5),
    (TOPIC, 0, 1): transfer(2, 1, 3),
    (TOPIC, 1, 0): transfer(1, 2, 4),
    (OTHER, 0, 0): owner(1, "a"),
    (OTHER, 0, 1): owner(2, "b"),
    (OTHER, 0, 2): owner(1, None),
    (OTHER, 1, 0): owner(2, "c"),
}
TRANSACTION = frozenset([(TOPIC, 1, 0), (OTHER, 0, 1)])
CUTS: list[dict[str, tuple[int, ...]]] = [
    {TOPIC: (0, 0), OTHER: (0, 0)},
    {TOPIC: (2, 0), OTHER: (1, 0)},
    {TOPIC: (2, 1), OTHER: (3, 1)},
]
VIEWS: list[dict[str, dict[tuple[Any, ...], int]]] = [
    {"credits": {}, "owned": {}, "listed": {}, "total": {(None,): 1}},
    {
        "credits": {(2, 5): 1, (1, 3): 1},
        "owned": {(None, 5, 1): 1, ("a", 3, 1): 1},
        "listed": {(1, 2, "a"): 1},
        "total": {(8,): 1},
    },
    {
        "credits": {(2, 9): 1, (1, 3): 1},
        "owned": {(None, 3, 1): 1, ("b", 9, 1): 1, ("c", 9, 1): 1},
        "listed": {(2, 1, "b"): 1, (2, 1, "c"): 1},
        "total": {(21,): 1},
    },
]


def as_offsets(cut: dict[str, tuple[int, ...]]) -> Offsets:
    return {topic: dict(enumerate(ends)) for topic, ends in cut.items()}


def ticks() -> list[Tick]:
    return [
        Tick(
            number,
            0,
            "digest",
            1,
            {topic: InputCut("id", (0, 0), ends) for topic, ends in cut.items()},
            {},
        )
        for number, cut in enumerate(CUTS, 1)
    ]


def seen() -> SeenViews:
    found = SeenViews()
    for number, (cut, views) in enumerate(zip(CUTS, VIEWS, strict=True), 1):
        found.cut(number, as_offsets(cut))
        for name, rows in views.items():
            found.view(number, name, Counter(rows))
    return found


INPUTS = WrittenInputs(RECORDS, [TRANSACTION])


def test_views_by_plain_python_are_those_by_hand():
    for cut, views in zip(CUTS, VIEWS, strict=True):
        assert expected(INPUTS, as_offsets(cut)) == views


def test_a_sound_history_has_no_problems():
    assert [*audit_views(INPUTS, seen(), ticks())] == []


def with_a_view_of_another_tick(found: SeenViews, of: list[Tick]) -> None:
    found.rows[2, "total"] = found.rows[3, "total"]


def with_a_row_twice(found: SeenViews, of: list[Tick]) -> None:
    found.rows[2, "listed"] = Counter({(1, 2, "a"): 2})


def with_two_answers_for_a_tick(found: SeenViews, of: list[Tick]) -> None:
    found.view(2, "total", Counter({(7,): 1}))


def with_two_cuts_of_a_tick(found: SeenViews, of: list[Tick]) -> None:
    found.cut(2, as_offsets(CUTS[0]))


def with_a_cut_that_was_not_published(found: SeenViews, of: list[Tick]) -> None:
    found.cuts[2] = as_offsets(CUTS[0])


def with_a_view_of_a_tick_that_was_not_published(found: SeenViews, of: list[Tick]) -> None:
    found.view(4, "total", Counter({(21,): 1}))


def without_a_tick(found: SeenViews, of: list[Tick]) -> None:
    del of[0], found.cuts[1]
    for name in VIEWS[0]:
        del found.rows[1, name]


def with_a_tick_twice(found: SeenViews, of: list[Tick]) -> None:
    of.append(of[-1])


def with_a_part_of_a_transaction(found: SeenViews, of: list[Tick]) -> None:
    cut = CUTS[1] | {OTHER: (2, 0)}
    inputs = {topic: InputCut("id", (0, 0), ends) for topic, ends in cut.items()}
    of[1] = replace(of[1], inputs=inputs)
    found.cuts[2] = as_offsets(cut)
    for name, rows in expected(INPUTS, as_offsets(cut)).items():
        found.rows[2, name] = rows


def with_a_step_back(found: SeenViews, of: list[Tick]) -> None:
    of.append(replace(of[1], number=4))
    of.append(replace(of[2], number=5))


def without_the_last_records(found: SeenViews, of: list[Tick]) -> None:
    del of[2], found.cuts[3]
    for name in VIEWS[2]:
        del found.rows[3, name]


@pytest.mark.parametrize(
    ("defect", "problem"),
    [
        (with_a_view_of_another_tick, "view total at tick 2 has"),
        (with_a_row_twice, "view listed at tick 2 has"),
        (with_two_answers_for_a_tick, "view total at tick 2 was"),
        (with_two_cuts_of_a_tick, "tick 2 was at"),
        (with_a_cut_that_was_not_published, "tick 2 was seen at"),
        (with_a_view_of_a_tick_that_was_not_published, "view total at tick 4 has"),
        (without_a_tick, "the ticks are [2, 3]"),
        (with_a_tick_twice, "the ticks are [1, 2, 3, 3]"),
        (with_a_part_of_a_transaction, "tick 2 has [('u', 0, 1)] of a transaction"),
        (with_a_step_back, "tick 4 is at"),
        (without_the_last_records, "the last tick does not cover"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_a_defect_is_found_alone(
    defect: Callable[[SeenViews, list[Tick]], None], problem: str
) -> None:
    found, of = seen(), ticks()
    defect(found, of)
    (only,) = audit_views(INPUTS, found, of)
    assert only.startswith(problem)
