"""Opens paths below a folder without following symbolic links.

Linux does this in one system call (`openat2`, since 5.6; source: openat2(2), linux/openat2.h).
Elsewhere, and where a sandbox forbids that call, the path is opened folder by folder. One call is
preferred because the main cost is that each call releases the interpreter lock.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
"""Flags for opening a folder."""

_OPENAT2 = 437  # on all processors named here
_PROCESSORS = {"x86_64", "aarch64", "riscv64", "ppc64le", "s390x"}
# RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS and RESOLVE_BENEATH.
_NO_LINKS, _BENEATH = 0x02 | 0x04, 0x08
_AT_CWD = -100

_syscall: Any = ctypes.CDLL(None, use_errno=True).syscall if sys.platform == "linux" else None


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(folder: int, parts: Sequence[str], flags: int) -> int:
    """A descriptor of the path `parts` below the open `folder`; `flags` as for `os.open`.

    OSError as from `os.open`; ELOOP if any part of the path is a symbolic link.
    """
    if _WORKS:
        return _openat2(folder, "/".join(parts), flags, _NO_LINKS | _BENEATH)
    *above, name = parts
    walked = folder
    try:
        for part in above:
            child = child_folder(walked, part)
            if walked != folder:
                os.close(walked)
            walked = child
        if flags & os.O_DIRECTORY:
            return child_folder(walked, name)
        return os.open(name, flags, dir_fd=walked)
    finally:
        if walked != folder:
            os.close(walked)


def open_without_links(path: str, flags: int) -> int | None:
    """A descriptor of the absolute path, which has no `..`; None if that takes more than one call:
    where the system has no such call, and where any part of the path is a symbolic link. OSError as
    from `os.open`.
    """
    if not _WORKS:
        return None
    try:
        return _openat2(_AT_CWD, path, flags, _NO_LINKS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def child_folder(folder: int, name: str) -> int:
    """A descriptor of the folder `name` in the open `folder`. ELOOP if it is a symbolic link."""
    try:
        return os.open(name, FOLDER, dir_fd=folder)
    except NotADirectoryError:
        # Linux reports ENOTDIR for a link too, and a link must not be taken for a missing folder.
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


@contextmanager
def opened_child(folder: int, name: str) -> Iterator[int]:
    """`child_folder` within the block."""
    child = child_folder(folder, name)
    try:
        yield child
    finally:
        os.close(child)


def _openat2(folder: int, path: str, flags: int, resolve: int) -> int:
    # Without O_NOFOLLOW: with it, a link at the end of the path is reported as ENOTDIR instead of
    # ELOOP.
    how = _How(flags & ~os.O_NOFOLLOW, 0, resolve)
    name = os.fsencode(path)
    while True:
        opened: int = _syscall(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(folder),
            ctypes.c_char_p(name),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if opened >= 0:
            return opened
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def _has_openat2() -> bool:
    if _syscall is None or platform.machine() not in _PROCESSORS:
        return False
    try:
        os.close(_openat2(_AT_CWD, ".", FOLDER, _NO_LINKS | _BENEATH))
    except OSError:
        return False
    return True


_WORKS = _has_openat2()
