"""Delivery reports: notifies clients of the outcome of their records, once each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltaq import metrics
from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException, Unavailable
from deltaq.producer.accumulator import BatchResult, RecordAccumulator, RowBlock
from deltaq.producer.batches import BatchPart, InFlightBatches, ProduceBatch
from deltaq.producer.large_messages import LargeBlock
from deltaq.topics.columns import rows_by_partition
from deltaq.topics.state import DataFile

_log = logging.getLogger("deltaq.producer")


def defect(error: Exception, doing: str, topic: str) -> KafkaException:
    """Log an unexpected error and return the error for clients, which must not wait for ever
    because of a defect.
    """
    _log.exception("%s a batch failed topic=%r", doing, topic)
    return KafkaException(
        KafkaError(KafkaError._FAIL, f"unexpected {type(error).__name__}: {error}")
    )


@dataclass(eq=False)
class DeliveryReports:
    """Reports to the producers of one topic."""

    _topic: str
    _clock: Clock
    _batches: InFlightBatches

    def delivered(self, batches: Sequence[ProduceBatch], committed: Sequence[DataFile]) -> None:
        """Report batches whose files are in the topic. `committed` has these files with their
        offsets.
        """
        files = {file.path: file for file in committed}
        now = self._clock.monotonic()
        for batch in batches:
            metrics.REQUEST_LATENCY.observe(now - batch.taken_at, topic=self._topic)
            self._delivered(batch, [files[segment.path] for segment in batch.segments], now)
        with self._batches.lock:
            self._batches.finished(batches)

    def _delivered(self, batch: ProduceBatch, files: Sequence[DataFile], now: float) -> None:
        offsets: dict[int, int] = {}
        for file in files:
            for share in file.batches:
                offsets.setdefault(share.partition, share.base_offset)
        append_time = files[-1].append_time_ms
        for part in batch.parts:
            of_part = dict(offsets)
            # A message in pieces has the offset of its last one.
            if isinstance(part.records, LargeBlock):
                of_part[part.partitions[0]] += len(part.columns or ()) - 1
            if (result := self._result(part, of_part, append_time, None, now)) is not None:
                part.buffer.on_result(part.buffer, result)
            if len(batch.parts) > 1 and part.columns is not None:
                for partition, rows in rows_by_partition(part.columns).items():
                    offsets[partition] += rows

    def failed(self, parts: Sequence[BatchPart], error: KafkaException) -> None:
        """Report parts that were not written, or whose outcome is unknown."""
        for buffer, result in self.claim(parts, error):
            buffer.on_result(buffer, result)

    def claim(
        self, parts: Sequence[BatchPart], error: KafkaException
    ) -> list[tuple[RecordAccumulator, BatchResult]]:
        """The results of failed parts, for the caller to report: no other thread reports these
        parts from now on.
        """
        if isinstance(error, Unavailable) and error.error.retriable():
            # The parts are not retried any more: for the client, this is the end of
            # `message.timeout.ms`.
            error = KafkaException(
                KafkaError(KafkaError._MSG_TIMED_OUT, error.error.str(), retriable=True)
            )
        now = self._clock.monotonic()
        results = [(part.buffer, self._result(part, {}, None, error, now)) for part in parts]
        return [(buffer, result) for buffer, result in results if result is not None]

    def refused(
        self, part: BatchPart, records: RowBlock, refusals: Mapping[int, KafkaException]
    ) -> RowBlock:
        """Report and remove the rows of a part that `refusals` names by number. Returns the rows
        that are left. A thread that reports the part meanwhile reports all of its rows or those
        that are left.
        """
        alike: dict[int, list[int]] = {}
        for at, error in refusals.items():
            alike.setdefault(id(error), []).append(at)
        refused: list[BatchPart] = []
        with self._batches.lock:
            for numbers in alike.values():
                share = part.bytes * len(numbers) // len(records)
                partitions = [part.partitions[at] for at in numbers]
                refused.append(
                    BatchPart(
                        part.buffer,
                        records.picked(numbers),
                        share,
                        partitions,
                        is_reported=part.is_reported,
                    )
                )
            kept = [at for at in range(len(records)) if at not in refusals]
            part.bytes -= sum(other.bytes for other in refused)
            part.records = left = records.picked(kept)
            part.partitions = [part.partitions[at] for at in kept]
        for other, numbers in zip(refused, alike.values(), strict=True):
            self.failed([other], refusals[numbers[0]])
        if not kept:
            self.failed([part], refusals[0])  # no rows are left, but bytes remain from rounding
        return left

    def _result(
        self,
        part: BatchPart,
        next_offsets: Mapping[int, int],
        append_time_ms: int | None,
        error: KafkaException | None,
        now: float,
    ) -> BatchResult | None:
        """Mark a part as reported and return its result; None if it has been reported already."""
        with self._batches.lock:
            if part.is_reported:
                return None
            part.is_reported = True
            self._batches.under_way.pop(part, None)
            about = append_time_ms, error, now, self._topic, part.bytes, part.epoch_ms
            result = BatchResult(part.records, part.partitions, part.columns, next_offsets, *about)
        if error is None:
            metrics.RECORDS_SENT.add(len(result), topic=self._topic)
            metrics.BYTES_SENT.add(result.bytes, topic=self._topic)
        else:
            metrics.RECORD_ERRORS.add(len(result), topic=self._topic, error=error.error.name())
        return result
