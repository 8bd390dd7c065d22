"""A process dies before and after each of its store operations, a play each; crash points enumerate themselves."""

from __future__ import annotations

from functools import cache

import pytest

from deltaq.testing.simulation.network import CrashPoint, Faults
from tests.simulation.play import play
from tests.simulation.script import Script

QUIET = Script(
    producers=1,
    readers=1,
    members=1,
    partitions=2,
    messages=6,
    rest_s=1.0,
    linger_ms=5,
    timeout_ms=60_000,
    latency_s=0.005,
    signals=False,
    remote=True,
    preempt=0.0,
    faults=Faults(),
    crashes=False,
    pauses=False,
    sleeps=False,
    wrong_clocks=False,
    growth=False,
    lives=False,
    auto_create=False,
)
SEED = 11
VICTIMS = ["founder", "sender-0.0", "reader-0.0", "member-0.0"]


@cache
def operations(victim: str) -> int:
    """How many store operations the victim has in a play in which nothing happens to it."""
    verdict = play(SEED, QUIET)
    assert not verdict.problems
    return verdict.store_operations[victim]


@pytest.mark.fault("P1", "P2", "P3", "P4")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_crash_at_any_store_operation_loses_and_doubles_nothing(victim, after):
    assert operations(victim) > 5
    for number in range(1, operations(victim) + 1):
        verdict = play(SEED, QUIET, CrashPoint(victim, number, after))
        where = f"{victim} crashed {'after' if after else 'before'} its store operation {number}"
        assert verdict.happened[f"crashed {'after' if after else 'before'} an operation"] == 1, where
        assert not verdict.problems, f"{where}\n{verdict.problems}"
