"""Spark's own Delta on topics that are maintained: the same records as a consumer sees, and streams take each once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.test_native_delta import need_the_jars

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("maintained_delta.py")


@pytest.fixture(scope="module")
def stories(child_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program found."""
    need_the_jars()
    folder = tmp_path_factory.mktemp("maintained")
    answer = folder / "found.json"
    program = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), str(answer)],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert program.returncode == 0, program.stderr
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_native_delta_sees_after_each_round_what_a_consumer_sees(stories: dict[str, Any], policy: str) -> None:
    rounds = stories[policy]["rounds"]
    assert len(rounds) >= 2
    for number, after in enumerate(rounds):
        assert after["native"] == after["consumer"], f"round {number}"
        assert after["consumer"]
    done = rounds[-1]["done"]
    of_policy = {"delete": {"files expired", "files merged", "log objects deleted"}, "compact": {"records superseded"}}
    assert {what for what, count in done.items() if count} >= of_policy[policy] | {"checkpoints", "files deleted"}


@pytest.mark.fault("W2")
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_native_stream_takes_each_record_once_across_maintenance(stories: dict[str, Any], policy: str) -> None:
    """Rewrites are no news to it; of removals it is told to think nothing."""
    assert stories[policy]["streamed"] == stories[policy]["written"]
