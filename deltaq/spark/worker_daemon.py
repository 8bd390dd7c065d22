"""Spark's daemon of Python processes, with processes that end quietly when Spark closes their
sockets.

`python.sh` runs this file in place of `python -m pyspark.daemon`.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from pyspark import daemon

_spark_worker = daemon.worker


def _worker(sock: socket.socket, authenticated: bool) -> int:
    """Do the work that Spark sends. Spark ends a session by closing the sockets of idle processes.
    Its own worker tries to report that as an error, and with a Unix domain socket prints a
    traceback because it cannot.
    """
    try:
        return int(_spark_worker(sock, authenticated))
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    if not os.environ.get("PYTHONSAFEPATH"):
        # As with `-m`: workers find the modules of the user's folder.
        sys.path.insert(0, str(Path.cwd()))
    daemon.worker = _worker
    daemon.manager()
