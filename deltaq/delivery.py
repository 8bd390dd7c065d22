"""Delivery reports: what a producer's callbacks are called with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, repeat, starmap
from typing import Any, TypeAlias

from deltaq.errors import KafkaError
from deltaq.log.buffer import ArrowBlock, Report, Row
from deltaq.log.encoding import produced_ms
from deltaq.message import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    DeliveredMessage,
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
        return any(callback is not None for callback in records.callbacks)


def _deliveries(report: Report) -> Iterator[Delivery]:
    error = None if report.error is None else report.error.error
    records = report.records
    if isinstance(records, ArrowBlock):
        return iter([(records.callback, error, _table_result(report, error))])
    partitions = report.partitions or [row[2] for row in records.rows]
    offsets: Iterable[int | None] = (
        repeat(None, len(records)) if error is not None else _offsets(partitions, report.next_offsets)
    )
    callbacks = records.callbacks
    entries = starmap(
        partial(_delivery, _Outcome(report, error)), zip(callbacks, records.rows, partitions, offsets, strict=True)
    )
    # By identity: a callback may be equal to whatever it likes.
    wanted = [callback is not None for callback in callbacks]
    return entries if all(wanted) else compress(entries, wanted)


def _delivery(outcome: _Outcome, callback: object, row: Row, partition: int, offset: int | None) -> Delivery:
    return callback, outcome.error, DeliveredMessage(outcome, row, partition, offset)


class _Outcome:
    """What the records of one report have in common; see `deltaq.message.Outcome`."""

    def __init__(self, report: Report, error: KafkaError | None) -> None:
        self.topic = report.topic
        self.error = error
        self._finished_at = report.finished_at
        self._append_time_ms = report.append_time_ms
        self._epoch_ms = None if report.columns is None else report.epoch_ms

    def latency_of(self, row: Row) -> float:
        return self._finished_at - row[5]

    def timestamp_of(self, row: Row) -> tuple[int, int]:
        if self._append_time_ms is not None:
            return TIMESTAMP_LOG_APPEND_TIME, self._append_time_ms
        if self._epoch_ms is None:
            return TIMESTAMP_NOT_AVAILABLE, 0
        return TIMESTAMP_CREATE_TIME, row[3] or produced_ms(row, self._epoch_ms)


def _offsets(partitions: Sequence[int], next_offsets: Mapping[int, int]) -> Sequence[int]:
    if len(next_offsets) == 1:
        ((_, first),) = next_offsets.items()
        return range(first, first + len(partitions))
    found = []
    following = dict(next_offsets)
    for partition in partitions:
        offset = following[partition]
        found.append(offset)
        following[partition] = offset + 1
    return found


def _table_result(report: Report, error: KafkaError | None) -> list[TopicPartition]:
    if error is not None or report.columns is None:
        return []
    partitions = sorted(report.columns.partitions.unique().to_pylist())
    return [TopicPartition(report.topic, partition, report.next_offsets[partition]) for partition in partitions]
