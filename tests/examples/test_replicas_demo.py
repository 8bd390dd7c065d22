"""`make replicas`: the table, its keys, and that nothing stays behind, however the program ends."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from rich.console import Console

from examples.replicas.demo import run
from examples.replicas.observer import PartitionState, Snapshot, counted_per_second
from examples.replicas.table import ReplicaState, render
from tests.examples.replica_harness import REPOSITORY, until

COMMAND = [
    sys.executable,
    "-m",
    "examples.replicas.demo",
    "--rate",
    "500",
    "--session-timeout",
    "2",
]
CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def snapshot(at: float, counted: int, lag: int) -> Snapshot:
    """Ten partitions, of which replica-1 owns five and replica-12 four."""
    owners = ["replica-1"] * 5 + ["replica-12"] * 4 + [None]
    partitions = [
        PartitionState(number, owner, counted, counted + lag) for number, owner in enumerate(owners)
    ]
    return Snapshot(at, "preparing rebalancing", tuple(partitions), {"replica-1": 1})


def test_rates_are_those_of_the_partitions_that_a_replica_has_now():
    before, now = snapshot(10.0, 100, 0), snapshot(12.0, 400, 7)
    assert counted_per_second(before, now, "replica-1") == 5 * 300 / 2
    assert counted_per_second(before, now, "replica-12") == 4 * 300 / 2
    assert counted_per_second(before, now, "replica-3") == 0
    assert (now.produced, now.counted) == (4_070, 4_000)


def test_the_table_fits_in_eighty_columns():
    replicas = [
        ReplicaState("replica-1", "running", 1_195),
        ReplicaState("replica-12", "killed", None),
    ]
    console = Console(width=80, record=True, file=StringIO())
    before, now = snapshot(10.0, 1_000_000, 99_999), snapshot(12.0, 2_000_000, 99_999)
    console.print(render(before, now, replicas, 1, "1 (peak 2, cap 2)"))
    text = console.export_text()
    assert "…" not in text
    assert "counted 20,000,000 (5,000,000/s)" in text
    assert re.search(r"> +replica-12 +killed +4 +399,996 +2,000,000 +0", text)
    assert re.search(r"owner +1 +1 +1 +1 +1 +12 +12 +12 +12 +- *\n", text)


class FakeScreen:
    """Shows snapshots without events first, as long as the programs start."""

    def __init__(self, refreshes: int) -> None:
        self._to_come = [snapshot(0.0, 0, 0)] * refreshes

    def refresh(self, _: object) -> Snapshot:
        return self._to_come.pop() if self._to_come else snapshot(1.0, 5, 0)


class FakeFleet:
    """A fleet without programs, which notes whether the producer was stopped."""

    replicas = ()

    def __init__(self) -> None:
        self.producer, self.checks, self.is_stopped = self, 0, False

    def check(self) -> None:
        self.checks += 1

    def stop(self) -> None:
        self.is_stopped = True


class NoKeys:
    def wait(self, _: float) -> str:
        return ""


def test_the_time_of_the_demo_begins_with_the_first_event():
    fleet: Any = FakeFleet()
    screen: Any = FakeScreen(refreshes=1_000)
    live: Any = None
    keys: Any = NoKeys()
    run(fleet, screen, live, keys, seconds=0.0)
    assert fleet.is_stopped
    assert fleet.checks == 1_001


class Terminal:
    """The demo in a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def read(self) -> str:
        """What was written until now, without colours and movements of the cursor."""
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self.text += CONTROL.sub("", os.read(self._ours, 65_536).decode(errors="replace"))
            except OSError:  # the other end is closed
                break
        return self.text

    def until(self, pattern: str) -> None:
        """Wait until the latest table matches the pattern."""
        until(lambda: re.search(pattern, self.read()[self.text.rfind("produced ") :]), pattern)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def folder() -> Iterator[Path]:
    """The temporary folder of the demo. PostgreSQL's account must get in, and the name of a socket
    is short.
    """
    with TemporaryDirectory(prefix="dq") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def terminal(folder: Path) -> Iterator[Terminal]:
    opened = Terminal(folder, "--replicas", "2")
    yield opened
    opened.close()


def processes(folder: Path) -> list[str]:
    """The processes that use the folder."""
    listed = subprocess.run(
        ["ps", "-wweo", "args="], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listed.splitlines() if str(folder) in line]


@pytest.mark.slow
@pytest.mark.postgres
def test_keys_kill_pause_resume_and_add_replicas_and_nothing_stays_behind(terminal, folder):
    terminal.until(r"replica-1 +running +5 .*\n.*replica-2 +running +5 ")
    assert len(list(folder.iterdir())) == 2
    assert len(processes(folder)) >= 4
    terminal.press("k")
    terminal.until(r"replica-1 +killed +0 .*\n.*replica-2 +running +10 ")
    terminal.press("a3p")
    terminal.until(r"> +replica-3 +paused")
    terminal.press("r")
    terminal.until(r"> +replica-3 +running +5 ")
    terminal.press("q")
    until(lambda: terminal.read() and terminal.process.poll() is not None, "the end of the demo")
    assert terminal.process.returncode == 0
    last = re.search(
        r"([\d,]+) events produced; the totals of .* users add up to ([\d,]+) events", terminal.text
    )
    assert last is not None
    assert last[1] == last[2] != "0"
    assert list(folder.iterdir()) == []
    assert processes(folder) == []


@pytest.mark.slow
@pytest.mark.postgres
def test_a_killed_demo_leaves_no_process_and_no_server(folder):
    environment = {**os.environ, "TMPDIR": str(folder)}
    demo = subprocess.Popen([*COMMAND, "--replicas", "1"], cwd=REPOSITORY, env=environment)
    try:
        until(lambda: any("replicas.service" in line for line in processes(folder)), "a replica")
        assert any("postgres" in line for line in processes(folder))
    finally:
        demo.kill()
        demo.wait()
    until(lambda: processes(folder) == [], "the end of all processes")
    until(
        lambda: list(folder.glob("deltaq-postgres-*")) == [], "the removal of the server's folder"
    )


@pytest.mark.slow
@pytest.mark.postgres
def test_an_interrupted_demo_ends_with_130_and_without_a_traceback(folder):
    demo = subprocess.Popen(
        COMMAND,
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    until(lambda: list(folder.glob("deltaq-postgres-*")), "PostgreSQL to be starting")
    os.killpg(demo.pid, signal.SIGINT)
    printed, _ = demo.communicate(timeout=60)
    assert (demo.returncode, "Traceback" in printed) == (130, False), printed
    assert list(folder.iterdir()) == []
