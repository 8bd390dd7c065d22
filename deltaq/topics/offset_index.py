"""The offset index of a topic: finds the live file and batch that hold an offset.

An index changes with each entry, and the readers of a process hold the index of the version that
they have reached. A copy therefore shares all files and batches with the original: both consist of
small parts, and a part that two indexes hold is copied before one of them changes it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import TypeVar

from deltaq.delta.persistent_map import PersistentMap
from deltaq.topics.state import Batch, DataFile

CHUNK_BATCHES = 256
"""Most batches in one part of an index. A change copies up to this many references."""

T = TypeVar("T")

_BASE = attrgetter("base_offset")


class _OffsetPart(list[T]):
    """A list that one owner may change; for all others it is constant."""

    __slots__ = ("owner",)

    def __init__(self, items: Iterable[T], owner: object) -> None:
        super().__init__(items)
        self.owner = owner


class OffsetIndex:
    """Live files and, per partition, their batches in offset order. Not thread-safe, but a copy
    that is not changed any more may be read by several threads.
    """

    def __init__(self) -> None:
        self.files: PersistentMap[DataFile] = PersistentMap()
        # By partition: chunks of batches, none of them empty.
        self._runs: dict[int, _OffsetPart[_OffsetPart[Batch]]] = {}
        self._owner = object()

    def copy(self) -> OffsetIndex:
        """An independent copy. Takes time in proportion to the number of partitions, not of
        files.
        """
        copied = OffsetIndex()
        copied.files = self.files.copy()
        copied._runs = dict(self._runs)
        self._owner = object()  # from now on, this index too copies what it changes
        return copied

    def add(self, file: DataFile) -> None:
        """Add a file that entered the table."""
        self.files.put(file.path, file, self._owner)
        for batch in file.batches:
            run = self._run(batch.partition)
            at = max(0, _chunk_at(run, batch.base_offset))
            if not run or (
                at == len(run) - 1 and len(run[at]) >= CHUNK_BATCHES and _is_after(batch, run[at])
            ):
                run.append(_OffsetPart([batch], self._owner))
                continue
            chunk = self._chunk(run, at)
            if _is_after(batch, chunk):
                chunk.append(batch)
            else:
                insort(chunk, batch, key=_BASE)
            if len(chunk) > CHUNK_BATCHES:
                half = len(chunk) // 2
                run[at : at + 1] = [
                    _OffsetPart(chunk[:half], self._owner),
                    _OffsetPart(chunk[half:], self._owner),
                ]

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files that left the table. Unknown paths are ignored."""
        gone = {
            path: file for path in paths if (file := self.files.pop(path, self._owner)) is not None
        }
        bases: dict[int, list[int]] = {}
        for file in gone.values():
            for batch in file.batches:
                bases.setdefault(batch.partition, []).append(batch.base_offset)
        for partition, offsets in bases.items():
            self._remove(self._run(partition), min(offsets), max(offsets), gone.keys())

    def _remove(
        self,
        run: _OffsetPart[_OffsetPart[Batch]],
        first_base: int,
        last_base: int,
        gone: Iterable[str],
    ) -> None:
        """Remove the batches of the files `gone`, all of them within these base offsets."""
        # Only their range of batches: a scan of all would make a merge cost as much as the topic is
        # old. Two batches at one offset, as between the two halves of a rewrite, may be in two
        # chunks.
        low = max(0, bisect_left(run, first_base, key=_first_base) - 1)
        high = bisect_right(run, last_base, key=_first_base)
        for at in reversed(range(low, high)):
            chunk = run[at]
            first = bisect_left(chunk, first_base, key=_BASE)
            end = bisect_right(chunk, last_base, key=_BASE)
            left = [batch for batch in chunk[first:end] if batch.path not in gone]
            if len(left) < end - first:
                self._chunk(run, at)[first:end] = left
        kept: list[_OffsetPart[Batch]] = []
        for chunk in run[low:high]:
            if kept and chunk and len(kept[-1]) + len(chunk) <= CHUNK_BATCHES // 2:
                # Chunks that rewrites have emptied become one.
                kept[-1] = _OffsetPart([*kept[-1], *chunk], self._owner)
            elif chunk:
                kept.append(chunk)
        run[low:high] = kept

    def find(self, partition: int, offset: int) -> Batch | None:
        """The batch that holds `offset`, or the next one after it (offsets may have gaps); None at
        the end.
        """
        following = self._from(partition, offset)
        # Nearly always the one: this is asked for each partition and file.
        batch = next(following, None)
        while batch is not None and batch.next_offset <= offset:
            batch = next(following, None)
        return batch

    def batches(self, partition: int, offset: int = 0) -> Iterator[Batch]:
        """The batches of a partition that hold offsets from `offset` on, in order."""
        for batch in self._from(partition, offset):
            if batch.next_offset > offset:
                yield batch
                offset = batch.next_offset

    def _from(self, partition: int, offset: int) -> Iterator[Batch]:
        """All batches from the last one on that begins at or before `offset`."""
        run = self._runs.get(partition)
        if not run:
            return iter(())
        at = max(0, _chunk_at(run, offset))
        first = max(0, bisect_right(run[at], offset, key=_BASE) - 1)
        return chain(islice(run[at], first, None), chain.from_iterable(islice(run, at + 1, None)))

    def _run(self, partition: int) -> _OffsetPart[_OffsetPart[Batch]]:
        """The chunks of a partition, to be changed."""
        run = self._runs.get(partition)
        if run is None or run.owner is not self._owner:
            run = self._runs[partition] = _OffsetPart(run or (), self._owner)
        return run

    def _chunk(self, run: _OffsetPart[_OffsetPart[Batch]], at: int) -> _OffsetPart[Batch]:
        """A chunk of a run, to be changed."""
        if run[at].owner is not self._owner:
            run[at] = _OffsetPart(run[at], self._owner)
        return run[at]


def _first_base(chunk: _OffsetPart[Batch]) -> int:
    return chunk[0].base_offset


def _chunk_at(run: _OffsetPart[_OffsetPart[Batch]], offset: int) -> int:
    """The last chunk that begins at or before `offset`; -1 if none does."""
    if run and run[-1][0].base_offset <= offset:
        return len(run) - 1  # where most files are added and most readers are
    return bisect_right(run, offset, key=_first_base) - 1


def _is_after(batch: Batch, chunk: _OffsetPart[Batch]) -> bool:
    return chunk[-1].base_offset < batch.base_offset
