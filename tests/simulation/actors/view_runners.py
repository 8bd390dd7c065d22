"""Runners of a group of views, and what reads and follows the views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from deltaq import Fenced, KafkaError, KafkaException, OutcomeUnknown, Unavailable
from deltaq.errors import InvalidConfig
from deltaq.views import Views
from deltaq.views.modes import Mode
from tests.doubles.views import runner
from tests.simulation.harness import Harness
from tests.simulation.scenario import OTHER, TOPIC
from tests.simulator.world import Machine

__all__ = ["GROUP", "FollowingActor", "RunnerActor", "SeenViews", "ViewReadingActor", "views_on"]

GROUP = "bank"

SQL = {
    "credits": f"select target as account, sum(amount) as c from {TOPIC} group by 1",
    "owned": (
        f"select owner, sum(c) as c, count(*) as n from credits left join {OTHER} "
        "using (account) group by 1"
    ),
    # Without a row key, so that it is a changelog.
    "listed": f"select source, target, owner from {TOPIC} join {OTHER} on source = account",
    "total": "select sum(c) as c from owned",
}

Rows: TypeAlias = Counter[tuple[Any, ...]]
"""The rows of a view, each as often as it is there."""

Offsets: TypeAlias = dict[str, dict[int, int]]
"""By topic and partition where a cut ends."""


def views_on(machine: Machine, modes: Mapping[str, Mode] | None = None) -> Views:
    """The group of a run, as a program on this machine has it."""
    views = Views(GROUP, store=machine.store, clock=machine.clock)
    for name, sql in SQL.items():
        views.view(name, sql, mode=(modes or {}).get(name, "full"))
    return views


@dataclass
class SeenViews:
    """What was seen of the group: by tick its cut, and by tick and view the rows. `problems` are
    two different answers for one tick.
    """

    cuts: dict[int, Offsets] = field(default_factory=dict)
    rows: dict[tuple[int, str], Rows] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def cut(self, tick: int, offsets: Offsets) -> None:
        """Note the cut of a tick."""
        known = self.cuts.setdefault(tick, offsets)
        if known != offsets:
            self.problems.append(f"tick {tick} was at {known} and is at {offsets}")

    def view(self, tick: int, name: str, rows: Rows) -> None:
        """Note the rows of a view at a tick."""
        known = self.rows.setdefault((tick, name), rows)
        if known != rows:
            self.problems.append(f"view {name} at tick {tick} was {known} and is {rows}")


class RunnerActor:
    """A program that publishes the views, as one of several, across restarts."""

    def __init__(self, harness: Harness, name: str) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness

    def act(self, machine: Machine) -> None:
        harness = self._harness
        while not harness.faults_ended:
            # The modes are no part of what a tick has.
            modes: dict[str, Mode] = {
                name: "incremental" if harness.chance(0.7) else "full" for name in SQL
            }
            try:
                with runner(views_on(machine, modes)) as running:
                    for _ in range(1 + harness.pick(15)):
                        running.tick()
                        machine.clock.sleep(harness.between(0, 2))
                        if harness.faults_ended:
                            break
            except Fenced:
                harness.network.count("a runner was fenced")
            except KafkaException as error:
                if not _is_explained(error):
                    harness.report_unexpected(f"{machine.name} got {error}")
            machine.clock.sleep(harness.between(0, 6))
        self.is_done = True


class ViewReadingActor:
    """Reads all views at the last cut, or at an earlier one."""

    def __init__(self, harness: Harness, name: str, seen: SeenViews) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._seen = seen

    def act(self, machine: Machine) -> None:
        harness = self._harness
        while not harness.faults_ended:
            views = views_on(machine)
            try:
                look(views, self._seen)
                last = max(self._seen.cuts)
                look(views, self._seen, max(1, last - harness.pick(4)))
            except InvalidConfig as error:
                if self._seen.cuts and "is not kept" not in str(error):
                    harness.report_unexpected(f"{machine.name} got {error}")
            except KafkaException as error:
                if error.error == KafkaError.OFFSET_OUT_OF_RANGE:
                    harness.network.count("a tick was not kept any more")
                elif not _is_explained(error):
                    harness.report_unexpected(f"{machine.name} got {error}")
            machine.clock.sleep(harness.between(1, 12))
        self.is_done = True


class FollowingActor:
    """Adds up the changes of a view, from its rows on."""

    def __init__(self, harness: Harness, name: str, view: str, seen: SeenViews) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._view = view
        self._seen = seen

    def act(self, machine: Machine) -> None:
        harness = self._harness
        while not self.is_done:
            try:
                self._follow(machine)
            except KafkaException as error:
                if error.error == KafkaError.OFFSET_OUT_OF_RANGE:
                    harness.network.count("a follower came too late")
                elif not _is_explained(error):
                    harness.report_unexpected(f"{machine.name} got {error}")
                machine.clock.sleep(harness.between(0, 2))

    def _follow(self, machine: Machine) -> None:
        rows: Rows = Counter()
        for change in views_on(machine).follow(self._view, every=0.5):
            for row in change.rows.to_pylist():
                weight = row.pop("weight")
                rows[plain(row)] += weight
            self._seen.view(change.tick, self._view, +rows)
            if min(rows.values(), default=0) < 0:
                self._harness.report_unexpected(f"{machine.name} has {rows}")
            # The last runner publishes one more change.
            if self._harness.faults_ended:
                self.is_done = True
                return


def look(views: Views, seen: SeenViews, at: int | None = None) -> None:
    """Read all views at one cut. Raises as `Views.read`."""
    cut = views.read(at)
    seen.cut(cut.tick, cut.offsets)
    for name in cut.views:
        seen.view(cut.tick, name, rows_of(cut[name].to_arrow()))


def rows_of(table: pa.Table) -> Rows:
    """The rows of a table."""
    return Counter(plain(row) for row in table.to_pylist())


def plain(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of a row; sums of DuckDB are decimals without a fraction."""
    return tuple(
        value if value is None or isinstance(value, str) else int(value) for value in row.values()
    )


def _is_explained(error: KafkaException) -> bool:
    """Whether an injected fault explains an error."""
    return isinstance(error, Unavailable | OutcomeUnknown) or error.error == KafkaError._TRANSPORT
