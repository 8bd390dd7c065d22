"""The offset index of a topic: finds the live file and batch that hold an offset."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter

from deltaq.topics.state import Batch, DataFile

__all__ = ["OffsetIndex"]

_BASE = attrgetter("base_offset")


class OffsetIndex:
    """Live files and, per partition, their batches in offset order. Not thread-safe."""

    def __init__(self) -> None:
        self.files: dict[str, DataFile] = {}
        self._batches: dict[int, list[Batch]] = {}

    def copy(self) -> OffsetIndex:
        """An independent copy."""
        copied = OffsetIndex()
        copied.files = dict(self.files)
        copied._batches = {partition: batches[:] for partition, batches in self._batches.items()}
        return copied

    def add(self, file: DataFile) -> None:
        """Add a file that entered the table."""
        self.files[file.path] = file
        for batch in file.batches:
            batches = self._batches.setdefault(batch.partition, [])
            if not batches or batches[-1].base_offset < batch.base_offset:
                batches.append(batch)
            else:
                insort(batches, batch, key=_BASE)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files that left the table. Unknown paths are ignored."""
        gone = {path: file for path in paths if (file := self.files.pop(path, None)) is not None}
        bases: dict[int, list[int]] = {}
        for file in gone.values():
            for batch in file.batches:
                bases.setdefault(batch.partition, []).append(batch.base_offset)
        for partition, offsets in bases.items():
            batches = self._batches[partition]
            # Only their range of batches: a scan of all would make a merge cost as much as the topic is old.
            first = bisect_left(batches, min(offsets), key=_BASE)
            end = bisect_right(batches, max(offsets), key=_BASE)
            batches[first:end] = [batch for batch in batches[first:end] if batch.path not in gone]

    def find(self, partition: int, offset: int) -> Batch | None:
        """The batch that holds `offset`, or the next one after it (offsets may have gaps); None at the end."""
        batches = self._batches.get(partition)
        if not batches:
            return None
        at = max(0, bisect_right(batches, offset, key=_BASE) - 1)
        while at < len(batches) and batches[at].next_offset <= offset:
            at += 1
        return batches[at] if at < len(batches) else None

    def batches(self, partition: int, offset: int = 0) -> Iterator[Batch]:
        """The batches of a partition that hold offsets from `offset` on, in order."""
        batches = self._batches.get(partition, [])
        first = max(0, bisect_right(batches, offset, key=_BASE) - 1)
        for batch in islice(batches, first, None):
            if batch.next_offset > offset:
                yield batch
                offset = batch.next_offset
