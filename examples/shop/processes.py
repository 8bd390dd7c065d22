"""The processes of the shop: three generators, and the pipeline, which is started again whenever it
dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STOP_S = 10.0
DEAD_S = 3.0
"""How long the pipeline stays dead, so that the page can show it."""

LOG_SHOWN = 4_000
"""How much of its log is printed then, in characters."""

FAILURES_MAX = 3
"""How often the pipeline may end by itself before it has come up, until the demo gives up."""


class Program:
    """A running program of the shop, with its own process group. It stops when this process ends,
    in whatever way.
    """

    def __init__(self, name: str, folder: Path, *arguments: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        module = "pipeline" if name == "pipeline" else "generator"
        with self.log.open("ab") as output:
            self._from = output.tell()
            self._process = subprocess.Popen(  # noqa: S603  # our own programs
                [sys.executable, "-m", f"examples.shop.{module}", *arguments, "--until-eof"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def state(self) -> str:
        """What the page says: running, done, killed or failed."""
        status = self._process.poll()
        if status is None:
            return "running"
        return {0: "done", -signal.SIGKILL: "killed"}.get(status, "failed")

    def new_lines(self) -> list[str]:
        """The whole lines that it has printed since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._from)
            text, newline, _ = log.read().rpartition(b"\n")
        self._from += len(text) + len(newline)
        return text.decode(errors="replace").splitlines()

    def kill(self) -> None:
        """End it and its children as a crash would: at once, and without a chance to clean up."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()

    def begin_to_stop(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def stop(self) -> None:
        """End it, and wait for its end."""
        self.begin_to_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()  # also its children, if it has left some


class Pipeline:
    """The pipeline, which is started again three seconds after its death."""

    def __init__(self, folder: Path, root: str, *arguments: str) -> None:
        self._folder = folder
        self._ready = f"reading {root}"
        self._arguments = ("--root", root, *arguments)
        self._failures = 0
        self.kills = 0
        self._start()

    def _start(self) -> None:
        self.program = Program("pipeline", self._folder, *self._arguments)
        self.state = "starting"
        self._since = time.monotonic()

    @property
    def for_s(self) -> float:
        """How long it has been in its state."""
        return time.monotonic() - self._since

    def _enter(self, state: str) -> None:
        self.state, self._since = state, time.monotonic()

    def kill(self) -> None:
        """Kill it. Does nothing while it is dead."""
        if self.state != "dead" and self.program.state == "running":
            self.program.kill()
            self._enter("dead")
            self.kills += 1

    def watch(self) -> list[str]:
        """Start it again if it is dead. Returns the lines that it has printed.

        Raises SystemExit with the log if it ends by itself again and again.
        """
        if self.state == "dead":
            if self.for_s >= DEAD_S:
                self._start()
            return []
        lines = self.program.new_lines()
        if self.state == "starting" and self._ready in lines:
            self._failures = 0
            self._enter("running")
        if self.program.state != "running":
            self._failures += self.program.state != "killed"
            self.program.kill()  # also its children, and our end of its standard input
            self._enter("dead")
            if self._failures == FAILURES_MAX:
                raise SystemExit(
                    "the pipeline "
                    f"failed:\n{self.program.log.read_text(errors='replace')[-LOG_SHOWN:]}"
                )
        return lines
