"""Linux's inotify: a new file in a folder wakes a waiting reader within a fraction of a
millisecond.

Events are hints only: a network file system reports only changes made by this machine, and a full
queue drops events. So a reader must also poll.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

from deltaq.clock import Clock
from deltaq.store.keys import RESERVED_PREFIX, check_folder

# From linux/inotify.h.
_IN_MOVED_TO = 0x0080
_IN_CREATE = 0x0100
_IN_DELETE_SELF = 0x0400
_IN_MOVE_SELF = 0x0800
_IN_Q_OVERFLOW = 0x4000
_IN_IGNORED = 0x8000
_IN_ONLYDIR = 0x0100_0000

_MASK = _IN_CREATE | _IN_MOVED_TO | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ONLYDIR
_GONE = _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_IGNORED
_HEADER = struct.Struct("iIII")  # watch descriptor, mask, cookie, length of the name that follows
_QUEUE_BYTES = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def is_supported() -> bool:
    """Whether this system has inotify."""
    return _libc is not None and hasattr(_libc, "inotify_init1")


def _call(name: str, *arguments: int | bytes) -> int:
    """Call a function of the C library; OSError if it returns a negative number."""
    answer: int = getattr(_libc, name)(*arguments)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return answer


class InotifyWatch:
    """Watches folders under `root`. OSError if the user has no inotify instances left.

    While a folder does not exist (*pending*), its existing ancestors are watched (*stepping
    stones*). After each event there, the watch tries again to descend to the folder.
    """

    def __init__(self, root: str, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._lock = clock.lock()
        self._pending: set[str] = set()
        self._folders: dict[int, str] = {}  # watch descriptor -> prefix
        self._stones: set[int] = set()
        self._waiters = 0
        self._closed = False
        self._queue = _call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            os.close(self._queue)
            raise

    def add(self, prefix: str) -> None:
        check_folder("watch", prefix)
        with self._lock:
            if not self._closed and prefix not in self._folders.values():
                self._pending.add(prefix)
                self._arm()

    def wait(self, timeout_s: float) -> bool:
        deadline = self._clock.monotonic() + timeout_s
        with self._lock:
            if self._closed or self._arm():
                return True
            self._waiters += 1
        try:
            return self._wait_until(deadline)
        finally:
            with self._lock:
                self._waiters -= 1
                self._release()

    def wake(self) -> None:
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._wake, 1)
                self._closed = True
                self._release()

    def _release(self) -> None:
        # Not while a thread waits: the system could reuse the descriptor's number while that thread
        # polls it.
        if self._closed and self._waiters == 0 and self._queue >= 0:
            os.close(self._queue)
            os.close(self._wake)
            self._queue = self._wake = -1

    def _wait_until(self, deadline: float) -> bool:
        # The wait is a system call and not controlled by the clock; simulations use the store in
        # memory.
        poll = select.poll()
        poll.register(self._queue, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            remaining_ms = max(0, math.ceil((deadline - self._clock.monotonic()) * 1000))
            ready = {descriptor for descriptor, _ in poll.poll(remaining_ms)}
            if not ready:
                return False
            with self._lock:
                # Always handle both: a remaining wake-up would end the next wait too.
                changed = self._queue in ready and self._apply_events()
                if self._wake in ready:
                    if not self._closed:  # `close` must end every wait
                        with suppress(BlockingIOError):  # another thread has read it
                            os.eventfd_read(self._wake)
                    return True
            if changed:
                return True

    def _arm(self) -> bool:
        """Watch the pending folders that exist by now; returns whether there was one."""
        arrived = {
            wd: prefix for prefix in self._pending if (wd := self._descend(prefix)) is not None
        }
        self._folders |= arrived
        self._pending -= set(arrived.values())
        if not self._pending:
            for wd in self._stones - self._folders.keys():
                self._forget(wd)
            self._stones.clear()
        return bool(arrived)

    def _descend(self, prefix: str) -> int | None:
        """Watch `prefix` and return its watch descriptor. If it is missing, watch its ancestors,
        and return None.
        """
        path, wd = self._root, None
        try:
            for part in ["", *prefix.split("/")[:-1]]:
                if wd is not None:
                    self._stones.add(wd)
                path = f"{path}/{part}" if part else path
                wd = _call("inotify_add_watch", self._queue, os.fsencode(path), _MASK)
        except OSError:
            return None  # missing, not readable, or no watches left: the reader still polls
        return wd

    def _apply_events(self) -> bool:
        """Read the queued events; returns whether a watched folder may hold a new object."""
        changed = False
        for wd, mask, name in self._events():
            if mask & _IN_Q_OVERFLOW:
                changed = True
            elif wd in self._folders and mask & _GONE:
                self._pending.add(self._folders.pop(wd))
                self._forget(wd)
                changed = True
            elif wd in self._folders:
                # Ignore unfinished files: the finished file causes its own event.
                changed |= not name.startswith(RESERVED_PREFIX.encode())
        return self._arm() or changed

    def _events(self) -> Iterator[tuple[int, int, bytes]]:
        try:
            data = os.read(self._queue, _QUEUE_BYTES)
        except BlockingIOError:
            return  # another thread has read them
        position = 0
        while position < len(data):
            wd, mask, _, length = _HEADER.unpack_from(data, position)
            position += _HEADER.size + length
            yield wd, mask, data[position - length : position].rstrip(b"\0")

    def _forget(self, wd: int) -> None:
        # The kernel has already removed the watch, as it does for a deleted folder.
        with suppress(OSError):
            _call("inotify_rm_watch", self._queue, wd)
