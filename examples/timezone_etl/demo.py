"""Run the three programs of the example together, and show their output and the resulting file."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

from examples._programs import Program, own_root, parser_of

LONGEST_S = 300.0


def run(root: str, csv: Path, messages: int, interval: float, scratch: Path) -> None:
    """Run all three until the file has every message. Raises SystemExit with the log of a program
    that fails.
    """
    arguments = {
        # The reader starts first and the producer last: each waits for the topics that the next one
        # creates.
        "results": ("--messages", str(messages), "--csv", str(csv)),
        "pipeline": ("--checkpoint", str(scratch / "checkpoint")),
        "producer": ("--messages", str(messages), "--interval", str(interval)),
    }
    programs = [
        Program(f"timezone_etl.{name}", name, scratch, "--root", root, *given)
        for name, given in arguments.items()
    ]
    try:
        until = time.monotonic() + LONGEST_S
        while programs[0].state == "running":
            time.sleep(0.1)
            for program in programs:
                show(program)
                program.check()
            if time.monotonic() > until:
                raise SystemExit(f"{messages} messages did not arrive within {LONGEST_S:.0f} s")
    finally:
        for program in programs:
            program.stop()
    show(programs[0])


def show(program: Program) -> None:
    """Print what a program has printed since the last call."""
    for line in program.new_lines():
        print(f"{program.name:>8} | {line}", flush=True)


def main() -> None:
    """Run the program."""
    parser = parser_of(__doc__)
    parser.add_argument("--messages", type=int, default=20, help="how many to produce")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two messages")
    parser.add_argument("--csv", type=Path, default=Path("results.csv"), help="the file to write")
    args = parser.parse_args()

    root = own_root(args.root, "demo")
    print(f"topics in {root}; Spark takes a few seconds to start", flush=True)
    with tempfile.TemporaryDirectory(prefix="deltaq-demo-") as scratch:
        try:
            run(root, args.csv, args.messages, args.interval, Path(scratch))
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None
    print(f"\n{args.csv}:\n{args.csv.read_text()}", end="")


if __name__ == "__main__":
    main()
