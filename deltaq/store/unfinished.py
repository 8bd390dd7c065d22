"""Removal of the unfinished files that interrupted writes leave in a local store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from deltaq.clock import Clock
from deltaq.store.beneath import child_folder
from deltaq.store.folders import names_in
from deltaq.store.keys import RESERVED_PREFIX, is_key

UNFINISHED_AGE_MS = 24 * 3600 * 1000
"""Age, by the file system's clock, above which an unfinished file counts as left by an interrupted write."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_unfinished(folder: int, clock: Clock) -> Iterator[int]:
    """Remove old unfinished files from the open `folder` and all folders below it, one folder after the other.

    Yields the number of files removed from each folder. Raises OSError.
    """
    names = names_in(folder)
    has_some = any(name.startswith(RESERVED_PREFIX) and not name.endswith("/") for name in names)
    yield _removed_from(folder, clock) if has_some else 0
    for name in names:
        if not name.endswith("/") or not is_key(name[:-1]):
            continue
        try:
            child = child_folder(folder, name[:-1])
        except OSError:
            continue  # removed in the meantime, or no permission
        try:
            yield from remove_unfinished(child, clock)
        finally:
            os.close(child)


def _removed_from(folder: int, clock: Clock) -> int:
    """Remove old unfinished files from the open folder; returns their number.

    Their age is measured against a file that is written now. The file system sets both times, so a wrong clock of
    a machine that mounts it has no effect.
    """
    fresh = RESERVED_PREFIX + clock.unique_id()
    removed = 0
    try:
        file = os.open(fresh, _CREATE, 0o666, dir_fd=folder)
        try:
            os.write(file, b"x")
            os.fsync(file)  # on a network file system, makes the server set the time
            now_ns = os.fstat(file).st_mtime_ns
        finally:
            os.close(file)
            os.unlink(fresh, dir_fd=folder)
        for name in os.listdir(folder):
            if name.startswith(RESERVED_PREFIX):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mtime_ns < now_ns - UNFINISHED_AGE_MS * 1_000_000:
                    os.unlink(name, dir_fd=folder)
                    removed += 1
    except OSError:
        pass  # finished or removed in the meantime, or no permission: the next run tries again
    return removed
