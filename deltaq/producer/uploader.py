"""The uploads of a sender: when records are taken from their buffers, and how many batches are
uploaded at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deltaq.clock import Clock
from deltaq.errors import KafkaException
from deltaq.producer.batch_upload import BatchUpload
from deltaq.producer.batches import InFlightBatches, ProduceBatch, Uploaded
from deltaq.producer.delivery_reports import DeliveryReports, defect
from deltaq.producer.linger import AdaptiveLinger, BatchTimes, LoneRecords
from deltaq.producer.sender_topic import SenderTopic
from deltaq.shared_threads import SharedThreads
from deltaq.topics.log import Appended

BATCHES_AHEAD_MAX = 8
"""Most batches that wait for a commit. Beyond that, records wait in the accumulators and form
larger batches.
"""

UPLOADS_MAX = 4
"""Most batches uploaded at once. Unless full batches wait, it is one: larger batches are cheaper
than more of them.
"""

_SHARED_WAIT_MIN_S = 0.001
"""Shortest wait in seconds for the commit of shared files before more are uploaded."""


@dataclass(eq=False)
class Uploader:
    """Takes batches and uploads them; `uploads` of them now, by its own task and `extra_workers`.

    `commit()` commits uploaded batches in the calling thread, unless another one does.
    """

    _topic: SenderTopic
    _threads: SharedThreads
    _clock: Clock
    _batches: InFlightBatches
    _upload: BatchUpload
    _reports: DeliveryReports
    _is_remote: bool
    _linger: AdaptiveLinger = field(default_factory=AdaptiveLinger)
    _lone: LoneRecords = field(default_factory=LoneRecords)
    _batch_times: BatchTimes = field(default_factory=BatchTimes)
    _waits_for_commit: bool = False  # of open batches, before it takes more
    uploads: int = 0
    extra_workers: int = 0
    commit: Callable[[], None] = lambda: None

    def step(self) -> float | None:
        """Upload a batch if one is due. Seconds until one may be; None if that depends on other
        changes.
        """
        batch, wait_s = self._next_batch()
        if batch is None:
            return wait_s
        self._process(batch)
        return 0.0

    def start_extra_worker(self) -> None:
        """Start an extra worker if a full batch waits while others are uploaded. The caller holds
        the sender's lock.
        """
        if self.uploads and self._is_extra_worker_due() and self.extra_workers < UPLOADS_MAX - 1:
            self.extra_workers += 1
            self._threads.task(self._extra_step).call()

    def _extra_step(self) -> float | None:
        with self._batches.lock:
            batch = self._taken() if self._is_extra_worker_due() else None
            if batch is None:
                self.extra_workers -= 1
                return None
        self._process(batch)
        return 0.0

    def _process(self, batch: ProduceBatch) -> None:
        """Upload a batch or report its failure. A shared file that may be in the store is left to
        the committer.
        """
        batches = self._batches
        failure: KafkaException | None = None
        stored: Uploaded | None = None
        try:
            stored = self._upload.first(batch)
        except KafkaException as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - after a defect, callers must not wait for ever
            failure = defect(error, "writing", self._topic.name)
        if failure is not None and not batch.is_shared:
            self._reports.failed(batch.parts, failure)
        with batches.lock:
            batches.uploaded(batch, stored, failure)
            hands_over = self._is_remote or self._has_more_to_do()
        if hands_over:
            batches.call_committer()
        else:
            self.commit()
        with batches.lock:
            self.uploads -= 1
        batches.call_uploader()

    def _has_more_to_do(self) -> bool:
        """Whether uploads should go on during a commit: a full batch waits, the commit may wait for
        another process, or for longer than some records may. The caller holds the sender's lock.
        """
        batches = self._batches
        is_full = any(buffer.is_full for buffer in batches.buffers)
        return is_full or batches.is_expiring or batches.group_commit is not None

    def _next_batch(self) -> tuple[ProduceBatch | None, float | None]:
        """Take a batch if some buffer has lingered long enough. If not, the seconds until one will
        have.
        """
        batches = self._batches
        with batches.lock:
            batches.buffers = [buffer for buffer in batches.buffers if buffer.is_in_use]
            if batches.is_stopping or not batches.buffers:
                return None, None
            batches.update_group_commit()
            wait_s = self._wait_s()
            if wait_s is None or wait_s > 0:
                return None, wait_s
            batch = self._taken()
            self.start_extra_worker()
            return batch, None

    def _is_extra_worker_due(self) -> bool:
        """Whether a full batch waits and should be uploaded now. Under contention without group
        commit, writers linger longer to leave each other slots, and larger batches are better than
        more of them.
        """
        batches = self._batches
        has_room = self.uploads < UPLOADS_MAX and len(batches.waiting) < BATCHES_AHEAD_MAX
        is_free = has_room and not batches.is_stopping
        is_uncontended = (
            self._linger.extra_s == 0 or batches.contended_left_s(self._clock.monotonic()) > 0
        )
        return is_free and is_uncontended and any(buffer.is_full for buffer in batches.buffers)

    def _wait_s(self) -> float | None:
        """Seconds until records should be taken; None if there are none, or if enough batches wait
        for a commit.
        """
        batches = self._batches
        if len(batches.waiting) >= BATCHES_AHEAD_MAX:
            return None
        now = self._clock.monotonic()
        due = [
            wait
            for buffer in batches.buffers
            if (wait := buffer.due_in(now, self._linger_s)) is not None
        ]
        contended_left_s = batches.contended_left_s(now)
        may_wait = bool(due and batches.open and contended_left_s)
        self._waits_for_commit = may_wait and not any(buffer.is_full for buffer in batches.buffers)
        if self._waits_for_commit:
            # One small shared file at a time is enough: the leader's next commit takes what was
            # uploaded until then.
            return max(_SHARED_WAIT_MIN_S, contended_left_s, *due)
        return min(due, default=None)

    def _linger_s(self, produced_at: float, linger_s: float) -> float:
        """Seconds to linger for records whose oldest was produced at `produced_at` and may wait
        `linger_s` seconds. It is less than `linger_s` where waiting gains nothing, and more under
        contention without group commit.
        """
        is_contended = self._batches.contended_left_s(self._clock.monotonic()) > 0
        if self._lone.is_next(produced_at, linger_s):
            linger_s = 0.0
        elif (
            not (self._batches.under_way or is_contended or self._is_remote)
            and self._linger.is_alone
        ):
            # Not on an object store, where each request costs money and concurrent requests slow
            # each other down.
            linger_s = self._batch_times.enough_s(linger_s)
        return linger_s if is_contended else max(linger_s, self._linger.extra_s)

    def learn(self, committed: Sequence[ProduceBatch], appended: Appended, now: float) -> None:
        """Learn how long these batches took, which were committed at `now`, and how many other
        writers there are.
        """
        chance = self._clock.random()
        if not self._batches.contended_left_s(now):
            self._linger.committed(appended.others, now, appended.seconds, chance)
        for batch in committed:
            self._batch_times.committed(now - batch.taken_at)

    def recheck_linger(self) -> None:
        """Look for records to upload after a commit, if they may now linger less than
        `linger.ms`.
        """
        with self._batches.lock:
            own = [buffer.settings.linger_s for buffer in self._batches.buffers]
            # `_waits_for_commit` as decided before the wait: the contention may have ended since.
            if self._waits_for_commit or any(self._linger_s(0.0, own_s) < own_s for own_s in own):
                self._batches.call_uploader()

    def _taken(self) -> ProduceBatch:
        """Take a batch and note what it says about lingering. The caller holds the sender's
        lock.
        """
        now = self._clock.monotonic()
        batch = self._batches.take(now, as_of=self._topic.log.version)
        self.uploads += 1
        records = sum(len(part.records) for part in batch.parts)
        linger_s = max(part.buffer.settings.linger_s for part in batch.parts)
        self._lone.left(records, min(part.records.produced_at for part in batch.parts), linger_s)
        return batch
