"""Rules for removing and rewriting the files of a topic. Pure; `topics/log.py` does the I/O.

In each partition, the live batches cover each offset from the partition's start to its end once; a sparse batch covers
its gaps, too. Offsets that an entry removes must therefore be below the new start, or be covered by a file that the
same entry adds. Readers check this, so that no entry can make them skip records. The specification is
`docs/internals/format.md`, "Rewriting files".
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


@dataclass(frozen=True, slots=True)
class RewrittenSegment:
    """An uploaded file whose records have offsets already.

    `batches` are in the order of the rows; `offsets` are the lowest and the highest offset. `version` is that of the
    newest entry whose records it has. `as_of` and `statistics` are as in `PendingSegment`, `clean` and `decoded_bytes`
    as in `DataFile`.
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
    """What retention removes: the new start offset of each partition, and the files that hold no record after it."""

    start_offsets: tuple[int, ...]
    paths: tuple[str, ...]


# --- writing ---------------------------------------------------------------------------------------------------------


def rewritten(
    inputs: Sequence[str], outputs: Sequence[RewrittenSegment], time_ms: int, indexed: Sequence[str] = ()
) -> list[Action]:
    """The actions that replace the files `inputs` by `outputs`; readers see the same records. The entry's head comes
    from `renewed`. `indexed` is as in `state.appended`."""
    removed = [Remove(path, time_ms, data_change=False) for path in inputs]
    return [*removed, *(_add(segment, indexed) for segment in outputs)]


def renewed(head: TopicHead, now_ms: int) -> Action:
    """The head of an entry that changes only the time."""
    return replace(head, time_ms=max(now_ms, head.time_ms)).action()


def retained(head: TopicHead, trimmed: Trimmed, now_ms: int) -> list[Action]:
    """The actions of retention. The entry adds no file, since native Delta streams cannot handle that."""
    time_ms = max(now_ms, head.time_ms)
    # Partitions may have been added since the plan was made.
    starts = tuple(starmap(max, zip_longest(head.start_offsets, trimmed.start_offsets, fillvalue=0)))
    removes = [Remove(path, time_ms, data_change=True) for path in trimmed.paths]
    return [*removes, replace(head, start_offsets=starts, time_ms=time_ms).action()]


def raised_min_upload_version(head: TopicHead, min_upload_version: int, now_ms: int) -> list[Action]:
    """The action that voids uploads which began at a known version below `min_upload_version`."""
    raised = replace(
        head, min_upload_version=max(head.min_upload_version, min_upload_version), time_ms=max(now_ms, head.time_ms)
    )
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
    """Raises Corrupt if `entry` names a file twice or adds one that is in the topic already: the result would depend on
    the order of its actions. `index` is that of the topic before the entry."""
    named: set[str] = set()
    for action in entry.actions:
        if isinstance(action, (Add, Remove)):
            if action.path in named or (isinstance(action, Add) and action.path in index.files):
                raise Corrupt(
                    f"the entry adds or removes the file {action.path!r} twice", path=path, version=entry.version
                )
            named.add(action.path)


def check_rewrite(
    index: OffsetIndex, removed: Iterable[str], added: Iterable[DataFile], after: TopicHead, path: str, version: int
) -> None:
    """Raises Corrupt unless `added` covers the same readable offsets as `removed`.

    `index` is that of the topic before the entry.
    """
    gone = _ranges(batch for name in removed if (file := index.files.get(name)) is not None for batch in file.batches)
    come = _ranges(batch for file in added for batch in file.batches)
    for partition in gone.keys() | come.keys():
        start = after.start_offsets[partition] if partition < after.partitions else 0
        before, now = (_joined(ranges.get(partition, ()), start) for ranges in (gone, come))
        if before != now:
            raise Corrupt(
                f"the entry replaces offsets {before} of partition {partition} by {now}",
                path=path,
                version=version,
            )


def check_covered(index: OffsetIndex, head: TopicHead, path: str, version: int) -> None:
    """Raises Corrupt unless the files of a topic cover the offsets of each partition, once each."""
    # Without the index's own search, which finds only one of two batches at one offset.
    ranges = _ranges(batch for file in index.files.values() for batch in file.batches)
    bounds = dict(enumerate(zip(head.start_offsets, head.next_offsets, strict=True)))
    for partition in bounds.keys() | ranges.keys():
        start, end = bounds.get(partition, (0, 0))
        covered = _joined(ranges.get(partition, ()), start)
        if covered != ([(start, end)] if start < end else []):
            raise Corrupt(
                f"partition {partition} has offsets {start} to {end}, but its files cover {covered}",
                path=path,
                version=version,
            )


def may_have_left(
    before: TopicHead, after: TopicHead, later: TopicHead | None, files: Iterable[Add], folder: str
) -> bool:
    """Whether an entry that took a topic from `before` to `after` may have been committed and its files removed since.

    It was not committed if a file that was not rewritten holds other records at its offsets. `later` is the current
    head, and `files` are the current files, which do not include those of the entry. Raises Corrupt, Incompatible.
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
    """Whether maintenance has written the file: such files contain their offsets."""
    stats = json.loads(add.stats or "{}")
    return not stats.get("numRecords") or stats.get("nullCount", {}).get("_offset") == 0


def _ranges(batches: Iterable[Batch]) -> Mapping[int, list[tuple[int, int]]]:
    ranges: dict[int, list[tuple[int, int]]] = {}
    for batch in batches:
        ranges.setdefault(batch.partition, []).append((batch.base_offset, batch.next_offset))
    return ranges


def _joined(ranges: Iterable[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """The ranges from `start` on, sorted, adjacent ones merged. Overlapping ranges stay apart, to compare unequal."""
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
