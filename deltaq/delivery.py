"""Delivery reports: what a producer's callbacks are called with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, repeat
from typing import Any, TypeAlias

from deltaq.errors import KafkaError
from deltaq.log.buffer import ArrowBlock, Report, Row
from deltaq.message import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
    TopicPartition,
)

__all__ = ["Deliveries", "Delivery"]

Delivery: TypeAlias = "tuple[Any, KafkaError | None, Any]"
"""(callback, error, argument): a Message per record, or the TopicPartitions of a table."""


class Deliveries:
    """The callbacks that are due for one report. Each iteration goes on where the last one was interrupted."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._left: Iterator[Delivery] | None = None

    def __len__(self) -> int:
        return len(self.report)

    def __iter__(self) -> Iterator[Delivery]:
        # Iterators of C only, which outlive an exception, as a generator would not.
        if self._left is None:
            self._left = _deliveries(self.report)
        return self._left

    def is_wanted(self, *, only_errors: bool) -> bool:
        """Whether any callback has to hear of these records."""
        records = self.report.records
        if only_errors and self.report.error is None:
            return False
        if isinstance(records, ArrowBlock):
            return records.callback is not None
        return any(row[5] is not None for row in records)


def _deliveries(report: Report) -> Iterator[Delivery]:
    error = None if report.error is None else report.error.error
    records = report.records
    if isinstance(records, ArrowBlock):
        return iter([(records.callback, error, _table_result(report, error))])
    partitions = report.partitions or [row[2] for row in records]
    offsets: Iterator[int | None] = (
        repeat(None, len(records)) if error is not None else iter(_offsets(partitions, report.next_offsets))
    )
    rows = zip(records, partitions, offsets, _timestamps(report), strict=True)
    return map(partial(_delivery, report, error), compress(rows, [row[5] is not None for row in records]))


def _delivery(
    report: Report, error: KafkaError | None, entry: tuple[Row, int, int | None, tuple[int, int]]
) -> Delivery:
    row, partition, offset, timestamp = entry
    latency = report.finished_at - row[6]
    message = Message(report.topic, partition, offset, row[1], row[0], row[4], error, timestamp, latency)
    return row[5], error, message


def _offsets(partitions: Sequence[int], next_offsets: Mapping[int, int]) -> list[int]:
    found = []
    following = dict(next_offsets)
    for partition in partitions:
        offset = following[partition]
        found.append(offset)
        following[partition] = offset + 1
    return found


def _timestamps(report: Report) -> list[tuple[int, int]]:
    if report.append_time_ms is not None:
        return [(TIMESTAMP_LOG_APPEND_TIME, report.append_time_ms)] * len(report)
    if report.columns is None:
        return [(TIMESTAMP_NOT_AVAILABLE, 0)] * len(report)
    return [(TIMESTAMP_CREATE_TIME, ms) for ms in report.columns.timestamps.to_pylist()]


def _table_result(report: Report, error: KafkaError | None) -> list[TopicPartition]:
    if error is not None or report.columns is None:
        return []
    partitions = sorted(report.columns.partitions.unique().to_pylist())
    return [TopicPartition(report.topic, partition, report.next_offsets[partition]) for partition in partitions]
