"""Which small files become large ones, and how these are cut. Pure rules; `rewrite` acts on them.

Files are looked at in the order of the log. Neighbours are merged once there are enough of them to make a file several
times as large as each, so a record is written again once for each of the few sizes that its file grows through (the
size-tiered compaction of log-structured stores). What is large by then is cut by ranges of partitions. Large is also
what decodes to as much as is written at once: a merge of such files would be cut into as many again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.state import Batch, DataFile, TopicHead

__all__ = [
    "DECODED_BYTES_AT_ONCE",
    "FileRewrite",
    "Ranges",
    "count_waiting",
    "cut",
    "divided",
    "halved",
    "in_log_order",
    "is_alike",
    "plan_compaction",
    "plan_trim",
]

_TIERS = (512, 32, 2)
"""What part of the target size the files of each class stay below. Small ones are merged first, with their like."""

GROWTH = 4
"""How many times as large as its largest file a merge is at least, short of the target size. Else a large file would be
written again for each few small ones that come behind it."""

MERGED_TARGETS_MAX = 4
"""How many files of the target size one merge makes at most: the more, the fewer partitions are in each."""

MERGED_FILES_MAX = 128
"""How many files one merge takes at most: its entry names them all, and whoever commits next has to read that first."""

DECODED_BYTES_AT_ONCE = 256 * 1024 * 1024
"""About how much a new file decodes to at most. Well compressed records make a small file of very many bytes."""

UNITS_AT_ONCE = 128
"""Files that are looked at in a stretch: half a millisecond."""

Ranges = Mapping[int, tuple[int, int]]
"""Partition -> offsets [start, end)."""

_BytesOf = Callable[[DataFile], int]


@dataclass(frozen=True, slots=True)
class _Unit:
    """Files that belong together, and what the rules ask of them again and again.

    `bytes` is what they take up of a new file, `largest` the largest of them. `kind`: whether they may be merged, and
    with their like only.
    """

    files: tuple[DataFile, ...]
    bytes: int
    largest: int
    kind: tuple[bool, bool, bool]


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """Files to be replaced by others with the same records: for each of these the offsets it shall have."""

    inputs: tuple[DataFile, ...]
    outputs: tuple[Ranges, ...]

    @property
    def bytes(self) -> int:
        return sum(file.segment.size for file in self.inputs)

    @property
    def newest_version(self) -> int:
        """Of the entry that brought the newest of the inputs."""
        return max(file.segment.version for file in self.inputs)

    def __str__(self) -> str:
        return f"merge {len(self.inputs)} files of {self.bytes:,} bytes into {len(self.outputs)}"


def in_log_order(index: OffsetIndex) -> list[tuple[DataFile, ...]]:
    """The live files in the order of the log. Those of one entry, or cut from one merge, belong together."""
    ordered = sorted(index.files.values(), key=_version)
    return [tuple(files) for _, files in groupby(ordered, key=_version)]


def is_alike(files: Sequence[DataFile]) -> bool:
    """Whether the files have the same kind of times, and so may become one. One entry can have both kinds: the topic's
    rule may change between an upload and its commit."""
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
    between: Callable[[], object] = lambda: None,
) -> FileRewrite | None:
    """The next merge of small files; None if there is nothing to be gained.

    New files decode to about `decoded_max` bytes at most. The files `left_out` are not merged. With `after`, only of
    the smallest ones, and of those that came after that version: what can be merged while a merge of older files is
    under way. With `until`, only of those that came up to that version. `between` is called now and then.
    """
    bytes_of = _bytes_by(target_bytes, decoded_max)
    units = _units(index, bytes_of, left_out, between, -1 if after is None else after, until)
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
    between: Callable[[], object] = lambda: None,
) -> int:
    """How many small files wait to be merged: those among neighbours of which some are worth it. `between` is called
    now and then."""
    units = _units(index, _bytes_by(target_bytes, decoded_max), left_out, between)
    return max(
        sum(
            sum(len(unit.files) for unit in run)
            for run in _runs(units, target_bytes // part)
            if _window(run, target_bytes, settings.merge_files)
        )
        for part in _TIERS
    )


def plan_trim(index: OffsetIndex, head: TopicHead, left_out: Container[str] = ()) -> FileRewrite | None:
    """A file with records that can be read no more, to be replaced by one without them; None if there is none but those
    `left_out`.

    Other Delta readers know nothing of start offsets: to them what is in a file is in the topic.
    """
    for file in sorted(index.files.values(), key=_version):
        if file.path in left_out:
            continue
        if any(batch.base_offset < head.start_offsets[batch.partition] and batch.rows for batch in file.batches):
            outputs = cut([file], head, 2**62)
            if outputs:
                return FileRewrite((file,), outputs)
    return None


def cut(
    files: Sequence[DataFile], head: TopicHead, target_bytes: int, decoded_max: int | None = None
) -> tuple[Ranges, ...]:
    """The offsets of `files`, which follow each other, shared out among new files of about `target_bytes` each, which
    decode to about `decoded_max` bytes at most.

    In the order of partitions, so each new file has as few as can be; offsets before the start are left out.
    """
    bytes_of = _bytes_by(target_bytes, decoded_max)
    sizes = {file.path: bytes_of(file) / max(1, file.segment.rows) for file in files}
    batches = sorted((batch for file in files for batch in file.batches), key=_place)
    live = [batch for batch in batches if batch.next_offset > head.start_offsets[batch.partition]]
    total = sum(batch.rows * sizes[batch.path] for batch in live)
    wanted = max(1, -(-int(total) // target_bytes))
    outputs: list[dict[int, tuple[int, int]]] = []
    filled = 0.0
    for batch in live:
        # The last one takes all that is left: batches without records too, or a merge would not get rid of a file.
        if not outputs or (len(outputs) < wanted and filled >= total / wanted * len(outputs)):
            outputs.append({})
        first = max(batch.base_offset, head.start_offsets[batch.partition])
        begun, _ = outputs[-1].get(batch.partition, (first, 0))
        outputs[-1][batch.partition] = (begun, batch.next_offset)
        filled += batch.rows * sizes[batch.path]
    return tuple(outputs)


def divided(files: Sequence[DataFile], ranges: Ranges, bytes_max: int) -> tuple[Ranges, ...]:
    """Offsets of `files` in parts of about `bytes_max` bytes of them at most, or of a single batch."""
    parts = halved(files, ranges) if _bytes_within(files, ranges) > bytes_max else (ranges,)
    if len(parts) < 2:
        return (ranges,)
    return tuple(smaller for part in parts for smaller in divided(files, part, bytes_max))


def _bytes_within(files: Sequence[DataFile], ranges: Ranges) -> float:
    """About how many bytes of the files these offsets are, if all records are of a size."""
    size = 0.0
    for file in files:
        for batch in file.batches:
            first, end = ranges.get(batch.partition, (0, 0))
            offsets = min(batch.next_offset, end) - max(batch.base_offset, first)
            if offsets > 0:
                share = batch.rows * offsets / (batch.next_offset - batch.base_offset)
                size += max(file.segment.size, file.decoded_bytes) * share / max(1, file.segment.rows)
    return size


def halved(files: Sequence[DataFile], ranges: Ranges) -> tuple[Ranges, ...]:
    """Offsets of `files` in two parts of about as many records; just one if they come from one batch."""
    none = (0, 0)
    found = [
        (batch, start, end)
        for batch in sorted((batch for file in files for batch in file.batches), key=_place)
        if (start := max(batch.base_offset, ranges.get(batch.partition, none)[0]))
        < (end := min(batch.next_offset, ranges.get(batch.partition, none)[1]))
    ]
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


def _bytes_by(target_bytes: int, decoded_max: int | None) -> _BytesOf:
    """Tells how many of a new file's `target_bytes` a file takes up: its size, or more if it decodes to a larger part
    of `decoded_max` than that."""

    def bytes_of(file: DataFile) -> int:
        if decoded_max is None:
            return file.segment.size
        return max(file.segment.size, file.decoded_bytes * target_bytes // max(1, decoded_max))

    return bytes_of


def _units(
    index: OffsetIndex,
    bytes_of: _BytesOf,
    left_out: Container[str],
    between: Callable[[], object],
    after: int = -1,
    until: int | None = None,
) -> list[_Unit]:
    """The live files that came after one version and up to another, in the order of the log."""

    def unit(files: tuple[DataFile, ...]) -> _Unit:
        may_go = is_alike(files) and not any(file.path in left_out for file in files)
        kind = may_go, files[0].log_append_time, all(file.clean is not None for file in files)
        sizes = [bytes_of(file) for file in files]
        return _Unit(files, sum(sizes), max(sizes), kind)

    units = []
    for number, files in enumerate(in_log_order(index)):
        if number % UNITS_AT_ONCE == 0:
            between()
        if after < _version(files[0]) and (until is None or _version(files[0]) <= until):
            units.append(unit(files))
    return units


def _runs(units: Iterable[_Unit], limit: int) -> Iterator[list[_Unit]]:
    """Neighbours that may be merged: small ones with the same kind of times, and all or none free of old values."""
    for (is_small, (may_go, _, _)), run in groupby(units, key=lambda unit: (unit.bytes < limit, unit.kind)):
        if is_small and may_go:
            yield list(run)


def _window(run: Sequence[_Unit], target_bytes: int, merge_files: int) -> Sequence[_Unit]:
    """The oldest neighbours of a run that are worth a merge; empty if none are."""
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
    """As much of a run as one merge takes; at least what came with its first entry."""
    window: list[_Unit] = []
    total = files = 0
    for unit in run:
        is_full = files + len(unit.files) > MERGED_FILES_MAX or total + unit.bytes > MERGED_TARGETS_MAX * target_bytes
        if window and is_full:
            break
        window.append(unit)
        total, files = total + unit.bytes, files + len(unit.files)
    return window


def _version(file: DataFile) -> int:
    return file.segment.version


def _place(batch: Batch) -> tuple[int, int]:
    return batch.partition, batch.base_offset
