"""A store in a folder of the local disk: atomic, durable and confined to its root.

Durable: a write returns after the content *and* the directory entries on its path have been synced.
How far `fsync` reaches depends on the system; on macOS it reaches only the drive's cache.

Confined: a symbolic link below the root is refused, even one that is created during an operation;
to keep a topic on another disk, mount that disk there. The root itself may be a link.

No descriptor stays open between two operations. So none becomes stale when a folder is removed and
created again, and none is shared with a forked child.
"""

from __future__ import annotations

import builtins
import errno
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import cached_property, partial
from urllib.parse import quote

from deltaq.clock import SYSTEM_CLOCK, Clock, SystemClock
from deltaq.store import inotify
from deltaq.store.beneath import opened_child
from deltaq.store.contract import (
    CreateUnsupported,
    ObjectEntry,
    ObjectExists,
    ObjectMissing,
    ObjectTooLarge,
    PollInterval,
    Store,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    Watch,
)
from deltaq.store.folders import (
    NEW_FILE,
    Folders,
    holds_an_object,
    in_order,
    names_in,
    remove_unfinished,
)
from deltaq.store.keys import (
    RESERVED_PREFIX,
    check_folder,
    check_key,
    check_prefix,
    check_range,
    is_key,
)
from deltaq.store.watch import SignalWatch

POLL_INTERVAL = PollInterval(busy_s=0.0005, idle_s=0.02)
"""Without inotify, only polls find new entries."""

POLL_INTERVAL_WITH_INOTIFY = PollInterval(busy_s=0.01, idle_s=0.1)
"""The kernel wakes the reader; polls find the changes of other machines on a network file system. A
poll that finds nothing costs a reader some 0.4 ms of processor time: every half millisecond, that
was almost half of its total.
"""

MAKE_ATTEMPTS = 10
"""Maximum number of attempts of a write whose empty folder another client removes."""

_PIECE_BYTES = 4 * 1024 * 1024
"""Maximum bytes synced at once: during a sync, a file system may delay those of all other files,
such as commits.
"""

_SMALL_PIECE_BYTES = 256 * 1024
"""The same for a background write, which pauses between two pieces."""

_AT_ONCE_BYTES = 4096
"""Maximum bytes of a range that is read without asking for the file's size, as of the begin of a
log entry.
"""

# O_NONBLOCK: a named pipe must not block us.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_UNNAMED = os.O_WRONLY | os.O_CLOEXEC | os.O_TMPFILE if hasattr(os, "O_TMPFILE") else 0
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_REFUSALS = {
    errno.ENOSPC: "the disk is full; free space or enlarge it",
    errno.EDQUOT: "the disk quota is used up; free space or raise it",
    errno.EFBIG: "larger than this process or file system allows a file to be (see `ulimit -f`)",
    errno.EACCES: "permission denied; check the owner and mode of the files under the root",
    errno.EPERM: (
        "operation not permitted; check the owner, mode and attributes of the files under the root"
    ),
    errno.EROFS: "the file system is mounted read-only",
    errno.ELOOP: (
        "a symbolic link below the root is not followed; mount the other disk there instead"
    ),
    errno.ENOTDIR: "a file exists where a folder is needed",
    errno.EISDIR: "a folder exists where the object should go",
    errno.ENAMETOOLONG: "the path is longer than the file system allows",
    errno.ENXIO: "a device, pipe or socket, not a file",
    errno.ESPIPE: "a pipe, not a file",
}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_HINTS = {
    errno.EMFILE: "too many open files; raise `ulimit -n`",
    errno.EIO: "the disk reports an error; see the system's log",
}


