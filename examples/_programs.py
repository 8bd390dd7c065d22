"""The programs of the larger examples: how a demo starts and ends them, and what all of them
accept.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from deltaq import KafkaError, Message

REPOSITORY = Path(__file__).resolve().parents[1]
STOP_S = 20.0

DEAD_S = 3.0
"""How long a program that is started again stays dead, in seconds, so that a page can show it."""

LOG_SHOWN = 4_000
"""How much of its log is printed then, in characters."""

FAILURES_MAX = 3
"""How often such a program may end by itself before it has come up, until the demo gives up."""


class Program:
    """A running module of the examples, with its own process group. With `--until-eof` it stops
    when this process ends, in whatever way. `log` is its standard error.
    """

    def __init__(self, module: str, name: str, folder: Path, *arguments: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._is_paused = False
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._printed = folder / f"{name}.out"
        with self.log.open("ab") as log, self._printed.open("ab") as printed:
            self._from = printed.tell()
            self._process = subprocess.Popen(  # noqa: S603  # our own programs
                [sys.executable, "-m", f"examples.{module}", *arguments],
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def state(self) -> str:
        """What the demo shows: running, paused, killed, done or failed."""
        status = self._process.poll()
        if status is None:
            return "paused" if self._is_paused else "running"
        return {0: "done", -signal.SIGKILL: "killed"}.get(status, "failed")

    def check(self) -> None:
        """Raise SystemExit with the log if it has failed."""
        if self.state == "failed":
            raise SystemExit(f"{self.name} failed:\n{self.log.read_text(errors='replace')}")

    def new_lines(self) -> list[str]:
        """The whole lines that it has printed since the last call."""
        with self._printed.open("rb") as printed:
            printed.seek(self._from)
            text, newline, _ = printed.read().rpartition(b"\n")
        self._from += len(text) + len(newline)
        return text.decode(errors="replace").splitlines()

    def kill(self) -> None:
        """End it and its children as a crash would: at once, and without a chance to clean up."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.communicate()

    def pause(self) -> None:
        """Suspend it. If that takes longer than its session, it comes back as a former member."""
        self._is_paused = True
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it continue."""
        self._is_paused = False
        self._process.send_signal(signal.SIGCONT)

    def begin_to_stop(self) -> None:
        """Ask it to end, also if it is paused."""
        self._process.terminate()
        self.resume()

    def stop(self) -> None:
        """End it, and wait for its end."""
        self.begin_to_stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()  # also its children, if it has left some


class RestartedProgram:
    """A program that is started again `dead_s` seconds after its death, by default three. It has
    come up when it prints the line `ready`.
    """

    def __init__(
        self,
        module: str,
        name: str,
        folder: Path,
        *arguments: str,
        ready: str,
        dead_s: float | None = None,
    ) -> None:
        self._module = module
        self._name = name
        self._folder = folder
        self._arguments = arguments
        self._ready = ready
        self._dead_s = DEAD_S if dead_s is None else dead_s
        self._failures = 0
        self.kills = 0
        self._start()

    def _start(self) -> None:
        self.program = Program(self._module, self._name, self._folder, *self._arguments)
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
            if self.for_s >= self._dead_s:
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
                log = self.program.log.read_text(errors="replace")
                raise SystemExit(f"the {self._name} failed:\n{log[-LOG_SHOWN:]}")
        return lines


def stop_all(programs: Sequence[Program]) -> None:
    """End programs at the same time, and wait for their end."""
    for program in programs:
        program.begin_to_stop()
    for program in programs:
        program.stop()


def parser_of(
    description: str | None, *, root: str | None = "./deltaq-data"
) -> argparse.ArgumentParser:
    """A parser with the argument that every program has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    where = "a folder, or s3://bucket/prefix" if root else "without, in a temporary folder"
    parser.add_argument("--root", default=root, help=f"where the topics are: {where}")
    return parser


def child_parser(description: str | None) -> argparse.ArgumentParser:
    """The same of a program that a demo starts."""
    parser = parser_of(description)
    parser.add_argument(
        "--until-eof", action="store_true", help="stop also when standard input ends"
    )
    return parser


def own_root(root: str, name: str) -> str:
    """A root of this run below `root`, so that existing topics stay untouched. A folder `root` is
    created: a store creates no folder above its own.
    """
    if "://" not in root:
        Path(root).mkdir(parents=True, exist_ok=True)
    return f"{root.rstrip('/')}/{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def on_stop(stop: Callable[[], None], *, until_eof: bool) -> None:
    """Call `stop` at SIGTERM and Ctrl-C, and if `until_eof` when standard input ends: then a
    program ends with the one that started it.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())

    def read() -> None:
        sys.stdin.read()
        stop()

    if until_eof:
        threading.Thread(target=read, daemon=True).start()


def end_if_undelivered(error: KafkaError | None, _: Message) -> None:
    """A delivery callback that ends the program if delivery failed."""
    if error is not None:
        raise SystemExit(f"not delivered: {error.str()}")
