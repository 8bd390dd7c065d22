"""Folders below the root of a local store: opening, syncing, listing and cleaning them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from deltaq.clock import Clock
from deltaq.store.beneath import (
    FOLDER,
    child_folder,
    open_beneath,
    open_without_links,
    opened_child,
)
from deltaq.store.keys import RESERVED_PREFIX, is_key

UNFINISHED_AGE_MS = 24 * 3600 * 1000
"""Age, by the file system's clock, above which an unfinished file counts as left by an interrupted
write.
"""

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags for creating a file."""

_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
"""Flags for opening the root, which may be a link."""


class Folders:
    """The folders below `path`, the absolute path of a root. `parts` are the names on the way to a
    folder.

    A folder is opened without following links below the root, and no descriptor is kept.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._has_links_above = False
        self._root_is_synced = False
        # (device, inode) of folders whose entry in their parent is synced.
        self._synced: set[tuple[int, int]] = set()
        # Path -> folder whose path is synced.
        self._synced_paths: dict[tuple[str, ...], tuple[int, int]] = {}

    def open(self, parts: Sequence[str], flags: int = FOLDER) -> int:
        """A descriptor of the folder, or with other `flags` of a file. ELOOP for a link in the
        path.
        """
        if parts and not self._has_links_above:
            found = open_without_links("/".join((self.path, *parts)), flags)
            if found is not None:
                return found
        root = os.open(self.path, _ROOT)
        if not parts:
            return root
        try:
            found = open_beneath(root, parts, flags)
        finally:
            os.close(root)
        self._has_links_above = True  # or the system has no single call for the whole path
        return found

    @contextmanager
    def opened(self, parts: Sequence[str]) -> Iterator[int]:
        """A descriptor of the folder within the block. Raises what `open` raises."""
        folder = self.open(parts)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def synced(self, parts: Sequence[str], *, make: bool = True) -> Iterator[int]:
        """A descriptor of the folder, with every entry of its path synced. With `make`, it is
        created if missing.
        """
        if (known := self._known_folder(parts)) is not None:
            try:
                yield known
            finally:
                os.close(known)
            return
        if make:
            self._make_root()
        folder = os.open(self.path, _ROOT)
        try:
            for part in parts:
                child, made = (
                    _child_or_new(folder, part) if make else (child_folder(folder, part), False)
                )
                parent, folder = folder, child
                try:
                    # Also for a folder that existed: the process that created it may not have
                    # synced its entry yet.
                    identity = _identity(child)
                    if made or identity not in self._synced:
                        os.fsync(parent)
                        self._synced.add(identity)
                finally:
                    os.close(parent)
            self._synced_paths[tuple(parts)] = _identity(folder)
            yield folder
        finally:
            os.close(folder)

    def remove_empty(self, parts: Sequence[str]) -> None:
        """Remove the folder if it is empty, and then its parents: a folder without objects does not
        exist.
        """
        while parts:
            *parents, name = parts
            try:
                with self.opened(parents) as parent:
                    os.rmdir(name, dir_fd=parent)
            except OSError:
                return  # not empty, already gone, or no permission
            parts = parents

    def _known_folder(self, parts: Sequence[str]) -> int | None:
        """A descriptor of the folder if its path is known to be synced and it was not replaced
        since; else None.
        """
        identity = self._synced_paths.get(tuple(parts))
        if identity is None:
            return None
        try:
            folder = self.open(parts)
        except OSError:
            return None
        if _identity(folder) == identity:
            return folder
        os.close(folder)
        return None

    def _make_root(self) -> None:
        """Create the root if it is missing, in a folder that exists: a misspelt path must not
        become a new root. Raises FileNotFoundError.
        """
        if self._root_is_synced and os.path.isdir(self.path):
            return
        with suppress(FileExistsError):
            os.mkdir(self.path)
        _sync_entry(self.path)
        self._root_is_synced = True


def _identity(folder: int) -> tuple[int, int]:
    """Device and inode of an open folder, which identify it independently of its name."""
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _child_or_new(folder: int, name: str) -> tuple[int, bool]:
    """A descriptor of the folder `name` in `folder`, created if missing; and whether it was
    created.
    """
    try:
        return child_folder(folder, name), False
    except FileNotFoundError:
        made = False
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
        made = True
    return child_folder(folder, name), made


def _sync_entry(path: str) -> None:
    """Sync the entry of the folder `path` in its parent."""
    try:
        parent = os.open(os.path.dirname(path), _ROOT)
    except PermissionError:
        return  # no permission to open the parent, so `path` was created by another user, long ago
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def names_in(folder: int, after: str = "") -> list[str]:
    """Names of the files in the folder, and of its folders with a `/`, that can lead to keys after
    `after`.
    """
    if after:
        # Readers list a log's entries after the newest again and again: skip the thousands of older
        # ones early. Folders that may hold keys after `after`.
        beginnings = {after[:end] for end in range(1, len(after) + 1)}
        return list(
            _kinds(
                folder, [name for name in os.listdir(folder) if name > after or name in beginnings]
            )
        )
    with os.scandir(folder) as entries:
        return [
            f"{entry.name}/" if is_dir else entry.name
            for entry in entries
            if (is_dir := entry.is_dir(follow_symlinks=False))
            or entry.is_file(follow_symlinks=False)
        ]


def in_order(names: list[str]) -> Iterator[str]:
    """The names in order, sorted in groups: sorting a million at once would block all threads.
    Empties the list.
    """
    parts: dict[str, list[str]] = {}
    while names:
        name = names.pop()
        parts.setdefault(name[:2], []).append(name)
    for beginning in sorted(parts):
        yield from sorted(parts.pop(beginning))


def _kinds(folder: int, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(mode):
            yield f"{name}/"
        elif stat.S_ISREG(mode):
            yield name


def holds_an_object(parent: int, name: str) -> bool:
    """Whether the folder holds an object, directly or below. Stops at the first one.

    A folder that may not be read counts as one that does: it must not hide the folders beside it,
    and a read of its objects reports the reason.
    """
    below = []
    try:
        with opened_child(parent, name) as folder:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                    elif is_key(entry.name) and entry.is_file(follow_symlinks=False):
                        return True
            return any(is_key(name) and holds_an_object(folder, name) for name in below)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True


def remove_unfinished(folder: int, clock: Clock) -> Iterator[int]:
    """Remove old unfinished files of interrupted writes from the open `folder` and all folders
    below it.

    Yields the number of files removed from each folder. Raises OSError.
    """
    names = names_in(folder)
    has_some = any(name.startswith(RESERVED_PREFIX) and not name.endswith("/") for name in names)
    yield _removed_from(folder, clock) if has_some else 0
    for name in names:
        if name.endswith("/") and is_key(name[:-1]):
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

    Their age is measured against a file that is written now, so that a wrong clock of this machine
    has no effect.
    """
    fresh = RESERVED_PREFIX + clock.unique_id()
    removed = 0
    # Finished or removed in the meantime, or no permission: the next run tries again.
    with suppress(OSError):
        file = os.open(fresh, NEW_FILE, 0o666, dir_fd=folder)
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
                if (
                    stat.S_ISREG(status.st_mode)
                    and status.st_mtime_ns < now_ns - UNFINISHED_AGE_MS * 1_000_000
                ):
                    os.unlink(name, dir_fd=folder)
                    removed += 1
    return removed
