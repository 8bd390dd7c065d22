"""What may leave a topic, and what takes its place. Pure rules; `topic_log` acts on them.

In each partition the live batches cover the offsets from the partition's start to its end once each: a batch with gaps
stands for these too. So whatever is removed must lie below the new start, or be covered by what the same entry adds.
A reader that checks this can never be made to jump. The specification is `docs/internals/format.md`, "Rewriting files".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap, zip_longest

from deltaq.delta.actions import Action, Add, Entry, Remove
from deltaq.errors import Corrupt
from deltaq.parquet.file_statistics import ColumnStatistics, delta_time, file_stats
from deltaq.serde.json_text import compact_json
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.state import (
    BATCHES_TAG,
    FILE_TAG,
    Batch,
    DataFile,
    TopicHead,
    data_file,
)

__all__ = [
    "RewrittenSegment",
    "Trimmed",
    "check_covered",
    "check_files",
    "check_rewrite",
    "may_have_left",
    "raised_uploads",
    "renewed",
    "retained",
    "rewritten",
]


@dataclass(frozen=True, slots=True)
class RewrittenSegment:
    """An uploaded file with records that have their offsets already.

    `batches` are in the order of the rows, `offsets` the lowest and the highest of them. `version`: of the newest entry
    whose records it has. `as_of` and `statistics` are as in `PendingSegment`, `clean` and `decoded_bytes` as in
    `DataFile`.
    """

    path: str
    size: int
    rows: int
    crc32: int
    footer_bytes: int
    footer_crc32: int
    batches: tuple[Batch, ...]
    offsets: tuple[int, int]
    version: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    modified_ms: int
    log_append_time: bool
    as_of: int
    clean: int | None = None
    decoded_bytes: int = 0
    statistics: tuple[ColumnStatistics, ...] = ()


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What retention takes away: the new start of each partition, and the files that then hold nothing any more."""

    start_offsets: tuple[int, ...]
    paths: tuple[str, ...]


# --- writing ---------------------------------------------------------------------------------------------------------


def rewritten(
    inputs: Sequence[str], outputs: Sequence[RewrittenSegment], time_ms: int, indexed: Sequence[str] = ()
) -> list[Action]:
    """The files `inputs` give way to `outputs`; no record comes or goes as far as readers are concerned. The head that
    belongs to it says nothing new but the time. `indexed` is as in `topic_state.appended`."""
    removed = [Remove(path, time_ms, data_change=False) for path in inputs]
    return [*removed, *(_add(segment, indexed) for segment in outputs)]


def renewed(head: TopicHead, now_ms: int) -> Action:
    """The head of an entry that changes nothing of it but the time."""
    return replace(head, time_ms=max(now_ms, head.time_ms)).action()


def retained(head: TopicHead, trimmed: Trimmed, now_ms: int) -> list[Action]:
    """Records leave the topic. Nothing is added in the same entry: native Delta streams cannot cope with that."""
    time_ms = max(now_ms, head.time_ms)
    # Partitions may have been added since that was planned.
    starts = tuple(starmap(max, zip_longest(head.start_offsets, trimmed.start_offsets, fillvalue=0)))
    removes = [Remove(path, time_ms, data_change=True) for path in trimmed.paths]
    return [*removes, replace(head, start_offsets=starts, time_ms=time_ms).action()]


def raised_uploads(head: TopicHead, uploads_from: int, now_ms: int) -> list[Action]:
    """From now on no file may be added whose upload began before the log was known up to `uploads_from`."""
    raised = replace(head, uploads_from=max(head.uploads_from, uploads_from), time_ms=max(now_ms, head.time_ms))
    return [raised.action()]


def _add(segment: RewrittenSegment, indexed: Sequence[str]) -> Add:
    about: dict[str, object] = {
        "version": segment.version,
        "rows": segment.rows,
        "crc32": segment.crc32,
        "footer": [segment.footer_bytes, segment.footer_crc32],
        "timestamps": [segment.min_timestamp_ms, segment.max_timestamp_ms],
    }
    if segment.log_append_time:
        about["log_append_time"] = True
    if segment.clean is not None:
        about["clean"] = segment.clean
    if segment.decoded_bytes:
        about["decoded"] = segment.decoded_bytes
    batches = [_numbers(batch) for batch in segment.batches]
    return Add(
        path=segment.path,
        size=segment.size,
        modification_time=segment.modified_ms,
        data_change=False,
        stats=file_stats(segment.rows, _own_statistics(segment), segment.statistics, indexed),
        tags={BATCHES_TAG: compact_json(batches), FILE_TAG: compact_json(about)},
    )


