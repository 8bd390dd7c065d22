"""Which records have had their time: retention by time and by bytes, and what an administrator deletes. Pure rules.

Source: Kafka's topic settings `retention.ms` and `retention.bytes`. As there, records leave a partition from its oldest
on. What is Kafka's segment is here a batch, the share that a partition has in a file: otherwise a partition without new
records would keep those of all others with which it shares a file. What is then dead in a file that stays is cut out
by the next rewrite (`file_compaction.plan_trim`), so a removal must free at least as much as it makes to be rewritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, takewhile

from deltaq.config import TopicSettings
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.rewrites import Trimmed
from deltaq.topics.state import Batch, DataFile, TopicHead

__all__ = ["file_time_ms", "plan_deletion", "plan_retention"]

EXPIRED_FILES_MAX = 256
"""Files that one entry of retention removes at most, but for those of one entry, which go together. The writer in whose
process it is made waits 5 to 10 ms for it."""


def file_time_ms(file: DataFile) -> int:
    """How old a file counts for: as its newest record says, but no younger than its upload.

    A record that claims to be of the year 2262 would otherwise keep all that come after it for ever.
    """
    return min(file.max_timestamp_ms, file.modified_ms)


def plan_retention(
    index: OffsetIndex,
    head: TopicHead,
    settings: TopicSettings,
    now_ms: int,
    between: Callable[[], object] = lambda: None,
) -> Trimmed | None:
    """What retention removes now; None if there is nothing. Without `delete` in the topic's `cleanup.policy` these are
    just the files of which nothing can be read any more. `between` is called between two partitions.

    Of very much it is the oldest part: plan anew for what comes next.
    """
    runs: list[list[Batch]] = [[] for _ in head.start_offsets]
    if "delete" in settings.cleanup_policy:
        runs = _worth_it(index, head, _expired(index, head, settings, now_ms, between), between)
    paths = _emptied(index, _starts_after(runs, head))
    if len(paths) > EXPIRED_FILES_MAX:
        # In the order of versions the log is in order for each partition. So whatever of these files is dead once all
        # of them have gone is dead once the older ones have.
        versions = sorted(index.files[path].segment.version for path in paths)
        until = versions[EXPIRED_FILES_MAX - 1]
        runs = [list(takewhile(lambda batch: index.files[batch.path].segment.version <= until, run)) for run in runs]
        paths = tuple(path for path in paths if index.files[path].segment.version <= until)
    starts = _starts_after(runs, head)
    return Trimmed(starts, paths) if paths or starts != head.start_offsets else None


def _starts_after(runs: Sequence[Sequence[Batch]], head: TopicHead) -> tuple[int, ...]:
    """Where partitions begin without these batches at their beginnings."""
    return tuple(run[-1].next_offset if run else start for run, start in zip(runs, head.start_offsets, strict=True))


def plan_deletion(index: OffsetIndex, head: TopicHead, before: Mapping[int, int]) -> Trimmed:
    """What goes when partitions begin at the offsets `before`: the files that hold nothing else."""
    starts = tuple(max(start, before.get(partition, 0)) for partition, start in enumerate(head.start_offsets))
    return Trimmed(starts, _emptied(index, starts))


def _emptied(index: OffsetIndex, starts: Sequence[int]) -> tuple[str, ...]:
    """The files of which nothing can be read any more when partitions begin at `starts`."""
    files = index.files.items()
    gone = (path for path, file in files if all(batch.next_offset <= starts[batch.partition] for batch in file.batches))
    return tuple(sorted(gone))


def _expired(
    index: OffsetIndex, head: TopicHead, settings: TopicSettings, now_ms: int, between: Callable[[], object]
) -> list[list[Batch]]:
    """Of each partition the batches at its beginning that are too old, or have `retention.bytes` in newer ones."""

    def is_old(batch: Batch) -> bool:
        return 0 <= settings.retention_ms < now_ms - file_time_ms(index.files[batch.path])

    runs = []
    row_bytes = {path: _row_bytes(file) for path, file in index.files.items()} if settings.retention_bytes >= 0 else {}
    for partition, start in enumerate(head.start_offsets):
        if settings.retention_bytes < 0:
            runs.append(list(takewhile(is_old, index.batches(partition, start))))  # of all others nobody asks
        else:
            batches = list(index.batches(partition, start))
            beyond = _beyond(batches, row_bytes, settings.retention_bytes)
            runs.append([*batches[:beyond], *takewhile(is_old, batches[beyond:])])
        between()
    return runs


def _beyond(batches: Sequence[Batch], row_bytes: Mapping[str, float], bytes_max: int) -> int:
    """How many batches, from the oldest on, a partition could do without and have `bytes_max` in the others."""
    newer = 0.0
    for older in range(len(batches), 0, -1):
        if bytes_max <= newer:
            return older
        batch = batches[older - 1]
        newer += batch.rows * row_bytes[batch.path]
    return 0


def _worth_it(
    index: OffsetIndex, head: TopicHead, expired: list[list[Batch]], between: Callable[[], object]
) -> list[list[Batch]]:
    """All of it, or what is left without the files of which more would stay than go, and without what is behind these:
    whichever frees more bytes than it makes to be rewritten.

    Without a limit a file would be rewritten for each of its partitions. With one for each file alone, a file that is
    mostly another partition's could hold up any amount behind it.
    """
    best, best_gain = expired, float("-inf")
    while True:
        gains = _gains(index, head, expired)
        gain = sum(rows * _row_bytes(index.files[path]) for path, rows in gains.items())
        if gain > best_gain:
            best, best_gain = expired, gain
        dear = {path for path, rows in gains.items() if rows < 0}
        if not dear:
            return best
        expired = [_ahead_of(dear, run) for run in expired]
        between()


def _gains(index: OffsetIndex, head: TopicHead, going: list[list[Batch]]) -> dict[str, int]:
    """By how many rows more goes than stays, for each file from which something goes."""
    gone: Counter[str] = Counter()
    for batch in chain.from_iterable(going):
        gone[batch.path] += batch.rows
    return {path: 2 * rows - _live_rows(index.files[path], head) for path, rows in gone.items()}


def _ahead_of(paths: set[str], run: list[Batch]) -> list[Batch]:
    return list(takewhile(lambda batch: batch.path not in paths, run))


def _live_rows(file: DataFile, head: TopicHead) -> int:
    return sum(batch.rows for batch in file.batches if batch.next_offset > head.start_offsets[batch.partition])


def _row_bytes(file: DataFile) -> float:
    return file.segment.size / max(1, file.segment.rows)
