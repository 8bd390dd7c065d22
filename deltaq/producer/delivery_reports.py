"""Telling clients what became of their records, once each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException, Unavailable
from deltaq.producer.accumulator import BatchResult, RecordAccumulator, RowBlock
from deltaq.producer.batches import BatchPart, InFlightBatches, ProduceBatch
from deltaq.topics.state import DataFile

__all__ = ["DeliveryReports", "defect"]

_log = logging.getLogger("deltaq.producer")


def defect(error: Exception, doing: str, topic: str) -> KafkaException:
    """What clients are told of an error that nobody expected: it must not leave them waiting for ever."""
    _log.exception("%s a batch failed topic=%r", doing, topic)
    return KafkaException(KafkaError(KafkaError._FAIL, f"unexpected {type(error).__name__}: {error}"))


class DeliveryReports:
    """Reports to the producers of one topic."""

    def __init__(self, topic: str, clock: Clock, batches: InFlightBatches) -> None:
        self._topic = topic
        self._clock = clock
        self._batches = batches

    def delivered(self, batches: Sequence[ProduceBatch], committed: Sequence[DataFile]) -> None:
        """The files of these batches are in the topic, each as `committed` says."""
        files = {file.path: file for file in committed}
        now = self._clock.monotonic()
        for batch in batches:
            self._delivered(batch, [files[segment.path] for segment in batch.segments], now)
        with self._batches.changed:
            self._batches.settled(batches)

    def _delivered(self, batch: ProduceBatch, files: Sequence[DataFile], now: float) -> None:
        offsets: dict[int, int] = {}
        for file in files:
            for share in file.batches:
                offsets.setdefault(share.partition, share.base_offset)
        append_time = files[-1].append_time_ms
        for part in batch.parts:
            self._tell(part, dict(offsets), append_time, None, now)
            if len(batch.parts) > 1 and part.columns is not None:
                for count in part.columns.partitions.value_counts():
                    offsets[count["values"].as_py()] += count["counts"].as_py()

    def failed(self, parts: Sequence[BatchPart], error: KafkaException) -> None:
        """Parts were not written, or nobody knows."""
        for buffer, report in self.told(parts, error):
            buffer.report(report)

    def told(self, parts: Sequence[BatchPart], error: KafkaException) -> list[tuple[RecordAccumulator, BatchResult]]:
        """The reports of parts that were not written, or nobody knows: from now on nobody else reports them."""
        if isinstance(error, Unavailable) and error.error.retriable():
            # Not tried again, so their time is over.
            error = KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, error.error.str(), retriable=True))
        now = self._clock.monotonic()
        reports = [(part.buffer, self._report(part, {}, None, error, now)) for part in parts]
        return [(buffer, report) for buffer, report in reports if report is not None]

    def refused(self, part: BatchPart, records: RowBlock, refusals: Mapping[int, KafkaException]) -> RowBlock:
        """Take the rows with these numbers out of a part with `records` and `partitions`, report them; the others.

        Whoever reports the part meanwhile does so for all of its rows or for those that are left.
        """
        alike: dict[int, list[int]] = {}
        for at, error in refusals.items():
            alike.setdefault(id(error), []).append(at)
        refused: list[BatchPart] = []
        with self._batches.changed:
            for numbers in alike.values():
                share = part.bytes * len(numbers) // len(records)
                partitions = [part.partitions[at] for at in numbers]
                refused.append(BatchPart(part.buffer, records.picked(numbers), share, partitions, told=part.told))
            kept = [at for at in range(len(records)) if at not in refusals]
            part.bytes -= sum(other.bytes for other in refused)
            part.records = left = records.picked(kept)
            part.partitions = [part.partitions[at] for at in kept]
        for other, numbers in zip(refused, alike.values(), strict=True):
            self.failed([other], refusals[numbers[0]])
        if not kept:
            self.failed([part], refusals[0])  # no rows any more, but what is left of the bytes
        return left

    def _tell(
        self,
        part: BatchPart,
        next_offsets: Mapping[int, int],
        append_time_ms: int | None,
        error: KafkaException | None,
        now: float,
    ) -> None:
        """BatchResult what became of a part, unless its client has been told already."""
        report = self._report(part, next_offsets, append_time_ms, error, now)
        if report is not None:
            part.buffer.report(report)

    def _report(
        self,
        part: BatchPart,
        next_offsets: Mapping[int, int],
        append_time_ms: int | None,
        error: KafkaException | None,
        now: float,
    ) -> BatchResult | None:
        """What its client is to be told of a part; None if it has been told already."""
        with self._batches.changed:
            if part.told:
                return None
            part.told = True
            self._batches.under_way.pop(part, None)
            records, partitions = part.records, part.partitions
            if not partitions and isinstance(records, RowBlock):
                partitions = [row[2] for row in records.rows]
            about = append_time_ms, error, now, self._topic, part.bytes, part.epoch_ms
            return BatchResult(records, partitions, part.columns, next_offsets, *about)
