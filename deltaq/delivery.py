"""Delivery reports: what a producer's callbacks are called with. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deltaq.errors import KafkaError
from deltaq.log.buffer import ArrowBlock, Report
from deltaq.message import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
    TopicPartition,
)

__all__ = ["deliveries", "wants_callback"]


def wants_callback(report: Report, *, only_errors: bool) -> bool:
    """Whether any callback has to hear of these records."""
    if only_errors and report.error is None:
        return False
    records = report.records
    if isinstance(records, ArrowBlock):
        return records.callback is not None
    return any(row[5] is not None for row in records)


def deliveries(report: Report) -> Iterator[tuple[Any, KafkaError | None, Any]]:
    """(callback, error, argument) of each callback that is due: a Message per record, or a table's TopicPartitions."""
    error = None if report.error is None else report.error.args[0]
    if isinstance(report.records, ArrowBlock):
        yield report.records.callback, error, _table_result(report, error)
        return
    timestamps = _timestamps(report)
    partitions = report.partitions or [row[2] for row in report.records]
    offsets = dict(report.next_offsets)
    for row, partition, timestamp in zip(report.records, partitions, timestamps, strict=True):
        offset = None
        if error is None:
            offset = offsets[partition]
            offsets[partition] = offset + 1
        if row[5] is not None:
            yield row[5], error, Message(
                report.topic,
                row[0],
                row[1],
                partition if partition >= 0 else None,
                offset,
                row[4],
                error,
                timestamp,
                report.finished_at - row[6],
            )


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
