"""The environment of the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["NEED_NUMPY", "REPOSITORY", "WITHOUT_NUMPY", "environment_of_child", "with_pandas"]

REPOSITORY = str(Path(__file__).resolve().parents[1])

WITHOUT_NUMPY = str(Path(__file__).resolve().parent / "doubles/without_numpy")
"""On the path of the processes that tests start: they have neither numpy nor pandas, which deltaq
does not depend on. Where these are installed, pyarrow imports numpy at once and pandas with the
first array: 0.06 s and 0.4 s of processor time, of 1 s that a process takes to write a record. The
tests themselves run with both.
"""

NEED_NUMPY = {"DELTAQ_TESTS_NEED": "numpy"}
"""In the environment of the processes that need numpy, such as those of pyspark."""


def environment_of_child() -> dict[str, str]:
    """The environment of a process that finds deltaq and the tests, but neither numpy nor
    pandas.
    """
    return {**os.environ, "PYTHONPATH": os.pathsep.join([WITHOUT_NUMPY, REPOSITORY])}


def with_pandas() -> dict[str, str]:
    """The environment of a process that needs numpy or pandas, or of which a test says what it
    loads.
    """
    return {**os.environ, "PYTHONPATH": REPOSITORY}
