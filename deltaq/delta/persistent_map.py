"""A map whose copies share their parts, for the states of a log: many hold one, and each entry
makes the next.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Generic, TypeVar
from zlib import crc32

BUCKETS = 256
"""Parts of a large map. A change copies one of them."""

ONE_PART_KEYS = 64
"""Most keys of a map that is one part: most states have few of everything, and are many."""

V = TypeVar("V")


class _Bucket(dict[str, tuple[int, V]], Generic[V]):
    """Values with their numbers, in a dict that one owner may change; for all others it is
    constant.
    """

    __slots__ = ("owner",)

    owner: object


def _bucket(items: Mapping[str, tuple[int, V]], owner: object) -> _Bucket[V]:
    # A constructor in Python would take longer than all else of a small change.
    bucket = _Bucket(items)
    bucket.owner = owner
    return bucket


class PersistentMap(Mapping[str, V]):
    """Values by key, in the order in which the keys were added. Not thread-safe, but a map that is
    not changed any more may be read by several threads.

    A caller that changes it names an owner: an object that stands for the right to change parts in
    place. It must not be used for two maps that share parts.
    """

    __slots__ = ("_buckets", "_next_number", "_owner", "_size")

    def __init__(self) -> None:
        self._buckets: list[_Bucket[V]] = [_bucket({}, None)]
        self._owner: object = None  # of the list of parts, which copies share as well
        self._size = 0
        self._next_number = 0

    def __getitem__(self, key: str) -> V:
        return self._part(key)[key][1]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._part(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ordered())

    def __len__(self) -> int:
        return self._size

    def values(self) -> ValuesView[V]:
        return self._ordered().values()

    def items(self) -> ItemsView[str, V]:
        return self._ordered().items()

    def _ordered(self) -> dict[str, V]:
        found = chain.from_iterable(bucket.items() for bucket in self._buckets if bucket)
        return {key: value for key, (_, value) in sorted(found, key=lambda item: item[1][0])}

    def copy(self) -> PersistentMap[V]:
        """A map that shares its parts with this one."""
        copied: PersistentMap[V] = PersistentMap.__new__(PersistentMap)
        copied._buckets, copied._size, copied._next_number = (
            self._buckets,
            self._size,
            self._next_number,
        )
        copied._owner = self._owner = None
        return copied

    def put(self, key: str, value: V, owner: object) -> None:
        """Add or replace a value."""
        bucket = self._owned(key, owner)
        if key in bucket:
            bucket[key] = bucket[key][0], value
            return
        bucket[key] = self._next_number, value
        self._next_number += 1
        self._size += 1
        if self._size > ONE_PART_KEYS and len(self._buckets) == 1:
            self._spread(owner)

    def pop(self, key: str, owner: object) -> V | None:
        """Remove and return a value; None if there is no such key."""
        if key not in self:
            return None
        self._size -= 1
        return self._owned(key, owner).pop(key)[1]

    def _part(self, key: str) -> _Bucket[V]:
        return self._buckets[self._place(key)]

    def _owned(self, key: str, owner: object) -> _Bucket[V]:
        if self._owner is not owner:
            self._buckets, self._owner = self._buckets[:], owner
        at = self._place(key)
        bucket = self._buckets[at]
        if bucket.owner is not owner:
            bucket = self._buckets[at] = _bucket(bucket, owner)
        return bucket

    def _place(self, key: str) -> int:
        # A checksum is the same in each process, unlike `hash`.
        return crc32(key.encode()) % BUCKETS if len(self._buckets) > 1 else 0

    def _spread(self, owner: object) -> None:
        """Divide the one part of a map that has become large."""
        (whole,) = self._buckets
        self._buckets = [_bucket({}, owner) for _ in range(BUCKETS)]
        for key, numbered in whole.items():
            self._part(key)[key] = numbered
