"""Reading ahead: which files the partitions of a topic need next, and how much of each is fetched
at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.errors import Corrupt
from deltaq.parquet.segment import SegmentLayout
from deltaq.store import Store
from deltaq.store.parallel import REQUESTS_MAX, in_parallel
from deltaq.topics.layout_cache import LayoutCache
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.scan import Fetched, FileGone, FileRead, first_parts, next_read, read_file

FIRST_READ_BYTES = 512 * 1024
"""How much of a large file the first read from a new position fetches. It is less than an
uncompressed row group of a compacted file, so such a read fetches one row group. The size doubles
with each read up to `fetch.max.bytes`: the first record comes soon, and a long scan needs few
requests.
"""

ReadOutcome: TypeAlias = list[Fetched] | FileGone | Corrupt


class FetchState(Enum):
    """What the fetcher does with a partition."""

    READING = "records are fetched from its offset, once that is known"
    MISSING = "the topic does not have it, and that was reported; it may be added later"
    STOPPED = "an error was reported; nothing is fetched until its position is set again"


@dataclass(slots=True)
class FetchPosition:
    """The fetch position of a partition. `offset` may be an OFFSET_ constant until it is
    resolved.
    """

    offset: int
    epoch: int
    paused: bool = False
    state: FetchState = FetchState.READING
    read_bytes: int = FIRST_READ_BYTES
    reported_end: int = -1
    # The number of polls begun when `offset` was found beyond the log's end.
    doubted_at: int | None = None


class ReadAhead:
    """Plans and does the reads of one topic's data files. For the fetch thread."""

    def __init__(
        self, store: Store, clock: Clock, layouts: LayoutCache, read_bytes_max: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._layout_cache = layouts
        self._read_bytes_max = read_bytes_max
        # Of the large files that are being read, by path.
        self._layouts: dict[str, SegmentLayout] = {}

    def plan(
        self, index: OffsetIndex, positions: Mapping[int, FetchPosition], room: int
    ) -> list[FileRead]:
        """The reads to do now for at most `room` bytes: one file, or several of a remote store."""
        offsets = {partition: position.offset for partition, position in positions.items()}
        reads: list[FileRead] = []
        while room > 0 and len(reads) < (REQUESTS_MAX if self._store.is_remote else 1):
            read = next_read(index, offsets)
            if read is None:
                break
            read = self._cut(positions, read)
            reads.append(read)
            room -= read.bytes
            offsets |= {batch.partition: end for batch, _, end in read.wanted}
        self._layouts = {read.file.path: read.layout for read in reads if read.layout is not None}
        for partition in {batch.partition for read in reads for batch, _, _ in read.wanted}:
            positions[partition].read_bytes = min(
                2 * positions[partition].read_bytes, self._read_bytes_max
            )
        return reads

    def _cut(self, positions: Mapping[int, FetchPosition], read: FileRead) -> FileRead:
        """Limit the read of a large file to the bytes allowed at a time; partitions read least so
        far come first.
        """
        read_bytes = {
            batch.partition: positions[batch.partition].read_bytes for batch, _, _ in read.wanted
        }
        bytes_max = min(self._read_bytes_max, *read_bytes.values())
        path = read.file.path
        if read.file.segment.size <= bytes_max:
            return read
        try:
            layout = self._layouts.get(path) or self._layout_cache.of(read.file)
        except (FileGone, Corrupt):
            return read  # reading the file raises the same error
        if layout is None:
            return read
        self._layouts[path] = layout
        wanted = sorted(read.wanted, key=lambda want: read_bytes[want[0].partition])
        return first_parts(replace(read, wanted=tuple(wanted)), layout, bytes_max)

    def read(
        self, reads: list[FileRead], columns: pa.Schema
    ) -> Iterator[tuple[FileRead, ReadOutcome]]:
        """Do the reads in parallel. Raises Unavailable."""
        return zip(
            reads,
            in_parallel(self._clock, lambda read: self._outcome(read, columns), reads),
            strict=True,
        )

    def _outcome(self, read: FileRead, columns: pa.Schema) -> ReadOutcome:
        try:
            return read_file(self._store, read, columns, plain=True)
        except (FileGone, Corrupt) as error:
            return error
