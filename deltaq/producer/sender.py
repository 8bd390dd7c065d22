"""The sender of a topic: everything that a process has buffered for the topic goes into one commit.

There is one sender per topic and process. Its two threads let the upload of one batch overlap the commit of the batch
before. While whole batches wait, extra workers upload beside the first thread. Batches are committed in the order in
which they were taken, which keeps the order of each producer.
"""

from __future__ import annotations

from deltaq.clock import SYSTEM_CLOCK, Clock, Thread
from deltaq.errors import KafkaError, KafkaException
from deltaq.producer.accumulator import ArrowBlock, RecordAccumulator
from deltaq.producer.batch_upload import BatchUpload
from deltaq.producer.batches import BATCH_ROWS_MAX, BatchPart, InFlightBatches
from deltaq.producer.caretaker import BackgroundMaintenance, MaintenanceSlot
from deltaq.producer.committer import Committer
from deltaq.producer.delivery_reports import DeliveryReports
from deltaq.producer.expiry import Expiry
from deltaq.producer.group_commit import GroupCommitPolicy
from deltaq.producer.linger import AdaptiveLinger
from deltaq.producer.metadata_cache import TopicDefinitionCache
from deltaq.producer.uploader import Uploader
from deltaq.store import Store
from deltaq.topics.log import SharedTopicLog, TopicLog
from deltaq.topics.metadata import NewTopicPlan, TopicDefinition

__all__ = ["Sender"]

EXIT_WAIT_S = 2.0
"""How long the exit of the process waits for a writer's threads."""


