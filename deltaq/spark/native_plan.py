"""The files of a topic for Spark's own Parquet reader, and what turns their rows into records. Pure
functions.

Spark's reader knows the file of a row, the row's number in it, and its columns. The log knows the
rest: which offset the first row of a partition has in a file, which offsets are wanted, and the
time of an append.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deltaq.topics.scan import FileRead
from deltaq.topics.state import DataFile

NO_OFFSETS = 0, 0
"""The wanted offsets of a partition of which a file has none."""


@dataclass(frozen=True, slots=True)
class NativeFiles:
    """Files of one topic, numbered from 0, with tables for them.

    `shifts` and `wanted` have `stride` elements for each file, one for each partition. A shift is
    the difference between a row's offset and its number in the file; None where the column
    `_offset` must have the offsets. `wanted` are the offsets `[start, end)` to be returned of a
    file whose number is below `partial`; all other files are returned whole. With `partitions`, the
    files also hold partitions that are not to be returned.
    """

    files: tuple[DataFile, ...]
    stride: int
    shifts: tuple[int | None, ...]
    wanted: tuple[tuple[int, int], ...]
    partial: int
    partitions: tuple[int, ...] | None

    @property
    def append_times_ms(self) -> tuple[int | None, ...]:
        """For each file the timestamp of all its records; None if each record has its own."""
        return tuple(file.append_time_ms for file in self.files)

    @property
    def log_append_times(self) -> tuple[bool, ...]:
        """For each file whether its timestamps are log append times."""
        return tuple(file.log_append_time for file in self.files)


def native_files(reads: Iterable[FileRead]) -> NativeFiles:
    """The files of a plan for one topic."""
    files, wanted = _wanted_of_files(reads)
    read = {partition for of_file in wanted.values() for partition in of_file}
    is_partial = {path: _is_partial(files[path], of_file, read) for path, of_file in wanted.items()}
    paths = sorted(files, key=lambda path: not is_partial[path])
    held = {batch.partition for file in files.values() for batch in file.batches}
    stride = max(held, default=-1) + 1
    partial = sum(is_partial.values())
    return NativeFiles(
        tuple(files[path] for path in paths),
        stride,
        tuple(shift for path in paths for shift in _shifts(files[path], stride)),
        tuple(
            wanted[path].get(number, NO_OFFSETS)
            for path in paths[:partial]
            for number in range(stride)
        ),
        partial,
        None if read == held else tuple(sorted(read)),
    )


def _wanted_of_files(
    reads: Iterable[FileRead],
) -> tuple[dict[str, DataFile], dict[str, dict[int, tuple[int, int]]]]:
    """The files by path, and of each the wanted offsets `[start, end)` by partition.

    A file may hold several batches of a partition. The wanted offsets of a partition have no gaps,
    so their bounds tell which of its rows are wanted.
    """
    files: dict[str, DataFile] = {}
    wanted: dict[str, dict[int, tuple[int, int]]] = {}
    for read in reads:
        files[read.file.path] = read.file
        of_file = wanted.setdefault(read.file.path, {})
        for batch, start, end in read.wanted:
            low, high = of_file.get(batch.partition, (start, end))
            of_file[batch.partition] = min(low, start), max(high, end)
    return files, wanted


def _is_partial(file: DataFile, wanted: Mapping[int, tuple[int, int]], read: set[int]) -> bool:
    """Whether the file holds records of the partitions to read that are not wanted."""
    for batch in file.batches:
        if batch.partition in read:
            low, high = wanted.get(batch.partition, NO_OFFSETS)
            if not low <= batch.base_offset <= batch.next_offset <= high:
                return True
    return False


def _shifts(file: DataFile, stride: int) -> list[int | None]:
    shifts: list[int | None] = [None] * stride
    seen: set[int] = set()
    for batch in file.batches:
        # Only the column `_offset` tells the rows of several batches apart.
        is_alone = batch.partition not in seen
        shifts[batch.partition] = (
            batch.base_offset - batch.first_row if is_alone and not batch.sparse else None
        )
        seen.add(batch.partition)
    return shifts
