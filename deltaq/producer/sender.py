"""The sender of a topic, one per process: everything that the process has buffered for the topic
goes into one commit.

Two tasks let the upload of one batch overlap the commit of the batch before. On a local store the
upload commits itself while no full batch waits: handing a batch over would take as long as its
commit. Batches are committed in the order in which they were taken, which keeps the order of each
producer. All senders of a store share their threads.
"""

from __future__ import annotations

import atexit
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

from deltaq.clock import SYSTEM_CLOCK, Clock, after_fork
from deltaq.errors import KafkaError, KafkaException
from deltaq.producer.accumulator import RecordAccumulator, Records
from deltaq.producer.batch_upload import BatchUpload
from deltaq.producer.batches import InFlightBatches, ProduceBatch
from deltaq.producer.committer import Committer
from deltaq.producer.delivery_reports import DeliveryReports, Expiry
from deltaq.producer.linger import Lingering
from deltaq.producer.sender_topic import SenderTopic
from deltaq.producer.staging import Stager, Staging
from deltaq.producer.uploader import Uploader
from deltaq.shared_threads import SharedThreads
from deltaq.store import Store
from deltaq.topics.log import TopicLog
from deltaq.topics.view import known_topic
from deltaq.weak import weakly

THREADS = 8
"""Most uploads and commits at a time on a local store, whose calls are short."""

THREADS_REMOTE = 32
"""Most uploads and commits at a time on an object store, where they mostly wait for answers."""

FRESH_S = 1.0
"""For how long in seconds a transaction relies on what was read of a topic, if a read is a request.
Its records are lost if the topic is deleted later, or was within that time.
"""

EXIT_WAIT_S = 2.0
"""Seconds for which the exit of the process waits for the senders' threads."""


