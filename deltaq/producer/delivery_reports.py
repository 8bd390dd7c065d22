"""Delivery reports: notifies clients of the outcome of their records, once each.

Uploads and commits keep the `message.timeout.ms` of the batch that they work on; records behind it
are younger. Only where producers have different limits, messages behind it may expire earlier:
`Expiry` reports them, in a task of its own, while uploads and commits are busy.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltaq import metrics
from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException, OutcomeUnknown, Unavailable
from deltaq.producer.accumulator import BatchResult, RecordAccumulator, RowBlock
from deltaq.producer.batches import BATCH_ROWS_MAX, BatchPart, InFlightBatches, ProduceBatch
from deltaq.producer.encoding import LargeBlock
from deltaq.producer.sender_topic import SenderTopic
from deltaq.topics.columns import rows_by_partition
from deltaq.topics.state import DataFile

_log = logging.getLogger("deltaq.producer")

REVOKE_S = 2.0
"""Seconds beyond its limit for which a message that may be in the log is kept while its commit is
resolved.
"""

_CHECK_S = 3600.0
"""Longest wait in seconds, where messages have no limit."""


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
            for of_file in file.batches:
                offsets.setdefault(of_file.partition, of_file.base_offset)
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

    def staged(self, batch: ProduceBatch) -> None:
        """Report a batch whose files wait for the decision of a transaction. Its offsets are not
        known.
        """
        now = self._clock.monotonic()
        metrics.REQUEST_LATENCY.observe(now - batch.taken_at, topic=self._topic)
        for part in batch.parts:
            if (result := self._result(part, {}, None, None, now)) is not None:
                part.buffer.on_result(part.buffer, result)

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
                pro_rata = part.bytes * len(numbers) // len(records)
                partitions = [part.partitions[at] for at in numbers]
                refused.append(
                    BatchPart(
                        part.buffer,
                        records.picked(numbers),
                        pro_rata,
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
            # This can happen when it was purged or has expired while its commit was under way.
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


@dataclass(eq=False)
class Expiry:
    """Reports messages of one topic once their limit is over, even if uploads and commits wait for
    the store.
    """

    _topic: SenderTopic
    _clock: Clock
    _batches: InFlightBatches
    _reports: DeliveryReports

    def step(self) -> float | None:
        """Report expired messages. Seconds until the next check; None once there is no buffer."""
        batches = self._batches
        with batches.lock:
            if batches.is_stopping or not batches.buffers:
                batches.is_expiring = False
                return None
            now = self._clock.monotonic()
            over = [batch for batch in batches.open if self._over_at(batch) <= now]
            results = [result for batch in over for result in self._given_up(batch)] + self._queued(
                now
            )
            wait_s = self._wait_s(now)
            if results:
                batches.call_uploader()
                batches.call_committer()
        for buffer, result in results:
            buffer.on_result(buffer, result)
        return wait_s

    def _wait_s(self, now: float) -> float:
        """Seconds until the first message expires. Messages not produced yet have at least the
        shortest limit.
        """
        batches = self._batches
        limits = [buffer.settings.timeout_s for buffer in batches.buffers]
        oldest = [buffer.first_produced_at() for buffer in batches.buffers]
        queued = [
            at + limit_s for at, limit_s in zip(oldest, limits, strict=True) if at is not None
        ]
        first = min([now + min(limits), *queued, *map(self._over_at, batches.open)])
        return min(max(0.0, first - now), _CHECK_S)

    def _queued(self, now: float) -> list[tuple[RecordAccumulator, BatchResult]]:
        """Expire messages that were not taken in time. Nothing of them was sent."""
        parts: list[BatchPart] = []
        for buffer in self._batches.buffers:
            limit_s = buffer.settings.timeout_s
            while (at := buffer.first_produced_at()) is not None and at + limit_s <= now:
                taken = buffer.take(BATCH_ROWS_MAX, max(at, now - limit_s))
                if taken is not None:
                    parts.append(BatchPart(buffer, *taken))
        return self._reports.claim(parts, self._too_late())

    def _over_at(self, batch: ProduceBatch) -> float:
        """When a batch expires: REVOKE_S after its deadline if its attempt still has to be
        resolved.
        """
        attempt = batch.attempt
        ends_now = attempt is None or attempt.until <= batch.deadline
        is_in_commit = batch not in self._batches.waiting and (
            batch.is_shared or (attempt is not None and attempt.token is not None)
        )
        return batch.deadline + (REVOKE_S if is_in_commit and ends_now else 0.0)

    def _given_up(self, batch: ProduceBatch) -> list[tuple[RecordAccumulator, BatchResult]]:
        """Expire a batch and exclude it from further attempts: failed, or unknown if an attempt may
        have succeeded.
        """
        batches = self._batches
        token = None if batch.attempt is None else batch.attempt.token
        if batch.is_shared:
            token = self._topic.log.shared_file_token(batch.segments[0])
        if batch in batches.waiting:
            batches.waiting.remove(batch)
        batches.finished([batch])
        # No attempt of this batch can be in the log, so it has certainly failed.
        if token is None:
            return self._reports.claim(batch.parts, self._too_late())
        reason = "no answer about the commit before message.timeout.ms"
        return self._reports.claim(batch.parts, OutcomeUnknown(reason, token=token))

    def _too_late(self) -> KafkaException:
        return Unavailable(
            f"messages for {self._topic.name!r} could not be written before message.timeout.ms: "
            "the store has not accepted earlier messages of the topic"
        )
