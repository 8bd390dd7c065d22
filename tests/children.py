"""The environment of the processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["REPOSITORY", "WITHOUT_PANDAS", "environment_of_child", "with_pandas"]

REPOSITORY = str(Path(__file__).resolve().parents[1])

WITHOUT_PANDAS = str(Path(__file__).resolve().parent / "doubles/without_pandas")
"""On the path of the processes that tests start. Where pandas is installed, pyarrow imports it with the first array:
0.4 s of processor time, of 1 s that a process takes to write a record. The tests themselves run with pandas."""


def environment_of_child() -> dict[str, str]:
    """The environment of a process that finds deltaq and the tests, but not pandas."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([WITHOUT_PANDAS, REPOSITORY])}


def with_pandas() -> dict[str, str]:
    """The environment of a process that needs pandas, or of which a test says what it loads."""
    return {**os.environ, "PYTHONPATH": REPOSITORY}
