"""Upload of records as a segment that no log entry names yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from deltaq import names
from deltaq.clock import Clock
from deltaq.config import TopicSettings
from deltaq.delta.retry import error_pause_s
from deltaq.errors import Unavailable
from deltaq.parquet.plain_segment import PlainRows, encode_plain
from deltaq.parquet.segment import encode_segment
from deltaq.store import Store, StoreRefused, StoreUnavailable
from deltaq.topics.columns import Columns, bounds_of, by_partition, plain_batch
from deltaq.topics.state import PendingSegment


class NothingSent(Unavailable):
    """The store refused the first attempt: the file is not there, and will not appear later."""


def upload_segment(
    store: Store,
    topic: str,
    records: Columns | PlainRows,
    settings: TopicSettings,
    codec: tuple[str, int | None],
    *,
    deadline: float,
    clock: Clock,
    as_of: int,
    named: Callable[[PendingSegment], str | None] = lambda _: None,
    failed: Callable[[Unavailable], object] = lambda _: None,
) -> tuple[PendingSegment, pa.RecordBatch | PlainRows]:
    """Encode and upload records whose partitions are chosen; returns the segment and its rows. A
    commit then adds them to the topic.

    `settings` are the topic's; if its `compression.type` is `producer`, `codec` applies: the name
    of a compression and its level. `as_of` is a version that the log is known to have reached.
    `named(segment)` can return another path for the file. `failed` is called before a request is
    repeated. Retries until `deadline` on `clock.monotonic()`. Raises Unavailable, InvalidConfig for
    an unknown compression.
    """
    if settings.compression_type != "producer":
        codec = settings.compression_type, None
    timed = settings.message_timestamp_type == "CreateTime"
    rows: pa.RecordBatch | PlainRows
    if isinstance(records, PlainRows):
        rows, partition_rows = replace(records, timed=timed), records.partition_rows
        times_ms = min(records.times_ms), max(records.times_ms)
    else:
        rows, partition_rows = by_partition(records, timed=timed)
        times_ms = records.timestamp_bounds or bounds_of(records.timestamps)
    if isinstance(rows, PlainRows) and codec[0] == "none":
        encoded = encode_plain(rows)
    else:
        rows = plain_batch(rows) if isinstance(rows, PlainRows) else rows
        encoded = encode_segment(rows, [count for _, count in partition_rows], *codec)
    name, now_ms = names.data_file_name(clock.unique_id()), clock.time_ms()
    segment = PendingSegment.of(
        name, encoded, partition_rows, times_ms, now_ms, timed=timed, as_of=as_of
    )
    path = named(segment)
    if path is not None:
        segment = replace(segment, path=path)
    key = names.topic_folder(topic) + segment.path
    failures = 0
    while True:
        try:
            store.put(key, encoded.data)
        except StoreRefused as error:
            refusal = Unavailable if failures else NothingSent
            raise refusal(str(error), retriable=False) from error
        except StoreUnavailable as error:
            failures += 1
            failed(Unavailable(str(error)))
            pause_before_retry(clock, topic, failures, deadline, str(error))
        else:
            return segment, rows


def pause_before_retry(
    clock: Clock, topic: str, failures: int, deadline: float, reason: str
) -> None:
    """Back off after `failures` errors in a row. Raises Unavailable if the deadline is over."""
    left = deadline - clock.monotonic()
    if left <= 0:
        raise Unavailable(
            f"messages for {topic!r} could not be written before message.timeout.ms: {reason}"
        )
    clock.sleep(min(left, error_pause_s(failures, clock.random())))