class LocalStore:
    """Objects as files under the folder `root` (absolute, relative or with `~`). The first write
    creates that folder, but none above it.
    """

    is_remote = False

    def __init__(self, root: str, clock: Clock = SYSTEM_CLOCK) -> None:
        if os.open not in os.supports_dir_fd:
            raise ValueError(
                f"local store {root!r}: this system cannot open files relative to a folder; use "
                "Linux/macOS"
            )
        self._root = os.path.abspath(os.path.expanduser(root))
        self._clock = clock
        self._wakes = inotify.is_supported() and isinstance(clock, SystemClock)
        self._folders = Folders(self._root)
        # Files without a name that can get one; None before the first write.
        self._has_unnamed: bool | None = None
        self.url = "file://" + quote(self._root)
        self.poll_interval = POLL_INTERVAL_WITH_INOTIFY if self._wakes else POLL_INTERVAL

    @cached_property
    def case_sensitive(self) -> bool:
        lower = f"{RESERVED_PREFIX}case{self._clock.unique_id()}"
        try:
            with self._folders.synced(()) as root:
                os.close(os.open(lower, NEW_FILE, 0o666, dir_fd=root))
                try:
                    os.stat(lower.upper(), dir_fd=root, follow_symlinks=False)
                except FileNotFoundError:
                    return True
                finally:
                    os.unlink(lower, dir_fd=root)
        except OSError:
            return True  # not writable: no names are created here, so none can clash
        return False

    def get(self, key: str, size_max: int | None = None) -> bytes:
        return self._read("get", key, 0, None, size_max)

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        check_key("get", key)
        try:
            # Most polls find no object, which `lstat` reports in a fifth of the time of a checked
            # open.
            os.lstat(f"{self._root}/{key}")
        except OSError as error:
            raise _read_error("get", key, error) from None
        return self.get(key, size_max)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(key, start, length)
        return self._read("get_range", key, start, length)

    def put(self, key: str, data: bytes | memoryview) -> None:
        for _ in self._write("put", key, data):
            pass

    def put_in_pieces(self, key: str, data: bytes | memoryview) -> Generator[None, None, None]:
        """As `put`, but yields after each small piece."""
        return self._write("put", key, data, piece_bytes=_SMALL_PIECE_BYTES)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        for _ in self._write("create", key, data, after=after):
            pass

    def link(self, key: str, to: str) -> None:
        check_key("link", key)
        check_key("link", to)
        try:
            with (
                self._folders.opened(key.split("/")[:-1]) as folder,
                self._folders.synced(to.split("/")[:-1]) as target,
            ):
                os.link(
                    _name(key),
                    _name(to),
                    src_dir_fd=folder,
                    dst_dir_fd=target,
                    follow_symlinks=False,
                )
        except FileExistsError:
            raise ObjectExists("link", to, "the key is taken") from None
        except OSError as error:
            raise _read_error("link", key, error) from error

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        check_prefix("list", prefix)
        return self._list(prefix, start_after)

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        check_folder("list_some", prefix)
        return builtins.list(self.list(prefix, start_after))

    def list_folders(self, prefix: str) -> builtins.list[str]:
        check_folder("list_folders", prefix)
        try:
            with self._folders.opened(prefix.split("/")[:-1]) as folder:
                names = sorted(name[:-1] for name in names_in(folder) if name.endswith("/"))
                return [
                    name
                    for name in names
                    if is_key(prefix + name) and holds_an_object(folder, name)
                ]
        except FileNotFoundError:
            return []
        except NotADirectoryError as error:
            self._refuse_file_as_root("list_folders", prefix, error)
            return []
        except OSError as error:
            raise _store_error("list_folders", prefix, error) from error

    def delete(self, key: str) -> None:
        """As the contract says. Not synced, so a power failure may undo the deletion."""
        check_key("delete", key)
        *folders, name = key.split("/")
        try:
            with self._folders.opened(folders) as folder:
                os.unlink(name, dir_fd=folder)
            self._folders.remove_empty(folders)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as error:
            raise _store_error("delete", key, error) from error

    def sync(self, folder: str) -> None:
        check_folder("sync", folder)
        try:
            with self._folders.opened(folder.split("/")[:-1]) as opened:
                os.fsync(opened)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectMissing("sync", folder, "there is no such folder") from None
        except OSError as error:
            raise _store_error("sync", folder, error) from error

    def remove_unfinished(self) -> Iterator[int]:
        try:
            with self._folders.opened(()) as root:
                yield from remove_unfinished(root, self._clock)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _store_error("remove_unfinished", "", error) from error

    def watch(self) -> Watch:
        if self._wakes:
            try:
                return inotify.InotifyWatch(self._root, self._clock)
            except OSError:
                pass  # the user has no inotify instances left: the reader polls instead
        return SignalWatch(self._clock)

    def __repr__(self) -> str:
        return f"<LocalStore {self.url}>"

    def __reduce__(self) -> tuple[object, ...]:
        # Its folder, opened as all clients of a process open it: what they share, they share by the
        # store.
        from deltaq.store.location import open_store  # noqa: PLC0415 - it imports this module

        return open_store, (self.url, None, self._clock)

    def _refuse_file_as_root(self, operation: str, prefix: str, error: NotADirectoryError) -> None:
        """StoreRefused if the root itself is not a folder. An empty listing would hide that."""
        if not os.path.isdir(self._root):
            reason = (
                f"the root {self._root!r} is not a folder; correct the root, or move that file away"
            )
            raise StoreRefused(operation, prefix, reason) from error

    # Reading

    def _read(
        self, operation: str, key: str, start: int, length: int | None, size_max: int | None = None
    ) -> bytes:
        check_key(operation, key)
        try:
            file = self._folders.open(key.split("/"), _READ)
            try:
                if size_max is not None and (size := os.fstat(file).st_size) > size_max:
                    raise ObjectTooLarge(key, size, size_max)
                return _content(file, start, length)
            finally:
                os.close(file)
        except OSError as error:
            raise _read_error(operation, key, error) from error

    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectEntry]:
        base = prefix[: prefix.rfind("/") + 1]
        try:
            with self._folders.opened(base.split("/")[:-1]) as folder:
                yield from self._walk(folder, base, prefix, start_after)
        except FileNotFoundError:
            return
        except NotADirectoryError as error:
            self._refuse_file_as_root("list", prefix, error)
        except OSError as error:
            raise _store_error("list", prefix, error) from error

    def _walk(self, folder: int, base: str, prefix: str, start_after: str) -> Iterator[ObjectEntry]:
        """Objects under the open folder `base`, in key order. A folder sorts as its name plus `/`,
        like its keys.
        """
        for name in in_order(
            names_in(folder, start_after.removeprefix(base) if start_after.startswith(base) else "")
        ):
            key = base + name
            if not key.startswith(prefix) or not is_key(key.removesuffix("/")):
                continue
            elif name.endswith("/"):
                if key > start_after or start_after.startswith(key):
                    with suppress(FileNotFoundError), opened_child(folder, name[:-1]) as child:
                        yield from self._walk(child, key, key, start_after)
            elif key > start_after:
                with suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    yield ObjectEntry(key, status.st_size, status.st_mtime_ns // 1_000_000)

    # Writing

    def _write(
        self,
        operation: str,
        key: str,
        data: bytes | memoryview,
        *,
        after: str = "",
        piece_bytes: int = _PIECE_BYTES,
    ) -> Generator[None, None, None]:
        """Write the object; yields after each piece that is followed by another."""
        check_key(operation, key)
        folders = key.split("/")[:-1]
        publish = self._replace if operation == "put" else partial(self._link, after)
        published = False
        for _ in range(MAKE_ATTEMPTS):
            try:
                with self._folders.synced(folders, make=not after) as folder:
                    yield from self._stage(folder, data, piece_bytes, partial(publish, key, folder))
                    published = True
                    os.fsync(folder)
                return
            except FileExistsError:
                raise ObjectExists(operation, key, "the key is taken") from None
            except OSError as error:
                if published:
                    reason = f"written, but not proven durable: {error.strerror}"
                    raise StoreUnavailable(operation, key, reason) from error
                if error.errno != errno.ENOENT:
                    raise _store_error(operation, key, error) from error
                if after and not os.path.lexists(f"{self._root}/{after}"):
                    raise ObjectMissing(
                        operation, after, "the object that the new one was to follow is gone"
                    ) from None
                # Another client removed the empty folder, or the unfinished file, which became old
                # while this machine was suspended. The content is written again.
        if os.path.islink(self._root) and not os.path.exists(self._root):
            reason = (
                f"the root {self._root!r} is a link to a folder that does not exist; create it, or "
                "mount its disk"
            )
            raise StoreRefused(operation, key, reason)
        if not os.path.isdir(above := os.path.dirname(self._root)):
            reason = (
                f"the root {self._root!r} cannot be created: {above!r} is no folder; create it, or "
                "correct the root"
            )
            raise StoreRefused(operation, key, reason)
        reason = "its folder or its unfinished file was removed repeatedly during the write"
        raise StoreUnavailable(operation, key, reason)

    def _stage(
        self,
        folder: int,
        data: bytes | memoryview,
        piece_bytes: int,
        publish: Callable[[str], None],
    ) -> Generator[None, None, None]:
        """Write the content to a synced, unfinished file in `folder`, and pass its path to
        `publish`: a file without a name where the system has them, which needs no unlinking and
        cannot be left behind.

        Not a context manager: after an interrupt by the user, which may come between any two steps,
        the second half of one could run when the folder is already closed.
        """
        file, name = self._new_file(folder)
        try:
            try:
                left = memoryview(data).cast("B")
                while left:
                    left = left[os.write(file, left[:piece_bytes]) :]
                    if left:
                        _sync_content(file)
                        yield
                os.fsync(file)
                if not name:
                    publish(_path_of(file))
            finally:
                os.close(file)
            if name:
                publish(name)
        finally:
            if name:
                # It was renamed, or it stays until `remove_unfinished`: the write succeeded.
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)

    def _new_file(self, folder: int) -> tuple[int, str]:
        """A descriptor of a new file in `folder`, and its name; "" if it has none."""
        if self._has_unnamed is None:
            self._has_unnamed = _can_name_unnamed(folder, self._new_name())
        if self._has_unnamed:
            # A named file has the error to report, for instance of a removed folder.
            with suppress(OSError):
                return os.open(".", _UNNAMED, 0o666, dir_fd=folder), ""
        name = self._new_name()
        return os.open(name, NEW_FILE, 0o666, dir_fd=folder), name

    def _new_name(self) -> str:
        return RESERVED_PREFIX + self._clock.unique_id()

    def _replace(self, key: str, folder: int, staged: str) -> None:
        if not os.path.isabs(staged):
            return os.rename(staged, _name(key), src_dir_fd=folder, dst_dir_fd=folder)
        try:
            return os.link(staged, _name(key), src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            named = self._new_name()
        try:
            os.link(staged, named, src_dir_fd=folder, dst_dir_fd=folder)
            return os.rename(named, _name(key), src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(named, dir_fd=folder)
            raise

    def _link(self, after: str, key: str, folder: int, staged: str) -> None:
        if after:  # checked as late as possible: syncing the content takes long
            os.stat(_name(after), dir_fd=folder, follow_symlinks=False)
        try:
            os.link(staged, _name(key), src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            reason = (
                f"the file system of {self._root} has no hard links; put the root on one that has"
            )
            raise CreateUnsupported("create", key, reason) from None


# On systems without fdatasync (macOS), the whole content is synced at once.
_sync_content = getattr(os, "fdatasync", lambda _: None)


def put_in_pieces(store: Store, key: str, data: bytes | memoryview) -> Generator[None, None, None]:
    """Put an object that is written in the background. On a local disk it yields after each small
    piece, so that others can write in between. The object is replaced at the end of the iteration.
    Raises StoreError.
    """
    if isinstance(store, LocalStore):
        yield from store.put_in_pieces(key, data)
    else:
        store.put(key, data)


def _content(file: int, start: int, length: int | None) -> bytes:
    """Bytes `[start, start+length)` of an open file, or all from `start`."""
    if length is not None and length <= _AT_ONCE_BYTES:
        return os.pread(file, length, start)
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


def _path_of(file: int) -> str:
    return f"/proc/self/fd/{file}"


def _can_name_unnamed(folder: int, name: str) -> bool:
    if not _UNNAMED:
        return False
    try:
        file = os.open(".", _UNNAMED, 0o666, dir_fd=folder)
        try:
            os.link(_path_of(file), name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(file)
        os.unlink(name, dir_fd=folder)
    except OSError:
        return False
    return True


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def _read_error(operation: str, key: str, error: OSError) -> StoreError:
    """What a failed read means."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return ObjectMissing(operation, key, "there is no such object")
    return _store_error(operation, key, error)


def _store_error(operation: str, key: str, error: OSError) -> StoreError:
    """What a failed system call means."""
    code = error.errno or 0
    if code in _REFUSALS:
        kind = StoreFull if code in _FULL else StoreRefused
        return kind(operation, key, f"{_REFUSALS[code]} ({errno.errorcode[code]})")
    return StoreUnavailable(
        operation, key, _HINTS.get(code) or error.strerror or type(error).__name__
    )
