"""A store in a folder of the local disk: atomic, durable and confined to its root.

Durable: a write returns after the content *and* the directory entries on its path have been synced. How far `fsync`
reaches depends on the system; on macOS it reaches only the drive's cache.

Confined: every folder below the root is opened from its parent's descriptor without following symbolic links. No link
leads out of the root, not even one that is created during an operation. A link below the root is refused; to keep a
topic on another disk, mount that disk there. The root itself may be a link.

No descriptor stays open between two operations. So none becomes stale when a folder is removed and created again, and
none is shared with a forked child.
"""

from __future__ import annotations

import builtins
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from urllib.parse import quote

from deltaq.clock import SYSTEM_CLOCK, Clock, SystemClock
from deltaq.store import inotify
from deltaq.store.beneath import FOLDER, child_folder, open_beneath
from deltaq.store.contract import (
    CreateUnsupported,
    ObjectEntry,
    ObjectExists,
    ObjectMissing,
    PollInterval,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    Watch,
)
from deltaq.store.keys import RESERVED_PREFIX, check_folder, check_key, check_prefix, is_key
from deltaq.store.watch import SignalWatch

__all__ = ["LocalStore"]

POLL_INTERVAL = PollInterval(busy_s=0.0005, idle_s=0.02)
"""A poll that finds nothing costs a few microseconds."""

POLL_INTERVAL_WITH_INOTIFY = PollInterval(busy_s=0.0005, idle_s=0.1)
"""The kernel wakes the reader. Polling while idle finds changes that the kernel does not report: those made by other
machines on a network file system.

The kernel rounds a busy wait up to its unit of 1 ms, unless an event ends it earlier."""

UNFINISHED_AGE_MS = 24 * 3600 * 1000
"""Age, by the file system's clock, above which an unfinished file counts as left by an interrupted write."""

MAKE_ATTEMPTS = 10
"""Maximum number of attempts of a write whose empty folder another client removes."""

_PIECE_BYTES = 4 * 1024 * 1024
"""Maximum bytes synced at once when a large file is written. A file system may delay the syncs of all other files
during one sync, and among them are the commits of writers."""

