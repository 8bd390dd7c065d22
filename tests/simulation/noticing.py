"""Whether simulations notice a mutation: a defect that a test puts into deltaq."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.simulation.run import simulate
from tests.simulation.scenario import Scenario
from tests.simulation.transactions import check_random_programs
from tests.simulator.scheduler import SimulationError

__all__ = ["anomalies", "expect_notice"]

SEEDS_MAX = 200
"""Any change in the random draws changes the runs of all seeds. So each mutation names the seed
that noticed it last, which is tried first.
"""


def problems(seed: int, scenario: Scenario) -> str:
    """What is wrong in the run of a seed."""
    try:
        return simulate(seed, scenario).problems
    except (SimulationError, AssertionError) as error:
        return str(error)


def anomalies(seed: int, scenario: Scenario) -> str:
    """What the history checker alone finds in the random transactions of a seed."""
    try:
        operations = simulate(seed, scenario).operations
    except (SimulationError, AssertionError):
        return ""
    return "\n".join(check_random_programs(operations))


def expect_notice(
    mutation: Callable[[pytest.MonkeyPatch], None],
    last: int,
    scenario: Callable[[int], Scenario],
    patch: pytest.MonkeyPatch,
    found: Callable[[int, Scenario], str] = problems,
) -> None:
    """Some seed notices the mutation, and nothing without it: `found` is what a run finds."""
    with _silent():
        mutation(patch)
        noticed = next(
            (seed for seed in (last, *range(SEEDS_MAX)) if found(seed, scenario(seed))), None
        )
        assert noticed is not None, f"{SEEDS_MAX} seeds did not notice"
        patch.undo()
        assert not found(noticed, scenario(noticed)), f"seed {noticed} is not about the mutation"


@contextmanager
def _silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
