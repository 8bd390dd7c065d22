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
from tests.simulation.seeds import missing, results

SEEDS = 300


@pytest.mark.timeout(900)
@pytest.mark.fault("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P11", "S3", "C1", "C4")
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


def test_a_seed_gives_the_same_play_in_another_process_too():
    program = "import tests.simulation.play as p; print(p.play(5).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in "12"
    }
    assert traces == {f"{play(5).trace}\n"}
