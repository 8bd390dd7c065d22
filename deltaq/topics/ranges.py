"""Reading ranges of offsets completely, also if maintenance replaces their files meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from deltaq.errors import Corrupt, OffsetOutOfRange, UnknownTopic
from deltaq.parquet.bounded_decoding import DecodedTooLarge
from deltaq.parquet.segment import SegmentLayout
from deltaq.store import Store
from deltaq.store.parallel import REQUESTS_MAX, in_parallel
from deltaq.topics.metadata import definition_of
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.readable import ReadableTopic
from deltaq.topics.scan import (
    Fetched,
    FileGone,
    FileRead,
    first_parts,
    layout_of,
    next_read,
    parts_of,
    read_file,
)

BYTES_AT_ONCE = 32 * 1024 * 1024
"""Bytes of the files that are requested in parallel from a remote store. Larger ones are read one
after the other.
"""


def read_ranges(
    store: Store, log: ReadableTopic, ranges: Mapping[int, tuple[int, int]]
) -> Iterator[Fetched]:
    """The records in `ranges` (partition -> [start, end) offsets), each file read once, the oldest
    first.

    Every partition's records come in offset order; the partitions of a file come together. From a
    remote store, several small files are requested in parallel. `log` must keep an index and is
    reloaded when a file has been compacted away. Raises OffsetOutOfRange if records of a range were
    removed before they were read, UnknownTopic if the topic ended, and what `read_file` raises
    except FileGone.
    """
    positions = {partition: start for partition, (start, end) in ranges.items() if start < end}
    ends = {partition: ranges[partition][1] for partition in positions}
    topic_id = log.live_head.topic_id
    while reads := _next_reads(
        log.index, positions, ends, 1 if not store.is_remote else REQUESTS_MAX
    ):
        parts_of = partial(_parts, store, definition_of(log).columns)
        for found in in_parallel(log.clock, parts_of, reads):
            if isinstance(found, FileGone):
                load_again(log, found, topic_id)
                _check_not_removed(log, positions, ends)
                break  # what was read of later files is read again, from where it is now
            for part in found:
                positions[part.partition] = part.next_offset
                yield part


@dataclass(frozen=True, slots=True)
class TooLarge:
    """Records of a partition with the offsets [start, end) that were not read: they would take
    `bytes` of memory.
    """

    partition: int
    start: int
    end: int
    bytes: int


def read_in_pieces(
    store: Store, log: ReadableTopic, ranges: Mapping[int, tuple[int, int]], decoded_max: int
) -> Iterator[Fetched | TooLarge]:
    """As `read_ranges`, by one row group at a time, or by one small file: for readers that look at
    records and keep little of them. Row groups of more than `decoded_max` bytes in memory are
    passed over.
    """
    positions = {partition: start for partition, (start, end) in ranges.items() if start < end}
    ends = {partition: ranges[partition][1] for partition in positions}
    topic_id = log.live_head.topic_id
    # Of the last file: its row groups follow each other.
    layouts: dict[str, SegmentLayout | None] = {}
    while (read := next_read(log.index, positions, ends)) is not None:
        key = read.file.segment.key
        try:
            if key not in layouts:
                layouts = {key: layout_of(store, read.file)}
            parts = _piece(store, definition_of(log).columns, read, layouts[key], decoded_max)
        except FileGone as gone:
            load_again(log, gone, topic_id)
            _check_not_removed(log, positions, ends)
            continue
        for part in parts:
            positions[part.partition] = part.end if isinstance(part, TooLarge) else part.next_offset
            yield part


def _piece(
    store: Store, columns: pa.Schema, read: FileRead, layout: SegmentLayout | None, decoded_max: int
) -> Sequence[Fetched | TooLarge]:
    """The first row group of a read, or all of a small file, which has no `layout`."""
    piece, size = read, 0
    if layout is not None:
        piece = first_parts(read, layout, 1)
        parts = [
            part
            for batch, start, end in piece.wanted
            for part in parts_of(layout, batch, start, end)
        ]
        size = sum(
            layout.size(group) for group in {group for part in parts for group in part.groups}
        )
    try:
        if size > decoded_max:
            raise DecodedTooLarge(size)
        return read_file(store, piece, columns, decoded_max=decoded_max)
    except DecodedTooLarge as error:
        return [
            TooLarge(batch.partition, start, end, error.bytes) for batch, start, end in piece.wanted
        ]


def _next_reads(
    index: OffsetIndex, positions: Mapping[int, int], ends: Mapping[int, int], files_max: int
) -> list[FileRead]:
    """The next files to read, in this order, for partitions at `positions`."""
    ahead = dict(positions)
    reads: list[FileRead] = []
    size = 0
    while len(reads) < files_max and (read := next_read(index, ahead, ends)) is not None:
        size += read.file.segment.size
        if reads and size > BYTES_AT_ONCE:
            break
        reads.append(read)
        for batch, _, end in read.wanted:
            ahead[batch.partition] = max(end, batch.next_offset)
    return reads


def _parts(store: Store, columns: pa.Schema, read: FileRead) -> list[Fetched] | FileGone:
    try:
        return read_file(store, read, columns)
    except FileGone as gone:
        return gone


def load_again(log: ReadableTopic, gone: FileGone, topic_id: str) -> None:
    """Load the newest version because a file is missing.

    Raises UnknownTopic if the topic `topic_id` has ended, Corrupt if the newest version still has
    the file.
    """
    log.load()
    if log.head is None or log.head.topic_id != topic_id:
        raise UnknownTopic(log.topic, reason=f"topic {log.topic!r} was deleted while it was read")
    if log.is_lost(gone.file):
        raise Corrupt(
            "data file is missing", path=gone.file.segment.key, version=gone.file.segment.version
        )


def _check_not_removed(
    log: ReadableTopic, positions: Mapping[int, int], ends: Mapping[int, int]
) -> None:
    head = log.live_head
    for partition, position in positions.items():
        earliest, latest = head.start_offsets[partition], head.next_offsets[partition]
        if position < min(earliest, ends[partition]):
            raise OffsetOutOfRange(
                topic=log.topic,
                partition=partition,
                requested=position,
                earliest=earliest,
                latest=latest,
            )
