"""When a watcher knows that the lock of another worker is over."""

from __future__ import annotations

from collections.abc import Iterable

from deltaq.share_groups.state import RecordLock, SharePartition


class LockWatch:
    """What one watcher has seen of the locks of a share group. Not thread-safe.

    A lock is over once the watcher has seen it for its whole duration, measured on the watcher's
    own monotonic clock from the end of the first read that found it. The worker counts from before
    it wrote the lock, so it never believes longer in its lock than any watcher. No clocks of two
    machines are compared. A verdict is final: the lock that is over names the entry that made it,
    and the records get another one when they are taken again.
    """

    def __init__(self) -> None:
        self._seen: dict[RecordLock, float] = {}

    def observe(self, partitions: Iterable[SharePartition], now: float) -> None:
        """Note the locks that a read found, which has ended at `now` (`Clock.monotonic`), and
        forget all others.
        """
        found = {lock for partition in partitions for lock in partition.locks()}
        self._seen = {lock: self._seen.get(lock, now) for lock in found}

    def over(self, now: float, duration_s: float) -> frozenset[RecordLock]:
        """The locks that were seen for their whole duration by `now` (`Clock.monotonic`)."""
        return frozenset(lock for lock, at in self._seen.items() if now - at >= duration_s)
