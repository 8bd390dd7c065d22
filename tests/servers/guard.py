"""Removes a server and its files once the process that started it is gone, however that ended.

`python guard.py FOLDER` reads the server's process id, or 0 for none, from its standard input, line
by line. At the end of the input it kills the last one named and removes the folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys


def main() -> None:
    """Wait for the end of the input, then clean up."""
    server = 0
    for line in sys.stdin:
        server = int(line)
    if server:
        try:
            os.killpg(server, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended by itself
    shutil.rmtree(sys.argv[1], ignore_errors=True)


if __name__ == "__main__":
    main()
