"""The `deltaq` command: what a person does with topics and groups under a root. Needs the extra `[cli]`."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """The entry point of the command; returns its exit status."""
    try:
        from deltaq.cli.program import run  # noqa: PLC0415 - fails without the extra, which needs an answer for users
    except ModuleNotFoundError as missing:
        if missing.name not in ("rich", "typer"):
            raise
        sys.stderr.write("deltaq: the command needs the extra [cli]: pip install 'deltaq[cli]'\n")
        return 1
    # End at SIGTERM as at Ctrl-C, so that unfinished work is cleaned up. As PID 1 in a container, a process without a
    # handler would ignore SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run()
