"""Expiry: keeps each producer's `message.timeout.ms` while uploads and commits are busy with
another producer's batch.

Uploads and commits keep the limit of the batch that they work on; records behind it are younger.
Only where producers have different limits, messages behind it may expire earlier: they are reported
by a task of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaq.clock import Clock
from deltaq.errors import KafkaException, OutcomeUnknown, Unavailable
from deltaq.producer.accumulator import BatchResult, RecordAccumulator
from deltaq.producer.batches import BATCH_ROWS_MAX, BatchPart, InFlightBatches, ProduceBatch
from deltaq.producer.delivery_reports import DeliveryReports
from deltaq.producer.sender_topic import SenderTopic

REVOKE_S = 2.0
"""Seconds beyond its limit for which a message that may be in the log is kept while its commit is
resolved.
"""

_CHECK_S = 3600.0
"""Longest wait in seconds, where messages have no limit."""


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
        if token is None:
            return self._reports.claim(batch.parts, self._too_late())
        reason = "no answer about the commit before message.timeout.ms"
        return self._reports.claim(batch.parts, OutcomeUnknown(reason, token=token))

    def _too_late(self) -> KafkaException:
        return Unavailable(
            f"messages for {self._topic.name!r} could not be written before message.timeout.ms: "
            "the store has not accepted earlier messages of the topic"
        )
