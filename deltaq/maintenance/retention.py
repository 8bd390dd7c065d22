"""Which records have had their time: retention by time and by bytes, and what an administrator deletes. Pure rules.

Source: Kafka's topic settings `retention.ms` and `retention.bytes`. As there, records leave a partition from its oldest
on and in whole files; a file stays as long as one of its records has to, or one before it in any of its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

from deltaq.config import TopicSettings
from deltaq.log.offset_index import OffsetIndex
from deltaq.log.rewrites import Trimmed
from deltaq.log.topic_state import DataFile, TopicHead

__all__ = ["file_time_ms", "plan_deletion", "plan_retention"]


def file_time_ms(file: DataFile) -> int:
    """How old a file counts for: as its newest record says, but no younger than its upload.

    A record that claims to be of the year 2262 would otherwise keep all that come after it for ever.
    """
    return min(file.max_timestamp_ms, file.modified_ms)


def plan_retention(index: OffsetIndex, head: TopicHead, settings: TopicSettings, now_ms: int) -> Trimmed | None:
    """What retention removes now; None if there is nothing. Without `delete` in the topic's `cleanup.policy` these are
    just the files of which nothing can be read any more."""
    due = {path for path, file in index.files.items() if _is_over(file, head)}
    deletes = "delete" in settings.cleanup_policy
    if deletes and settings.retention_ms >= 0:
        oldest_ms = now_ms - settings.retention_ms
        due |= {path for path, file in index.files.items() if file_time_ms(file) < oldest_ms}
    if deletes and settings.retention_bytes >= 0:
        due |= _beyond(index, head, settings.retention_bytes)
    due = _oldest(index, head, due)
    return Trimmed(_starts(index, head, due), tuple(sorted(due))) if due else None


def plan_deletion(index: OffsetIndex, head: TopicHead, before: Mapping[int, int]) -> Trimmed:
    """What goes when partitions begin at the offsets `before`: the files that hold nothing else."""
    starts = tuple(max(start, before.get(partition, 0)) for partition, start in enumerate(head.start_offsets))
    gone = [
        path
        for path, file in index.files.items()
        if all(batch.next_offset <= starts[batch.partition] for batch in file.batches)
    ]
    return Trimmed(starts, tuple(sorted(gone)))


def _is_over(file: DataFile, head: TopicHead) -> bool:
    return all(batch.next_offset <= head.start_offsets[batch.partition] for batch in file.batches)


def _beyond(index: OffsetIndex, head: TopicHead, bytes_max: int) -> set[str]:
    """Files of which each partition could do without its share, having `bytes_max` in newer ones."""
    needed: set[str] = set()
    for partition, start in enumerate(head.start_offsets):
        newer = 0.0
        for batch in reversed(list(index.batches(partition, start))):
            if newer >= bytes_max:
                break
            needed.add(batch.path)
            file = index.files[batch.path].segment
            newer += file.size * batch.rows / max(1, file.rows)
    return index.files.keys() - needed


def _oldest(index: OffsetIndex, head: TopicHead, due: set[str]) -> set[str]:
    """Those of the files before which, in each of their partitions, there is none that stays."""
    while True:
        blocked = set()
        for partition, start in enumerate(head.start_offsets):
            stays = False
            for batch in index.batches(partition, start):
                stays = stays or batch.path not in due
                if stays and batch.path in due:
                    blocked.add(batch.path)
        if not blocked:
            return due
        due = due - blocked


def _starts(index: OffsetIndex, head: TopicHead, removed: set[str]) -> tuple[int, ...]:
    starts = list(head.start_offsets)
    for path in removed:
        for batch in index.files[path].batches:
            starts[batch.partition] = max(starts[batch.partition], batch.next_offset)
    return tuple(starts)
