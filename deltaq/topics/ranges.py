"""Reading ranges of offsets completely, also if maintenance replaces their files meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deltaq.errors import Corrupt, OffsetOutOfRange, UnknownTopic
from deltaq.store import Store
from deltaq.topics.metadata import definition_of
from deltaq.topics.scan import Fetched, FileGone, next_read, read_file
from deltaq.topics.snapshot import ReadableTopic


def read_ranges(store: Store, log: ReadableTopic, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Fetched]:
    """The records in `ranges` (partition -> [start, end) offsets), each file read once, the oldest first.

    Every partition's records come in offset order; the partitions of a file come together. `log` must keep an index
    and is reloaded when a file has been compacted away. Raises OffsetOutOfRange if records of a range were removed
    before they were read, UnknownTopic if the topic ended, and what `read_file` raises except FileGone.
    """
    positions = {partition: start for partition, (start, end) in ranges.items() if start < end}
    ends = {partition: ranges[partition][1] for partition in positions}
    topic_id = log.live_head.topic_id
    while (read := next_read(log.index, positions, ends)) is not None:
        try:
            parts = read_file(store, read, definition_of(log).columns)
        except FileGone as gone:
            load_again(log, gone, topic_id)
            _check_not_removed(log, positions, ends)
            continue
        for part in parts:
            positions[part.partition] = part.next_offset
            yield part


def load_again(log: ReadableTopic, gone: FileGone, topic_id: str) -> None:
    """Load the newest version because a file is missing.

    Raises UnknownTopic if the topic `topic_id` has ended, Corrupt if the newest version still has the file.
    """
    log.load()
    if log.head is None or log.head.topic_id != topic_id:
        raise UnknownTopic(log.topic, reason=f"topic {log.topic!r} was deleted while it was read")
    if log.is_lost(gone.file):
        raise Corrupt("data file is missing", path=gone.file.segment.key, version=gone.file.segment.version)


def _check_not_removed(log: ReadableTopic, positions: Mapping[int, int], ends: Mapping[int, int]) -> None:
    head = log.live_head
    for partition, position in positions.items():
        earliest, latest = head.start_offsets[partition], head.next_offsets[partition]
        if position < min(earliest, ends[partition]):
            raise OffsetOutOfRange(
                topic=log.topic, partition=partition, requested=position, earliest=earliest, latest=latest
            )
