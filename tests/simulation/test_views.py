"""The runner of a group of views is killed after each of its writes: the next one goes on without a
gap, and each tick that a reader has seen is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.errors import InvalidConfig
from deltaq.views import Views, state
from tests.depth import depth
from tests.simulator.network import CrashPoint
from tests.simulator.world import Machine, World

TRANSFERS = pa.schema([("source", pa.int64()), ("target", pa.int64()), ("amount", pa.int64())])
STEPS = [[(1, 2, 5), (2, 1, 3)], [(2, 3, 4), (3, 1, 1)], [(1, 1, 9), (3, 2, 2), (2, 2, 7)]]
"""What is transferred before each tick."""


@dataclass
class Seen:
    """What readers have seen: by tick the end of the input and the rows of all views."""

    ticks: dict[int, tuple[int, dict[str, list[tuple[Any, ...]]]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    writes: list[tuple[int, str, str]] = field(default_factory=list)

    def look(self, views: Views, at: int | None = None) -> None:
        """Read a tick; it must be the same whenever it is read."""
        try:
            cut = views.read(at)
        except InvalidConfig:
            return  # there is none yet
        rows = {
            name: sorted(tuple(row.values()) for row in cut[name].to_arrow().to_pylist())
            for name in cut.views
        }
        found = cut.offsets["transfers"][0], rows
        if self.ticks.setdefault(cut.tick, found) != found:
            self.problems.append(f"tick {cut.tick} was {self.ticks[cut.tick]} and is {found}")


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """State is sealed after a few rows, so that checkpoints have runs."""
    monkeypatch.setattr(state, "SEAL_ROWS", 2)
    monkeypatch.setattr(state, "RUNS", 2)


def bank(machine: Machine) -> Views:
    views = Views("bank", store=machine.store, clock=machine.clock)
    # Views by rules are read by one in full, and read one in full.
    views.view(
        "credits",
        "select target as account, sum(amount) as c from transfers group by 1",
        mode="incremental",
    )
    views.view(
        "debits",
        "select source as account, sum(amount) as d from transfers group by 1",
        mode="full",
    )
    views.view(
        "balance",
        "select account, c - d as b from credits full join debits using (account)",
        mode="incremental",
    )
    views.view("total", "select sum(c) as paid from credits", mode="full")
    return views


def expected(end: int) -> dict[str, list[tuple[Any, ...]]]:
    """The views over the first transfers, by plain Python."""
    done = [row for step in STEPS for row in step][:end]
    credits_, debits = dict[int, int](), dict[int, int]()
    for source, target, amount in done:
        credits_[target] = credits_.get(target, 0) + amount
        debits[source] = debits.get(source, 0) + amount
    accounts = credits_.keys() | debits.keys()
    both = credits_.keys() & debits.keys()
    return {
        "credits": sorted(credits_.items()),
        "debits": sorted(debits.items()),
        "balance": sorted(
            ((a, credits_[a] - debits[a] if a in both else None) for a in accounts), key=repr
        ),
        "total": [(sum(credits_.values()) if done else None,)],
    }


def story(crash: CrashPoint | None = None) -> Seen:
    """A runner makes a tick after each step, until it is killed; then another one goes on."""
    seen = Seen()
    with World(7, preempt=0.0, crash=crash) as world:
        director = world.machine("director")

        def transfer(rows: Sequence[tuple[int, int, int]]) -> None:
            conf = {"bootstrap.servers": director.store.url, "linger.ms": 0}
            with Producer(conf, store=director.store, clock=director.clock) as producer:
                for row in rows:
                    producer.produce("transfers", dict(zip(TRANSFERS.names, row, strict=True)))

        def run_on(machine: Machine) -> None:
            def application() -> None:
                bank(machine).run(until="now")

            machine.clock.start_thread(application, "application").join()

        def act() -> None:
            Topic(
                "transfers", TRANSFERS, store=director.store, clock=director.clock, partitions=1
            ).create()
            victim, number = world.machine("runner"), 0
            for number, rows in enumerate(STEPS):
                transfer(rows)
                run_on(victim)
                seen.look(bank(director))
                if victim.process.is_killed:
                    victim = world.machine(f"runner after {number}")
            last = bank(world.machine("last runner")).run(until="now")
            assert last is not None
            for tick in range(1, last.number + 1):
                seen.look(bank(director), tick)
            if [*sorted(seen.ticks)] != [*range(1, last.number + 1)]:
                seen.problems.append(f"ticks {sorted(seen.ticks)} were seen of {last.number}")
            seen.problems += [str(found) for found in bank(director).check()]

        world.run(act, director)
        seen.writes = world.network.writes["runner"]
    for number, (end, rows) in seen.ticks.items():
        in_order = {name: sorted(of, key=repr) for name, of in expected(end).items()}
        if {name: sorted(of, key=repr) for name, of in rows.items()} != in_order:
            seen.problems.append(f"tick {number} at {end} has {rows}, not {in_order}")
    if max(end for end, _ in seen.ticks.values()) != sum(map(len, STEPS)):
        seen.problems.append("the last tick does not cover all of the input")
    return seen


def test_each_tick_is_right():
    seen = story()
    assert not seen.problems
    assert len(seen.ticks) == len(STEPS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("after", [False, True])
def test_a_runner_that_dies_at_any_write_neither_skips_nor_repeats_a_tick(after: bool):
    writes = story().writes
    assert any("transactions/views.bank" in key for _, _, key in writes)
    assert any("view_state/checkpoint.json" in key for _, _, key in writes)
    for number, operation, key in writes[:: depth(60, 1)]:
        seen = story(CrashPoint("runner", number, after))
        where = f"{'after' if after else 'before'} operation {number}, {operation} {key}"
        assert not seen.problems, f"{where}: {seen.problems}"
