"""The consumer: `confluent_kafka.Consumer` on Delta logs."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, overload
from weakref import WeakSet, finalize

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK, Clock, Thread, checked_timeout, this_thread
from deltaq.config import ConsumerConfig, parse_client_config, topic_properties
from deltaq.consumer.assignment import Assignment, Batch, RecordBatch, Taking
from deltaq.consumer.fetch_queue import PartitionEnd, PartitionError, PartitionRecords
from deltaq.consumer.fetcher import Fetcher, FetchSettings
from deltaq.consumer.subscription import NO_MEMBER, RebalanceCallback, Subscription, Wanted, is_cooperative
from deltaq.errors import InvalidConfig, KafkaError, KafkaException, Unavailable, UnknownTopic, WrongState
from deltaq.groups.log import GroupLog
from deltaq.groups.membership import GroupSettings, Membership
from deltaq.groups.offset_commits import OffsetCommitter, ToCommit
from deltaq.groups.state import Member
from deltaq.message import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    OFFSET_TAIL_BASE,
    FetchedMessage,
    Message,
    TopicPartition,
    event,
)
from deltaq.metadata import ClusterMetadata, cluster_id, list_topics
from deltaq.names import check_group, check_topic
from deltaq.root import open_root
from deltaq.serde.schema import TopicSchema
from deltaq.store import Store
from deltaq.store.parallel import within
from deltaq.topic import Topic
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.metadata import NewTopicPlan
from deltaq.topics.state import TopicHead
from deltaq.version import __version__
from deltaq.weak import weakly

if TYPE_CHECKING:
    from deltaq.maintenance.groups import BackgroundGroupMaintenance

__all__ = ["Consumer"]

P = ParamSpec("P")
R = TypeVar("R")
_Part: TypeAlias = "Membership | OffsetCommitter | Fetcher | BackgroundGroupMaintenance"

_log = logging.getLogger("deltaq.consumer")

_SLICE_S = 0.2
"""Longest uninterrupted wait, in seconds. Between waits, Ctrl-C and group changes are handled."""

CLOSE_WAIT_S = 10.0
"""Seconds that `close` waits for running maintenance of the group. The next maintenance of the group continues it."""

_CONSUME_MAX = 1_000_000
_LOGICAL = (OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, OFFSET_INVALID)


def _no_callback(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    """The default of a rebalance callback: does nothing. Passing None is a TypeError, as in Kafka."""


def _exclusive(method: Callable[Concatenate[Consumer, P], R]) -> Callable[Concatenate[Consumer, P], R]:
    """Decorate a method that must not be re-entered on the same thread: a nested call could deadlock on its locks.

    Only a signal handler can nest calls. A nested `close` is delayed until this call ends; other methods raise
    WrongState.
    """

    @wraps(method)
    def call(self: Consumer, /, *arguments: P.args, **keywords: P.kwargs) -> R:
        self._check_open()
        self._check_not_inside()
        thread = this_thread()
        try:
            self._inside.add(thread)
            return method(self, *arguments, **keywords)
        finally:
            self._inside.discard(thread)
            if self._is_close_delayed:
                self.close()

    return call


class Consumer:
    """Reads messages from topics as a member of a group. Mirrors `confluent_kafka.Consumer`; for one thread at a time.

    `bootstrap.servers` is the root URL. The configuration is a dict, keywords (`group_id="g"`), or both. `topics` are
    `Topic` handles whose models decode the values of topics that are read through `assign`. `store` and `clock`
    replace the built-in components. The constructor does no I/O.
    """

    def __init__(
        self,
        conf: Mapping[str, Any] | None = None,
        /,
        *,
        topics: Iterable[Topic] = (),
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        config: ConsumerConfig = parse_client_config("consumer", conf, keywords)
        self._config = config
        self._clock = clock
        self._store = open_root(config, clock) if store is None else store
        self._group = check_group(config.group_id)
        self._maintenance: BackgroundGroupMaintenance | None = None
        if config.maintenance_enable:
            from deltaq.maintenance.groups import BackgroundGroupMaintenance  # noqa: PLC0415 - `import deltaq` is lean

            self._maintenance = BackgroundGroupMaintenance(self._store, self._group, clock)
        self._group_log = GroupLog(self._store, self._group, clock, config.client_id, self._maintenance)
        self._lookup = TopicLookup(self._store, clock)
        self._schemas: dict[str, TopicSchema] = {}
        for topic in topics:
            self._name(topic)
        self._events: deque[Callable[[], object]] = deque()
        self._subscription: Subscription[Consumer] | None = None
        self._inside: set[int] = set()  # ids of the threads that are inside a method, but not in a callback
        self._is_close_delayed = False
        self._closed = False
        self._why_closed = "Consumer closed"
        self._fetcher: Fetcher | None = None
        self._held: Assignment | None = None
        self._committer: OffsetCommitter | None = None
        self._parts: set[_Part] = set()  # those that have threads
        _CONSUMERS.add(self)
        self._dropped = finalize(self, _dropped, self._group, self._parts)
        self._dropped.atexit = False  # `_end_threads` handles the exit of the process
        started = config.client_id, self._group, self._store.url, __version__
        _log.info("consumer started client.id=%r group=%r root=%r version=%s", *started)

    # --- choosing what to read ---

    @_exclusive
    def subscribe(
        self,
        topics: list[str] | list[Topic] | list[str | Topic],
        on_assign: RebalanceCallback[Consumer] = _no_callback,
        on_revoke: RebalanceCallback[Consumer] = _no_callback,
        on_lost: RebalanceCallback[Consumer] = _no_callback,
    ) -> None:
        """Read these topics as a member of the group. Replaces the previous subscription.

        A name that starts with `^` is a regular expression. Values of a `Topic` with a model are decoded to instances
        of the model. The callbacks get (consumer, partitions) and run inside `poll`, `consume`, `unsubscribe` and
        `close`.
        """
        if not isinstance(topics, list):
            raise TypeError(f"topics must be a list, not {type(topics).__name__}")
        given = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        for kind, callback in given.items():
            if not callable(callback):
                raise TypeError(f"on_{kind} must be callable, not {type(callback).__name__}")
        if not topics:
            raise InvalidConfig("subscribe() needs at least one topic; unsubscribe() ends a subscription", key="topics")
        names = [self._name(topic) for topic in topics]
        wanted = Wanted(names)
        self._unsubscribe()
        held = self._assignment()
        held.set([])  # a subscription replaces a manual assignment
        held.follow(wanted.named)
        self._subscription = Subscription(
            wanted,
            {kind: callback for kind, callback in given.items() if callback is not _no_callback},
            self._join(sorted(names)),
            self._running(),
            held,
            self._commits(),
            self._config,
            self._store,
            self._clock,
            weakly(self._on_store_unavailable, None),
        )
        self._subscription.membership.begin()

    def _join(self, topics: Iterable[str]) -> Membership:
        config = self._config
        member = Member(tuple(topics), config.client_id, socket.gethostname(), config.session_timeout_ms)
        settings = GroupSettings(
            self._config.heartbeat_interval_ms / 1000,
            self._config.max_poll_interval_ms / 1000,
        )
        # A separate GroupLog: an offset commit that waits for the store must not delay heartbeats.
        log = GroupLog(self._store, self._group, self._clock, self._config.client_id, self._maintenance)
        membership = Membership(self._store, log, member, settings, self._clock, self._running().queue.wake)
        self._parts.add(membership)
        return membership

    @_exclusive
    def unsubscribe(self) -> None:
        """End the subscription and leave the group. The partitions are revoked before this returns."""
        self._unsubscribe()

    def _unsubscribe(self) -> None:
        ended = self._subscription
        if ended is None:
            return
        try:
            ended.end(self)
        finally:
            self._parts.discard(ended.membership)
            if self._subscription is ended:  # a callback may have made a new subscription
                self._assignment().set([])
                self._subscription = None
        self._follow()

    @_exclusive
    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read exactly these partitions, each from its `offset`: a number or an OFFSET_ constant.

        The default is the committed offset. A partition without one starts where `auto.offset.reset` says.
        """
        if self._subscription is not None and is_cooperative(self._config):
            raise WrongState("assign() cannot be used with cooperative-sticky: call incremental_assign()")
        wanted = _checked(partitions)
        self._follow(tp.topic for tp in wanted)
        self._assignment().set(wanted)
        self._follow()
        self._was_assigned()

    def unassign(self) -> None:
        """Stop reading all partitions."""
        if is_cooperative(self._config):
            self.incremental_unassign(self.assignment())
        else:
            self.assign([])

    @_exclusive
    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Add partitions to the assignment. Raises KafkaException (_CONFLICT) for one that is assigned already."""
        self._check_incremental("assign")
        wanted = _checked(partitions)
        held = self._assignment()
        for tp in wanted:
            if held.holds(tp.topic, tp.partition):
                reason = f"{tp.topic} [{tp.partition}] is already part of the current assignment"
                raise KafkaException(KafkaError(KafkaError._CONFLICT, reason))
        self._follow(tp.topic for tp in wanted)
        held.add(wanted)
        self._was_assigned()

    @_exclusive
    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Remove partitions from the assignment. Raises InvalidConfig for one that is not assigned."""
        self._check_incremental("unassign")
        unwanted = _checked(partitions)
        held = self._held
        for tp in unwanted:
            if held is None or not held.holds(tp.topic, tp.partition):
                reason = f"{tp.topic} [{tp.partition}] can't be unassigned since it is not in the current assignment"
                raise InvalidConfig(reason, key="partitions")
        self._assignment().remove(unwanted)
        self._follow()
        self._was_assigned()

    def _check_incremental(self, what: str) -> None:
        if self._subscription is not None and not is_cooperative(self._config):
            raise WrongState(
                f"incremental_{what}() needs partition.assignment.strategy cooperative-sticky: call {what}()"
            )

    def _was_assigned(self) -> None:
        if self._subscription is not None:
            self._subscription.was_assigned()

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are assigned, sorted by topic and number."""
        self._check_open()
        return [] if self._held is None else self._held.partitions()

    # --- reading ---

    def poll(self, timeout: float | None = -1) -> Message | None:
        """The next message, or None if none arrives within `timeout` seconds (-1 or None: no limit).

        A message with an `error()` is an event, not a record. Raises GroupInUse if another consumer is the group's
        member, Fenced if another consumer replaced this one after its session timed out, and what a callback raises.
        """
        self._check_open()
        batch = self._current_batch()
        if batch is not None and batch.row < batch.count:
            row = batch.row
            message: Message = FetchedMessage(batch.records, row)
            batch.row = row + 1  # marks the message as returned
            return message
        found = self._wait_for_one(timeout)
        if found is None or self._closed:
            return None
        row = found.row
        message = found.message(row)
        found.row = row + 1
        return message

    def _current_batch(self) -> RecordBatch | None:
        """The batch that `poll` may return from directly; None if callbacks or group changes have to be handled first.

        Takes no lock.
        """
        held, subscription = self._held, self._subscription
        if held is None or self._events or not (subscription is None or subscription.is_quiet()):
            return None
        return held.batch

    @_exclusive
    def _wait_for_one(self, timeout: float | None) -> Batch | None:
        """The batch whose `row` is the next message. The caller increments `row` to mark the message as returned."""
        deadline = self._deadline(timeout)
        while True:
            self._serve()
            if self._is_ending():
                return None
            found = None if self._held is None else self._held.first()
            if found is not None:
                return found
            if not self._accept_next(deadline):
                return None

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message]:
        """Up to `num_messages` messages; fewer only if `timeout` seconds pass first (-1 or None: no limit).

        If the call ends early (Ctrl-C, an exception in a callback, a lost membership), the messages that it had
        already taken are not committed, and are returned again later.
        """
        self._check_open()
        if not 0 <= num_messages <= _CONSUME_MAX:
            raise ValueError(f"num_messages must be between 0 and {_CONSUME_MAX} (1M)")
        taking = Taking()
        if num_messages:
            self._wait_for_many(num_messages, timeout, taking)
        if self._closed:
            return []  # the messages taken are not committed, so the next member reads them
        messages = taking.messages()
        taking.returned = True
        return messages

    @_exclusive
    def _wait_for_many(self, num_messages: int, timeout: float | None, taking: Taking) -> None:
        deadline = self._deadline(timeout)
        while True:
            self._serve()
            if self._is_ending():
                return
            held = self._held
            if held is not None:
                held.drop_stale(taking)
                left = num_messages - taking.count
                if left <= 0:
                    return
                if held.take(left, taking):
                    continue
            if not self._accept_next(deadline):
                return

    def consume_arrow(self, num_rows: int = 65_536, timeout: float | None = -1) -> pa.RecordBatch | None:
        """The next records of one partition as Arrow, at most `num_rows`; None if none arrive within `timeout`
        seconds.

        The columns are `_topic`, then those of the topic's table: `_partition`, `_offset`, `_timestamp`, `_key`,
        `_headers`, and the columns of the value. An event that `poll` would return as a message with an error is
        raised as a KafkaException.
        """
        self._check_open()
        if num_rows < 1:
            raise ValueError("num_rows must be at least 1")
        taking = Taking()
        taken = self._wait_for_rows(num_rows, timeout, taking)
        if taken is None or self._closed:
            return None
        if isinstance(taken, Message):
            taking.returned = True
            raise KafkaException(taken.error())
        topic, rows = taken
        found = rows.add_column(0, "_topic", pa.repeat(topic, rows.num_rows))
        taking.returned = True
        return found

    @_exclusive
    def _wait_for_rows(self, num_rows: int, timeout: float | None, taking: Taking) -> tuple[str, Any] | Message | None:
        deadline = self._deadline(timeout)
        while True:
            self._serve()
            if self._is_ending():
                return None
            taken = None if self._held is None else self._held.take_arrow(num_rows, taking)
            if taken is not None:
                return taken
            if not self._accept_next(deadline):
                return None

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until the consumer is closed. An event other than the end of a partition is raised as a
        KafkaException."""
        while not self._closed:
            found: Batch | None = self._current_batch()
            if found is None or found.row >= found.count:
                found = self._wait_for_one(1.0)
            if found is None or self._closed:
                continue
            row = found.row
            message = found.message(row)
            error = message.error()
            found.row = row + 1
            if error is None:
                yield message
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)

    # --- positions ---

    @_exclusive
    def seek(self, partition: TopicPartition) -> None:
        """Continue at `partition.offset` (a number or an OFFSET_ constant).

        Raises WrongState for a partition that is not assigned.
        """
        (wanted,) = _checked([partition])
        held = self._held
        if held is None or not held.holds(wanted.topic, wanted.partition):
            raise WrongState(f"seek: {wanted.topic}[{wanted.partition}] is not assigned to this consumer")
        held.seek(wanted.topic, wanted.partition, wanted.offset)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """For each partition, the offset after the last message returned; OFFSET_INVALID if none was returned."""
        self._check_open()
        held = self._held
        return [
            TopicPartition(
                tp.topic, tp.partition, OFFSET_INVALID if held is None else held.position(tp.topic, tp.partition)
            )
            for tp in _listed(partitions)
        ]

    @_exclusive
    def pause(self, partitions: list[TopicPartition]) -> None:
        """Return no messages from these partitions until `resume`. Partitions that are not assigned are ignored."""
        for tp in _listed(partitions):
            self._assignment().pause(tp.topic, tp.partition)

    @_exclusive
    def resume(self, partitions: list[TopicPartition]) -> None:
        """Continue reading paused partitions. Partitions that are not assigned or not paused are ignored."""
        for tp in _listed(partitions):
            self._assignment().resume(tp.topic, tp.partition)

    @_exclusive
    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = -1, cached: bool = False
    ) -> tuple[int, int]:
        """(first offset, next offset) of a partition.

        With `cached` the store is not read: the result is what the consumer last saw of the topic, or OFFSET_INVALID
        twice for a topic that it does not read. Raises UnknownTopic, InvalidConfig for a negative partition number,
        and KafkaException (_TIMED_OUT) if the store does not answer within `timeout` seconds.
        """
        for tp in _listed([partition]):
            _check_place(tp)
        if cached:
            seen = None if self._fetcher is None else self._fetcher.seen(partition.topic)
            if seen is None or not 0 <= partition.partition < seen.head.partitions:
                return OFFSET_INVALID, OFFSET_INVALID
            head = seen.head
        else:
            head = self._within(timeout, lambda: self._lookup.head(partition.topic, partition.partition))
        return head.start_offsets[partition.partition], head.next_offsets[partition.partition]

    @_exclusive
    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float | None = -1) -> list[TopicPartition]:
        """For each partition, the first offset whose timestamp is at or after `.offset`, in milliseconds since 1970.

        The result is OFFSET_END if there is no such record. OFFSET_BEGINNING and OFFSET_END in place of a time give
        the partition's first and next offset.

        A partition that does not exist has its `error` set. Raises UnknownTopic if none of the partitions exists, and
        KafkaException (_TIMED_OUT) if the store does not answer within `timeout` seconds.
        """
        asked: dict[str, list[TopicPartition]] = {}
        for tp in _listed(partitions):
            if tp.offset < 0 and tp.offset not in (OFFSET_END, OFFSET_BEGINNING):
                raise InvalidConfig(f"{tp.offset} is not a time in milliseconds since 1970", key="partitions")
            asked.setdefault(tp.topic, []).append(tp)
        answers = self._within(
            timeout,
            lambda: {
                topic: iter(self._lookup.offsets_for_times(topic, [(tp.partition, tp.offset) for tp in places]))
                for topic, places in asked.items()
            },
        )
        results, failures = [], []
        for tp in partitions:
            answer = next(answers[tp.topic])
            if isinstance(answer, UnknownTopic):
                failures.append(answer)
                results.append(TopicPartition(tp.topic, tp.partition, error=answer.error))
            else:
                results.append(TopicPartition(tp.topic, tp.partition, answer))
        if failures and len(failures) == len(results):
            raise failures[-1]
        return results

    # --- committed offsets ---

    @overload
    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        *,
        asynchronous: Literal[False],
    ) -> list[TopicPartition]: ...

    @overload
    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
        **keywords: Any,
    ) -> list[TopicPartition] | None: ...

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
        **keywords: Any,
    ) -> list[TopicPartition] | None:
        """Commit the offset after `message`, the given `offsets`, or by default all stored offsets not committed yet.

        Asynchronous (the default): returns None immediately, and `on_commit` gets the result. Synchronous: returns the
        partitions, each with an `error` if its topic or partition does not exist. Raises KafkaException (_NO_OFFSET)
        if there is nothing to commit, UnknownTopic if none of the partitions exists, Fenced, Unavailable,
        OutcomeUnknown.
        """
        self._check_open()
        if unknown := set(keywords) - {"async"}:
            raise TypeError(f"commit() got an unexpected keyword argument {min(unknown)!r}")
        return self._commit(message, offsets, bool(keywords.get("async", asynchronous)))

    @_exclusive
    def _commit(
        self, message: Message | None, offsets: list[TopicPartition] | None, asynchronous: bool
    ) -> list[TopicPartition] | None:
        wanted = self._to_commit(message, offsets)
        committer = self._commits()
        if asynchronous:
            committer.commit_later(wanted)
            return None
        if self._subscription is not None:
            self._subscription.check_not_lost(self._group)
        return committer.commit(wanted)

    def _to_commit(self, message: Message | None, offsets: list[TopicPartition] | None) -> list[ToCommit]:
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            return [self._after(message)]
        if offsets is None:
            wanted = [] if self._committer is None else self._committer.uncommitted()
        else:
            for tp in _listed(offsets):
                _check_place(tp)
            wanted = [self._with_topic_id(tp) for tp in offsets if tp.offset >= 0]
        if not wanted:
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET))
        return wanted

    def _after(self, message: Message) -> ToCommit:
        """The offset to commit so that reading continues after `message`."""
        if not isinstance(message, Message):
            raise TypeError(f"message must be a Message, not {type(message).__name__}")
        topic, partition, offset, error = message.topic(), message.partition(), message.offset(), message.error()
        if error is not None or topic is None or partition is None or offset is None:
            reason = "the message is an event or has no offset; only a consumed record can be committed"
            raise InvalidConfig(reason, key="message")
        after = TopicPartition(topic, partition, offset + 1)
        if isinstance(message, FetchedMessage) and message.topic_id is not None:
            return ToCommit(after, message.topic_id)
        return self._with_topic_id(after)

    def _with_topic_id(self, tp: TopicPartition) -> ToCommit:
        topic_id = None if self._held is None else self._held.topic_id(tp.topic, tp.partition)
        # A copy: the application may change its object while the commit is queued.
        return ToCommit(TopicPartition(tp.topic, tp.partition, tp.offset, tp.metadata), topic_id)

    @_exclusive
    def committed(self, partitions: list[TopicPartition], timeout: float | None = -1) -> list[TopicPartition]:
        """The committed offset of each partition; OFFSET_INVALID if there is none.

        A partition that its topic does not have has its `error` set. Raises KafkaException (_TIMED_OUT) if the store
        does not answer within `timeout` seconds.
        """
        wanted = [TopicPartition(tp.topic, tp.partition) for tp in _listed(partitions)]
        return self._within(timeout, lambda: self._look_up_committed(wanted))

    def _look_up_committed(self, results: list[TopicPartition]) -> list[TopicPartition]:
        heads = {topic: self._head(topic) for topic in dict.fromkeys(result.topic for result in results)}
        known: list[tuple[TopicPartition, str]] = []
        for result in results:
            head = heads[result.topic]
            if head is not None and 0 <= result.partition < head.partitions:
                known.append((result, head.topic_id))
            elif head is not None:
                result.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        found = self._group_log.committed([(result.topic, id_, result.partition) for result, id_ in known])
        for (result, _), committed in zip(known, found, strict=True):
            if committed is not None:
                result.offset, result.metadata = committed.offset, committed.metadata
        return results

    def store_offsets(self, message: Message | None = None, offsets: list[TopicPartition] | None = None) -> None:
        """Store offsets for the next commit. Requires `enable.auto.offset.store=false`.

        Negative offsets are ignored, as in `commit`: `position` returns one before the first message.
        """
        self._check_open()
        self._check_not_inside()
        if self._config.enable_auto_offset_store:
            raise InvalidConfig("store_offsets() needs enable.auto.offset.store=false", key="enable.auto.offset.store")
        if (message is None) == (offsets is None):
            raise ValueError("expected either message or offsets")
        held = self._held
        wanted = [self._with_topic_id(tp) for tp in _listed(offsets)] if message is None else [self._after(message)]
        for entry in wanted:
            _check_place(entry.wanted)
        for entry in wanted:
            tp = entry.wanted
            if held is None or not held.holds(tp.topic, tp.partition):
                raise WrongState(f"store_offsets: {tp.topic}[{tp.partition}] is not assigned to this consumer")
            if tp.offset >= 0:
                held.store(entry)

    # --- the rest ---

    def memberid(self) -> str | None:
        """This consumer's id in the group; None while it is not a member. Each join makes a new id."""
        self._check_open()
        session = None if self._subscription is None else self._subscription.session
        return None if session is None else session.member_id

    def consumer_group_metadata(self) -> bytes:
        """Opaque bytes that identify this membership, in librdkafka's layout."""
        self._check_open()
        session = None if self._subscription is None else self._subscription.session
        generation, member_id = (-1, "") if session is None else (session.generation, session.member_id)
        texts = b"".join(text.encode() + b"\0" for text in (self._group, member_id))
        return b"CGMDv2:" + struct.pack("<i", generation) + texts + b"\x01"

    @_exclusive
    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """All topics, or only `topic`, with their partitions. `timeout` is in seconds; -1 or None is no limit."""
        return list_topics(self._store, self._clock, topic, timeout)

    @_exclusive
    def cluster_id(self, timeout: float | None = -1) -> str:  # noqa: ARG002 - Kafka's signature
        """A stable id derived from the root URL."""
        return cluster_id(self._store)

    def set_sasl_credentials(self, username: str, password: str) -> None:  # noqa: ARG002 - Kafka's signature
        """Has no effect: a store takes its credentials from the `store.*` settings or from the environment."""
        self._check_open()

    def close(self) -> None:
        """Commit the stored offsets (with auto-commit), revoke the partitions and leave the group. Idempotent.

        An exception of a callback is raised after everything is closed. If a signal handler calls `close` inside
        another call of this consumer on the same thread, that call ends soon, and closes the consumer as it ends.
        """
        if self._closed:
            return
        thread = this_thread()
        if thread in self._inside:
            self._is_close_delayed = True
            return
        try:
            self._inside.add(thread)
            self._close()
        finally:
            self._inside.discard(thread)

    def _close(self) -> None:
        try:
            try:
                self._unsubscribe()
            finally:
                if self._committer is not None:
                    if self._config.enable_auto_commit:
                        self._committer.commit_stored(wait=True)
                    self._committer.close()
                self._run_events()
        finally:
            self._closed = True
            self._dropped.detach()
            if self._fetcher is not None:
                self._fetcher.close()
            if self._maintenance is not None:
                self._maintenance.stop(CLOSE_WAIT_S)
            _CONSUMERS.discard(self)  # last: after an interrupted close, the exit of the process ends the threads
            _log.info("consumer closed client.id=%r group=%r", self._config.client_id, self._group)

    def _end_threads(self) -> None:
        self._closed = True
        if self._subscription is not None:
            self._subscription.membership.close()
        if self._committer is not None:
            self._committer.close()
        if self._fetcher is not None:
            self._fetcher.close()
        if self._maintenance is not None:
            self._maintenance.stop(CLOSE_WAIT_S)

    def __enter__(self) -> Consumer:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer {self._store.url} group={self._group!r}>"

    # --- components, started at first use ---

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(self._why_closed)

    def _check_not_inside(self) -> None:
        """Raise WrongState if a signal handler makes this call inside another one on the same thread."""
        if self._inside and this_thread() in self._inside:
            raise WrongState(
                "a signal handler called this consumer inside another of its calls; set a flag in the handler, "
                "and handle it after that call has returned"
            )

    def _call_out(self, call: Callable[[], object], /) -> None:
        """Run a callback of the application, which may call this consumer."""
        thread = this_thread()
        was_inside = thread in self._inside
        try:
            self._inside.discard(thread)
            call()
        finally:
            if was_inside:
                self._inside.add(thread)

    def _deadline(self, timeout: float | None) -> float:
        return self._clock.monotonic() + checked_timeout(timeout)

    def _within(self, timeout: float | None, ask: Callable[[], R]) -> R:
        return within(self._clock, checked_timeout(timeout), ask)

    def _is_ending(self) -> bool:
        """Whether a callback has closed the consumer, or a signal handler has called `close`."""
        return self._closed or self._is_close_delayed

    def _name(self, topic: str | Topic) -> str:
        if isinstance(topic, Topic):
            if topic.schema is not None:
                self._schemas[topic.name] = topic.schema
            return topic.name
        if not isinstance(topic, str):
            raise TypeError(f"a topic must be str or Topic, not {type(topic).__name__}")
        return topic

    def _running(self) -> Fetcher:
        if self._fetcher is None:
            plan = NewTopicPlan(self._config.num_partitions, None, topic_properties({}))
            settings = FetchSettings(
                self._config.queued_max_messages_kbytes * 1024,
                self._config.fetch_max_bytes,
                self._config.auto_offset_reset,
                self._config.fetch_wait_max_ms / 1000,
                self._config.enable_partition_eof,
                plan if self._config.allow_auto_create_topics else None,
            )
            stored = partial(_stored_offsets, self._group_log)
            self._fetcher = Fetcher(self._store, settings, stored, self._clock, self._group, self._lookup)
            self._parts.add(self._fetcher)
        self._fetcher.begin()
        return self._fetcher

    def _assignment(self) -> Assignment:
        if self._held is None:
            store_on_delivery = self._config.enable_auto_offset_store
            self._held = Assignment(self._running(), self._schemas.get, store_on_delivery)
            self._commits()
        return self._held

    def _commits(self) -> OffsetCommitter:
        if self._committer is None:
            interval_ms = self._config.auto_commit_interval_ms if self._config.enable_auto_commit else 0
            self._committer = OffsetCommitter(
                self._group_log,
                weakly(self._committing_member, NO_MEMBER),
                weakly(self._topic_now, None),
                self._assignment().stored,
                weakly(self._on_committed, None),
                interval_ms / 1000 if interval_ms else None,
                self._clock,
            )
            self._parts.add(self._committer)
            if self._maintenance is not None:
                self._parts.add(self._maintenance)
        self._committer.begin()
        return self._committer

    def _topic_now(self, topic: str) -> tuple[str, int] | None:
        seen = None if self._fetcher is None else self._fetcher.seen(topic)
        head = self._head(topic) if seen is None else seen.head
        return None if head is None else (head.topic_id, head.partitions)

    def _head(self, topic: str) -> TopicHead | None:
        """The current head of a topic; None if the topic does not exist."""
        try:
            return self._lookup.head(topic)
        except UnknownTopic:
            return None

    def _committing_member(self) -> str | None:
        subscription = self._subscription
        return None if subscription is None else subscription.committing_member()

    def _on_committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        callback = self._config.on_commit
        if callback is not None:
            self._events.append(lambda: callback(error, partitions))

    def _on_store_unavailable(self, error: Unavailable) -> None:
        callback = self._config.error_cb
        if callback is not None:
            self._events.append(lambda: callback(error.error))

    def _follow(self, more: Iterable[str] = ()) -> None:
        """Follow the logs of all topics that are subscribed to, matched, assigned, or (`more`) about to be
        assigned."""
        wanted = Wanted(()) if self._subscription is None else self._subscription.wanted
        self._assignment().follow(wanted.named, wanted.matched, more)

    # --- work between two messages ---

    def _serve(self) -> None:
        """Do the work that belongs to the application's thread: callbacks and changes of the assignment."""
        if self._events:
            self._run_events()
        if self._subscription is not None and self._held is not None:
            raised = self._subscription.serve(self)
            if raised is not None:
                self._held.put_first(raised)

    def _run_events(self) -> None:
        while self._events:
            self._call_out(self._events.popleft())

    def _accept_next(self, deadline: float) -> bool:
        """Accept the fetcher's next item, waiting for it until `deadline`. False if the deadline has passed."""
        left = min(_SLICE_S, deadline - self._clock.monotonic())
        if self._fetcher is None or self._held is None:
            if left > 0:
                self._clock.sleep(left)
            return left > 0
        item = self._fetcher.queue.first(left)
        if item is None:
            return left > 0
        if isinstance(item, PartitionRecords):
            self._held.accept(item)
        elif isinstance(item, PartitionEnd):
            if self._held.is_current(item.topic, item.partition, item.epoch):
                self._held.accept_event(item, item.topic, item.partition, _end_of_partition(item))
        elif isinstance(item, PartitionError):
            if self._concerns(self._held, item):
                message = event(item.error.error, item.topic, item.partition, item.offset)
                self._held.accept_event(item, item.topic, item.partition, message)
        else:
            self._on_store_unavailable(item.error)
        self._fetcher.queue.remove(item)
        return True

    def _concerns(self, held: Assignment, item: PartitionError) -> bool:
        """Whether to report an error to the application."""
        if item.partition >= 0:
            return held.is_current(item.topic, item.partition, item.epoch)
        # The deletion of a topic that only a pattern matched is no error: the topic no longer matches.
        by_pattern = self._subscription is not None and self._subscription.wanted.is_only_matched(item.topic)
        return not (by_pattern and isinstance(item.error, UnknownTopic))


