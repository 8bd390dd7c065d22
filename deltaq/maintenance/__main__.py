"""`python -m deltaq.maintenance ROOT`: maintenance as a service, or once as a scheduled job."""

from __future__ import annotations

import argparse
import os
import signal
import sys

from deltaq.errors import KafkaException
from deltaq.maintenance.run import FAILURES, run


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit status: 0, 1 if something failed or was cut short, 2 for a root that cannot be used.

    Raises SystemExit(2) for a wrong argument, SystemExit(1) when nobody reads any more what it says.
    """
    parser = argparse.ArgumentParser(
        prog="python -m deltaq.maintenance",
        description="Keep the topics and groups under a root in good order: checkpoints, retention, compaction, "
        "clean-up. Safe beside producers, consumers and other maintenance.",
    )
    parser.add_argument("root", metavar="ROOT", help="folder or URL of the root, as in bootstrap.servers")
    parser.add_argument("--once", action="store_true", help="do what is due now, and end")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done first")
    parser.add_argument("--interval", type=float, default=60.0, metavar="S", help="seconds between rounds (60)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of clients, such as store.endpoint"
    )
    given = parser.parse_args(arguments)
    if wrong := [pair for pair in given.set if "=" not in pair]:
        parser.error(f"argument --set: {wrong[0]!r} is not NAME=VALUE")
    if not 0 < given.interval < float("inf"):
        parser.error(f"argument --interval: {given.interval:g} is not a number of seconds above 0")
    conf = dict(pair.split("=", 1) for pair in given.set)

    try:
        done = run(given.root, once=given.once, dry_run=given.dry_run, interval_s=given.interval, conf=conf, tell=_tell)
    except KafkaException as error:
        sys.stderr.write(f"{error.args[0].str()}\n")
        return 2
    except KeyboardInterrupt:
        return int(given.once)  # a service has no other end, but a job has one
    return 1 if done[FAILURES] else 0


def _tell(line: str) -> None:
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None


if __name__ == "__main__":
    # As Ctrl-C: what is half done is tidied up. In a container, where it would be ignored, the service ends at once.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main())
