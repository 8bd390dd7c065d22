"""When records are taken from their buffers, and by how many threads they are uploaded.

One thread does both as long as records come slowly; while whole batches wait, further ones upload beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from deltaq.clock import Clock, Thread
from deltaq.errors import KafkaException
from deltaq.producer.batch_upload import BatchUpload
from deltaq.producer.batches import InFlightBatches, ProduceBatch
from deltaq.producer.delivery_reports import DeliveryReports, defect
from deltaq.producer.group_commit import GroupCommitPolicy
from deltaq.producer.linger import AdaptiveLinger, BatchTimes, LoneRecords
from deltaq.topics.log import SharedTopicLog

__all__ = ["BATCHES_AHEAD_MAX", "UPLOADS_MAX", "Uploader"]

BATCHES_AHEAD_MAX = 8
"""Batches on their way to a commit, at most. Beyond that, records wait in the accumulators and make larger batches."""

UPLOADS_MAX = 4
"""How many batches are uploaded at once. More than one only of whole batches: where less waits, larger batches cost
less."""

_COMPANY_LOOK_S = 0.001
"""Shortest wait for what is offered already, before more is."""


class Uploader:
    """Takes batches and uploads them. `extra_workers` are the threads beside the first, `uploads` the batches in their
    hands."""

    def __init__(
        self,
        topic: str,
        clock: Clock,
        log: SharedTopicLog,
        batches: InFlightBatches,
        upload: BatchUpload,
        reports: DeliveryReports,
        turns: GroupCommitPolicy,
        linger: AdaptiveLinger,
        *,
        is_remote: bool,
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._log = log
        self._batches = batches
        self._upload = upload
        self._reports = reports
        self._turns = turns
        self._linger = linger
        self._lone = LoneRecords()
        self._flight_times = BatchTimes()
        self._is_remote = is_remote
        self._waits_for_landing = False  # of what is open
        self.is_running = False
        self.uploads = 0
        self.extra_workers = 0
        self.threads: list[Thread] = []  # the extra_workers

    def run(self) -> None:
        """The work of the first thread, which ends with the last buffer and the last upload."""
        while (batch := self._next_batch()) is not None:
            self._carry(batch)

    def start_extra_worker(self) -> None:
        """Have a whole batch uploaded beside what is being uploaded: somebody produces faster than one thread writes.
        The writer's lock is held."""
        if not self.uploads or not self._is_extra_worker_due() or self.extra_workers >= UPLOADS_MAX - 1:
            return
        self.extra_workers += 1
        try:
            thread = self._clock.start_thread(self._extra_worker_loop, f"deltaq-upload-{self._topic}")
        except RuntimeError:  # the system gives no more threads: then it takes longer
            self.extra_workers -= 1
            return
        self.threads = [*(thread for thread in self.threads if thread.is_alive()), thread]

    def _extra_worker_loop(self) -> None:
        try:
            while (batch := self._next_full()) is not None:
                self._carry(batch)
        finally:
            with self._batches.changed:
                self.extra_workers -= 1

    def _carry(self, batch: ProduceBatch) -> None:
        """Upload a batch, or report why it cannot be. What may be there all the same is left to who commits."""
        failure: KafkaException | None = None
        try:
            self._upload.first(batch)
        except KafkaException as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a defect must not leave callers waiting for ever
            failure = defect(error, "writing", self._topic)
        if failure is not None and not batch.is_offered:
            self._reports.failed(batch.parts, failure)
        with self._batches.changed:
            self.uploads -= 1
            batch.failure = failure
            self._batches.uploaded(batch)

    # --- when ---

    def _next_batch(self) -> ProduceBatch | None:
        """Wait until some buffer has lingered long enough, then take from all of them. None: no buffer is left,
        and no upload under way."""
        batches = self._batches
        with batches.changed:
            while True:
                batches.buffers = [buffer for buffer in batches.buffers if len(buffer) or not buffer.abandoned]
                if batches.is_stopping or not (batches.buffers or self.uploads):
                    self.is_running = False
                    batches.changed.notify_all()
                    return None
                self.agree()
                wait_s = self._wait_s()
                if wait_s is not None and wait_s <= 0:
                    batch = self._taken()
                    self.start_extra_worker()
                    return batch
                batches.changed.wait(wait_s)

    def _next_full(self) -> ProduceBatch | None:
        """A batch of at least a whole batch; None if there is none, or enough is under way."""
        with self._batches.changed:
            return self._taken() if self._is_extra_worker_due() else None

    def agree(self) -> None:
        """Commits are shared with other processes only if no producer here minds. The writer's lock is held."""
        if self._batches.buffers:
            self._turns.is_on = all(buffer.settings.group_commit for buffer in self._batches.buffers)

    def _is_extra_worker_due(self) -> bool:
        """Whether a whole batch waits, and is to be uploaded now. Not in a crowd, where the turn of others comes first:
        then larger batches are better than more of them; unless one commits for all."""
        batches = self._batches
        has_room = self.uploads < UPLOADS_MAX and len(batches.waiting) < BATCHES_AHEAD_MAX
        is_free = has_room and not batches.is_stopping
        has_turn = self._linger.extra_s == 0 or self._turns.in_company(self._clock.monotonic())
        return is_free and has_turn and any(buffer.is_full for buffer in batches.buffers)

    def _wait_s(self) -> float | None:
        """Seconds until records should be taken; None while there are none, or while enough are uploaded already."""
        batches = self._batches
        if len(batches.waiting) >= BATCHES_AHEAD_MAX:
            return None
        now = self._clock.monotonic()
        waits = [buffer.due_in(now, self._linger_s) for buffer in batches.buffers]
        due = [wait for wait in waits if wait is not None]
        in_company = self._turns.in_company(now)
        self._waits_for_landing = bool(
            due and batches.open and in_company and not any(b.is_full for b in batches.buffers)
        )
        if self._waits_for_landing:
            # One small file at a time is enough: whoever commits for all takes more of them with the next.
            return max(_COMPANY_LOOK_S, self._turns.company_left_s(now), *due)
        return min(due, default=None)

    def _linger_s(self, produced_at: float, linger_s: float) -> float:
        """Seconds that records should wait, the oldest of which was produced then and may wait `linger_s` seconds: less
        than that where it would be of no use, more in a crowd in which each commits for itself."""
        in_company = self._turns.in_company(self._clock.monotonic())
        if self._lone.is_next(produced_at, linger_s):
            linger_s = 0.0
        elif not (self._batches.under_way or in_company or self._is_remote) and self._linger.is_alone:
            # Not of an object store: there each request has its price, and more of them make each take longer.
            linger_s = self._flight_times.enough_s(linger_s)
        return linger_s if in_company else max(linger_s, self._linger.extra_s)

    def learn(self, landed: Sequence[ProduceBatch], now: float) -> None:
        """These were committed at `now`."""
        for batch in landed:
            self._flight_times.landed(now - batch.taken_at)

    def look_again(self) -> None:
        """Nothing may be under way any more: have it seen whether what waits has waited long enough."""
        with self._batches.changed:
            own = [buffer.settings.linger_s for buffer in self._batches.buffers]
            # Not asked anew whether we are in company: that may just have ended.
            if self._waits_for_landing or any(self._linger_s(0.0, own_s) < own_s for own_s in own):
                self._batches.changed.notify_all()

    def _taken(self) -> ProduceBatch:
        """A batch of what waits, in its place among the others. The writer's lock is held."""
        now = self._clock.monotonic()
        batch = self._batches.take(now, as_of=self._log.version, offering=self._turns.in_company(now))
        self.uploads += 1
        records = sum(len(part.records) for part in batch.parts)
        linger_s = max(part.buffer.settings.linger_s for part in batch.parts)
        self._lone.left(records, min(part.records.produced_at for part in batch.parts), linger_s)
        return batch
