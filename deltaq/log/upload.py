"""Putting records into the store as a segment, which no log entry names yet."""

from __future__ import annotations

import pyarrow as pa

from deltaq import names
from deltaq.clock import Clock
from deltaq.config import TopicSettings
from deltaq.errors import Unavailable
from deltaq.log.backoff import error_pause_s
from deltaq.log.records import Columns, bounds_of, by_partition
from deltaq.log.segment import encode_segment
from deltaq.log.topic_state import PendingSegment
from deltaq.store import Store, StoreRefused, StoreUnavailable

__all__ = ["pause_before_retry", "upload_segment"]


def upload_segment(
    store: Store,
    topic: str,
    columns: Columns,
    settings: TopicSettings,
    compression: str,
    compression_level: int | None,
    deadline: float,
    clock: Clock,
    as_of: int,
) -> tuple[PendingSegment, pa.RecordBatch]:
    """Encode records whose partitions are chosen, and upload them; the segment and the rows that are in it. They are in
    the topic once they are committed.

    `settings` are the topic's; where its `compression.type` is `producer`, `compression` and `compression_level` count.
    `as_of` is the version up to which the topic's log is known.
    Tries until `deadline` on `clock.monotonic()`. Raises Unavailable, InvalidConfig for an unknown compression.
    """
    if settings.compression_type != "producer":
        compression, compression_level = settings.compression_type, None
    timed = settings.message_timestamp_type == "CreateTime"
    batch, shares = by_partition(columns, timed=timed)
    encoded = encode_segment(batch, [rows for _, rows in shares], compression, compression_level)
    path = names.data_file_name(clock.unique_id())
    failures = 0
    while True:
        try:
            store.put(names.topic_folder(topic) + path, encoded.data)
            break
        except StoreRefused as error:
            raise Unavailable(str(error), retriable=False) from error
        except StoreUnavailable as error:
            failures += 1
            pause_before_retry(clock, topic, failures, deadline, str(error))
    earliest, latest = columns.timestamp_bounds or bounds_of(columns.timestamps)
    segment = PendingSegment(
        path,
        len(encoded.data),
        encoded.rows,
        encoded.crc32,
        encoded.footer_bytes,
        encoded.footer_crc32,
        shares,
        earliest,
        latest,
        clock.time_ms(),
        timed,
        as_of,
    )
    return segment, batch


def pause_before_retry(clock: Clock, topic: str, failures: int, deadline: float, reason: str) -> None:
    """Wait after the last of `failures` errors in a row. Raises Unavailable if the deadline comes first."""
    left = deadline - clock.monotonic()
    if left <= 0:
        raise Unavailable(f"messages for {topic!r} could not be written before message.timeout.ms: {reason}")
    clock.sleep(min(left, error_pause_s(failures, clock.random())))
