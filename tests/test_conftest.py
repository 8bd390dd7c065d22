"""The tests run the same wherever they are started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONTROL_C = "tests/unit/producer/test_producer.py::test_control_c_ends_a_blocking_poll_and_leaves_the_producer_usable"  # noqa: E501


def test_tests_of_control_c_pass_in_a_background_job_that_ignores_it() -> None:
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CONTROL_C]
    answer = subprocess.run(
        [*ignoring, *command], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
