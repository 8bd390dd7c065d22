"""Plays of many seeds: producers, readers and group members on a store that fails, and every promise kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.play import play
from tests.simulation.script import script_of
from tests.simulation.seeds import missing, results

SEEDS = 300


def with_maintenance_by_everybody() -> int:
    """A seed with two maintainers and clients that look after things too, of a topic that is compacted."""
    scripts = ((seed, script_of(seed)) for seed in range(SEEDS))
    return next(seed for seed, s in scripts if s.maintainers == 2 and s.caretaking and s.is_compacted)


@pytest.mark.timeout(900)
@pytest.mark.fault("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P11", "S3", "C1", "C4")
@pytest.mark.fault("M1", "M2", "M3", "M4", "M5", "M7")
def test_no_promise_is_broken_whatever_befalls_the_clients():
    happened: Counter[str] = Counter()
    for seed, problems, events in results(range(SEEDS)):
        assert not problems, f"make simulate SEED={seed}\n{problems}"
        happened += events
    assert not missing(happened)


@settings(max_examples=10)
@given(st.integers(0, 10**9))
def test_a_seed_gives_the_same_play_again(seed):
    one, two = play(seed), play(seed)
    assert (one.trace, one.operations, one.happened) == (two.trace, two.operations, two.happened)


@pytest.mark.parametrize("seed", [5, with_maintenance_by_everybody()])
def test_a_seed_gives_the_same_play_in_another_process_too(seed):
    program = f"import tests.simulation.play as p; print(p.play({seed}).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in "12"
    }
    assert traces == {f"{play(seed).trace}\n"}
