"""`python -m deltaq.maintenance ROOT`: maintenance as a service, or once as a scheduled job."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from deltaq.errors import InvalidConfig, KafkaException
from deltaq.maintenance.report import FAILURES
from deltaq.maintenance.run import run


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status.

    0: success, or a service that was interrupted. 1: something was refused or failed, or `--once`
    was interrupted. 2: a wrong root or setting. Raises SystemExit for a wrong argument (2), and if
    standard output is closed (1).
    """
    parser = argparse.ArgumentParser(
        prog="python -m deltaq.maintenance",
        description=(
            "Maintain all topics and groups under a root: checkpoints, retention, compaction, "
            "clean-up. Safe to run beside producers, consumers and other maintenance."
        ),
    )
    parser.add_argument(
        "root", metavar="ROOT", help="folder or URL of the root, as in bootstrap.servers"
    )
    parser.add_argument("--once", action="store_true", help="run one round, then exit")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be done first; change nothing"
    )
    parser.add_argument(
        "--interval", type=float, default=60.0, metavar="S", help="seconds between rounds (60)"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of clients, such as store.endpoint",
    )
    given = parser.parse_args(arguments)
    if wrong := [pair for pair in given.set if "=" not in pair]:
        # May be a secret.
        parser.error(f"argument --set: setting {given.set.index(wrong[0]) + 1} is not NAME=VALUE")
    if not 0 < given.interval < float("inf"):
        parser.error(f"argument --interval: {given.interval:g} is not a number of seconds above 0")
    conf = dict(pair.split("=", 1) for pair in given.set)

    try:
        done = run(
            given.root,
            once=given.once,
            dry_run=given.dry_run,
            interval_s=given.interval,
            conf=conf,
            notify=_print,
        )
    except KafkaException as error:
        sys.stderr.write(f"{error.args[0].str()}\n")
        return 2 if isinstance(error, InvalidConfig) else 1
    except KeyboardInterrupt:
        # A service ends only by an interrupt; a job that was interrupted is incomplete.
        return int(given.once)
    return 1 if done[FAILURES] else 0


def _print(line: str) -> None:
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output again at exit, and would report the broken pipe once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


if __name__ == "__main__":
    # Handle SIGTERM like Ctrl-C, so that unfinished work is cleaned up. As PID 1 in a container, a
    # process without a handler would ignore SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main())
