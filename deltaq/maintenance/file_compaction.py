"""File compaction: which small files are merged, and how the merged files are cut. Pure rules for
`rewrite`.

This is the size-tiered compaction of log-structured stores, over the files in the order of the log.
Neighbours are merged once they make a file several times as large as each, so a record is rewritten
once for each size class that its file grows through. The result of a large merge is cut by ranges
of partitions. A file that decodes to as much as is written at once counts as large too: merging
such files would produce as many files again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.state import Batch, DataFile, TopicHead

_TIERS = (512, 32, 2)
"""Size classes: files of class `n` are smaller than the target size divided by `_TIERS[n]`. The
smallest go first.
"""

GROWTH = 4
"""A merge below the target size is at least this many times as large as its largest file, which
would otherwise be rewritten for every few small files behind it.
"""

MERGED_TARGETS_MAX = 4
"""Maximum number of files of the target size that one merge makes. The more files, the fewer
partitions are in each.
"""

MERGED_FILES_MAX = 128
"""Maximum number of files that one merge takes: its entry names them all, and the next committer
must read it.
"""

DECODED_BYTES_AT_ONCE = 256 * 1024 * 1024
"""A new file decodes to at most about this many bytes, however well its records are compressed."""

UNITS_AT_ONCE = 128
"""Number of units examined between two calls of `yield_point`, which takes about half a
millisecond.
"""

Ranges = Mapping[int, tuple[int, int]]
"""Partition -> offsets [start, end)."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Files of one entry or one merge, which are merged together, with values that the rules need
    often.

    `bytes`: the size that they take of a new file; `largest`: that of the largest of them. `kind`:
    (may be merged, has log-append times, is clean of old values); only units of one kind are merged
    with each other.
    """

    files: tuple[DataFile, ...]
    bytes: int
    largest: int
    kind: tuple[bool, bool, bool]


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """Files to be replaced by new files with the same records; `outputs` has the offsets of each
    new file.
    """

    inputs: tuple[DataFile, ...]
    outputs: tuple[Ranges, ...]

    @property
    def bytes(self) -> int:
        return sum(file.segment.size for file in self.inputs)

    @property
    def newest_version(self) -> int:
        """The version of the newest of the inputs."""
        return max(file.segment.version for file in self.inputs)

    def __str__(self) -> str:
        return f"merge {len(self.inputs)} files of {self.bytes:,} bytes into {len(self.outputs)}"


def in_log_order(index: OffsetIndex) -> list[tuple[DataFile, ...]]:
    """The live files in the order of the log, grouped by the entry or the merge that made them."""
    ordered = sorted(index.files.values(), key=_version)
    return [tuple(files) for _, files in groupby(ordered, key=_version)]


def is_alike(files: Sequence[DataFile]) -> bool:
    """Whether the files have the same kind of timestamps, and so may be merged into one.

    One entry can have both kinds, since `message.timestamp.type` may change between an upload and
    its commit.
    """
    return all(file.log_append_time == files[0].log_append_time for file in files)


def plan_compaction(
    index: OffsetIndex,
    head: TopicHead,
    target_bytes: int,
    settings: MaintenanceSettings,
    after: int | None = None,
    *,
    until: int | None = None,
    decoded_max: int = DECODED_BYTES_AT_ONCE,
    left_out: Container[str] = (),
    yield_point: Callable[[], object] = lambda: None,
) -> FileRewrite | None:
    """The next merge of small files; None if no merge is worthwhile.

    New files decode to at most about `decoded_max` bytes. The files `left_out` are not merged. With
    `after`, only files of the smallest size class that are newer than that version are merged; with
    `until`, only files up to that version. `yield_point` is called between pieces of work.
    """
    units = _units(
        index,
        target_bytes,
        decoded_max,
        left_out,
        yield_point,
        -1 if after is None else after,
        until,
    )
    for part in _TIERS if after is None else _TIERS[:1]:
        for run in _runs(units, target_bytes // part):
            if window := _window(run, target_bytes, settings.merge_files):
                files = tuple(file for unit in window for file in unit.files)
                return FileRewrite(files, cut(files, head, target_bytes, decoded_max))
    return None


def count_waiting(
    index: OffsetIndex,
    target_bytes: int,
    settings: MaintenanceSettings,
    *,
    decoded_max: int = DECODED_BYTES_AT_ONCE,
    left_out: Container[str] = (),
    yield_point: Callable[[], object] = lambda: None,
) -> int:
    """The number of small files that wait for a merge: all files of the runs in which some merge is
    worthwhile.
    """
    units = _units(index, target_bytes, decoded_max, left_out, yield_point)
    return max(
        sum(
            sum(len(unit.files) for unit in run)
            for run in _runs(units, target_bytes // part)
            if _window(run, target_bytes, settings.merge_files)
        )
        for part in _TIERS
    )


def plan_trim(
    index: OffsetIndex, head: TopicHead, left_out: Container[str] = ()
) -> FileRewrite | None:
    """The rewrite of a file, not one of `left_out`, without its records below the start offsets;
    None if none has any.

    Other Delta readers do not know start offsets: they read all records in a file as part of the
    topic.
    """
    for file in sorted(index.files.values(), key=_version):
        if file.path in left_out:
            continue
        if any(
            batch.base_offset < head.start_offsets[batch.partition] and batch.rows
            for batch in file.batches
        ):
            outputs = cut([file], head, 2**62)
            # Without outputs no record is live: retention removes the file as a whole.
            if outputs:
                return FileRewrite((file,), outputs)
    return None


def cut(
    files: Sequence[DataFile], head: TopicHead, target_bytes: int, decoded_max: int | None = None
) -> tuple[Ranges, ...]:
    """Divide the offsets of neighbouring `files`, from the start offsets on, among new files.

    Each new file has about `target_bytes` bytes, decodes to at most about `decoded_max` bytes, and
    has as few partitions as possible.
    """
    sizes = {
        file.path: _size(file, target_bytes, decoded_max) / max(1, file.segment.rows)
        for file in files
    }
    batches = sorted((batch for file in files for batch in file.batches), key=_place)
    live = [batch for batch in batches if batch.next_offset > head.start_offsets[batch.partition]]
    total = sum(batch.rows * sizes[batch.path] for batch in live)
    wanted = max(1, -(-int(total) // target_bytes))
    outputs: list[dict[int, tuple[int, int]]] = []
    filled = 0.0
    for batch in live:
        # The last file takes all that is left, including empty batches: their file could not be
        # removed otherwise.
        if not outputs or (len(outputs) < wanted and filled >= total / wanted * len(outputs)):
            outputs.append({})
        first = max(batch.base_offset, head.start_offsets[batch.partition])
        begun, _ = outputs[-1].get(batch.partition, (first, 0))
        outputs[-1][batch.partition] = (begun, batch.next_offset)
        filled += batch.rows * sizes[batch.path]
    return tuple(outputs)


def divided(files: Sequence[DataFile], ranges: Ranges, bytes_max: int) -> tuple[Ranges, ...]:
    """Divide `ranges` into parts that take at most about `bytes_max` bytes of `files`, or are a
    single batch.
    """
    parts = halved(files, ranges) if _bytes_within(files, ranges) > bytes_max else (ranges,)
    if len(parts) < 2:
        return (ranges,)
    return tuple(smaller for part in parts for smaller in divided(files, part, bytes_max))


def _bytes_within(files: Sequence[DataFile], ranges: Ranges) -> float:
    """The approximate number of bytes that these offsets take in the files, assuming records of
    equal size.
    """
    by_path = {file.path: file for file in files}
    size = 0.0
    for batch, start, end in _within(files, ranges):
        file = by_path[batch.path]
        rows = batch.rows * (end - start) / (batch.next_offset - batch.base_offset)
        size += max(file.segment.size, file.decoded_bytes) * rows / max(1, file.segment.rows)
    return size


def _within(files: Sequence[DataFile], ranges: Ranges) -> Iterator[tuple[Batch, int, int]]:
    """The batches that have offsets in `ranges`, with the first of these offsets and the end, in
    order.
    """
    for batch in sorted((batch for file in files for batch in file.batches), key=_place):
        first, until = ranges.get(batch.partition, (0, 0))
        start, end = max(batch.base_offset, first), min(batch.next_offset, until)
        if start < end:
            yield batch, start, end


def halved(files: Sequence[DataFile], ranges: Ranges) -> tuple[Ranges, ...]:
    """Divide `ranges` into two parts of about equally many records; one part if they come from a
    single batch.
    """
    found = list(_within(files, ranges))
    rows = sum(batch.rows for batch, _, _ in found)
    parts: list[dict[int, tuple[int, int]]] = [{}]
    filled = 0
    for batch, start, end in found:
        is_last = batch is found[-1][0]
        if parts[0] and len(parts) == 1 and (2 * filled >= rows or is_last):
            parts.append({})
        begun, _ = parts[-1].get(batch.partition, (start, 0))
        parts[-1][batch.partition] = (begun, end)
        filled += batch.rows
    return tuple(parts)


def _size(file: DataFile, target_bytes: int, decoded_max: int | None) -> int:
    """The bytes of a new file's `target_bytes` that a file takes: its size, or the same fraction of
    them as its decoded size is of `decoded_max`, if that is more.
    """
    if decoded_max is None:
        return file.segment.size
    return max(file.segment.size, file.decoded_bytes * target_bytes // max(1, decoded_max))


def _units(
    index: OffsetIndex,
    target_bytes: int,
    decoded_max: int,
    left_out: Container[str],
    yield_point: Callable[[], object],
    after: int = -1,
    until: int | None = None,
) -> list[_Unit]:
    """The live files with `after` < version <= `until`, in the order of the log."""
    units = []
    for number, files in enumerate(in_log_order(index)):
        if number % UNITS_AT_ONCE == 0:
            yield_point()
        if after < _version(files[0]) and (until is None or _version(files[0]) <= until):
            may_go = is_alike(files) and not any(file.path in left_out for file in files)
            kind = may_go, files[0].log_append_time, all(file.clean is not None for file in files)
            sizes = [_size(file, target_bytes, decoded_max) for file in files]
            units.append(_Unit(files, sum(sizes), max(sizes), kind))
    return units


def _runs(units: Iterable[_Unit], limit: int) -> Iterator[list[_Unit]]:
    """Runs of neighbours below `limit` that may be merged: with the same kind of timestamps, and
    all or none clean.
    """
    for (is_small, (may_go, _, _)), run in groupby(
        units, key=lambda unit: (unit.bytes < limit, unit.kind)
    ):
        if is_small and may_go:
            yield list(run)


def _window(run: Sequence[_Unit], target_bytes: int, merge_files: int) -> Sequence[_Unit]:
    """The oldest neighbours of a run whose merge is worthwhile; empty if there are none."""
    parts = [run]
    while parts:
        part = parts.pop()
        window = _oldest(part, target_bytes)
        files = sum(len(unit.files) for unit in window)
        total = sum(unit.bytes for unit in window)
        if files > 1 and total >= target_bytes:
            return window
        if files < merge_files:
            if window:
                parts.append(part[len(window) :])
            continue
        largest = max(range(len(window)), key=lambda at: window[at].largest)
        if min(GROWTH, merge_files / 2) * window[largest].largest <= total:
            return window
        parts += [part[largest + 1 :], part[:largest]]
    return ()


def _oldest(run: Sequence[_Unit], target_bytes: int) -> list[_Unit]:
    """The beginning of a run, as much as one merge takes; at least its first unit."""
    window: list[_Unit] = []
    total = files = 0
    for unit in run:
        is_full = (
            files + len(unit.files) > MERGED_FILES_MAX
            or total + unit.bytes > MERGED_TARGETS_MAX * target_bytes
        )
        if window and is_full:
            break
        window.append(unit)
        total, files = total + unit.bytes, files + len(unit.files)
    return window


def _version(file: DataFile) -> int:
    return file.segment.version


def _place(batch: Batch) -> tuple[int, int]:
    return batch.partition, batch.base_offset
