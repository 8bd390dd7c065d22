"""The uploads of a sender: when records are taken from their buffers, and how many batches are
uploaded at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deltaq.clock import Clock
from deltaq.errors import KafkaException
from deltaq.producer.batch_upload import BatchUpload
from deltaq.producer.batches import InFlightBatches, ProduceBatch, Uploaded
from deltaq.producer.delivery_reports import DeliveryReports, defect
from deltaq.producer.linger import Lingering
from deltaq.producer.sender_topic import SenderTopic

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
    """Takes batches and uploads them; `uploads` of them now, by the sender's task and by
    `extra_workers`, each of which `start_worker` starts.
    """

    _topic: SenderTopic
    _clock: Clock
    _batches: InFlightBatches
    _upload: BatchUpload
    _reports: DeliveryReports
    linger: Lingering
    _is_remote: bool
    _start_worker: Callable[[], None]
    _waits_for_commit: bool = False  # of open batches, before it takes more
    uploads: int = 0
    extra_workers: int = 0

    def start_extra_worker(self) -> None:
        """Start an extra worker if a full batch waits while others are uploaded. The caller holds
        the sender's lock.
        """
        if self.uploads and self._is_extra_worker_due() and self.extra_workers < UPLOADS_MAX - 1:
            self.extra_workers += 1
            self._start_worker()

    def next_of_extra_worker(self) -> ProduceBatch | None:
        """Take a batch for an extra worker; None if it is to end."""
        with self._batches.lock:
            batch = self._taken() if self._is_extra_worker_due() else None
            if batch is None:
                self.extra_workers -= 1
            return batch

    def upload(self, batch: ProduceBatch) -> bool:
        """Upload a batch or report its failure. A shared file that may be in the store is left to
        the committer. Whether another thread should commit, so that uploads go on.
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
            return self._is_remote or self._has_more_to_do()

    def ended(self) -> None:
        """The work on a batch that was taken has ended."""
        with self._batches.lock:
            self.uploads -= 1
        self._batches.call_uploader()

    def _has_more_to_do(self) -> bool:
        """Whether uploads should go on during a commit: a full batch waits, the commit may wait for
        another process, or for longer than some records may. The caller holds the sender's lock.
        """
        batches = self._batches
        is_full = any(buffer.is_full for buffer in batches.buffers)
        return is_full or batches.is_expiring or batches.group_commit is not None

    def next_batch(self) -> tuple[ProduceBatch | None, float | None]:
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
            self.linger.adaptive.extra_s == 0
            or batches.contended_left_s(self._clock.monotonic()) > 0
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
        """`Lingering.seconds`, as things are now."""
        batches = self._batches
        is_contended = batches.contended_left_s(self._clock.monotonic()) > 0
        # Not on an object store, where each request costs money and concurrent requests slow each
        # other down.
        is_quiet = not (batches.under_way or self._is_remote)
        return self.linger.seconds(
            produced_at, linger_s, is_contended=is_contended, is_quiet=is_quiet
        )

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
        produced_at = min(part.records.produced_at for part in batch.parts)
        self.linger.lone.left(records, produced_at, linger_s)
        return batch
