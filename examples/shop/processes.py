"""The pipeline of the shop, which is started again whenever it dies."""

from __future__ import annotations

import time
from pathlib import Path

from examples._programs import Program

DEAD_S = 3.0
"""How long the pipeline stays dead, so that the page can show it."""

LOG_SHOWN = 4_000
"""How much of its log is printed then, in characters."""

FAILURES_MAX = 3
"""How often the pipeline may end by itself before it has come up, until the demo gives up."""


class Pipeline:
    """The pipeline, which is started again three seconds after its death."""

    def __init__(self, folder: Path, root: str, *arguments: str) -> None:
        self._folder = folder
        self._ready = f"reading {root}"
        self._arguments = ("--until-eof", "--root", root, *arguments)
        self._failures = 0
        self.kills = 0
        self._start()

    def _start(self) -> None:
        self.program = Program("shop.pipeline", "pipeline", self._folder, *self._arguments)
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
