"""Staging: inside a transaction, uploaded batches are not committed to their topic. Their files
wait for the decision, and no entry names them until then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from deltaq import names
from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException
from deltaq.names import TransactionKey
from deltaq.producer.batches import InFlightBatches, ProduceBatch
from deltaq.producer.delivery_reports import DeliveryReports
from deltaq.store import Store, StoreError
from deltaq.store.parallel import delete_all
from deltaq.topics.state import PendingSegment
from deltaq.transactions.state import StagedRecords

_log = logging.getLogger("deltaq.transactions")


class Staging:
    """The files and the first failure of a producer's open transaction. Thread-safe: senders add
    files, and the application's thread takes them.

    `transaction` is the newest that was begun. It `is_open` until it is taken or dropped.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = clock.condition()  # re-entrant
        self.transaction = TransactionKey("", 0, 0)
        self.is_open = False
        self.failure: KafkaException | None = None
        self._files: dict[tuple[str, str], list[PendingSegment]] = {}
        self._stored: list[str] = []  # keys of the files that are in the store

    def begin(self, transaction: TransactionKey) -> None:
        """A transaction begins."""
        with self._lock:
            self.transaction, self.is_open = transaction, True
            self.failure, self._files, self._stored = None, {}, []

    def path(self, segment: PendingSegment) -> str:
        """Where a file of the transaction is uploaded, relative to its topic's folder."""
        return names.staged_file(self.transaction, segment.path.removesuffix(".parquet"))

    def stored(self, topic: str, segment: PendingSegment) -> None:
        """An upload has ended. Its file is removed if its transaction has ended before."""
        key = names.data_key(names.topic_folder(topic), segment.path)
        with self._lock:
            if self.is_open and self._is_of_it(segment):
                self._stored.append(key)
                return
        self._remove([key])

    def add(self, topic: str, topic_id: str, segments: Sequence[PendingSegment]) -> bool:
        """Add the files of a batch; False if its transaction has ended."""
        with self._lock:
            if not (self.is_open and all(map(self._is_of_it, segments))):
                return False
            self._files.setdefault((topic, topic_id), []).extend(segments)
            return True

    def failed(self, failure: KafkaException) -> None:
        """Messages of the transaction were not written, so that it cannot be committed."""
        with self._lock:
            if self.is_open and self.failure is None:
                self.failure = failure

    def records(self) -> tuple[StagedRecords, ...]:
        """What the transaction has written so far, by topic."""
        with self._lock:
            return tuple(
                StagedRecords(topic, topic_id, tuple(segments))
                for (topic, topic_id), segments in sorted(self._files.items())
            )

    def sealed(self) -> tuple[StagedRecords, ...]:
        """What the transaction has written; no file is added to it any more. A file that comes
        later would be reported as written, and would be missing in the decision.
        """
        with self._lock:
            self.is_open = False
            return self.records()

    def end(self) -> None:
        """The transaction has ended: no file is added to it any more."""
        with self._lock:
            self.is_open = False

    def remove(self) -> None:
        """Remove the files of the transaction, which is aborted."""
        self._remove(self._stored)

    def _is_of_it(self, segment: PendingSegment) -> bool:
        return names.parse_staged_file(segment.path) == self.transaction

    def _remove(self, keys: Sequence[str]) -> None:
        try:
            delete_all(self._store, self._clock, keys)
        except StoreError as error:
            _log.info("files of an aborted transaction are left to orphan removal: %s", error)


@dataclass(eq=False)
class Stager:
    """Takes the place of the `Committer` in the sender of a transactional producer: adds uploaded
    batches to the transaction, in the order of taking, and reports them. Their offsets are not
    known before the transaction is published.
    """

    _topic: str
    _batches: InFlightBatches
    _reports: DeliveryReports
    _staging: Staging

    def step(self) -> bool:
        """Stage the uploaded batches in front. False if there is none, or if another thread does
        so.
        """
        batches = self._batches
        if not batches.claim_commit():
            return False
        try:
            with batches.lock:
                front = batches.front()
                topic_id = "" if front is None else front.uploaded.topic_id
                taken = list(batches.take_uploaded(topic_id))
            self._stage(topic_id, [batch for batch in taken if not batch.is_unwanted])
            with batches.lock:
                batches.finished(taken)
        finally:
            batches.is_committing = False
        return True

    def _stage(self, topic_id: str, batches: Sequence[ProduceBatch]) -> None:
        for batch in batches:
            if self._staging.add(self._topic, topic_id, batch.segments):
                self._reports.staged(batch)
            else:
                reason = "the transaction of these messages has ended"
                error = KafkaException(KafkaError(KafkaError._STATE, reason))
                self._reports.failed(batch.parts, error)
