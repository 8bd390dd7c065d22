"""The `deltaq` command: what a person does with topics and groups under a root. Needs the extra
`[cli]`.

Modules:

* `program`, `command`, `session`, `output`, `table`, `live`, `arguments`: the `deltaq` command: its
  errors, the options of all commands, the root, what is printed; typer is known only in `command`,
  rich in `live`
* `topics`, `produce`, `messages`, `groups`, `queues`, `transactions`, `views`, `schemas`, `copies`,
  `health`, `estimates`, `top`, `serve`: the commands of a subject; `health` has `setup`, `doctor`,
  `maintain` and `sql`
* `printing`, `query_result`, `deletion`, `resets`: how messages, and rows of queries and views, are
  printed; what became of what is deleted; what the resets of groups have in common
* `__main__`: `python -m deltaq.cli`
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

INTERRUPTED = 130
"""The exit status after Ctrl-C, as that of other programs."""


def main() -> int:
    """The entry point of the command; returns its exit status."""
    _open_closed_streams()
    try:
        from deltaq.cli.program import run  # noqa: PLC0415 - fails without the extra, which needs an answer for users
    except ModuleNotFoundError as missing:
        if missing.name not in ("rich", "typer"):
            raise
        sys.stderr.write("deltaq: the command needs the extra [cli]: pip install 'deltaq[cli]'\n")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    # End at SIGTERM as at Ctrl-C, so that unfinished work is cleaned up. As PID 1 in a container, a
    # process without a handler would ignore SIGTERM.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run()


def _open_closed_streams() -> None:
    """Give the null device to the standard streams that the caller has closed: no file of a store
    may become one.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - to the end