class Sender:
    """Writes one topic on behalf of all producers of this process. Without a `caretaker` it is left to others to look
    after the topic.

    `log` is where it is in the topic's log.
    """

    def __init__(self, store: Store, topic: str, clock: Clock, client_id: str = "") -> None:
        self.topic = topic
        self._store = store
        self._clock = clock
        self.log = SharedTopicLog(TopicLog(store, topic, clock, indexed=True, client_id=client_id), clock)
        self._care = MaintenanceSlot()
        self._batches = batches = InFlightBatches(clock, self.log.awaited)
        self._reports = reports = DeliveryReports(topic, clock, batches)
        self._sight = sight = TopicDefinitionCache(topic, self.log, clock, batches)
        turns, linger = GroupCommitPolicy(), AdaptiveLinger()
        upload = BatchUpload(store, topic, clock, self.log, batches, sight, reports, self._care)
        self._expiry = Expiry(topic, clock, self.log, batches, reports)
        about = batches, upload, reports, turns, linger
        self._uploads = Uploader(topic, clock, self.log, *about, is_remote=store.is_remote)
        self._commits = Committer(topic, clock, self.log, *about, sight, self._care, self._uploads, self._expiry)
        self._is_running = False
        self._threads: list[Thread] = []

    @property
    def caretaker(self) -> BackgroundMaintenance | None:
        """Who looks after the topic beside it."""
        return self._care.taker

    @caretaker.setter
    def caretaker(self, caretaker: BackgroundMaintenance | None) -> None:
        self._care.taker = caretaker

    # --- what producers call ---

    def view(
        self, plan: NewTopicPlan | None = None, timeout_s: float = 60.0, *, anew: bool = False
    ) -> TopicDefinition | None:
        """The topic as last seen, looked up at the first call; created by `plan` if it does not exist. None if there
        is none.

        With `anew` it is looked at again, unless a commit is under way, which does that too and may take its time.
        Raises Unavailable, Corrupt, Incompatible, UnsafeStore.
        """
        return self._sight.view(plan, timeout_s, anew=anew)

    def attach(self, buffer: RecordAccumulator) -> None:
        """Write what is put into `buffer` from now on. RuntimeError if the system gives no threads for that."""
        with self._batches.changed:
            while self._is_running != self._uploads.is_running:
                self._batches.changed.wait()  # the threads of earlier buffers are just ending
            if not self._is_running:
                self._start()
            self._watch_limits(buffer)
            self._batches.buffers.append(buffer)
            self._uploads.agree()

    def _watch_limits(self, buffer: RecordAccumulator) -> None:
        """Have each limit kept where producers have different ones. RuntimeError as for `attach`."""
        if self._expiry.is_running:
            self._expiry.wake()
        elif self._expiry.is_wanted_with(buffer):
            self._threads.append(self._clock.start_thread(self._expiry_loop, f"deltaq-expiry-{self.topic}"))
            self._expiry.is_running = True

    def _start(self) -> None:
        """Start both threads. RuntimeError if the system does not give them: then it can be tried again."""
        loops = {"upload": self._upload_loop, "commit": self._commit_loop}
        started: list[Thread] = []
        try:
            for name, loop in loops.items():
                started.append(self._clock.start_thread(loop, f"deltaq-{name}-{self.topic}"))
        finally:
            # One that stays alone finds no buffer, and ends.
            self._uploads.is_running = len(started) > 0
            self._is_running = len(started) == len(loops)
            self._threads = [*(thread for thread in self._threads if thread.is_alive()), *started]

    def detach(self, buffer: RecordAccumulator) -> None:
        """Forget a buffer once it is empty; the threads end with the last one."""
        with self._batches.changed:
            buffer.abandoned = True
            self._batches.changed.notify_all()

    def stop(self) -> None:
        """End the threads, with what is not written yet left unwritten: the process is about to exit."""
        with self._batches.changed:
            self._batches.is_stopping = True
            self._batches.changed.notify_all()
            self._expiry.wake()
        until = SYSTEM_CLOCK.monotonic() + EXIT_WAIT_S  # a test's clock stands still by then
        for thread in [*self._threads, *self._uploads.threads]:
            thread.join(max(0.0, until - SYSTEM_CLOCK.monotonic()))

    def append_block(self, buffer: RecordAccumulator, block: ArrowBlock) -> None:
        """Add a table behind what is in `buffer`."""
        with self._batches.changed:
            buffer.append_block(block)
            self._uploads.start_extra_worker()
            self._batches.changed.notify_all()

    def wake(self) -> None:
        """A buffer has something new, or wants to be flushed."""
        with self._batches.changed:
            self._uploads.start_extra_worker()
            self._batches.changed.notify_all()

    def purge(self, buffer: RecordAccumulator, *, in_queue: bool, in_flight: bool) -> None:
        """Drop what waits in a buffer, reported with _PURGE_QUEUE, and what is being written, with _PURGE_INFLIGHT.

        As in Kafka, what is being written may end up in the topic all the same.
        """
        batches = self._batches
        with batches.changed:
            queued = []
            while in_queue and (taken := buffer.take(BATCH_ROWS_MAX, float("inf"))) is not None:
                queued.append(BatchPart(buffer, *taken))
            flying = [part for part in batches.under_way if in_flight and part.buffer is buffer]
            batches.under_way.update(dict.fromkeys(queued))
            batches.changed.notify_all()
        self._reports.failed(queued, KafkaException(KafkaError(KafkaError._PURGE_QUEUE)))
        self._reports.failed(flying, KafkaException(KafkaError(KafkaError._PURGE_INFLIGHT)))
        self.wake()  # nobody waits for these batches any more, so others have room

    def settle(self, token: str, timeout_s: float) -> bool:
        """Whether the append behind an OutcomeUnknown stands. Raises OutcomeUnknown if that cannot be found out in
        time."""
        log = TopicLog(self._store, self.topic, self._clock)
        return log.settle(token, self._clock.monotonic() + timeout_s) is not None

    # --- the threads: they keep the writer, which others find as long as it is here ---

    def _upload_loop(self) -> None:
        self._uploads.run()

    def _expiry_loop(self) -> None:
        self._expiry.run()

    def _commit_loop(self) -> None:
        while self._wait_for_batch():
            self._commits.next()

    def _wait_for_batch(self) -> bool:
        batches = self._batches
        with batches.changed:
            while True:
                front = batches.front()
                if front is not None and not batches.is_stopping:
                    return True
                if batches.is_stopping or not self._uploads.is_running:
                    self._is_running = False
                    batches.changed.notify_all()
                    self._expiry.wake()
                    return False
                batches.changed.wait(self._look_after())

    def _look_after(self) -> float | None:
        """Between commits: have the topic looked after when it is time. Seconds until it is time again."""
        caretaker = self._care.taker
        if caretaker is None:
            return None
        if caretaker.due_in_s() <= 0:
            caretaker.look_after()
        return caretaker.due_in_s()