def _numbers(batch: Batch) -> list[int]:
    dense = [batch.partition, batch.base_offset, batch.first_row, batch.rows]
    return [*dense, batch.next_offset] if batch.sparse else dense


def _own_statistics(segment: RewrittenSegment) -> list[ColumnStatistics]:
    if not segment.rows:
        return []
    batches, times = segment.batches, (segment.min_timestamp_ms, segment.max_timestamp_ms)
    return [
        ColumnStatistics("_partition", 0, batches[0].partition, batches[-1].partition),
        ColumnStatistics("_offset", 0, *segment.offsets),
        ColumnStatistics("_timestamp", 0, *map(delta_time, times)),
    ]


# --- reading ---------------------------------------------------------------------------------------------------------


def check_files(index: OffsetIndex, entry: Entry, path: str) -> None:
    """Raises Corrupt if `entry` adds a file that is in the topic already, or removes one that it adds: what it leaves
    would depend on the order of its actions. `index` is that of the topic before the entry."""
    named: set[str] = set()
    for action in entry.actions:
        if isinstance(action, (Add, Remove)):
            if action.path in named or (isinstance(action, Add) and action.path in index.files):
                raise Corrupt(f"the entry names the file {action.path!r} again", path=path, version=entry.version)
            named.add(action.path)


def check_rewrite(
    index: OffsetIndex, removed: Iterable[str], added: Iterable[DataFile], after: TopicHead, path: str, version: int
) -> None:
    """Raises Corrupt unless `added` covers just what `removed` covered of the offsets that can still be read.

    `index` is that of the topic before the entry.
    """
    gone = _ranges(batch for name in removed if (file := index.files.get(name)) is not None for batch in file.batches)
    come = _ranges(batch for file in added for batch in file.batches)
    for partition in gone.keys() | come.keys():
        start = after.start_offsets[partition] if partition < after.partitions else 0
        before, now = (_joined(ranges.get(partition, ()), start) for ranges in (gone, come))
        if before != now:
            raise Corrupt(
                f"the entry puts offsets {now} of partition {partition} in the place of {before}",
                path=path,
                version=version,
            )


def check_covered(index: OffsetIndex, head: TopicHead, path: str, version: int) -> None:
    """Raises Corrupt unless the files of a topic cover the offsets of each partition, once each."""
    # Not by the index's own way through the batches: of two at one place it would see one.
    ranges = _ranges(batch for file in index.files.values() for batch in file.batches)
    bounds = dict(enumerate(zip(head.start_offsets, head.next_offsets, strict=True)))
    for partition in bounds.keys() | ranges.keys():
        start, end = bounds.get(partition, (0, 0))
        covered = _joined(ranges.get(partition, ()), start)
        if covered != ([(start, end)] if start < end else []):
            raise Corrupt(
                f"partition {partition} has offsets {start} to {end}, and its files have {covered}",
                path=path,
                version=version,
            )


def may_have_left(
    before: TopicHead, after: TopicHead, later: TopicHead | None, files: Iterable[Add], folder: str
) -> bool:
    """Whether the records that took a topic from `before` to `after` may have come, and left the file they came in.

    They cannot if somebody else's have their offsets, in the file that these came in. `later` is the head, and `files`
    are those of the topic as it is now, the former ones not among them. Raises Corrupt, Incompatible.
    """
    if later is None or later.topic_id != after.topic_id or later.deleted:
        return True
    offsets = list(enumerate(zip(before.next_offsets, after.next_offsets, strict=True)))
    if any(start < end and later.next_offsets[partition] < end for partition, (start, end) in offsets):
        return False
    held = dict(offsets)
    return not any(
        max(start, batch.base_offset) < min(end, batch.next_offset)
        for add in files
        if not _is_rewritten(add)
        for batch in data_file(add, folder).batches
        if batch.partition in held
        for start, end in (held[batch.partition],)
    )


def _is_rewritten(add: Add) -> bool:
    """Whether a file has come in the place of others: such files have their offsets filled in."""
    stats = json.loads(add.stats or "{}")
    return not stats.get("numRecords") or stats.get("nullCount", {}).get("_offset") == 0


def _ranges(batches: Iterable[Batch]) -> Mapping[int, list[tuple[int, int]]]:
    ranges: dict[int, list[tuple[int, int]]] = {}
    for batch in batches:
        ranges.setdefault(batch.partition, []).append((batch.base_offset, batch.next_offset))
    return ranges


def _joined(ranges: Iterable[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """The ranges from `start` on, in order, neighbours as one. Those that overlap stay apart: no other is like them."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if high <= start or low == high:
            continue
        low = max(low, start)
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined
