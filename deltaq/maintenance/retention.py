"""Retention by time and by bytes, and deletion of records by an administrator. Pure rules.

Source: Kafka's topic settings `retention.ms` and `retention.bytes`. As in Kafka, the oldest records
of a partition are removed first. The unit of removal, Kafka's segment, is a batch: the rows of one
partition in a file. Expired records in a file that remains are removed by a rewrite
(`file_compaction.plan_trim`), so a removal must free at least as many bytes as it causes to be
rewritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, takewhile

from deltaq.config import TopicSettings
from deltaq.topics.holds import is_below
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.rewrites import Trimmed
from deltaq.topics.state import Batch, DataFile, TopicHead

EXPIRED_FILES_MAX = 256
"""Maximum number of files that one retention entry removes, but for files of one entry, which are
removed together. The writer in the same process waits 5 to 10 ms for it.
"""


def file_time_ms(file: DataFile) -> int:
    """The time of a file for retention, in epoch milliseconds: that of its newest record, but at
    most its upload time, since a record with a timestamp in the year 2262 would keep all later
    records for ever.
    """
    return min(file.max_timestamp_ms, file.modified_ms)


def plan_retention(
    index: OffsetIndex,
    head: TopicHead,
    settings: TopicSettings,
    now_ms: int,
    yield_point: Callable[[], object] = lambda: None,
    held_starts: Sequence[int] | None = None,
) -> Trimmed | None:
    """What retention removes now, at most the oldest `EXPIRED_FILES_MAX` files; None if nothing.

    Without `delete` in the topic's `cleanup.policy`, these are only the files without readable
    records. `yield_point` is called between partitions. Records at or after `held_starts`
    (`HeldOffsets.starts`; None: no limit) stay.
    """
    runs: list[list[Batch]] = [[] for _ in head.start_offsets]
    if "delete" in settings.cleanup_policy:
        expired = _expired(index, head, settings, now_ms, yield_point)
        expired = [
            list(takewhile(lambda batch: is_below(batch, held_starts), run)) for run in expired
        ]
        runs = _worth_it(index, head, expired, yield_point)
    paths = _emptied(index, _starts_after(runs, head))
    if len(paths) > EXPIRED_FILES_MAX:
        # Within each partition, offsets grow with the version. So a file that is empty after the
        # removal of all these batches is also empty after the removal of those up to its own
        # version.
        versions = sorted(index.files[path].segment.version for path in paths)
        until = versions[EXPIRED_FILES_MAX - 1]
        runs = [
            list(takewhile(lambda batch: index.files[batch.path].segment.version <= until, run))
            for run in runs
        ]
        paths = tuple(path for path in paths if index.files[path].segment.version <= until)
    starts = _starts_after(runs, head)
    return Trimmed(starts, paths) if paths or starts != head.start_offsets else None


def _starts_after(runs: Sequence[Sequence[Batch]], head: TopicHead) -> tuple[int, ...]:
    """The partitions' start offsets after the removal of these batches from their beginnings."""
    return tuple(
        run[-1].next_offset if run else start
        for run, start in zip(runs, head.start_offsets, strict=True)
    )


def plan_deletion(index: OffsetIndex, head: TopicHead, before: Mapping[int, int]) -> Trimmed:
    """The removal of all records below the offsets `before`, and of the files that contain no
    others.
    """
    starts = tuple(
        max(start, before.get(partition, 0)) for partition, start in enumerate(head.start_offsets)
    )
    return Trimmed(starts, _emptied(index, starts))


def _emptied(index: OffsetIndex, starts: Sequence[int]) -> tuple[str, ...]:
    """The files without readable records when partitions begin at `starts`."""
    files = index.files.items()
    gone = (
        path
        for path, file in files
        if all(batch.next_offset <= starts[batch.partition] for batch in file.batches)
    )
    return tuple(sorted(gone))


def _expired(
    index: OffsetIndex,
    head: TopicHead,
    settings: TopicSettings,
    now_ms: int,
    yield_point: Callable[[], object],
) -> list[list[Batch]]:
    """For each partition, the batches at its beginning that are too old, or exceed
    `retention.bytes`.
    """

    def is_old(batch: Batch) -> bool:
        return 0 <= settings.retention_ms < now_ms - file_time_ms(index.files[batch.path])

    runs = []
    row_bytes = (
        {path: _row_bytes(file) for path, file in index.files.items()}
        if settings.retention_bytes >= 0
        else {}
    )
    for partition, start in enumerate(head.start_offsets):
        if settings.retention_bytes < 0:
            # Newer batches are not visited.
            runs.append(list(takewhile(is_old, index.batches(partition, start))))
        else:
            batches = list(index.batches(partition, start))
            beyond = _beyond(batches, row_bytes, settings.retention_bytes)
            runs.append([*batches[:beyond], *takewhile(is_old, batches[beyond:])])
        yield_point()
    return runs


def _beyond(batches: Sequence[Batch], row_bytes: Mapping[str, float], bytes_max: int) -> int:
    """The number of oldest batches that can be removed while the others still hold at least
    `bytes_max` bytes.
    """
    newer = 0.0
    for older in range(len(batches), 0, -1):
        if bytes_max <= newer:
            return older
        batch = batches[older - 1]
        newer += batch.rows * row_bytes[batch.path]
    return 0


def _worth_it(
    index: OffsetIndex,
    head: TopicHead,
    expired: list[list[Batch]],
    yield_point: Callable[[], object],
) -> list[list[Batch]]:
    """The part of `expired` whose removal gains most: bytes freed minus bytes to be rewritten.

    The candidates are all of `expired`, and then, step by step, what is left without the files of
    which more remains than expires, and without the batches behind these files. Otherwise a file
    would be rewritten once for each of its partitions. A limit for each file alone would let one
    file keep any number of expired records behind it.
    """
    best, best_gain = expired, float("-inf")
    while True:
        gains = _gains(index, head, expired)
        gain = sum(rows * _row_bytes(index.files[path]) for path, rows in gains.items())
        # The first of equally good ones removes most.
        if gain > best_gain:
            best, best_gain = expired, gain
        dear = {path for path, rows in gains.items() if rows < 0}
        if not dear:
            return best
        expired = [_ahead_of(dear, run) for run in expired]
        yield_point()


def _gains(index: OffsetIndex, head: TopicHead, going: list[list[Batch]]) -> dict[str, int]:
    """For each file from which batches are removed, the number of rows removed minus the number of
    rows that remain.
    """
    gone: Counter[str] = Counter()
    for batch in chain.from_iterable(going):
        gone[batch.path] += batch.rows
    return {path: 2 * rows - _live_rows(index.files[path], head) for path, rows in gone.items()}


def _ahead_of(paths: set[str], run: list[Batch]) -> list[Batch]:
    return list(takewhile(lambda batch: batch.path not in paths, run))


def _live_rows(file: DataFile, head: TopicHead) -> int:
    return sum(
        batch.rows
        for batch in file.batches
        if batch.next_offset > head.start_offsets[batch.partition]
    )


def _row_bytes(file: DataFile) -> float:
    return file.segment.size / max(1, file.segment.rows)