class Sender:
    """Writes one topic on behalf of all producers of this process, or with `staging` on behalf of
    the one transactional producer that has it. `log` is its position in the topic's log.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        clock: Clock,
        client_id: str = "",
        staging: Staging | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        known = known_topic(store, topic, clock)
        self.log = TopicLog(store, topic, clock, client_id=client_id, known=known)
        self._threads = threads = _shared_threads(store, clock)
        self._upload_task, self._commit_task = (
            threads.task(self._upload_step),
            threads.task(self._commit_step),
        )
        self._batches = batches = InFlightBatches(
            clock, self.log.pending_shared, self._upload_task.call, self._commit_task.call
        )
        self._reports = reports = DeliveryReports(topic, clock, batches)
        self.topic = SenderTopic(topic, self.log, clock, batches)
        self.log.delta_log.store_failed = weakly(self.topic.publish_failure, None)
        self._expiry = threads.task(Expiry(self.topic, clock, batches, reports).step)
        upload = BatchUpload(store, self.topic, clock, batches, reports)
        if staging is not None:
            upload = replace(
                upload,
                _named=staging.path,
                _stored=partial(staging.stored, topic),
                _must_confirm=not store.is_remote,
            )
            self.topic.fresh_s = FRESH_S
        linger = Lingering()
        self._uploads = uploads = Uploader(
            self.topic,
            clock,
            batches,
            upload,
            reports,
            linger,
            store.is_remote,
            self._start_extra_worker,
        )
        self._commits: Committer | Stager = (
            Committer(
                self.topic, clock, batches, upload, reports, linger, uploads.start_extra_worker
            )
            if staging is None
            else Stager(topic, batches, reports, staging)
        )

    # --- what producers call ---

    def attach(self, buffer: RecordAccumulator) -> None:
        """Write what is put into `buffer` from now on. Raises RuntimeError if the system cannot
        start a thread.
        """
        batches = self._batches
        with batches.lock:
            self._threads.attach(self)
            limits = {other.settings.timeout_s for other in [*batches.buffers, buffer]}
            batches.is_expiring = batches.is_expiring or len(limits) > 1
            batches.buffers.append(buffer)
            batches.update_group_commit()
        self._upload_task.call()
        self._commit_task.call()
        if batches.is_expiring:
            self._expiry.call()

    def detach(self, buffer: RecordAccumulator) -> None:
        """Forget a buffer once it is empty. With the last one, the sender leaves its threads."""
        buffer.abandoned = True
        self._batches.call_uploader()

    @property
    def is_busy(self) -> bool:
        """Whether records wait or are being written."""
        batches = self._batches
        with batches.lock:
            return bool(batches.under_way) or any(map(len, batches.buffers))

    def close(self, buffer: RecordAccumulator) -> bool:
        """Refuse further records in a buffer, and forget it; False, without effect, if some are not
        reported yet.
        """
        batches = self._batches
        with batches.lock:
            if not buffer.close():
                return False
            batches.remove(buffer)
        batches.call_uploader()
        return True

    def stop(self) -> None:
        """Begin no more uploads and commits. Records that are not written yet stay unwritten."""
        self._batches.is_stopping = True

    def append_block(self, buffer: RecordAccumulator, block: Records, size: int) -> None:
        """Add a table or a large message of `size` bytes behind what is in `buffer`."""
        with self._batches.lock:
            buffer.append_block(block, size)
            self.wake()

    def wake(self) -> None:
        """Look for records to upload: a buffer has new ones, or is being flushed."""
        with self._batches.lock:
            self._uploads.start_extra_worker()
        self._batches.call_uploader()

    def purge(self, buffer: RecordAccumulator, *, in_queue: bool, in_flight: bool) -> None:
        """Report waiting records with _PURGE_QUEUE, and those being written, which may arrive, with
        _PURGE_INFLIGHT.
        """
        batches = self._batches
        with batches.lock:
            queued = batches.take_all(buffer) if in_queue else []
            in_upload = batches.parts_under_way(buffer) if in_flight else []
            batches.under_way.update(dict.fromkeys(queued))
        self._reports.failed(queued, KafkaException(KafkaError(KafkaError._PURGE_QUEUE)))
        self._reports.failed(in_upload, KafkaException(KafkaError(KafkaError._PURGE_INFLIGHT)))
        self._batches.call_committer()  # the batch behind the purged ones may be ready
        self.wake()  # and they make room for others

    def resolve(self, token: str, timeout_s: float) -> bool:
        """Whether the append of an OutcomeUnknown is in the log. Raises OutcomeUnknown after
        `timeout_s` seconds.
        """
        log = TopicLog(self._store, self.topic.name, self._clock)
        return log.resolve(token, self._clock.monotonic() + timeout_s) is not None

    # --- the tasks ---

    def _upload_step(self) -> float | None:
        """Upload a batch if one is due. Seconds until one may be; None if that depends on other
        changes.
        """
        batch, wait_s = self._uploads.next_batch()
        if batch is not None:
            self._upload(batch)
            wait_s = 0.0
        self._leave_if_done()
        return wait_s

    def _start_extra_worker(self) -> None:
        self._threads.task(self._extra_step).call()

    def _extra_step(self) -> float | None:
        batch = self._uploads.next_of_extra_worker()
        if batch is None:
            return None
        self._upload(batch)
        return 0.0

    def _upload(self, batch: ProduceBatch) -> None:
        """Upload a batch, and commit what is uploaded, unless another thread does so better."""
        if self._uploads.upload(batch):
            self._batches.call_committer()
        else:
            while self._commit():
                pass
        self._uploads.ended()

    def _commit_step(self) -> float | None:
        if self._commit():
            return 0.0
        self._leave_if_done()
        return self._maintain()

    def _commit(self) -> bool:
        """Commit the uploaded batches in front, unless another thread commits; whether it did."""
        has_committed = self._commits.step()
        if has_committed:
            self._uploads.recheck_linger()
        return has_committed

    def _leave_if_done(self) -> None:
        """Let the threads end, and this sender with them, after the last buffer and the last
        batch.
        """
        batches, uploads = self._batches, self._uploads
        with batches.lock:
            if not (batches.buffers or uploads.uploads or batches.waiting or batches.is_committing):
                batches.is_expiring = False
                self._threads.detach(self, self._upload_task, self._commit_task, self._expiry)

    def _maintain(self) -> float | None:
        """Start due maintenance between commits. Seconds until more is due; None without
        maintenance.
        """
        maintenance = self.topic.maintenance
        if maintenance is None or not self._batches.buffers:
            return None
        if maintenance.due_in_s() <= 0:
            maintenance.start_due()
        return maintenance.due_in_s()


_lock = SYSTEM_CLOCK.lock()
_senders: WeakValueDictionary[tuple[int, str, int], Sender] = WeakValueDictionary()
"""By store, topic and clock. A sender keeps its store and clock alive, so their `id` is not reused
while it exists.
"""

_threads: WeakValueDictionary[tuple[int, int], SharedThreads] = WeakValueDictionary()
"""By store and clock: topics of one store do not wait for another one. Its senders keep it
alive.
"""


def _forget_senders() -> None:
    """A forked child starts without senders: it lacks its parent's threads, and cannot release
    locks that they held.
    """
    global _lock, _senders, _threads
    _lock, _senders, _threads = SYSTEM_CLOCK.lock(), WeakValueDictionary(), WeakValueDictionary()


after_fork(_forget_senders)


def _stop_senders() -> None:
    """At exit: a thread that is inside Arrow's C++ or the store's Rust when Python finalizes aborts
    the process.
    """
    for sender in tuple(_senders.values()):
        sender.stop()
    shared = tuple(_threads.values())
    for threads in shared:
        threads.stop()
    until = SYSTEM_CLOCK.monotonic() + EXIT_WAIT_S
    for threads in shared:
        threads.join(max(0.0, until - SYSTEM_CLOCK.monotonic()))


atexit.register(_stop_senders)


def _shared_threads(store: Store, clock: Clock) -> SharedThreads:
    """The threads of all senders of `store`. The caller holds `_lock`."""
    key = id(store), id(clock)
    found = _threads.get(key)
    if found is None:
        most = THREADS_REMOTE if store.is_remote else THREADS
        found = _threads[key] = SharedThreads(clock, "deltaq-sender", most)
    return found


def staging_sender(
    store: Store, topic: str, clock: Clock, client_id: str, staging: Staging
) -> Sender:
    """A sender of `topic` for the transactions of one producer."""
    with _lock:
        return Sender(store, topic, clock, client_id, staging)


def topic_sender(store: Store, topic: str, clock: Clock, client_id: str = "") -> Sender:
    """The sender of `topic` on `store` in this process, created if there is none."""
    key = id(store), topic, id(clock)
    with _lock:
        found = _senders.get(key)
        if found is None:
            found = _senders[key] = Sender(store, topic, clock, client_id)
        return found
