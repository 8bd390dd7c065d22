"""The end of `make demo`: it does not wait for what its programs leave behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from examples.timezone_etl import demo
from tests.examples.replica_harness import until


def test_the_demo_ends_while_a_process_of_its_programs_holds_the_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, survivor = tmp_path / "python", tmp_path / "pid"
    python.write_text(
        f"#!/bin/sh\nsleep 60 &\necho $! >{survivor}.new\nmv {survivor}.new {survivor}\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(demo, "LAST_LINES_S", 0.1)
    program = demo.Program("pipeline", log=tmp_path / "pipeline.log")
    until(survivor.exists, "the process that stays behind")
    program.end()
    os.kill(int(survivor.read_text()), signal.SIGKILL)  # fails if `end` has waited for it
    program._shown.join()
