"""The sender of a topic, one per process: everything that the process has buffered for the topic goes into one commit.

Its two threads let the upload of one batch overlap the commit of the batch before. On a local store the upload thread
commits itself while no full batch waits: handing a batch over would take as long as its commit. Batches are committed
in the order in which they were taken, which keeps the order of each producer.
"""

from __future__ import annotations

import atexit
import os
from weakref import WeakValueDictionary

from deltaq.clock import SYSTEM_CLOCK, Clock, Thread
from deltaq.errors import KafkaError, KafkaException
from deltaq.producer.accumulator import RecordAccumulator, Records
from deltaq.producer.batch_upload import BatchUpload
from deltaq.producer.batches import BATCH_ROWS_MAX, BatchPart, InFlightBatches
from deltaq.producer.committer import Committer
from deltaq.producer.delivery_reports import DeliveryReports
from deltaq.producer.expiry import Expiry
from deltaq.producer.sender_topic import SenderTopic
from deltaq.producer.uploader import Uploader
from deltaq.store import Store
from deltaq.topics.log import SharedTopicLog, TopicLog

EXIT_WAIT_S = 2.0
"""Seconds for which the exit of the process waits for a sender's threads."""


class Sender:
    """Writes one topic on behalf of all producers of this process. `log` is its position in the topic's log."""

    def __init__(self, store: Store, topic: str, clock: Clock, client_id: str = "") -> None:
        self._store = store
        self._clock = clock
        self.log = SharedTopicLog(TopicLog(store, topic, clock, indexed=True, client_id=client_id), clock)
        self._batches = batches = InFlightBatches(clock, self.log.pending_shared)
        self._reports = reports = DeliveryReports(topic, clock, batches)
        self.topic = SenderTopic(topic, self.log, clock, batches)
        self._expiry = Expiry(self.topic, clock, batches, reports)
        upload = BatchUpload(store, self.topic, clock, batches, reports)
        self._uploads = Uploader(self.topic, clock, batches, upload, reports, store.is_remote)
        self._commits = Committer(self.topic, clock, batches, upload, reports, self._uploads)
        self._uploads.commit = self._commits.run
        self._is_running = False
        self._threads: list[Thread] = []

    # --- what producers call ---

    def attach(self, buffer: RecordAccumulator) -> None:
        """Write what is put into `buffer` from now on. Raises RuntimeError if the system cannot start a thread."""
        with self._batches.changed:
            while self._is_running != self._uploads.is_running:
                self._batches.changed.wait()  # the threads of earlier buffers are ending
            if not self._is_running:
                self._start()
            self._watch_limits(buffer)
            self._batches.buffers.append(buffer)
            self._batches.update_group_commit()

    def _watch_limits(self, buffer: RecordAccumulator) -> None:
        """Start the expiry thread if producers have different limits. Raises RuntimeError as `attach` does."""
        if self._batches.is_expiring:
            self._expiry.wake()
        elif any(other.settings.timeout_s != buffer.settings.timeout_s for other in self._batches.buffers):
            self._threads.append(self._clock.start_thread(self._expiry_loop, f"deltaq-expiry-{self.topic.name}"))
            self._batches.is_expiring = True

    def _start(self) -> None:
        """Start both threads. Raises RuntimeError if the system cannot; the call can be repeated."""
        loops = {"upload": self._upload_loop, "commit": self._commit_loop}
        started: list[Thread] = []
        try:
            for name, loop in loops.items():
                started.append(self._clock.start_thread(loop, f"deltaq-{name}-{self.topic.name}"))
        finally:
            # If only one has started, it finds no buffer and ends.
            self._uploads.is_running = len(started) > 0
            self._is_running = len(started) == len(loops)
            self._threads = [*(thread for thread in self._threads if thread.is_alive()), *started]

    def detach(self, buffer: RecordAccumulator) -> None:
        """Forget a buffer once it is empty. The threads end with the last buffer."""
        with self._batches.changed:
            buffer.abandoned = True
            self._batches.changed.notify_all()

    def stop(self) -> None:
        """End the threads at the exit of the process. Records that are not written yet stay unwritten."""
        with self._batches.changed:
            self._batches.is_stopping = True
            self._batches.changed.notify_all()
            self._expiry.wake()
        self._batches.call_committer()
        until = SYSTEM_CLOCK.monotonic() + EXIT_WAIT_S  # the system clock: a test's clock no longer advances
        for thread in [*self._threads, *self._uploads.threads]:
            thread.join(max(0.0, until - SYSTEM_CLOCK.monotonic()))

    def append_block(self, buffer: RecordAccumulator, block: Records, size: int) -> None:
        """Add a table or a large message of `size` bytes behind what is in `buffer`."""
        with self._batches.changed:
            buffer.append_block(block, size)
            self.wake()

    def wake(self) -> None:
        """Wake the threads: a buffer has new records, or is being flushed."""
        with self._batches.changed:
            self._uploads.start_extra_worker()
            self._batches.changed.notify_all()

    def purge(self, buffer: RecordAccumulator, *, in_queue: bool, in_flight: bool) -> None:
        """Report waiting records with _PURGE_QUEUE, and those being written, which may arrive, with _PURGE_INFLIGHT."""
        batches = self._batches
        with batches.changed:
            queued = []
            while in_queue and (taken := buffer.take(BATCH_ROWS_MAX, float("inf"))) is not None:
                queued.append(BatchPart(buffer, *taken))
            in_upload = [part for part in batches.under_way if in_flight and part.buffer is buffer]
            batches.under_way.update(dict.fromkeys(queued))
            batches.changed.notify_all()
        self._reports.failed(queued, KafkaException(KafkaError(KafkaError._PURGE_QUEUE)))
        self._reports.failed(in_upload, KafkaException(KafkaError(KafkaError._PURGE_INFLIGHT)))
        self._batches.call_committer()  # the batch behind the purged ones may be ready
        self.wake()  # and they make room for others

    def resolve(self, token: str, timeout_s: float) -> bool:
        """Whether the append of an OutcomeUnknown is in the log. Raises OutcomeUnknown after `timeout_s` seconds."""
        log = TopicLog(self._store, self.topic.name, self._clock)
        return log.resolve(token, self._clock.monotonic() + timeout_s) is not None

    # --- the threads: they reference the sender, so that `topic_sender` finds it while they run ---

    def _upload_loop(self) -> None:
        self._uploads.run()

    def _expiry_loop(self) -> None:
        self._expiry.run()

    def _commit_loop(self) -> None:
        batches = self._batches
        while True:
            self._commits.run()
            with batches.changed:
                if batches.is_stopping or not (self._uploads.is_running or batches.is_committing):
                    self._is_running = False
                    batches.changed.notify_all()
                    self._expiry.wake()
                    return
            with batches.called:
                if not batches.is_called:
                    batches.called.wait(self._maintain())
                batches.is_called = False

    def _maintain(self) -> float | None:
        """Start due maintenance between commits. Seconds until more is due; None without maintenance."""
        maintenance = self.topic.maintenance
        if maintenance is None:
            return None
        if maintenance.due_in_s() <= 0:
            maintenance.start_due()
        return maintenance.due_in_s()


_lock = SYSTEM_CLOCK.lock()
_senders: WeakValueDictionary[tuple[int, str, int], Sender] = WeakValueDictionary()
"""By store, topic and clock. A sender keeps its store and clock alive, so their `id` is not reused while it exists."""


def _forget_senders() -> None:
    """A forked child starts without senders: it lacks its parent's threads, and cannot release locks that they held."""
    global _lock, _senders
    _lock, _senders = SYSTEM_CLOCK.lock(), WeakValueDictionary()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_senders)


def _stop_senders() -> None:
    """At exit: a thread that is inside Arrow's C++ or the store's Rust when Python finalizes aborts the process."""
    for sender in tuple(_senders.values()):
        sender.stop()


atexit.register(_stop_senders)


def topic_sender(store: Store, topic: str, clock: Clock, client_id: str = "") -> Sender:
    """The sender of `topic` on `store` in this process, created if there is none."""
    key = id(store), topic, id(clock)
    with _lock:
        found = _senders.get(key)
        if found is None:
            found = _senders[key] = Sender(store, topic, clock, client_id)
        return found
