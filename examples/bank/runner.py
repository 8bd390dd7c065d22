"""Keep the views of the bank up to date. It may be killed at any moment, and started again."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress

from examples._programs import child_parser, on_stop
from examples.bank.layout import bank_views

READY = "the runner has come up"


def interrupt() -> None:
    """End the run of the views, which is in the main thread."""
    if threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the program."""
    parser = child_parser(__doc__)
    parser.add_argument("--every", type=float, default=0.5, help="seconds between two ticks")
    args = parser.parse_args()

    on_stop(interrupt, until_eof=args.until_eof)
    with suppress(KeyboardInterrupt):
        views = bank_views(args.root)
        print(READY, flush=True)
        views.run(every=args.every)


if __name__ == "__main__":
    main()