_SMALL_PIECE_BYTES = 256 * 1024
"""The same for a background write, which pauses between two pieces."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: a named pipe must not block us
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_REFUSALS = {
    errno.ENOSPC: "the disk is full; free space or enlarge it",
    errno.EDQUOT: "the disk quota is used up; free space or raise it",
    errno.EFBIG: "larger than this process or file system allows a file to be (see `ulimit -f`)",
    errno.EACCES: "permission denied; check the owner and mode of the files under the root",
    errno.EPERM: "operation not permitted; check the owner, mode and attributes of the files under the root",
    errno.EROFS: "the file system is mounted read-only",
    errno.ELOOP: "a symbolic link below the root is not followed; mount the other disk there instead",
    errno.ENOTDIR: "a file exists where a folder is needed",
    errno.EISDIR: "a folder exists where the object should go",
    errno.ENAMETOOLONG: "the path is longer than the file system allows",
    errno.ENXIO: "a device, pipe or socket, not a file",
}
_HINTS = {
    errno.EMFILE: "too many open files; raise `ulimit -n`",
    errno.EIO: "the disk reports an error; see the system's log",
}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class LocalStore:
    """Objects as files under the folder `root` (absolute, relative or with `~`), which the first write creates."""

    def __init__(self, root: str, clock: Clock = SYSTEM_CLOCK) -> None:
        if os.open not in os.supports_dir_fd:
            raise ValueError(
                f"local store {root!r}: this system cannot open files relative to a folder; use Linux/macOS"
            )
        self._root = os.path.abspath(os.path.expanduser(root))
        self._clock = clock
        self._wakes = inotify.is_supported() and isinstance(clock, SystemClock)
        self._root_is_synced = False
        self._synced: set[tuple[int, int]] = set()  # (device, inode) of folders whose entry in their parent is synced
        self._synced_paths: dict[tuple[str, ...], tuple[int, int]] = {}  # path -> folder whose path is synced
        self._case_sensitive: bool | None = None

    @property
    def url(self) -> str:
        return "file://" + quote(self._root)

    @property
    def poll_interval(self) -> PollInterval:
        return POLL_INTERVAL_WITH_INOTIFY if self._wakes else POLL_INTERVAL

    @property
    def is_remote(self) -> bool:
        return False

    @property
    def case_sensitive(self) -> bool:
        if self._case_sensitive is None:
            self._case_sensitive = self._is_case_sensitive()
        return self._case_sensitive

    def get(self, key: str) -> bytes:
        return self._read("get", key, 0, None)

    def get_impatient(self, key: str) -> bytes:
        return self.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise ValueError(f"get_range of {key!r}: start={start} and length={length} must not be negative")
        return self._read("get_range", key, start, length)

    def put(self, key: str, data: bytes | memoryview, between: Callable[[], None] | None = None) -> None:
        self._write("put", key, data, between)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        self._write("create", key, data, after=after)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        check_prefix("list", prefix)
        return self._list(prefix, start_after)

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        check_folder("list_some", prefix)
        return builtins.list(self.list(prefix, start_after))

    def list_folders(self, prefix: str) -> builtins.list[str]:
        check_folder("list_folders", prefix)
        try:
            with self._folder(prefix.split("/")[:-1]) as folder:
                names = sorted(name[:-1] for name in _names(folder) if name.endswith("/"))
                return [name for name in names if is_key(prefix + name) and _holds_an_object(folder, name)]
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            self._refuse_file_as_root("list_folders", prefix, error)
            return []
        except OSError as error:
            raise _outcome("list_folders", prefix, error) from error

    def delete(self, key: str) -> None:
        """As the contract says. Not synced, so a power failure may undo the deletion."""
        check_key("delete", key)
        *folders, name = key.split("/")
        try:
            with self._folder(folders) as folder:
                os.unlink(name, dir_fd=folder)
            self._remove_empty(folders)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            raise _outcome("delete", key, error) from error

    def sync(self, folder: str) -> None:
        check_folder("sync", folder)
        try:
            with self._folder(folder.split("/")[:-1]) as opened:
                os.fsync(opened)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing("sync", folder, "there is no such folder") from None
        except OSError as error:
            raise _outcome("sync", folder, error) from error

    def remove_unfinished(self, between: Callable[[], object] = lambda: None) -> int:
        try:
            with self._folder(()) as root:
                return self._remove_unfinished(root, between)
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as error:
            raise _outcome("remove_unfinished", "", error) from error

    def watch(self) -> Watch:
        if self._wakes:
            try:
                return inotify.InotifyWatch(self._root, self._clock)
            except OSError:
                pass  # the user has no inotify instances left: the reader polls instead
        return SignalWatch(self._clock)

    def __repr__(self) -> str:
        return f"<LocalStore {self.url}>"

    # Folders

    def _open_folder(self, parts: Sequence[str]) -> int:
        """A descriptor of the folder. FileNotFoundError; ELOOP for a symbolic link in the path."""
        root = os.open(self._root, _ROOT)
        if not parts:
            return root
        try:
            return open_beneath(root, parts, FOLDER)
        finally:
            os.close(root)

    def _refuse_file_as_root(self, operation: str, prefix: str, error: NotADirectoryError) -> None:
        """StoreRefused if the root itself is not a folder. An empty listing would hide that."""
        if not os.path.isdir(self._root):
            reason = f"the root {self._root!r} is not a folder; correct the root, or move that file away"
            raise StoreRefused(operation, prefix, reason) from error

    @contextmanager
    def _folder(self, parts: Sequence[str]) -> Iterator[int]:
        folder = self._open_folder(parts)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextmanager
    def _synced_folder(self, parts: Sequence[str], *, make: bool = True) -> Iterator[int]:
        """A descriptor of the folder, created if missing (with `make`), with every directory entry of its path synced.

        FileNotFoundError if it is missing and `make` is False.
        """
        if (known := self._known_folder(parts)) is not None:
            try:
                yield known
            finally:
                os.close(known)
            return
        if make:
            self._make_root()
        folder = os.open(self._root, _ROOT)
        try:
            for part in parts:
                child, made = _child_or_new(folder, part) if make else (child_folder(folder, part), False)
                parent, folder = folder, child
                try:
                    self._sync_parent(parent, child, made)
                finally:
                    os.close(parent)
            self._synced_paths[tuple(parts)] = _identity(folder)
            yield folder
        finally:
            os.close(folder)

    def _known_folder(self, parts: Sequence[str]) -> int | None:
        """A descriptor of the folder if its path is known to be synced and it was not replaced since; else None."""
        identity = self._synced_paths.get(tuple(parts))
        if identity is None:
            return None
        try:
            folder = self._open_folder(parts)
        except OSError:
            return None
        if _identity(folder) == identity:
            return folder
        os.close(folder)
        return None

    def _make_root(self) -> None:
        if self._root_is_synced and os.path.isdir(self._root):
            return
        missing, path = [self._root], os.path.dirname(self._root)
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            try:
                os.mkdir(path)
            except FileExistsError:
                pass
            _sync_entry(path)
        self._root_is_synced = True

    def _sync_parent(self, parent: int, child: int, made: bool) -> None:
        # Also for a folder that existed already: the process that created it may not have synced its entry yet.
        identity = _identity(child)
        if made or identity not in self._synced:
            os.fsync(parent)
            self._synced.add(identity)

    def _remove_empty(self, parts: Sequence[str]) -> None:
        """Remove the folder if it is empty, and then its parents: a folder without objects does not exist."""
        while parts:
            *parents, name = parts
            try:
                with self._folder(parents) as parent:
                    os.rmdir(name, dir_fd=parent)
            except OSError:
                return  # not empty, already gone, or no permission
            parts = parents

    def _is_case_sensitive(self) -> bool:
        lower = f"{RESERVED_PREFIX}case{self._clock.unique_id()}"
        try:
            with self._synced_folder(()) as root:
                os.close(os.open(lower, _WRITE, 0o666, dir_fd=root))
                try:
                    os.stat(lower.upper(), dir_fd=root, follow_symlinks=False)
                except FileNotFoundError:
                    return True
                finally:
                    os.unlink(lower, dir_fd=root)
        except OSError:
            return True  # not writable: no names are created here, so none can clash
        return False

    # Reading

    def _read(self, operation: str, key: str, start: int, length: int | None) -> bytes:
        check_key(operation, key)
        *folders, name = key.split("/")
        try:
            # Most polls find no object. `lstat` reports that in a fifth of the time of the checked open below. It may
            # follow links in the path, but the answer "missing" discloses nothing.
            os.lstat(f"{self._root}/{key}")
            root = os.open(self._root, _ROOT)
            try:
                file = open_beneath(root, (*folders, name), _READ)
            finally:
                os.close(root)
            try:
                return _content(file, start, length)
            finally:
                os.close(file)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectMissing(operation, key, "there is no such object") from None
        except OSError as error:
            raise _outcome(operation, key, error) from error

    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectEntry]:
        base = prefix[: prefix.rfind("/") + 1]
        try:
            with self._folder(base.split("/")[:-1]) as folder:
                yield from self._walk(folder, base, prefix, start_after)
        except FileNotFoundError:
            return
        except NotADirectoryError as error:
            self._refuse_file_as_root("list", prefix, error)
        except OSError as error:
            raise _outcome("list", prefix, error) from error

    def _walk(self, folder: int, base: str, prefix: str, start_after: str) -> Iterator[ObjectEntry]:
        """Objects under the open folder `base`, in key order. A folder sorts as its name plus `/`, like its keys."""
        for name in _in_order(_names(folder, start_after.removeprefix(base) if start_after.startswith(base) else "")):
            key = base + name
            if not key.startswith(prefix) or not is_key(key.removesuffix("/")):
                continue
            elif name.endswith("/"):
                if key > start_after or start_after.startswith(key):
                    yield from self._walk_child(folder, name, base, start_after)
            elif key > start_after:
                try:
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield ObjectEntry(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def _walk_child(self, folder: int, name: str, base: str, start_after: str) -> Iterator[ObjectEntry]:
        try:
            child = child_folder(folder, name[:-1])
        except FileNotFoundError:
            return
        try:
            yield from self._walk(child, base + name, base + name, start_after)
        finally:
            os.close(child)

    # Unfinished files

    def _remove_unfinished(self, folder: int, between: Callable[[], object]) -> int:
        """Remove old unfinished files from the open folder and all folders below it; returns their number."""
        removed = 0
        names = _names(folder)
        if any(name.startswith(RESERVED_PREFIX) and not name.endswith("/") for name in names):
            removed += self._remove_unfinished_here(folder)
        for name in names:
            if not name.endswith("/") or not is_key(name[:-1]):
                continue
            between()
            try:
                child = child_folder(folder, name[:-1])
            except OSError:
                continue  # removed in the meantime, or no permission
            try:
                removed += self._remove_unfinished(child, between)
            finally:
                os.close(child)
        return removed

    def _remove_unfinished_here(self, folder: int) -> int:
        """Remove old unfinished files from the open folder; returns their number.

        Their age is measured against a file that is written now. The file system sets both times, so a wrong clock of
        a machine that mounts it has no effect.
        """
        fresh = RESERVED_PREFIX + self._clock.unique_id()
        removed = 0
        try:
            file = os.open(fresh, _WRITE, 0o666, dir_fd=folder)
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

    # Writing

    def _write(
        self,
        operation: str,
        key: str,
        data: bytes | memoryview,
        between: Callable[[], None] | None = None,
        after: str = "",
    ) -> None:
        check_key(operation, key)
        *folders, name = key.split("/")
        publish = _replace if operation == "put" else partial(_link, after.rpartition("/")[2])
        published = False
        for attempt in range(1, MAKE_ATTEMPTS + 1):
            try:
                with self._synced_folder(folders, make=not after) as folder:
                    self._stage(folder, data, between, partial(publish, folder, name))
                    published = True
                    os.fsync(folder)
                return
            except FileExistsError:
                raise ObjectExists(operation, key, "the key is taken") from None
            except OSError as error:
                if published:
                    raise StoreUnavailable(
                        operation, key, f"written, but not proven durable: {error.strerror}"
                    ) from error
                if error.errno == errno.ENOENT and after and not os.path.lexists(f"{self._root}/{after}"):
                    raise ObjectMissing(operation, after, "the object that the new one was to follow is gone") from None
                # Another client removed the empty folder, or the unfinished file, which became old while this machine
                # was suspended. The content is written again.
                if error.errno != errno.ENOENT or attempt == MAKE_ATTEMPTS:
                    raise self._write_outcome(operation, key, error) from error

    def _write_outcome(self, operation: str, key: str, error: OSError) -> StoreError:
        if error.errno == errno.ENOENT:
            reason = "its folder or its unfinished file was removed repeatedly during the write"
            return StoreUnavailable(operation, key, reason)
        if isinstance(error, _NoHardLinksError):
            reason = f"the file system of {self._root} has no hard links; put the root on one that has"
            return CreateUnsupported(operation, key, reason)
        return _outcome(operation, key, error)

    def _stage(
        self,
        folder: int,
        data: bytes | memoryview,
        between: Callable[[], None] | None,
        publish: Callable[[str], None],
    ) -> None:
        """Write the content to a synced, unfinished file in `folder`, pass its name to `publish`, and remove that name
        if it still exists.

        Not a context manager: after an interrupt by the user, which may come between any two steps, the second half of
        one could run when the folder is already closed.
        """
        name = RESERVED_PREFIX + self._clock.unique_id()
        file = os.open(name, _WRITE, 0o666, dir_fd=folder)
        try:
            try:
                left, piece = memoryview(data).cast("B"), _SMALL_PIECE_BYTES if between else _PIECE_BYTES
                while left:
                    left = left[os.write(file, left[:piece]) :]
                    if left:
                        _sync_content(file)
                        if between:
                            between()
                os.fsync(file)
            finally:
                os.close(file)
            publish(name)
        finally:
            with suppress(OSError):  # it was renamed, or it stays until `remove_unfinished`: the write has succeeded
                os.unlink(name, dir_fd=folder)


class _NoHardLinksError(OSError):
    """The file system does not support hard links."""


def _outcome(operation: str, key: str, error: OSError) -> StoreError:
    """The store error for a failed system call."""
    code = error.errno or 0
    if code in _REFUSALS:
        return StoreRefused(operation, key, f"{_REFUSALS[code]} ({errno.errorcode[code]})")
    return StoreUnavailable(operation, key, _HINTS.get(code) or error.strerror or type(error).__name__)


def _identity(folder: int) -> tuple[int, int]:
    """Device and inode of an open folder, which identify it independently of its name."""
    status = os.fstat(folder)
    return status.st_dev, status.st_ino


def _child_or_new(folder: int, name: str) -> tuple[int, bool]:
    """A descriptor of the folder `name` in `folder`, created if missing; and whether it was created."""
    try:
        return child_folder(folder, name), False
    except FileNotFoundError:
        pass
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        return child_folder(folder, name), False
    return child_folder(folder, name), True


# On systems without fdatasync (macOS), the whole content is synced at once.
_sync_content = getattr(os, "fdatasync", lambda _: None)


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


def _names(folder: int, after: str = "") -> list[str]:
    """Names of the files in the folder, and names of its folders with a `/`. Without links and devices, and without
    names that cannot lead to keys after `after`."""
    if after:
        # Readers list a log's entries after the newest again and again: skip the thousands of older ones early.
        beginnings = {after[:end] for end in range(1, len(after) + 1)}  # folders that may hold keys after `after`
        return list(_kinds(folder, [name for name in os.listdir(folder) if name > after or name in beginnings]))
    with os.scandir(folder) as entries:
        return [
            f"{entry.name}/" if is_dir else entry.name
            for entry in entries
            if (is_dir := entry.is_dir(follow_symlinks=False)) or entry.is_file(follow_symlinks=False)
        ]


def _in_order(names: list[str]) -> Iterator[str]:
    """The names in order, sorted in groups: sorting a million at once would block all other threads for a second. The
    list is emptied, so that only the remaining names take memory."""
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


def _holds_an_object(parent: int, name: str) -> bool:
    """Whether the folder holds an object, directly or below. Stops at the first one."""
    try:
        folder = child_folder(parent, name)
    except FileNotFoundError:
        return False
    try:
        below = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                elif is_key(entry.name) and entry.is_file(follow_symlinks=False):
                    return True
        return any(is_key(name) and _holds_an_object(folder, name) for name in below)
    finally:
        os.close(folder)


def _content(file: int, start: int, length: int | None) -> bytes:
    """Bytes `[start, start+length)` of an open file, or all from `start`."""
    status = os.fstat(file)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
    end = status.st_size if length is None else min(start + length, status.st_size)
    chunks = []
    while start < end:
        chunk = os.pread(file, end - start, start)
        if not chunk:
            break
        chunks.append(chunk)
        start += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _replace(folder: int, name: str, staged: str) -> None:
    os.rename(staged, name, src_dir_fd=folder, dst_dir_fd=folder)


def _link(after: str, folder: int, name: str, staged: str) -> None:
    if after:
        os.stat(after, dir_fd=folder, follow_symlinks=False)  # as late as possible: syncing the content takes long
    try:
        os.link(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno in _NO_HARD_LINKS:
            raise _NoHardLinksError(error.errno, error.strerror) from None
        raise
