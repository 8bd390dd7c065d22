"""The processes of the demo: a producer and replicas, which can be killed, paused and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STOP_S = 20.0


class Program:
    """A running program of the example. It stops when this process ends, in whatever way."""

    def __init__(self, module: str, name: str, folder: Path, *arguments: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._is_paused = False
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log.open("w") as output:
            self._process = subprocess.Popen(  # noqa: S603  # our own programs
                [sys.executable, "-m", f"examples.replicas.{module}", "--until-eof", *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": path},
            )

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def state(self) -> str:
        """What the table says: running, paused, killed, stopped or failed."""
        status = self._process.poll()
        if status is None:
            return "paused" if self._is_paused else "running"
        return {0: "stopped", -signal.SIGKILL: "killed"}.get(status, "failed")

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()

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
        try:
            self._process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def resident_megabytes(programs: list[Program]) -> dict[int, int]:
    """Resident memory by process id, of those that run."""
    pids = ",".join(str(program.pid) for program in programs)
    command = ["ps", "-o", "pid=,rss=", "-p", pids or "0"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()  # noqa: S603
    return {int(pid): int(kilobytes) // 1024 for pid, kilobytes in map(str.split, lines)}
