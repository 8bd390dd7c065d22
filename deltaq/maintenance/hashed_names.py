"""Large sets of file names as 64-bit hashes: a busy topic has millions of files a day.

A name with the same hash as a member is taken for a member. Then a file is not removed, which is
safe.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc


class SeenLive:
    """All names that were live at some call of `add`, at 8 bytes each. An `add` costs as much as
    its new names.
    """

    def __init__(self, live: frozenset[str] = frozenset()) -> None:
        self._newest: frozenset[str] = frozenset()
        self._hashes: list[pa.Int64Array] = []  # each at least twice as long as the next
        self.add(live)

    @property
    def nbytes(self) -> int:
        """Memory of the hashes; the newest set of live names is not included."""
        return sum(part.nbytes for part in self._hashes)

    def add(self, live: frozenset[str]) -> None:
        """Add the names that are live now."""
        new = live - self._newest
        self._newest = live
        if new:
            self._append(_hashes(new))

    def absorb(self, other: SeenLive) -> None:
        """Add all names of `other`, which was filled later than this one."""
        self._newest = other._newest
        for part in other._hashes:
            self._append(part)

    def _append(self, part: pa.Int64Array) -> None:
        self._hashes.append(part)
        while len(self._hashes) > 1 and len(self._hashes[-2]) < 2 * len(self._hashes[-1]):
            last = self._hashes.pop()
            self._hashes[-1] = pa.concat_arrays([self._hashes[-1], last])

    def among(self, names: Collection[str]) -> frozenset[str]:
        """Those of the names that have been live."""
        wanted = _hashes(names)
        parts = (part.filter(pc.is_in(part, value_set=wanted)) for part in self._hashes)
        found = {number for part in parts for number in part.to_pylist()}
        return frozenset(name for name in names if hash(name) in found)


class HashedNames:
    """A set of names for membership tests, at 8 bytes each. All names are added before the first
    test.
    """

    def __init__(self) -> None:
        self._parts: list[pa.Int64Array] = []
        self._sorted: memoryview | None = None

    def add(self, names: Collection[str]) -> None:
        """Add several names."""
        self._parts.append(_hashes(names))

    def __contains__(self, name: object) -> bool:
        if self._sorted is None:
            together = pa.concat_arrays([*self._parts, _hashes(())])
            self._parts.clear()
            in_order = together.take(pc.sort_indices(together))
            self._sorted = memoryview(in_order.buffers()[1] or b"").cast("q")[: len(in_order)]
        number = hash(name)
        at = bisect_left(self._sorted, number)
        return at < len(self._sorted) and self._sorted[at] == number


def _hashes(names: Collection[str]) -> pa.Int64Array:
    return pa.array([hash(name) for name in names], pa.int64())
