"""Whether simulations notice a mutation: a defect that a test puts into deltaq."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.simulation.run import simulate
from tests.simulation.scenario import Scenario
from tests.simulator.scheduler import SimulationError

__all__ = ["expect_notice"]

SEEDS_MAX = 200
"""Any change in the random draws changes the runs of all seeds. So each mutation names the seed
that noticed it last, which is tried first.
"""


def expect_notice(
    mutation: Callable[[pytest.MonkeyPatch], None],
    last: int,
    scenario: Callable[[int], Scenario],
    patch: pytest.MonkeyPatch,
) -> None:
    """Some seed notices the mutation, and nothing without it."""
    with _silent():
        mutation(patch)
        noticed = next(
            (seed for seed in (last, *range(SEEDS_MAX)) if problems(seed, scenario(seed))), None
        )
        assert noticed is not None, f"{SEEDS_MAX} seeds did not notice"
        patch.undo()
        assert not problems(noticed, scenario(noticed)), f"seed {noticed} is not about the mutation"


def problems(seed: int, scenario: Scenario) -> str:
    """What is wrong in the run of a seed."""
    try:
        return simulate(seed, scenario).problems
    except (SimulationError, AssertionError) as error:
        return str(error)


@contextmanager
def _silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