def _stored_offsets(log: GroupLog, topic: str, topic_id: str, partitions: Iterable[int]) -> list[int | None]:
    found = log.committed([(topic, topic_id, partition) for partition in partitions])
    return [None if committed is None else committed.offset for committed in found]


def _dropped(group: str, parts: Iterable[_Part]) -> None:
    """End the threads of a consumer that was garbage-collected without `close`.

    This may run in any thread, including one of the consumer's own.
    """
    if parts:
        text = "a Consumer of group %r was garbage-collected without close(): it leaves the group and commits nothing"
        _log.warning(text, group)
    _ENDING.difference_update([thread for thread in tuple(_ENDING) if not thread.is_alive()])
    _ENDING.update([thread for thread in [part.abandon() for part in tuple(parts)] if thread is not None])


_CONSUMERS: WeakSet[Consumer] = WeakSet()
_ENDING: set[Thread] = set()
"""The threads of garbage-collected consumers. They may still be leaving their group."""


def _refuse_forked() -> None:
    """In a forked child, make the parent's consumers unusable: their threads and memberships stay in the parent."""
    for consumer in tuple(_CONSUMERS):
        consumer._closed = True
        consumer._dropped.detach()
        consumer._why_closed = "this Consumer was created before the process forked: create one in the child"
    _CONSUMERS.clear()
    _ENDING.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_forked)


