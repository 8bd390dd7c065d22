"""The simulation notices defects of views: each mutation of deltaq fails the checks at some write
after which a runner dies, or in some drawn run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import pytest

from deltaq.transactions.cut import cut
from deltaq.views import engine, following, holding, incremental, inputs, runner
from deltaq.views.checkpoints import Checkpoints
from deltaq.views.engine import ViewEngine
from deltaq.views.holding import GroupHolds
from deltaq.views.incremental import RuledViews
from deltaq.views.inputs import Inputs
from deltaq.views.runner import GroupRunner
from deltaq.views.tables import ViewTopics
from tests.depth import depth
from tests.simulation.noticing import expect_notice
from tests.simulation.scenario import VIEWS, scenario_of
from tests.simulation.test_views import sizes, story
from tests.simulator.network import CrashPoint

__all__ = ["sizes"]


def publishes_its_tick_apart_from_its_rows(patch: pytest.MonkeyPatch) -> None:
    publish = GroupRunner._publish

    def apart(self: GroupRunner, tick: Any, records: Any) -> None:
        publish(self, replace(tick, number=tick.number), {})
        publish(self, tick, records)

    patch.setattr(GroupRunner, "_publish", apart)


def forgets_what_was_published(patch: pytest.MonkeyPatch) -> None:
    restore = ViewEngine.restore

    def nothing(self: ViewEngine, view: str, rows: Any) -> None:
        restore(self, view, self.columns(view).empty_table())

    patch.setattr(ViewEngine, "restore", nothing)


def takes_the_state_of_a_checkpoint_for_that_of_the_last_tick(patch: pytest.MonkeyPatch) -> None:
    last = Checkpoints.last

    def as_of_the_tick(self: Checkpoints, tick: Any) -> Any:
        found = last(self, tick)
        return None if found is None else (tick, found[1])

    patch.setattr(Checkpoints, "last", as_of_the_tick)


def counts_what_a_checkpoint_has_once_more(patch: pytest.MonkeyPatch) -> None:
    note = RuledViews.note

    def always(self: RuledViews, name: str, changes: str) -> None:
        was, self.is_noting = self.is_noting, True
        note(self, name, changes)
        self.is_noting = was

    patch.setattr(RuledViews, "note", always)


def saves_state_before_it_is_published(patch: pytest.MonkeyPatch) -> None:
    publish = GroupRunner._publish

    def early(self: GroupRunner, tick: Any, records: Any) -> None:
        assert self._engine is not None
        self._engine.accept()
        if self._last is not None:
            self._evaluator._checkpoints._tick = 0  # type: ignore[attr-defined]
            self._evaluator.save(self._engine, self._last)
        publish(self, tick, records)

    patch.setattr(GroupRunner, "_publish", early)


def loads_half_of_what_has_come(patch: pytest.MonkeyPatch) -> None:
    load = Inputs.load

    def half(self: Inputs, engine: Any, had: Any, wanted: Any, forms: Any) -> None:
        less = {
            name: replace(cut, ends=tuple(end - (end > 2) for end in cut.ends))
            for name, cut in wanted.items()
        }
        load(self, engine, had, less, forms)

    patch.setattr(Inputs, "load", half)


def cuts_each_input_alone(patch: pytest.MonkeyPatch) -> None:
    def apart(names: Any, **about: Any) -> Any:
        return {name: cut([name], **about)[name] for name in names}

    patch.setattr(inputs, "cut", apart)


def holds_no_input(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupHolds, "_put_inputs", lambda self, held: None)
    patch.setattr(holding, "_is_held", lambda *_, **__: True)


def takes_the_newest_record_of_all_partitions(patch: pytest.MonkeyPatch) -> None:
    for module in (incremental, engine):
        patch.setattr(module, "RECORD_KEY", "_key")


def has_an_id_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """So that no runner fences another one."""
    made = itertools.count()
    patch.setattr(runner, "transactional_id", lambda group: f"views.{group}.{next(made)}")


def follows_only_what_comes(patch: pytest.MonkeyPatch) -> None:
    taken = following._Rows.taken

    def come(self: Any, records: Any) -> Any:
        rows = taken(self, records)
        return rows.filter(pc.greater(rows.column("weight"), 0))

    patch.setattr(following._Rows, "taken", come)


def reads_the_last_rows_at_each_tick(patch: pytest.MonkeyPatch) -> None:
    records = ViewTopics._records

    def last(self: ViewTopics, topic: str, at: Any) -> Any:
        (end,) = self.lookup.head(topic).next_offsets
        return records(self, topic, replace(at, end=end))

    patch.setattr(ViewTopics, "_records", last)


MUTATIONS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (publishes_its_tick_apart_from_its_rows, "00000000000000000003.json"),
    (forgets_what_was_published, "view_state"),
    (takes_the_state_of_a_checkpoint_for_that_of_the_last_tick, "view_state"),
    (counts_what_a_checkpoint_has_once_more, "view_state"),
    (saves_state_before_it_is_published, "00000000000000000003.json"),
    (loads_half_of_what_has_come, "view_state"),
]
"""Each with what is in the key of the write before which a crash is tried first."""


def problems(crash: CrashPoint) -> list[str]:
    """What is wrong in a story."""
    try:
        return story(crash).problems
    except Exception as error:  # noqa: BLE001 - a runner or a reader that fails has noticed it
        return [str(error)]


DRAWN = {
    reads_the_last_rows_at_each_tick: 2,
    cuts_each_input_alone: 33,
    holds_no_input: 0,
    takes_the_newest_record_of_all_partitions: 0,
    has_an_id_of_its_own: 7,
    follows_only_what_comes: 1,
}
"""Each with the seed that noticed it last."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "mutation", [*DRAWN][:: depth(len(DRAWN), 1)], ids=lambda each: each.__name__
)
def test_a_mutation_is_noticed_in_a_drawn_run(mutation: Any, monkeypatch: pytest.MonkeyPatch):
    expect_notice(mutation, DRAWN[mutation], lambda seed: scenario_of(seed, VIEWS), monkeypatch)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mutation", "first"), MUTATIONS[:: depth(len(MUTATIONS), 1)])
def test_a_mutation_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], first: str, monkeypatch: pytest.MonkeyPatch
):
    writes = [(number, key) for number, _, key in story().writes]
    writes.sort(key=lambda write: first not in write[1])
    with monkeypatch.context() as patch:
        mutation(patch)
        crashes = (CrashPoint("runner", number, after=False) for number, _ in writes)
        noticed = next((crash for crash in crashes if problems(crash)), None)
    assert noticed is not None
    assert not problems(noticed)
