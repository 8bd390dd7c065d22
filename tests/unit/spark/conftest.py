"""Fixtures of the tests of the Spark source and sink, called as Spark calls them but without a
JVM.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles.produced_tables import Produce, producing_to


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "root")


@pytest.fixture
def produce(root: str) -> Produce:
    return producing_to(root)
