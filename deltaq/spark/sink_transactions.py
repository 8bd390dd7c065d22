"""A micro-batch is one transaction if it names its topics row by row, or commits its offsets to a
group: all topics and the group get it, or none.

The `transactional.id` belongs to the query. Its epoch stays the same from start to start, because
Spark repeats a micro-batch of which it does not know the outcome, also in another driver: the
newest decision says which micro-batches are done. Each topic gets the query's own `txn`, as it does
from a query that writes one topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from deltaq.clock import Clock
from deltaq.errors import Fenced, KafkaError, KafkaException, Unavailable, UnknownTopic
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.transaction_offsets import TransactionOffsets
from deltaq.names import TransactionKey, staged_file
from deltaq.spark.group_offsets import Partition, has_members, of_root
from deltaq.store import Store
from deltaq.topics.log import TopicLog, voided_uploads
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.state import PendingSegment
from deltaq.transactions.log import DecisionNotPublished, TransactionLog
from deltaq.transactions.publication import Publisher
from deltaq.transactions.state import (
    QUERY_TIMEOUT_MS,
    Application,
    Decision,
    StagedRecords,
    TransactionAborted,
    TransactionHead,
    transactional_id_of,
)


def staged_path(application: Application, segment: PendingSegment) -> str:
    """Where a task uploads a file, relative to its topic's folder."""
    name = transactional_id_of(application.app_id)
    return staged_file(
        TransactionKey(name, 0, application.version + 1), segment.path.removesuffix(".parquet")
    )


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The offsets that a micro-batch has reached, for this group."""

    group: str
    reached: Mapping[Partition, int]


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
        self._publisher = replace(others, topic_log=self._topic_log, group_log=self._group_log)
        self._topics = TopicLookup(self._store, self._clock)
        self._groups: dict[str, GroupLog] = {}

    def commit(
        self,
        batch: int,
        written: Sequence[StagedRecords],
        deadline: float,
        progress: GroupProgress | None = None,
    ) -> bool:
        """Commit a micro-batch; False, without effect, if it is committed already, or empty.

        Raises UnknownTopic if a topic was deleted during the write, Unavailable if files may have
        been removed since their upload, KafkaException if the group of `progress` has living
        members, and what `DeltaLog.commit` raises. May be repeated.
        """
        application = Application(self.app_id, batch)
        offsets = () if progress is None else self._offsets(progress)
        groups = () if progress is None or not offsets else (progress.group,)
        if not (written or groups):
            return False
        while True:
            head = self._published(deadline)
            if self._is_done(head, application, written):
                return False
            number = max(head.number, batch) + 1
            key = TransactionKey(self._log.transactional_id, head.epoch, number)
            for group in groups:
                self._pin(group, TransactionOffsets(key, None, offsets), deadline)
            draft = Decision(key, 0, tuple(written), groups, application)
            try:
                decision = self._log.commit(draft, deadline)
            except TransactionAborted:
                # Another driver of the query has committed it, a member of the group has aborted
                # it, or orphan removal has taken the number: whether it removes files of this batch
                # is asked again.
                for group in groups:
                    self._group_log(group).resolve(key, deadline, is_committed=False)
                continue
            self._publisher.publish(decision, deadline)
            return True

    def _offsets(self, progress: GroupProgress) -> tuple[CommittedOffset, ...]:
        found = of_root(progress.reached, self._topics, self._store.url)
        return tuple(CommittedOffset(*at, offset) for at, offset in found.items())

    def _pin(self, group: str, offsets: TransactionOffsets, deadline: float) -> None:
        """Write the offsets as pending. Members that are dead do not refuse them, however often the
        query is started again: it waits until they are known dead.
        """
        try:
            self._group_log(group).send_offsets(offsets, deadline, wait=True)
        except Fenced as refused:
            if refused.error.code() == KafkaError._FENCED:  # by another driver of the query
                raise
            raise KafkaException(has_members(group, refused)) from refused

    def _group_log(self, group: str) -> GroupLog:
        if group not in self._groups:
            self._groups[group] = GroupLog(self._store, group, self._clock, self._client_id)
        return self._groups[group]

    def _published(self, deadline: float) -> TransactionHead:
        """The head of the query's log, with its newest decision published."""
        head = self._log.head()
        if head is None:
            try:
                head = self._log.begin(QUERY_TIMEOUT_MS, None, deadline)
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
