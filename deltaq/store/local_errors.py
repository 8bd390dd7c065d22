"""What failed system calls mean, as errors of the store contract."""

from __future__ import annotations

import errno

from deltaq.store.contract import StoreError, StoreRefused, StoreUnavailable

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
NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class NoHardLinksError(OSError):
    """The file system does not support hard links."""


def store_error(operation: str, key: str, error: OSError) -> StoreError:
    """The store error for a failed system call."""
    code = error.errno or 0
    if code in _REFUSALS:
        return StoreRefused(operation, key, f"{_REFUSALS[code]} ({errno.errorcode[code]})")
    return StoreUnavailable(operation, key, _HINTS.get(code) or error.strerror or type(error).__name__)
