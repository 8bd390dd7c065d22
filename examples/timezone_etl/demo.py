"""Run the three programs of the example together, and show their output and the resulting file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path

from examples.timezone_etl.layout import arguments

REPOSITORY = Path(__file__).resolve().parents[2]
LONGEST_S = 300.0

LAST_LINES_S = 2.0
"""How long to wait for the last lines of a program that has ended."""


class Program:
    """A running program of the example. Its output is shown with its name."""

    def __init__(self, name: str, *arguments: str, log: Path) -> None:
        self.name = name
        self.log = log
        command = [sys.executable, "-m", f"examples.timezone_etl.{name}", *arguments]
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        with log.open("w") as errors:
            self.process = subprocess.Popen(  # noqa: S603  # our own programs
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._shown = threading.Thread(target=self._show, daemon=True)
        self._shown.start()

    def _show(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                print(f"{self.name:>8} | {line}", end="", flush=True)

    def failed(self) -> bool:
        """Whether it has ended with an error."""
        return self.process.poll() not in (None, 0)

    def end(self) -> None:
        """Stop it if it is still running."""
        self.process.terminate()
        self.process.wait()
        # A JVM that was just starting can survive its program for longer, and keeps the pipe of the
        # output open.
        self._shown.join(LAST_LINES_S)


def run(root: str, csv: Path, messages: int, interval: float, scratch: Path) -> None:
    """Run all three until the file has every message. Raises SystemExit with the log of a program
    that fails.
    """
    place = ["--root", root]
    checkpoint = ["--checkpoint", str(scratch / "checkpoint")]
    count = ["--messages", str(messages)]
    programs = [
        # The reader starts first and the producer last: each waits for the topics that the next one
        # creates.
        results := Program(
            "results", *place, *count, "--csv", str(csv), log=scratch / "results.log"
        ),
        Program("pipeline", *place, *checkpoint, log=scratch / "pipeline.log"),
        Program(
            "producer", *place, *count, "--interval", str(interval), log=scratch / "producer.log"
        ),
    ]
    try:
        until = time.monotonic() + LONGEST_S
        while results.process.poll() is None:
            for program in programs:
                if program.failed():
                    raise SystemExit(f"{program.name} failed:\n{program.log.read_text()}")
            if time.monotonic() > until:
                raise SystemExit(f"{messages} messages did not arrive within {LONGEST_S:.0f} s")
            time.sleep(0.1)
        if results.failed():
            raise SystemExit(f"{results.name} failed:\n{results.log.read_text()}")
    finally:
        for program in programs:
            program.end()


def main() -> None:
    """Run the program."""
    parser = arguments(__doc__)
    parser.add_argument("--messages", type=int, default=20, help="how many to produce")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two messages")
    parser.add_argument("--csv", type=Path, default=Path("results.csv"), help="the file to write")
    args = parser.parse_args()

    # Each run has its own root, so that existing topics stay untouched.
    root = f"{args.root.rstrip('/')}/demo-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    print(f"topics in {root}; Spark takes a few seconds to start", flush=True)
    with tempfile.TemporaryDirectory(prefix="deltaq-demo-") as scratch:
        try:
            run(root, args.csv, args.messages, args.interval, Path(scratch))
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None
    print(f"\n{args.csv}:\n{args.csv.read_text()}", end="")


if __name__ == "__main__":
    main()
