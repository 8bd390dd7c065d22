"""Copies a root while it is killed: `python -m tests.crash.copier SOURCE TARGET BYTES COMMITS...`.

A child copies until it has made so many commits, is then killed in the middle of the next one, and another child goes
on. The last one comes to the end.
"""

from __future__ import annotations

import os
import signal
import sys

from deltaq.tools import CopyProgress, copy


def _copied(source: str, target: str, bytes_at_once: int, commits: int) -> None:
    """Start a child that copies, and kill it after so many commits."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        conf = {"bootstrap.servers": source}, {"bootstrap.servers": target}

        def notify(_: CopyProgress) -> None:
            os.write(writing, b".")

        copy(*conf, notify=notify, bytes_at_once=bytes_at_once)
        os._exit(1)  # it was to be killed before
    os.close(writing)
    seen = 0
    while seen < commits and (found := os.read(reading, 1)):
        seen += len(found)
    os.kill(child, signal.SIGKILL)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"the copy came to its end before {commits} commits, or failed")


if __name__ == "__main__":
    source_root, target_root, size, *kills = sys.argv[1:]
    for kill in kills:
        _copied(source_root, target_root, int(size), int(kill))
    report = copy({"bootstrap.servers": source_root}, {"bootstrap.servers": target_root}, bytes_at_once=int(size))
    raise SystemExit("; ".join(map(str, report.failures.values())) or 0)
