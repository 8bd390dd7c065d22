"""From times to offsets, by Kafka's rules, reading only the files that can hold the answer.

The log says the lowest and highest timestamp of each file. Timestamps are the producers' and need not rise with the
offsets, and a file may hold several partitions, so a file that may hold the answer has to be read to know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.log.ranges import load_again
from deltaq.log.scan import FileGone, FileRead, read_file
from deltaq.log.topic_log import TopicLog
from deltaq.log.topic_state import Batch
from deltaq.store import Store

__all__ = ["newest_time", "offset_for_time", "time_of_offset"]

T = TypeVar("T")


def offset_for_time(store: Store, log: TopicLog, partition: int, timestamp_ms: int) -> int | None:
    """The lowest offset whose record has `timestamp_ms` or a later one; None if there is no such record.

    `log` must keep an index; it is moved on if a file has been compacted away. Raises UnknownTopic if the topic has
    ended, Corrupt, Unavailable.
    """

    def look() -> int | None:
        for batch, start in _batches(log, partition):
            file = log.index.files[batch.path]
            if file.max_timestamp_ms < timestamp_ms:
                continue
            if file.min_timestamp_ms >= timestamp_ms and not batch.sparse:
                return start
            offsets, times_ms = _times(store, log, batch, start, batch.next_offset)
            at = pc.index(pc.greater_equal(times_ms, timestamp_ms), True).as_py()
            if at >= 0:
                return int(offsets[at].as_py())
        return None

    return _through_compactions(log, look)


def time_of_offset(store: Store, log: TopicLog, partition: int, offset: int) -> int | None:
    """The timestamp in ms of the record at `offset`; None if it is not there. Raises as `offset_for_time`."""

    def look() -> int | None:
        batch = log.index.find(partition, offset)
        if batch is None or batch.base_offset > offset:
            return None
        append_time_ms = log.index.files[batch.path].append_time_ms
        if append_time_ms is not None and not batch.sparse:
            return append_time_ms
        _, times_ms = _times(store, log, batch, offset, offset + 1)
        return int(times_ms[0].as_py()) if len(times_ms) else None

    return _through_compactions(log, look)


def newest_time(store: Store, log: TopicLog, partition: int) -> tuple[int, int] | None:
    """(offset, timestamp in ms) of the record with the highest timestamp, the first of several; None if there is none.

    Raises as `offset_for_time`.
    """

    def look() -> tuple[int, int] | None:
        best = (-1, 0)  # time, and the offset's negative: of equal times the lowest offset is the greatest pair
        files = log.index.files
        likeliest = sorted(_batches(log, partition), key=lambda found: -files[found[0].path].max_timestamp_ms)
        for batch, start in likeliest:
            # A file's highest time may be that of another partition, so the order alone does not decide.
            if (files[batch.path].max_timestamp_ms, -start) > best:
                offsets, times_ms = _times(store, log, batch, start, batch.next_offset)
                if len(times_ms):
                    highest = pc.max(times_ms).as_py()
                    best = max(best, (highest, -offsets[pc.index(times_ms, highest).as_py()].as_py()))
        return None if best[0] < 0 else (-best[1], best[0])

    return _through_compactions(log, look)


def _batches(log: TopicLog, partition: int) -> list[tuple[Batch, int]]:
    """The partition's batches in offset order, each with the first of its offsets that retention has left."""
    earliest = log.live_head.start_offsets[partition]
    return [(batch, max(batch.base_offset, earliest)) for batch in log.index.batches(partition, earliest)]


def _times(store: Store, log: TopicLog, batch: Batch, start: int, end: int) -> tuple[pa.Array, pa.Array]:
    """Offsets and timestamps in ms of the batch's records in [start, end). Raises FileGone."""
    (fetched,) = read_file(store, FileRead(log.index.files[batch.path], ((batch, start, end),)))
    times_us = fetched.rows.column("_timestamp").cast(pa.int64())
    return fetched.rows.column("_offset"), pc.divide(times_us, 1000)


def _through_compactions(log: TopicLog, look: Callable[[], T]) -> T:
    topic_id = log.live_head.topic_id
    while True:
        try:
            return look()
        except FileGone as gone:
            load_again(log, gone, topic_id)
