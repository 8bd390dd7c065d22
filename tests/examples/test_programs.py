"""What the demos start ends with them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from deltaq import Producer, Topic
from examples._programs import Program, own_root
from tests.examples.replica_harness import until


def test_a_program_that_is_stopped_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JVM that was just starting can survive its program."""
    python, survivor = tmp_path / "python", tmp_path / "pid"
    left = f"sleep 60 &\necho $! >{survivor}.new\nmv {survivor}.new {survivor}\n"
    python.write_text(f"#!/bin/sh\necho started\n{left}")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    program = Program("any", "program", tmp_path)
    until(survivor.exists, "the process that stays behind")
    program.stop()
    assert program.new_lines() == ["started"]
    until(lambda: is_gone(int(survivor.read_text())), "the end of the process")


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # Where nothing waits for it, it stays as a zombie.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_demo_has_a_root_in_a_folder_that_did_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = own_root("./deltaq-data", "demo")
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce("clock", b"noon")
    assert Topic("clock", bootstrap_servers=root).to_arrow()["value"].to_pylist() == [b"noon"]
    assert own_root("s3://bucket/a/", "demo").startswith("s3://bucket/a/demo-")
    assert [path.name for path in tmp_path.iterdir()] == ["deltaq-data"]
