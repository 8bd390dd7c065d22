"""What a consumer reads and commits with: fetcher, accepted batches, assignment, offset committer,
and the queries about offsets that ask the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from deltaq.clock import Clock, checked_timeout
from deltaq.config import ConsumerConfig, ShareConsumerConfig, topic_properties
from deltaq.consumer.assignment import Assignment
from deltaq.consumer.calls import PendingEvents, check_partition, partition_list
from deltaq.consumer.fetch_buffer import (
    AcceptedBatches,
    CompletedFetch,
    EventBatch,
    PartitionEnd,
    PartitionError,
)
from deltaq.consumer.fetcher import Fetcher, FetchSettings
from deltaq.errors import (
    InvalidConfig,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
    Unavailable,
    UnknownTopic,
)
from deltaq.groups.log import GroupLog
from deltaq.groups.offset_commits import OffsetCommitter
from deltaq.groups.offsets import ToCommit
from deltaq.groups.state import MemberIdentity
from deltaq.message import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    FetchedMessage,
    Message,
    TopicPartition,
    event,
)
from deltaq.serde.schema import TopicSchema
from deltaq.store import Store
from deltaq.store.parallel import within
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.metadata import NewTopicPlan
from deltaq.topics.state import TopicHead
from deltaq.transactions.resolution import resolve_offsets
from deltaq.transactions.state import AbortReason
from deltaq.weak import weakly

if TYPE_CHECKING:
    from deltaq.maintenance.log_maintenance import BackgroundLogMaintenance

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Reader:
    """Built as a whole at the first use; each part knows only those before it. For the
    application's thread.
    """

    fetcher: Fetcher
    accepted: AcceptedBatches
    held: Assignment
    committer: OffsetCommitter
    events: PendingEvents

    def begin(self) -> None:
        """Start the threads, unless they run."""
        self.fetcher.begin()
        self.committer.begin()

    def accept_next(self, timeout_s: float, is_only_matched: Callable[[str], bool]) -> bool:
        """Accept the fetcher's next item, waiting up to `timeout_s` seconds for it. Returns whether
        there was one.

        `is_only_matched(topic)` is whether only a pattern matched the topic: its deletion is no
        error then, because it no longer matches.
        """
        item = self.fetcher.queue.first(timeout_s)
        if item is None:
            return False
        held = self.held
        if isinstance(item, CompletedFetch):
            held.accept(item)
        elif isinstance(item, PartitionEnd):
            if held.is_current(item.topic, item.partition, item.epoch):
                self._accept_event(item, _end_of_partition(item))
        elif isinstance(item, PartitionError):
            is_about_topic = item.partition < 0
            is_deletion = (
                is_about_topic
                and isinstance(item.error, UnknownTopic)
                and is_only_matched(item.topic)
            )
            if not is_deletion and (
                is_about_topic or held.is_current(item.topic, item.partition, item.epoch)
            ):
                self._accept_event(
                    item, event(item.error.error, item.topic, item.partition, item.offset)
                )
        else:
            self.events.store_unavailable(item.error)
        self.fetcher.queue.remove(item)
        return True

    def _accept_event(self, item: PartitionEnd | PartitionError, message: Message) -> None:
        self.accepted.append(EventBatch(item, (item.topic, item.partition), 1, message))

    def ready(self) -> AcceptedBatches:
        """The accepted batches, without those that a change of the assignment has dropped."""
        self.held.apply_changes()
        return self.accepted

    def commit(self, message: Message | None, offsets: object) -> list[TopicPartition]:
        """Commit synchronously what a call of `Consumer.commit` asks for. Raises KafkaException
        (_NO_OFFSET) if that is nothing, and what `OffsetCommitter.commit` raises.
        """
        wanted = self._to_commit(message, offsets)
        if not wanted:
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET))
        self.begin()
        results = self.committer.commit(wanted)
        return results if message or offsets is not None else self.held.with_others(results)

    def commit_later(self, message: Message | None, offsets: object) -> None:
        """Queue a commit. `on_commit` gets the result, also if there is nothing to commit: an idle
        consumer may commit without arguments after each poll.
        """
        wanted = self._to_commit(message, offsets)
        if wanted:
            self.begin()
            self.committer.commit_later(wanted)
        else:
            about = self.held.with_others([]) if offsets is None else list(partition_list(offsets))
            self.events.committed(KafkaError(KafkaError._NO_OFFSET), about)

    def _to_commit(self, message: Message | None, offsets: object) -> list[ToCommit]:
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            return [self._after(message)]
        if offsets is None:
            return self.committer.stored.uncommitted()
        listed = partition_list(offsets)
        for tp in listed:
            check_partition(tp)
        return [self._with_topic_id(tp) for tp in listed if tp.offset >= 0]

    def store(self, message: Message | None, offsets: object) -> None:
        """Store offsets to commit. Raises KafkaException if none of the partitions is assigned:
        _STATE, or _UNKNOWN_PARTITION for a topic that this consumer never had.
        """
        if (message is None) == (offsets is None):
            raise ValueError("expected either message or offsets")
        if message is None:
            wanted = [self._with_topic_id(tp) for tp in partition_list(offsets)]
        else:
            wanted = [self._after(message)]
        for entry in wanted:
            check_partition(entry.wanted)
        assigned = [entry for entry in wanted if self.held.holds(*entry.key)]
        if wanted and not assigned:
            topic, partition = wanted[0].key
            raise self.held.not_assigned(topic, partition)
        for entry in assigned:
            if entry.wanted.offset >= 0:
                self.held.store(entry)

    def _after(self, message: Message) -> ToCommit:
        """The offset to commit so that reading continues after `message`."""
        if not isinstance(message, Message):
            raise TypeError(f"message must be a Message, not {type(message).__name__}")
        topic, partition, offset, error = (
            message.topic(),
            message.partition(),
            message.offset(),
            message.error(),
        )
        if error is not None or topic is None or partition is None or offset is None:
            reason = (
                "the message is an event or has no offset; only a consumed record can be committed"
            )
            raise InvalidConfig(reason, key="message")
        after = TopicPartition(topic, partition, offset + 1)
        if isinstance(message, FetchedMessage) and message.topic_id is not None:
            return ToCommit(after, message.topic_id)
        return self._with_topic_id(after)

    def _with_topic_id(self, tp: TopicPartition) -> ToCommit:
        # A copy: the application may change its object while the commit is queued.
        copy = TopicPartition(tp.topic, tp.partition, tp.offset, tp.metadata)
        return ToCommit(copy, self.held.topic_id(tp.topic, tp.partition))


def group_maintenance(
    config: ConsumerConfig | ShareConsumerConfig, store: Store, clock: Clock
) -> BackgroundLogMaintenance | None:
    """The maintenance of the group's log beside a consumer, unless it is switched off."""
    if not config.maintenance_enable:
        return None
    from deltaq.maintenance.log_maintenance import BackgroundLogMaintenance  # noqa: PLC0415 - `import deltaq` is lean

    return BackgroundLogMaintenance(store, "group", config.group_id, clock)


