"""Lookup of offsets by time, by Kafka's rules, reading only files that can hold the answer.

The log has the lowest and highest timestamp of each file, and the footer of a large file those of
each row group. Timestamps come from producers and need not rise with the offsets, and a row group
may hold several partitions. A row group that may hold the answer is therefore read: of a large
file, only the timestamps and offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.clock import Clock
from deltaq.parquet.segment import RowRange, SegmentLayout
from deltaq.store import Store
from deltaq.store.parallel import in_parallel_if_remote
from deltaq.topics.columns import PLACES
from deltaq.topics.layout_cache import LayoutCache
from deltaq.topics.ranges import load_again
from deltaq.topics.readable import ReadableTopic
from deltaq.topics.scan import FileGone, FileRead, layout_of, parts_of, read_file
from deltaq.topics.state import Batch, DataFile

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Span:
    """Records of one batch to search, with timestamps from `low_ms` to `high_ms`."""

    read: FileRead
    low_ms: int
    high_ms: int

    @property
    def start(self) -> int:
        return self.read.wanted[0][1]


def offset_for_time(
    store: Store,
    log: ReadableTopic,
    partition: int,
    timestamp_ms: int,
    layouts: LayoutCache | None = None,
) -> int | None:
    """The lowest offset whose record has `timestamp_ms` or a later one; None if there is no such
    record.

    `log` must keep an index; it is reloaded if a file has been compacted away. `layouts` caches the
    footers of large files for queries about other partitions. Raises UnknownTopic if the topic was
    deleted, Corrupt, Unavailable.
    """
    cache = layouts or LayoutCache(store)
    return through_compactions(
        log, lambda: _first_since(store, log, partition, timestamp_ms, cache)
    )


def offsets_for_times(
    store: Store,
    log: ReadableTopic,
    asked: Sequence[tuple[int, int]],
    layouts: LayoutCache,
    clock: Clock,
) -> list[int | None]:
    """`offset_for_time` of several (partition, timestamp in ms), in parallel on a remote store.
    Raises as that does.
    """

    def one(question: tuple[int, int]) -> int | None:
        return _first_since(store, log, *question, layouts)

    def search() -> list[int | None]:
        return in_parallel_if_remote(store, clock, one, asked)

    return through_compactions(log, search)


def _first_since(
    store: Store, log: ReadableTopic, partition: int, timestamp_ms: int, layouts: LayoutCache
) -> int | None:
    for batch, start in _batches(log, partition):
        file = log.index.files[batch.path]
        if file.max_timestamp_ms < timestamp_ms:
            continue
        if file.min_timestamp_ms >= timestamp_ms and not batch.sparse:
            return start
        for span in _spans(layouts, file, batch, start, timestamp_ms):
            if span.low_ms >= timestamp_ms and not batch.sparse:
                return span.start
            offsets, times_ms = _times(store, span.read)
            at = pc.index(pc.greater_equal(times_ms, timestamp_ms), True).as_py()
            if at >= 0:
                return int(offsets[at].as_py())
    return None


def time_of_offset(store: Store, log: ReadableTopic, partition: int, offset: int) -> int | None:
    """The timestamp in ms of the record at `offset`; None if there is none. Raises as
    `offset_for_time`.
    """

    def search() -> int | None:
        batch = log.index.find(partition, offset)
        if batch is None or batch.base_offset > offset:
            return None
        file = log.index.files[batch.path]
        if file.append_time_ms is not None and not batch.sparse:
            return file.append_time_ms
        _, times_ms = _times(
            store, FileRead(file, ((batch, offset, offset + 1),), layout_of(store, file))
        )
        return int(times_ms[0].as_py()) if len(times_ms) else None

    return through_compactions(log, search)


def times_from(
    store: Store, log: ReadableTopic, asked: Sequence[tuple[int, int]], clock: Clock
) -> list[int | None]:
    """For each (partition, offset) the timestamp in ms of the first record at the offset or after
    it; None if there is none. In parallel on a remote store. Raises as `offset_for_time`.
    """

    def one(question: tuple[int, int]) -> int | None:
        return _time_from(store, log, *question)

    def search() -> list[int | None]:
        return in_parallel_if_remote(store, clock, one, asked)

    return through_compactions(log, search)


def _time_from(store: Store, log: ReadableTopic, partition: int, offset: int) -> int | None:
    first = max(offset, log.live_head.start_offsets[partition])
    for batch in log.index.batches(partition, first):
        file, start = log.index.files[batch.path], max(batch.base_offset, first)
        if file.append_time_ms is not None and not batch.sparse:
            return file.append_time_ms
        end = batch.next_offset if batch.sparse else start + 1
        read = FileRead(file, ((batch, start, end),), layout_of(store, file))
        _, times_ms = _times(store, read)
        if len(times_ms):
            return int(times_ms[0].as_py())
    return None


def newest_time(store: Store, log: ReadableTopic, partition: int) -> tuple[int, int] | None:
    """(offset, timestamp in ms) of the record with the highest timestamp, the first of several;
    None if there is none.

    Raises as `offset_for_time`.
    """

    layouts = LayoutCache(store)

    def search() -> tuple[int, int] | None:
        # Time, and the offset's negative: of equal times the lowest offset is the greatest pair.
        best = (-1, 0)
        files = log.index.files
        likeliest = sorted(
            _batches(log, partition), key=lambda found: -files[found[0].path].max_timestamp_ms
        )
        for batch, start in likeliest:
            # The highest time of a file or row group may be another partition's, so the order alone
            # does not decide.
            if (files[batch.path].max_timestamp_ms, -start) <= best:
                continue
            for span in sorted(
                _spans(layouts, files[batch.path], batch, start), key=lambda span: -span.high_ms
            ):
                if (span.high_ms, -span.start) > best:
                    offsets, times_ms = _times(store, span.read)
                    if len(times_ms):
                        highest = pc.max(times_ms).as_py()
                        best = max(
                            best, (highest, -offsets[pc.index(times_ms, highest).as_py()].as_py())
                        )
        return None if best[0] < 0 else (-best[1], best[0])

    return through_compactions(log, search)


def _batches(log: ReadableTopic, partition: int) -> list[tuple[Batch, int]]:
    """The partition's batches in offset order, each with its first offset that retention has not
    removed.
    """
    earliest = log.live_head.start_offsets[partition]
    return [
        (batch, max(batch.base_offset, earliest))
        for batch in log.index.batches(partition, earliest)
    ]


def _spans(
    layouts: LayoutCache, file: DataFile, batch: Batch, start: int, from_ms: int = 0
) -> Iterator[_Span]:
    """The parts of a batch from offset `start` on that may have timestamps from `from_ms` on, in
    offset order; by row group in a large file. Raises FileGone.
    """
    layout = layouts.of(file)
    if layout is None:
        read = FileRead(file, ((batch, start, batch.next_offset),))
        yield _Span(read, file.min_timestamp_ms, file.max_timestamp_ms)
        return
    if not batch.sparse:
        start = _start_of_times(layout, batch, start, from_ms)
    for part in parts_of(layout, batch, start, batch.next_offset):
        bounds = [layout.bounds(group, "_timestamp") for group in part.groups]
        low_ms, high_ms = file.min_timestamp_ms, file.max_timestamp_ms
        known = [times_us for times_us in bounds if times_us is not None]
        # With log append time, the timestamps in the file do not count.
        if file.append_time_ms is None and known and len(known) == len(bounds):
            low_ms, high_ms = (
                min(low for low, _ in known) // 1000,
                max(high for _, high in known) // 1000,
            )
        if high_ms >= from_ms:
            yield _Span(FileRead(file, ((batch, part.start, part.end),), layout), low_ms, high_ms)


def _start_of_times(layout: SegmentLayout, batch: Batch, start: int, from_ms: int) -> int:
    """An offset of a dense batch before which all timestamps are below `from_ms`. To skip row
    groups here costs a third of a span for each.
    """
    first = batch.base_offset - batch.first_row  # the offset that row 0 would have
    for group in layout.groups(RowRange(start - first, batch.next_offset - start)):
        times_us = layout.bounds(group, "_timestamp")
        if times_us is None or times_us[1] // 1000 >= from_ms:
            return max(start, first + layout.firsts[group])
    return batch.next_offset


def _times(store: Store, read: FileRead) -> tuple[pa.Array, pa.Array]:
    """Offsets and timestamps in ms of the records of one batch. Raises FileGone."""
    (fetched,) = read_file(store, read, PLACES)
    times_us = fetched.rows.column("_timestamp").cast(pa.int64())
    return fetched.rows.column("_offset"), pc.divide(times_us, 1000)


def through_compactions(log: ReadableTopic, search: Callable[[], T]) -> T:
    """What `search` finds; it is repeated with the log loaded anew after each FileGone. Raises what
    `load_again` raises.
    """
    topic_id = log.live_head.topic_id
    while True:
        try:
            return search()
        except FileGone as gone:
            load_again(log, gone, topic_id)
