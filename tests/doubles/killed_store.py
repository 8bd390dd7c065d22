"""A store whose process is killed at one of its writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deltaq.clock import Clock
from deltaq.store import Store
from deltaq.store.probe import PROBE_FOLDER
from deltaq.testing import FaultyStore

__all__ = ["Killed", "KilledStore", "kills"]


class Killed(BaseException):
    """The process is gone."""


class KilledStore(FaultyStore):
    """Its process is killed at the write with this number, before or after it is done."""

    def __init__(self, store: Store, clock: Clock, number: int, *, is_done: bool) -> None:
        super().__init__(store, clock=clock)
        self._left = number
        self._is_done = is_done

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        self._write_or_die(key, lambda: super(KilledStore, self).create(key, data, after))

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._write_or_die(key, lambda: super(KilledStore, self).put(key, data))

    def _write_or_die(self, key: str, write: Callable[[], None]) -> None:
        counts = not key.startswith(PROBE_FOLDER)
        self._left -= counts
        if not counts or self._left > 0 or (self._left == 0 and self._is_done):
            write()
        if counts and self._left <= 0:
            raise Killed


def kills(run: Callable[[int, bool], bool], most: int = 100) -> Iterator[tuple[int, bool]]:
    """Call `run(number, is_done)`, which says whether it was killed, for each write that it
    makes. Yields after each kill.
    """
    for is_done in (False, True):
        for number in range(1, most):
            if not run(number, is_done):
                break
            yield number, is_done