def open_reader(
    config: ConsumerConfig,
    store: Store,
    clock: Clock,
    queries: OffsetQueries,
    events: PendingEvents,
    schema_of: Callable[[str], TopicSchema | None],
    identity: Callable[[], MemberIdentity | None],
) -> Reader:
    """Build the reader of one consumer. Its threads begin with `Reader.begin`."""
    plan = NewTopicPlan(config.num_partitions, None, topic_properties({}))
    settings = FetchSettings(
        config.queued_max_messages_kbytes * 1024,
        config.fetch_max_bytes,
        config.auto_offset_reset,
        config.fetch_wait_max_ms / 1000,
        config.enable_partition_eof,
        plan if config.allow_auto_create_topics else None,
    )

    def stored(topic: str, topic_id: str, partitions: Sequence[int]) -> list[int | None]:
        return queries.stored(topic, topic_id, partitions, identity())

    fetcher = Fetcher(store, settings, stored, clock, config.group_id, queries.lookup)
    accepted = AcceptedBatches(fetcher.queue)
    join_bytes_max = (
        config.queued_max_messages_kbytes * 1024 if config.large_message_enabled else None
    )
    held = Assignment(fetcher, accepted, schema_of, config.enable_auto_offset_store, join_bytes_max)

    def topic_now(topic: str) -> tuple[str, int] | None:
        live = fetcher.seen(topic)
        head = queries.head(topic) if live is None else live.head
        return None if head is None else (head.topic_id, head.partitions)

    interval_ms = config.auto_commit_interval_ms if config.enable_auto_commit else 0
    committer = OffsetCommitter(
        queries.group_log,
        identity,
        topic_now,
        held.stored,
        weakly(events.committed, None),
        interval_ms / 1000 if interval_ms else float("inf"),
        clock,
        config.heartbeat_interval_ms / 1000,
    )
    return Reader(fetcher, accepted, held, committer, events)


def _end_of_partition(end: PartitionEnd) -> Message:
    reason = f"Reached the end of {end.topic} [{end.partition}] at offset {end.offset}"
    return event(
        KafkaError(KafkaError._PARTITION_EOF, reason), end.topic, end.partition, end.offset
    )