def _end_threads() -> None:
    """At exit, end the threads of consumers that were not closed.

    Python must not finalize while such a thread reads. As if the process had died, nothing is committed and no
    callback runs; but the consumer leaves its group, so the next member need not wait for the session time-out.
    """
    for consumer in tuple(_CONSUMERS):
        consumer._end_threads()
    while _ENDING:
        _ENDING.pop().join()


atexit.register(_end_threads)


def _listed(partitions: object) -> list[TopicPartition]:
    if not isinstance(partitions, list) or not all(isinstance(tp, TopicPartition) for tp in partitions):
        raise TypeError("expected a list of TopicPartition")
    return partitions


def _check_place(tp: TopicPartition) -> None:
    """Raise InvalidConfig for an invalid topic name, an offset of 2^63-1 or more, and a negative partition."""
    check_topic(tp.topic)
    if tp.offset >= 2**63 - 1:
        reason = f"offset {tp.offset} of {tp.topic}[{tp.partition}] is beyond the last that there can be"
        raise InvalidConfig(reason, key="offset")
    if tp.partition < 0:
        raise InvalidConfig(f"partition {tp.partition} of topic {tp.topic!r} is negative", key="partition")


def _checked(partitions: object) -> list[TopicPartition]:
    """`partitions` if they can be assigned: valid offsets, no duplicates. Raises TypeError, InvalidConfig."""
    listed = _listed(partitions)
    for tp in listed:
        _check_place(tp)
        if tp.offset < 0 and tp.offset not in _LOGICAL and tp.offset > OFFSET_TAIL_BASE:
            reason = f"offset {tp.offset} of {tp.topic}[{tp.partition}] is neither an offset nor an OFFSET_ constant"
            raise InvalidConfig(reason, key="offset")
    if len(set(listed)) < len(listed):
        raise InvalidConfig("the list names a partition twice", key="partitions")
    return listed


def _end_of_partition(end: PartitionEnd) -> Message:
    reason = f"Reached the end of {end.topic} [{end.partition}] at offset {end.offset}"
    return event(KafkaError(KafkaError._PARTITION_EOF, reason), end.topic, end.partition, end.offset)
