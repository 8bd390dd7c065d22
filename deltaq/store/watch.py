"""A watch that this process itself signals. Object stores have no other one; for a store in memory
it suffices.
"""

from __future__ import annotations

from deltaq.clock import Clock
from deltaq.store.keys import check_folder


class SignalWatch:
    """Waits on a condition of the clock until `changed` names a key in a watched folder, or `wake`
    is called.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._condition = clock.condition()
        self._folders: frozenset[str] = frozenset()
        self._signalled = False
        self._closed = False

    def add(self, prefix: str) -> None:
        check_folder("watch", prefix)
        with self._condition:
            self._folders |= {prefix}

    def wait(self, timeout_s: float) -> bool:
        with self._condition:
            deadline = self._clock.monotonic() + timeout_s
            while not self._signalled:
                remaining_s = deadline - self._clock.monotonic()
                if remaining_s <= 0:
                    return False
                self._condition.wait(remaining_s)
            # A closed watch never blocks again, so that every waiting thread notices the end.
            self._signalled = self._closed
            return True

    def wake(self) -> None:
        with self._condition:
            self._signalled = True
            self._condition.notify_all()

    def close(self) -> None:
        self._closed = True
        self.wake()

    def changed(self, key: str) -> None:
        """Signal that the object `key` was written."""
        if key[: key.rfind("/") + 1] in self._folders:
            self.wake()
