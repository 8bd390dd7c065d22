"""A micro-batch that names its topics row by row is one transaction: all topics get it, or none.

The `transactional.id` belongs to the query. Its epoch stays the same from start to start, because
Spark repeats a micro-batch of which it does not know the outcome, also in another driver: the
newest decision says which micro-batches are done. Each topic gets the query's own `txn`, as it does
from a query that writes one topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from deltaq.clock import Clock
from deltaq.errors import Unavailable, UnknownTopic
from deltaq.names import TransactionKey, staged_file
from deltaq.store import Store
from deltaq.topics.log import TopicLog, voided_uploads
from deltaq.topics.state import PendingSegment
from deltaq.transactions.log import DecisionNotPublished, TransactionLog
from deltaq.transactions.publication import Publisher
from deltaq.transactions.state import (
    Application,
    Decision,
    StagedRecords,
    TransactionAborted,
    TransactionHead,
    transactional_id_of,
)

TIMEOUT_MS = 24 * 3600 * 1000
"""Milliseconds for which orphan removal keeps the files of a micro-batch that is not decided."""


def staged_path(application: Application, segment: PendingSegment) -> str:
    """Where a task uploads a file, relative to its topic's folder."""
    name = transactional_id_of(application.app_id)
    return staged_file(
        TransactionKey(name, 0, application.version + 1), segment.path.removesuffix(".parquet")
    )


@dataclass(eq=False)
class BatchTransaction:
    """Commits the micro-batches of one query, one after the other. `topic_log(topic)` is the
    driver's position in a topic's log.
    """

    _store: Store
    _clock: Clock
    app_id: str
    _client_id: str
    _topic_log: Callable[[str], TopicLog]

    def __post_init__(self) -> None:
        name = transactional_id_of(self.app_id)
        self._log = TransactionLog(self._store, name, self._clock, self._client_id)
        others = Publisher.of(self._log, self._store, self._clock, self._client_id)
        self._publisher = replace(others, topic_log=self._topic_log)

    def commit(self, batch: int, written: Sequence[StagedRecords], deadline: float) -> bool:
        """Commit a micro-batch; False, without effect, if it is committed already.

        Raises UnknownTopic if a topic was deleted during the write, Unavailable if files may have
        been removed since their upload, and what `DeltaLog.commit` raises. May be repeated.
        """
        application = Application(self.app_id, batch)
        while True:
            head = self._published(deadline)
            if self._is_done(head, application, written):
                return False
            number = max(head.number, batch) + 1
            key = TransactionKey(self._log.transactional_id, head.epoch, number)
            draft = Decision(key, 0, tuple(written), (), application)
            try:
                decision = self._log.commit(draft, deadline)
            except TransactionAborted:
                # Another driver of the query has committed it, or orphan removal has taken the
                # number: whether it removes files of this batch is asked again.
                continue
            self._publisher.publish(decision, deadline)
            return True

    def _published(self, deadline: float) -> TransactionHead:
        """The head of the query's log, with its newest decision published."""
        head = self._log.head()
        if head is None:
            try:
                head = self._log.begin(TIMEOUT_MS, None, deadline)
            except DecisionNotPublished:  # another driver has begun, and committed
                return self._published(deadline)
        if head.decision is not None:
            self._publisher.publish(head.decision, deadline)
        return head

    def _is_done(
        self, head: TransactionHead, application: Application, written: Sequence[StagedRecords]
    ) -> bool:
        """Whether the micro-batch is committed. Raises UnknownTopic, Unavailable if it cannot be
        committed any more.
        """
        newest = None if head.decision is None else head.decision.application
        if newest is not None and newest.version >= application.version:
            return True
        for records in written:
            log = self._topic_log(records.topic)
            if not log.catch_up() or log.live_head.topic_id != records.topic_id:
                reason = f"topic {records.topic!r} was deleted during the write"
                raise UnknownTopic(records.topic, reason=reason)
            # This can happen when the id was taken by an operator, which leaves no decision.
            done = log.state.txns.get(f"{application.app_id}/{records.topic_id}")
            if done is not None and done.version >= application.version:
                return True
            if voided_uploads(records.segments, log.live_head):
                raise Unavailable(
                    f"files for topic {records.topic!r} waited for their commit longer than "
                    "file.delete.delay.ms and may have been removed: run the batch again"
                )
        return False
