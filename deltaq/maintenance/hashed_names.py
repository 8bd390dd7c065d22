"""Sets of very many file names in little memory: a busy topic has millions of files a day."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["HashedNames", "SeenLive"]


class SeenLive:
    """The names that were live whenever somebody looked. Each takes eight bytes, and to add some costs what they are,
    not what was added before.

    A name that has by chance the hash of one that was live passes for live too.
    """

    def __init__(self, live: frozenset[str] = frozenset()) -> None:
        self._newest: frozenset[str] = frozenset()
        self._hashes: list[pa.Int64Array] = []  # each at least twice as long as the next
        self.add(live)

    @property
    def nbytes(self) -> int:
        """How much memory it takes, but for what is live now."""
        return sum(part.nbytes for part in self._hashes)

    def add(self, live: frozenset[str]) -> None:
        """These are live now."""
        new = live - self._newest
        self._newest = live
        if new:
            self._append(_hashes(new))

    def absorb(self, other: SeenLive) -> None:
        """What another one has seen later."""
        self._newest = other._newest
        for part in other._hashes:
            self._append(part)

    def _append(self, part: pa.Int64Array) -> None:
        self._hashes.append(part)
        while len(self._hashes) > 1 and len(self._hashes[-2]) < 2 * len(self._hashes[-1]):
            last = self._hashes.pop()
            self._hashes[-1] = pa.concat_arrays([self._hashes[-1], last])

    def among(self, names: Collection[str]) -> frozenset[str]:
        """Which of the names have been live."""
        wanted = _hashes(names)
        parts = (part.filter(pc.is_in(part, value_set=wanted)) for part in self._hashes)
        found = {number for part in parts for number in part.to_pylist()}
        return frozenset(name for name in names if hash(name) in found)


class HashedNames:
    """Names to be asked for one by one. Each takes eight bytes; one that has the hash of another passes for it."""

    def __init__(self, several: Iterable[Collection[str]]) -> None:
        parts = [_hashes(names) for names in several]
        together = pa.concat_arrays(parts) if parts else _hashes(())
        in_order = together.take(pc.sort_indices(together))
        self._hashes = memoryview(in_order.buffers()[1] or b"").cast("q")[: len(in_order)]

    def __contains__(self, name: str) -> bool:
        number = hash(name)
        at = bisect_left(self._hashes, number)
        return at < len(self._hashes) and self._hashes[at] == number


def _hashes(names: Collection[str]) -> pa.Int64Array:
    return pa.array([hash(name) for name in names], pa.int64())
