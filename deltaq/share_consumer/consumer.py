"""The share consumer: `confluent_kafka.ShareConsumer` on Delta logs."""

from __future__ import annotations

import logging
import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias
from weakref import finalize

from deltaq import names
from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout
from deltaq.config import ShareConsumerConfig, parse_client_config
from deltaq.consumer.calls import topic_name
from deltaq.consumer.fetcher import PollTimer
from deltaq.consumer.reader import group_maintenance
from deltaq.delta.retry import error_pause_s
from deltaq.errors import (
    IllegalStateException,
    KafkaError,
    KafkaException,
    OutcomeUnknown,
    Unavailable,
)
from deltaq.log_forwarding import forward_logs
from deltaq.message import AcknowledgeType, K, Message, SharedMessage, TopicPartition, V, event
from deltaq.names import TransactionKey
from deltaq.outage import OutageReports
from deltaq.root import open_root
from deltaq.serde.schema import TopicSchema
from deltaq.share_consumer.calls import SingleThread, alone
from deltaq.share_consumer.messages import Messages
from deltaq.share_consumer.pace import LoopPace
from deltaq.share_consumer.returned import DecidedRecords, ReturnedRecord, ReturnedRecords
from deltaq.share_consumer.statistics import ShareStatistics
from deltaq.share_consumer.topics import ReadPartition, SharedTopics
from deltaq.share_groups.dead_letters import DeadLetters
from deltaq.share_groups.exchange import Exchange, Exchanged, LogRange, PartitionId
from deltaq.share_groups.log import ShareLog
from deltaq.share_groups.state import Acknowledgement, TakenRange, back_off_ms, error_text
from deltaq.share_groups.transaction_acknowledgements import (
    ShareAcknowledgements,
    ShareGroupMetadata,
    TransactionOutcome,
)
from deltaq.store import Store, Watch
from deltaq.topic import Topic
from deltaq.topics.columns import prepare_arrow
from deltaq.transactions.resolution import resolve_acknowledgements
from deltaq.transactions.state import AbortReason
from deltaq.version import __version__

if TYPE_CHECKING:
    from deltaq.maintenance.log_maintenance import BackgroundLogMaintenance

_log = logging.getLogger("deltaq.share_consumer")

CLOSE_TIMEOUT_S = 60.0
"""Seconds for which `close` tries to give back what the consumer holds."""

_TAKE_S = 1.0, 10.0
"""Seconds for which an entry that takes records is tried again: at least, and at most."""

LOOP_POLL_S = 1.0
"""Seconds after which a loop without messages looks whether the consumer is closed."""

_FULL_AGAIN_S = 60.0
"""Seconds between two log lines about a partition of which no more records can be taken."""

_NOTHING: Mapping[PartitionId, LogRange] = MappingProxyType({})

_NOTHING_TAKEN: Mapping[PartitionId, Sequence[TakenRange]] = MappingProxyType({})

CommitCallback: TypeAlias = (
    "Callable[[dict[TopicPartition, set[int]], KafkaException | None], object]"
)
"""Gets the offsets of an acknowledgement by partition, and its error or None."""

Results: TypeAlias = "dict[TopicPartition, KafkaException | None]"