def watermarks(head: TopicHead | None, partition: int) -> tuple[int, int]:
    """(first offset, next offset) of a partition; OFFSET_INVALID twice if it is not known."""
    if head is None or not 0 <= partition < head.partitions:
        return OFFSET_INVALID, OFFSET_INVALID
    return head.start_offsets[partition], head.next_offsets[partition]


RESOLVE_S = 10.0
"""Seconds for which a consumer tries to end another one's transaction before it tries again."""


class OffsetQueries:
    """Answers the offset queries of one consumer; their semantics are those of the methods of
    `Consumer`.

    Thread-safe. Raises KafkaException (_TIMED_OUT) if the store does not answer within `timeout`
    seconds.
    """

    def __init__(
        self, store: Store, lookup: TopicLookup, group_log: GroupLog, clock: Clock
    ) -> None:
        self._store = store
        self.lookup = lookup
        self.group_log = group_log
        self._clock = clock

    def head(self, topic: str) -> TopicHead | None:
        """The current head of a topic; None if the topic does not exist."""
        try:
            return self.lookup.head(topic)
        except UnknownTopic:
            return None

    def stored(
        self,
        topic: str,
        topic_id: str,
        partitions: Sequence[int],
        reader: MemberIdentity | None = None,
    ) -> list[int | None]:
        """The committed offset of each partition; None where there is none. For a consumer that
        begins to read them as the member `reader`: transactions that have offsets of it or of an
        earlier owner are ended.
        """
        asked = [(topic, topic_id, partition) for partition in partitions]
        found = self.group_log.committed(asked)
        keys = {(topic, number) for number in partitions}
        while pending := self.group_log.undecided(keys, reader):
            deadline = self._clock.monotonic() + RESOLVE_S
            try:
                resolve_offsets(
                    self._store, self.group_log, pending, AbortReason.READER, self._clock, deadline
                )
            except OutcomeUnknown as error:
                # The fetcher tries again, and then finds the outcome.
                raise Unavailable(error.error.str()) from error
            found = self.group_log.committed(asked)
        return [None if committed is None else committed.offset for committed in found]

    def head_with(self, partition: TopicPartition, timeout: float | None) -> TopicHead:
        """The current head of a topic that has this partition. Raises UnknownTopic."""
        return self._within(timeout, lambda: self.lookup.head(partition.topic, partition.partition))

    def offsets_for_times(self, partitions: object, timeout: float | None) -> list[TopicPartition]:
        """For each partition, the first offset whose timestamp is at or after `.offset`."""
        listed = partition_list(partitions)
        asked: dict[str, list[TopicPartition]] = {}
        for tp in listed:
            if tp.offset < 0 and tp.offset not in (OFFSET_END, OFFSET_BEGINNING):
                raise InvalidConfig(
                    f"{tp.offset} is not a time in milliseconds since 1970", key="partitions"
                )
            asked.setdefault(tp.topic, []).append(tp)
        answers = self._within(
            timeout,
            lambda: {
                topic: iter(
                    self.lookup.offsets_for_times(
                        topic, [(tp.partition, tp.offset) for tp in places]
                    )
                )
                for topic, places in asked.items()
            },
        )
        results, failures = [], []
        for tp in listed:
            answer = next(answers[tp.topic])
            if isinstance(answer, UnknownTopic):
                failures.append(answer)
                results.append(TopicPartition(tp.topic, tp.partition, error=answer.error))
            else:
                results.append(TopicPartition(tp.topic, tp.partition, answer))
        if failures and len(failures) == len(results):
            raise failures[-1]
        return results

    def committed(self, partitions: object, timeout: float | None) -> list[TopicPartition]:
        """The committed offset of each partition; OFFSET_INVALID if there is none."""
        results = [TopicPartition(tp.topic, tp.partition) for tp in partition_list(partitions)]
        return self._within(timeout, lambda: self._fill_committed(results))

    def _fill_committed(self, results: list[TopicPartition]) -> list[TopicPartition]:
        heads = {
            topic: self.head(topic) for topic in dict.fromkeys(result.topic for result in results)
        }
        known: list[tuple[TopicPartition, str]] = []
        for result in results:
            head = heads[result.topic]
            if head is not None and 0 <= result.partition < head.partitions:
                known.append((result, head.topic_id))
            elif head is not None:
                result.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        found = self.group_log.committed(
            [(result.topic, id_, result.partition) for result, id_ in known]
        )
        for (result, _), committed in zip(known, found, strict=True):
            if committed is not None:
                result.offset, result.metadata = committed.offset, committed.metadata
        return results

    def _within(self, timeout: float | None, ask: Callable[[], R]) -> R:
        try:
            return within(self._clock, checked_timeout(timeout), ask)
        except Unavailable as error:
            raise error.as_timeout() from None  # it may be the error itself
