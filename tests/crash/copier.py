"""Copies a root while it is killed: `python -m tests.crash.copier SOURCE TARGET BYTES COMMITS...`.

A child copies until it has made so many commits, kills itself in the middle of the next one, and
another child goes on. The last one comes to the end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from deltaq.tools import CopyProgress, copy

KILL_AFTER_S = 0.002


def _copied(source: str, target: str, bytes_at_once: int, commits: int) -> None:
    """Start a child that copies, and is killed after so many commits."""
    child = os.fork()
    if child == 0:
        seen: list[CopyProgress] = []

        def notify(progress: CopyProgress) -> None:
            seen.append(progress)
            if len(seen) == commits:
                # By the child itself: on a busy machine it could come to its end before another
                # process kills it.
                threading.Timer(KILL_AFTER_S, os.kill, (os.getpid(), signal.SIGKILL)).start()

        copy(
            {"bootstrap.servers": source},
            {"bootstrap.servers": target},
            notify=notify,
            bytes_at_once=bytes_at_once,
        )
        os._exit(1)  # it was to be killed before
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"the copy came to its end before {commits} commits, or failed")


if __name__ == "__main__":
    source_root, target_root, size, *kills = sys.argv[1:]
    for kill in kills:
        _copied(source_root, target_root, int(size), int(kill))
    report = copy(
        {"bootstrap.servers": source_root},
        {"bootstrap.servers": target_root},
        bytes_at_once=int(size),
    )
    raise SystemExit("; ".join(map(str, report.failures.values())) or 0)