class ShareConsumer(Generic[K, V]):
    """Takes messages from topics together with any number of others in its share group, more than
    there are partitions, and acknowledges each by itself. Mirrors `confluent_kafka.ShareConsumer`;
    for one thread.

    A message that was taken is locked for `share.record.lock.duration.ms` of the group. If it is
    not accepted or rejected by then, or is released, it is delivered again, to any member.

    `bootstrap.servers` is the root URL. The configuration is a dict, keywords (`group_id="g"`), or
    both. `store` and `clock` replace the built-in components. The constructor does no I/O.

    All methods raise IllegalStateException after `close` and inside the callback for
    acknowledgements, and ConcurrentModificationException while another thread is inside of one.
    """

    _deserializes: ClassVar[bool] = False

    def __init__(
        self,
        conf: Mapping[str, Any] | None = None,
        /,
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        config = parse_client_config(ShareConsumerConfig, conf, keywords)
        self._config = config
        self._clock = clock
        self._store = open_root(config, clock) if store is None else store
        prepare_arrow()
        self._group = config.group_id
        self._is_explicit = config.share_acknowledgement_mode == "explicit"
        self._maintenance = group_maintenance(config, self._store, clock)
        about = self._group, clock, config.client_id, self._maintenance
        self._log = ShareLog(self._store, *about)
        self._owner = self._log.new_member_id()
        self._schemas: dict[str, TopicSchema] = {}
        self._topics = SharedTopics(self._store, clock, self._schemas.get)
        # Dead letters have what is stored, which the models of the application may refuse.
        as_stored = SharedTopics(self._store, clock, lambda _: None)
        self._dead_letters = DeadLetters(
            self._store, clock, self._group, as_stored.contents, as_stored.schemas
        )
        self._subscribed: tuple[str, ...] = ()
        self._returned = ReturnedRecords()
        # Results of acknowledgements, for the callback.
        self._outcomes: list[tuple[dict[TopicPartition, set[int]], KafkaException | None]] = []
        # Those of acknowledgements in transactions; other threads add to it.
        self._in_transactions: deque[TransactionOutcome] = deque()
        self._callback: CommitCallback | None = None
        self._calls = SingleThread()
        self._outage = OutageReports(clock)
        self._statistics = ShareStatistics(config, clock)
        self._full_at: dict[PartitionId, float] = {}
        self._flooded_at = float("-inf")
        self._watch = self._store.watch()
        self._watch.add(names.group_folder(self._group) + names.LOG_FOLDER)
        # Transactions that have records of the group and cannot be ended, with the reasons.
        self._unreadable: dict[TransactionKey, str] = {}
        self._may_hold = False  # records of the group
        self._failed: ReturnedRecord | None = None  # the newest one whose loop was left
        # `Clock.uptime`: when the locks of the last poll end, and when half of their time is over.
        self._held_until = self._half_held = float("-inf")
        self._lock_s = 0.0
        self._pace = LoopPace(config.max_poll_records)
        self._is_in_loop = False
        self._records_max = 0  # that the next entry takes
        # What the last entry has taken, as long as none of it is returned.
        self._taken: Mapping[PartitionId, Sequence[TakenRange]] = _NOTHING_TAKEN
        self._in_doubt: DecidedRecords | None = None  # what an entry has whose outcome is unknown
        self._dropped = finalize(self, _abandon, self._group, self._watch, self._maintenance)
        self._dropped.atexit = False  # nothing is left running
        self._timer = PollTimer(self._store, self._watch, config.fetch_wait_max_ms / 1000, clock)
        self._forwarding = forward_logs(config.logger, self)
        started = "share consumer started client.id=%r group=%r root=%r version=%s"
        _log.info(started, config.client_id, self._group, self._store.url, __version__)

    # --- choosing what to read ---

    @alone
    def subscribe(self, topics: list[str] | list[Topic] | list[str | Topic]) -> None:
        """Read these topics. Replaces the previous subscription; no topics end it. What was
        returned stays locked.

        Values of a `Topic` with a model are decoded to instances of the model. A topic that does
        not exist is read once it does. Raises ValueError for an empty name and for one that comes
        twice, InvalidConfig for a name that no topic can have.
        """
        if not isinstance(topics, list):
            raise TypeError("expected list of topic unicode strings")
        wanted = [topic_name(topic, deserializes=self._deserializes) for topic in topics]
        if not all(wanted) or len(set(wanted)) < len(wanted):
            raise ValueError("Failed to subscribe: a topic's name is empty, or comes twice")
        for name in wanted:
            names.check_topic(name)
        self._schemas |= {
            topic.name: topic.schema
            for topic in topics
            if isinstance(topic, Topic) and topic.schema is not None
        }
        self._topics.follow(wanted, self._watch)
        self._subscribed = tuple(wanted)

    @alone
    def unsubscribe(self) -> None:
        """End the subscription. What was returned stays locked, and can be acknowledged."""
        self._topics.follow((), self._watch)
        self._subscribed = ()

    @alone
    def subscription(self) -> list[str]:
        """The names of the subscribed topics."""
        return list(self._subscribed)

    # --- reading ---

    @alone
    def poll(self, timeout: float = -1) -> Messages[K, V]:
        """Take messages, at most `max.poll.records`; none if there are none within `timeout`
        seconds (-1: no limit).

        In implicit mode this accepts the messages of the previous call. In explicit mode these must
        be acknowledged before. A message with an `error()` says which records could not be read;
        they are released, and delivered again later. While the store does not answer, `error_cb` is
        called, and the call waits on. If a signal handler calls `close`, it returns no messages.

        Raises IllegalStateException without a subscription, and for messages that are not
        acknowledged. Raises KafkaException (GROUP_ID_NOT_FOUND) if the group is a consumer group,
        Corrupt, Incompatible, InvalidConfig if the dead-letter topic cannot hold the records, and
        what the callback raises.
        """
        deadline = self._deadline(timeout)
        if not self._subscribed:
            raise IllegalStateException("Consumer is not subscribed to any topics")
        # An earlier call may have ended before it returned them.
        self._returned.give_back_waiting()
        self._returned.begin_poll()
        self._records_max = self._most()
        if self._is_explicit and (left := self._returned.undecided):
            raise IllegalStateException(
                f"{left} records from previous poll have not been acknowledged"
            )
        self._returned.accept_all()
        try:
            found = self._converted(self._wait(deadline))
            self._call_back_before_return()
        except BaseException:
            self._give_back_taken()
            self._returned.give_back_waiting()
            raise
        if self._calls.is_ending:
            self._returned.give_back_waiting()
            return Messages()
        if not self._is_in_loop:
            self._statistics.returned(found)
        self._return_all()
        return found

    def _return_all(self) -> None:
        """The messages are returned now."""
        self._returned.return_all()

    def _converted(self, messages: list[Message[K, V]]) -> Messages[K, V]:
        """The messages as the application gets them."""
        return Messages(messages)

    def _wait(self, deadline: float) -> list[Message[K, V]]:
        """Messages, as soon as there are some."""
        failures, events = 0, list[Message[K, V]]()
        while True:
            try:
                now = self._clock.monotonic()
                found = self._take(max(now + _TAKE_S[0], min(deadline, now + _TAKE_S[1])))
                failures = 0
            except (Unavailable, OutcomeUnknown) as error:
                if isinstance(error, Unavailable) and not error.error.retriable():
                    raise
                failures += 1
                found = []
                self._report_outage(error)
            left_s = deadline - self._clock.monotonic()
            if found:
                self._timer.wait(True)
            if found and self._is_of_damage(found):
                # A loop ends with an error: as few times as without one.
                events, self._records_max = found, self._config.max_poll_records
                continue
            if found or events or left_s <= 0 or self._calls.is_ending:
                return events + found
            self._call_back_before_return()
            if self._returned.has_unreadable and not failures:
                # All that was taken is to be delivered later: there may be more.
                self._pace.passed()
                self._records_max = self._most()
                continue
            if failures:
                pause_s = error_pause_s(failures, self._clock.random())
                self._clock.sleep(min(pause_s, left_s))
            else:
                self._timer.wait(False, most_s=left_s)

    def _is_of_damage(self, found: Sequence[Message[K, V]]) -> bool:
        """Whether a loop has taken fewer records than it may, and none of them can be read."""
        is_less = self._records_max < self._config.max_poll_records
        return is_less and not any(isinstance(message, SharedMessage) for message in found)

    def __iter__(self) -> Iterator[Message[K, V]]:
        """Yield messages until the consumer is closed. A message is accepted when the body of the
        loop has come to its end, unless the body has decided otherwise. If it is left by an
        exception, by `break` or `return`, the message is released: it is delivered again after 1 s,
        and after twice as long each further time. Those that were taken with it and not yielded
        are given back at once, and this delivery of them does not count.

        A loop takes one message, and more each time as long as its body is done with them in a
        third of the time of their lock; at most `max.poll.records`. What is not yielded in half of
        that time is given back. A message in its last delivery is taken alone.

        If the exception leaves the `with` block of the consumer, too, its text is in the dead
        letter. An event is raised as a KafkaException.
        """
        # In a child of a fork, `poll` raises.
        while not self._calls.was_closed:
            yield from self._yield_each(self._poll_in_loop(LOOP_POLL_S))

    def _poll_in_loop(self, timeout: float) -> Messages[K, V]:
        """As `poll`, with as many messages as the body of a loop is done with in time. They wait
        until they are yielded.
        """
        self._is_in_loop = True
        try:
            return self.poll(timeout)
        finally:
            self._is_in_loop = False

    def _most(self) -> int:
        """How many records an entry takes."""
        return self._pace.records if self._is_in_loop else self._config.max_poll_records

    def _yield_each(self, messages: Messages[K, V]) -> Iterator[Message[K, V]]:
        """Yield the messages of one `poll`, and decide each as a loop does. Does no I/O. What is
        dropped before its end is a loop that was left.
        """
        left = deque(messages)
        current: Message[K, V] | None = None
        begun_at, done = self._clock.uptime(), 0
        try:
            while left and not self._calls.is_closed:
                # The later ones leave time for their bodies.
                if self._clock.uptime() >= (self._half_held if done else self._held_until):
                    break
                current = left.popleft()
                if not isinstance(current, SharedMessage):
                    raise KafkaException(current.error())
                if (record := self._open_record(current)) is None:
                    continue  # a `poll` in the body has given it back
                record.is_waiting = False
                self._statistics.returned([current])
                yield current
                if (record := self._open_record(current)) is not None:
                    record.decide(AcknowledgeType.ACCEPT)
                current, done = None, done + 1
            if done:
                self._pace.took(done, self._clock.uptime() - begun_at, self._lock_s)
        finally:
            if current is not None and (record := self._open_record(current)) is not None:
                self._release_failed(record)
                self._failed = record
            self._give_back_unseen(left)

    def _release_failed(self, record: ReturnedRecord, error: BaseException | None = None) -> None:
        """Have a message delivered again after a while that grows with its deliveries."""
        visible_ms = self._clock.time_ms() + back_off_ms(record.deliveries)
        record.decide(AcknowledgeType.RELEASE, visible_ms, error)

    def _give_back_unseen(self, messages: Iterable[Message[Any, Any]]) -> None:
        """Have messages delivered again that the application did not get."""
        for message in messages:
            if (record := self._open_record(message)) is not None:
                record.decide(AcknowledgeType.RELEASE, unseen=True)

    def _open_record(self, message: Message[Any, Any]) -> ReturnedRecord | None:
        """The record of a message of which the application has decided nothing."""
        if not isinstance(message, SharedMessage):
            return None
        found = self._returned.find(*_place(message))
        # To renew a lock is no decision.
        is_open = found is not None and found[1].type in (None, AcknowledgeType.RENEW)
        return found[1] if found is not None and is_open else None

    def _take(self, deadline: float) -> list[Message[K, V]]:
        """Acknowledge what is decided, take records in the same entry, and read them. Raises
        Unavailable, OutcomeUnknown.
        """
        log_ranges = self._topics.log_ranges(self._log)
        if overdue := self._log.overdue():
            # Otherwise what they have acknowledged would stay locked for ever.
            about = AbortReason.LOCK, self._clock, deadline, self._unreadable
            resolve_acknowledgements(self._store, self._log, overdue, *about)
        published = self._dead_letters.publish(self._log.last_read(), deadline)
        begun_at = self._clock.uptime()
        found = self._exchange(deadline, log_ranges, self._records_max, published=published)
        self._note_full(found)
        try:
            read = self._read(found)
        except Unavailable:
            self._give_back_taken()
            raise
        self._lock_s = self._log.last_read().settings.share_record_lock_duration_ms / 1000
        self._held_until = begun_at + self._lock_s
        self._half_held = begun_at + self._lock_s / 2
        # The process may have been suspended: others may have been given these records.
        if found.taken and self._clock.uptime() >= self._held_until:
            self._give_back_taken()
            return []
        messages = [message for part in read for message in self._received(part)]
        self._taken = _NOTHING_TAKEN
        return messages

    def _read(self, found: Exchanged) -> list[ReadPartition]:
        """The records that were taken."""
        by_topic: dict[tuple[str, str], dict[int, Sequence[TakenRange]]] = {}
        for key, ranges in found.taken.items():
            by_topic.setdefault((key.topic, key.topic_id), {})[key.partition] = ranges
        return [
            part
            for (topic, topic_id), taken in by_topic.items()
            for part in self._topics.read(topic, topic_id, taken)
        ]

    def _give_back_taken(self) -> None:
        """Release what was taken and is not returned, by the next entry."""
        for key, ranges in self._taken.items():
            self._returned.give_back(key, ranges)
        self._taken = _NOTHING_TAKEN

    def _received(self, part: ReadPartition) -> list[Message[K, V]]:
        """The messages of a partition that are about to be returned."""
        key, now_ms = part.partition, self._clock.time_ms()
        later = part.later(now_ms)
        self._returned.add_unreadable(key, later)
        part = part.without(later)
        self._returned.add(key, part.deliveries, is_waiting=self._is_in_loop)
        if part.damage is None:
            self._returned.add_unreadable(key, _without_record(part.others))
        else:
            self._returned.add_unreadable(key, _released_later(part.others, now_ms))
        found: list[Message[K, V]] = list(part.messages)
        if part.damage is not None:
            first = part.others[0].first
            found.append(event(part.damage.error, key.topic, key.partition, first))
        return found

    def _note_full(self, found: Exchanged) -> None:
        """Say why no more records are taken, from time to time."""
        now = self._clock.monotonic()
        if found.is_flooded and now - self._flooded_at >= _FULL_AGAIN_S:
            self._flooded_at = now
            _log.warning(
                "no more records are taken in this minute, as "
                "errors.deadletterqueue.max.per.minute of them have failed group=%r",
                self._group,
            )
        for key in sorted(found.full):
            if now - self._full_at.get(key, float("-inf")) >= _FULL_AGAIN_S:
                self._full_at[key] = now
                _log.warning(
                    "no more records can be taken, as share.partition.max.record.locks of them are "
                    "not accepted group=%r topic=%r partition=%d",
                    self._group,
                    key.topic,
                    key.partition,
                )

    def _report_outage(self, error: KafkaException) -> None:
        _log.warning("taking records failed group=%r error=%s", self._group, error)
        if (callback := self._config.error_cb) is not None:
            reason = KafkaError(KafkaError._TRANSPORT, error.error.str(), retriable=True)
            for each in self._outage.due(reason):
                callback(each)

    # --- acknowledging ---

    @alone
    def acknowledge(
        self, message: Message[Any, Any], ack_type: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Decide, in explicit mode, what is to become of a message that `poll` has returned. The
        next `poll`, commit or `close` writes it; until then, a later call replaces it.

        A message whose lock is renewed is still to be acknowledged, and is not returned again.

        Raises IllegalStateException in implicit mode, and for a message that was not returned or
        is acknowledged already; ValueError for an unknown `ack_type`.
        """
        self._decide(*_place(message), ack_type)

    @alone
    def acknowledge_offset(
        self,
        topic: str,
        partition: int,
        offset: int,
        ack_type: AcknowledgeType = AcknowledgeType.ACCEPT,
    ) -> None:
        """As `acknowledge`, for the message at this place."""
        if not isinstance(topic, str):
            raise TypeError(f"topic must be str, not {type(topic).__name__}")
        if operator.index(partition) < 0 or operator.index(offset) < 0:
            raise ValueError(f"partition {partition} or offset {offset} is negative")
        self._decide(topic, partition, offset, ack_type)

    def _decide(self, topic: str, partition: int, offset: int, wanted: int) -> None:
        try:
            decided = AcknowledgeType(operator.index(wanted))
        except ValueError:
            raise ValueError(f"{wanted!r} is no AcknowledgeType") from None
        if not self._is_explicit:
            raise IllegalStateException(
                "acknowledge needs share.acknowledgement.mode=explicit: in implicit mode the next "
                "poll or commit accepts all messages"
            )
        _, record = self._find(topic, partition, offset)
        record.decide(decided)

    def _find(self, topic: str, partition: int, offset: int) -> tuple[PartitionId, ReturnedRecord]:
        """A record that was returned and is not acknowledged. Raises IllegalStateException."""
        found = self._returned.find(topic, partition, offset)
        if found is None:
            raise IllegalStateException(
                f"the message {topic}[{partition}]@{offset} was not returned by poll, or is "
                "acknowledged already"
            )
        return found

    @alone
    def release(
        self,
        message: Message[Any, Any],
        delay: float = 0.0,
        error: BaseException | str | None = None,
    ) -> None:
        """Have a message delivered again, `delay` seconds from now at the earliest, by the clocks
        of this machine and of the member that takes it. As `acknowledge` with
        `AcknowledgeType.RELEASE`, in both modes. If it was delivered too often, the text of `error`
        is in its dead letter, at most 500 characters.
        """
        delay_s = checked_timeout(delay)
        if delay_s == float("inf"):  # what is below 0 stands for no limit elsewhere
            raise ValueError(f"delay={delay!r}: give a number of seconds, at least 0")
        _, record = self._find(*_place(message))
        visible_ms = self._clock.time_ms() + round(delay_s * 1000) if delay_s else 0
        record.decide(AcknowledgeType.RELEASE, visible_ms, error)

    @alone
    def reject(self, message: Message[Any, Any], error: BaseException | str | None = None) -> None:
        """Have a message not delivered again. As `acknowledge` with `AcknowledgeType.REJECT`, in
        both modes. The text of `error` is in its dead letter, at most 500 characters.
        """
        _, record = self._find(*_place(message))
        record.decide(AcknowledgeType.REJECT, error=error)

    @alone
    def renew(self, message: Message[Any, Any], timeout: float = 60) -> None:
        """Begin the lock of a message anew, at once: for work that takes longer than
        `share.record.lock.duration.ms`. It is still to be acknowledged. As `acknowledge` with
        `AcknowledgeType.RENEW` and a commit, in both modes.

        Raises KafkaException (INVALID_RECORD_STATE) if its lock was over: another member may have
        the message. Raises Unavailable, OutcomeUnknown if the store does not answer within
        `timeout` seconds: the lock may end, and the next call renews it if it was not.
        """
        deadline = self._deadline(timeout)
        self._resolve(deadline)  # it may be about an earlier renewal
        _, record = self._find(*_place(message))
        record.decide(AcknowledgeType.RENEW)
        self._exchange(deadline)
        if self._returned.find(*_place(message)) is None:
            raise _invalid_state()

    @alone
    def commit_sync(self, timeout: float = 60) -> Results:
        """Write what is decided; in implicit mode, accept all messages of the last `poll` first.
        Returns, by partition, None or why its acknowledgements do not count: INVALID_RECORD_STATE
        for messages whose lock was over, OutcomeUnknown, Unavailable. It is empty if there is
        nothing to write. After one of the last two, the next call tries again.

        `timeout` is in seconds, -1 for no limit.
        """
        results = self._commit(self._deadline(timeout))
        self._call_back()
        return results

    @alone
    def commit_async(self) -> None:
        """As `commit_sync`; only the callback for acknowledgements gets the results, in the next
        call. The acknowledgements are written when this returns.
        """
        self._commit(self._deadline(CLOSE_TIMEOUT_S))

    def _commit(self, deadline: float) -> Results:
        if not self._is_explicit:
            self._returned.accept_all()
        results: Results = {}
        try:
            results = self._resolve(deadline)
            decided = self._returned.decided()
            if decided.acknowledgements:
                results |= _results_of(decided, self._exchange(deadline))
        except (Unavailable, OutcomeUnknown) as error:
            results |= _results(self._returned.decided().offsets, error)
        return results

    # --- transactions ---

    @alone
    def share_group_metadata(self) -> ShareGroupMetadata:
        """Which member of which group this is, for
        `Producer.send_share_acknowledgements_to_transaction`.
        """
        return ShareGroupMetadata(self._group, self._owner)

    @alone
    def acknowledgements_for_transaction(self, timeout: float = 60) -> ShareAcknowledgements:
        """Hand over what is decided to a transaction, by
        `Producer.send_share_acknowledgements_to_transaction`: accepted, released and rejected
        messages. In implicit mode all messages of the last `poll` are accepted first.

        This consumer forgets the messages: the transaction decides. If it is aborted they are
        delivered again; until then they stay locked, as long as the lock lasts. The callback and
        the statistics hear of them in the first call after the transaction has ended.

        Raises Unavailable, OutcomeUnknown if it is not known within `timeout` seconds whether an
        earlier call has acknowledged them.
        """
        self._resolve(self._deadline(timeout))
        if not self._is_explicit:
            self._returned.accept_all()
        return ShareAcknowledgements(self._returned.hand_over(), self._in_transactions)

    def _undo_transaction(
        self, handed_over: ShareAcknowledgements, error: BaseException | None
    ) -> None:
        """After the abort of a transaction because of this error: have messages delivered again
        later, those that were handed over and those that the application has got since.
        """
        now_ms, text = self._clock.time_ms(), error_text(error)
        for key, of_partition in handed_over.by_partition.items():
            # Without effect for those that the log had as pending.
            released = [
                Acknowledgement(
                    of.first,
                    of.end,
                    of.deliveries,
                    AcknowledgeType.RELEASE,
                    now_ms + back_off_ms(of.deliveries),
                    text,
                )
                for of in of_partition
            ]
            self._returned.add_unreadable(key, released)
        for record in self._returned.received():
            if not record.unseen:
                self._release_failed(record, error)

    def _exchange(
        self,
        deadline: float,
        log_ranges: Mapping[PartitionId, LogRange] = _NOTHING,
        records_max: int = 0,
        *,
        gives_back: bool = False,
        published: int = -1,
    ) -> Exchanged:
        """Write what is decided, take records, and note the results for the callback. Raises
        Unavailable, OutcomeUnknown: then the next call writes what is decided.
        """
        self._resolve(deadline)
        self._give_back_taken()  # by a call that a signal handler has ended
        decided = self._returned.decided()
        exchange = Exchange(
            self._owner,
            decided.acknowledgements,
            log_ranges,
            records_max,
            gives_back,
            published,
            last_alone=self._is_in_loop,
        )
        self._in_doubt = decided
        try:
            found = self._log.exchange(exchange, deadline)
        except KafkaException as error:
            if not isinstance(error, OutcomeUnknown):
                self._in_doubt = None
            raise
        # After an exception of a signal handler, too, the next call asks for the outcome.
        self._note_written(decided, found)
        self._taken, self._in_doubt = found.taken, None
        return found

    def _resolve(self, deadline: float) -> Results:
        """Find out whether the last entry was written, if that is unknown. If it was, returns the
        results; if not, what was decided is decided still. Raises OutcomeUnknown.
        """
        if (decided := self._in_doubt) is None:
            return {}
        found = self._log.resolve(deadline)
        self._in_doubt = None
        if found is None:
            return {}
        self._note_written(decided, found)
        self._taken = found.taken
        self._give_back_taken()
        return _results_of(decided, found)

    def _note_written(self, decided: DecidedRecords, found: Exchanged) -> None:
        """Note the result of an entry that was written."""
        self._may_hold = self._may_hold or bool(found.taken)
        refused = _refused(decided, found)
        self._returned.forget(decided, refused)
        self._statistics.acknowledged(decided, found.applied)
        self._note(
            {key: of - refused.get(key, frozenset()) for key, of in decided.offsets.items()}, None
        )
        self._note(refused, _invalid_state())

    def _note(
        self, offsets: Mapping[PartitionId, frozenset[int]], error: KafkaException | None
    ) -> None:
        """Note the result of acknowledgements, for a call of the callback for each partition."""
        for place, of_partition in _by_partition(offsets).items():
            self._outcomes.append(({TopicPartition(*place, 0): set(of_partition)}, error))

    def _note_transactions(self) -> None:
        """Note the outcomes of transactions that have acknowledged messages of this consumer."""
        while self._in_transactions:
            outcome = self._in_transactions.popleft()
            self._statistics.decided_by_transaction(outcome)
            offsets = {
                key: frozenset(offset for of in of_partition for offset in range(of.first, of.end))
                for key, of_partition in outcome.by_partition.items()
            }
            self._note(offsets, outcome.error)

    def _call_back_before_return(self) -> None:
        """Run callbacks before messages are returned."""
        self._note_transactions()
        self._statistics.emit_if_due()
        self._call_back()

    def _call_back(self) -> None:
        self._note_transactions()
        while self._outcomes:
            outcome = self._outcomes.pop(0)
            # As in librdkafka, the callback of this time counts, not that of the commit.
            if (callback := self._callback) is not None:
                self._calls.call_back(partial(callback, *outcome))

    @alone
    def set_acknowledgement_commit_callback(self, callback: CommitCallback | None) -> None:
        """Call `callback(offsets, exception)` for each partition after acknowledgements were
        written or refused: its offsets, and None or a KafkaException. It runs inside `poll`,
        `commit_sync` and `close`; what it raises comes out of these. None removes it.

        For messages that a transaction has acknowledged, it gets None once that is committed, by
        the producer's knowledge. Otherwise it gets INVALID_RECORD_STATE if a lock was over,
        INVALID_TXN_STATE after another abort, the error of a producer that has to be closed, or
        _TIMED_OUT if the producer was closed before it knew the outcome.
        """
        if callback is not None and not callable(callback):
            raise TypeError("callback must be callable or None")
        self._callback = callback

    # --- the rest ---

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Has no effect: a store has its credentials from `store.*` settings or the environment."""
        for value in (username, password):
            if not isinstance(value, str):
                raise TypeError(f"a name and a password must be str, not {type(value).__name__}")
        if self._calls.refusal is not None:
            raise IllegalStateException(self._calls.refusal)

    def close(self) -> None:
        """Write what is decided, and give back all other messages, which are delivered again.
        Idempotent. Raises Unavailable, OutcomeUnknown; then they are delivered again when their
        lock is over. In a signal handler it has the call that was interrupted end first.
        """
        if not self._calls.is_closed:
            self._calls.run_last(self._close)

    def _close(self) -> None:
        self._returned.give_back_waiting()
        try:
            if self._may_hold or self._in_doubt is not None:
                deadline = self._deadline(CLOSE_TIMEOUT_S)
                self._exchange(deadline, gives_back=True)
                published = self._dead_letters.publish(self._log.last_read(), deadline)
                if published >= 0:
                    self._exchange(deadline, published=published)
            self._call_back()
        finally:
            self._calls.close()
            self._dropped.detach()
            self._watch.close()
            if self._maintenance is not None:
                self._maintenance.close()
            if self._forwarding is not None:
                self._forwarding()
            _log.info(
                "share consumer closed client.id=%r group=%r", self._config.client_id, self._group
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._note_exception(error)
        finally:
            self.close()

    def _note_exception(self, error: BaseException | None) -> None:
        """The exception that leaves the consumer's block is that which has left its loop."""
        failed = self._failed
        if failed is not None and failed.type is AcknowledgeType.RELEASE:
            failed.decide(AcknowledgeType.RELEASE, failed.visible_ms, error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._store.url} group={self._group!r}>"

    def _deadline(self, timeout: float) -> float:
        if timeout is None:
            raise TypeError("timeout must be a number of seconds, not None; -1 is no limit")
        return self._clock.monotonic() + checked_timeout(timeout)


def _invalid_state() -> KafkaException:
    reason = (
        "the consumer does not hold the messages any more: their lock was over, or an "
        "administrator has changed the group"
    )
    return KafkaException(KafkaError(KafkaError.INVALID_RECORD_STATE, reason))


def _abandon(group: str, watch: Watch, maintenance: BackgroundLogMaintenance | None) -> None:
    """A share consumer was garbage-collected without `close`."""
    _log.warning(
        "a ShareConsumer of group %r was garbage-collected without close(): its messages are "
        "delivered again when their lock is over",
        group,
    )
    watch.close()
    if maintenance is not None:
        maintenance.abandon()


def _place(message: object) -> tuple[str, int, int]:
    """Topic, partition and offset of a message. Raises TypeError, ValueError."""
    if not isinstance(message, Message):
        raise TypeError(f"message must be a Message, not {type(message).__name__}")
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise ValueError("the message has no topic, partition or offset")
    return topic, partition, offset


def _without_record(ranges: Sequence[TakenRange]) -> list[Acknowledgement]:
    """Offsets without a record are done."""
    accept = AcknowledgeType.ACCEPT
    return [Acknowledgement(each.first, each.end, each.deliveries, accept) for each in ranges]


def _released_later(ranges: Sequence[TakenRange], now_ms: int) -> list[Acknowledgement]:
    """Delivered again after a while that grows with the deliveries."""
    return [
        Acknowledgement(
            each.first,
            each.end,
            each.deliveries,
            AcknowledgeType.RELEASE,
            now_ms + back_off_ms(each.deliveries),
        )
        for each in ranges
    ]


def _refused(decided: DecidedRecords, found: Exchanged) -> dict[PartitionId, frozenset[int]]:
    """The offsets whose acknowledgement does not count."""
    refused = {}
    for key, offsets in decided.offsets.items():
        applied = {offset for each in found.applied.get(key, ()) for offset in each}
        if left := offsets - applied:
            refused[key] = left
    return refused


def _results_of(decided: DecidedRecords, found: Exchanged) -> Results:
    """The results of acknowledgements that were written, by partition."""
    refused = _refused(decided, found)
    counted = {key: of for key, of in decided.offsets.items() if key not in refused}
    return _results(refused, _invalid_state()) | _results(counted, None)


def _by_partition(
    offsets: Mapping[PartitionId, frozenset[int]],
) -> dict[tuple[str, int], frozenset[int]]:
    """The offsets by topic and partition; none without any."""
    found: dict[tuple[str, int], frozenset[int]] = {}
    for key, of_partition in offsets.items():
        if of_partition:
            place = key.topic, key.partition
            found[place] = found.get(place, frozenset()) | of_partition
    return found


def _results(
    offsets: Mapping[PartitionId, frozenset[int]], error: KafkaException | None
) -> Results:
    """The result of acknowledgements, by partition."""
    code = None if error is None else error.error
    return {TopicPartition(*place, 0, error=code): error for place in _by_partition(offsets)}
