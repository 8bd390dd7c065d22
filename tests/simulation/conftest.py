"""Fixtures of the simulation's tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.simulation.processors import PROCESSORS, keep_to


@pytest.fixture(autouse=True)
def one_processor() -> Iterator[None]:
    """A test stays on one processor; the processes of pytest-xdist take them in turns."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if PROCESSORS:
        keep_to(PROCESSORS[worker % len(PROCESSORS)])
    yield
    keep_to(*PROCESSORS)
