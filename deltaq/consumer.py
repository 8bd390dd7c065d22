"""The consumer: `confluent_kafka.Consumer` on Delta logs."""

from __future__ import annotations

import re
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeAlias

import pyarrow as pa

from deltaq.assignment import Assignment
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config import ConsumerConfig, parse_client_config
from deltaq.errors import InvalidConfig, KafkaError, KafkaException, UnknownTopic, WrongState
from deltaq.group.committer import OffsetCommitter
from deltaq.group.group_log import GroupLog
from deltaq.group.group_state import Member
from deltaq.group.membership import GroupSettings, Membership
from deltaq.log.fetcher import Fetcher, FetchSettings, PartitionEnd, PartitionError, PartitionRecords
from deltaq.log.lookup import TopicLookup
from deltaq.message import OFFSET_END, OFFSET_INVALID, Message, TopicPartition
from deltaq.metadata import ClusterMetadata, cluster_id, list_topics, topic_names
from deltaq.names import check_group, check_topic
from deltaq.root import open_root
from deltaq.serde.typed import TopicSchema
from deltaq.store import Store
from deltaq.topic import Topic

__all__ = ["Consumer"]

RebalanceCallback: TypeAlias = "Callable[[Consumer, list[TopicPartition]], object]"

_SLICE_S = 0.2
"""Longest uninterrupted wait, so that Ctrl-C is answered and group changes are seen."""

_CONSUME_MAX = 1_000_000


class Consumer:
    """Reads messages from topics as a member of a group. Mirrors `confluent_kafka.Consumer`; for one thread at a time.

    `bootstrap.servers` is the root URL. Configuration as a dict, as keywords (`group_id="g"`), or both; `store` and `clock`
    replace the components behind it. Does no I/O until it is used.
    """

    def __init__(
        self,
        conf: Mapping[str, Any] | None = None,
        /,
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        config = parse_client_config("consumer", conf, keywords)
        assert isinstance(config, ConsumerConfig)
        self._config = config
        self._clock = clock
        self._store = open_root(config, clock) if store is None else store
        self._group = check_group(config.group_id)
        self._group_log = GroupLog(self._store, self._group, clock, config.client_id)
        self._lookup = TopicLookup(self._store, clock)
        self._schemas: dict[str, TopicSchema] = {}
        self._events: deque[Callable[[], object]] = deque()
        self._subscribed: frozenset[str] = frozenset()
        self._patterns: tuple[re.Pattern[str], ...] = ()
        self._patterns_checked_at = float("-inf")
        self._callbacks: dict[str, RebalanceCallback] = {}
        self._callback_assigned = False
        self._membership: Membership | None = None
        self._owns_group_assignment = False
        self._group_assignment: list[TopicPartition] = []
        self._closed = False
        self._fetcher: Fetcher | None = None
        self._held: Assignment | None = None
        self._committer: OffsetCommitter | None = None

    # --- choosing what to read ---

    def subscribe(
        self,
        topics: list[str] | list[Topic] | list[str | Topic],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Read these topics as a member of the group; replaces the previous subscription.

        A name that starts with `^` is a regular expression. A `Topic` with a model makes values instances of it. The
        callbacks get (consumer, partitions) and run inside `poll`, `consume` and `close`.
        """
        self._check_open()
        if not isinstance(topics, list):
            raise TypeError(f"topics must be a list, not {type(topics).__name__}")
        if not topics:
            raise InvalidConfig("subscribe() needs at least one topic; unsubscribe() ends a subscription", key="topics")
        names = [self._name(topic) for topic in topics]
        self.unsubscribe()
        self._subscribed = frozenset(check_topic(name) for name in names if not name.startswith("^"))
        self._patterns = tuple(_pattern(name) for name in names if name.startswith("^"))
        self._patterns_checked_at = float("-inf")
        given = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._callbacks = {name: callback for name, callback in given.items() if callback is not None}
        member = Member(tuple(sorted(names)), self._config.client_id, socket.gethostname())
        settings = GroupSettings(
            self._config.session_timeout_ms / 1000,
            self._config.heartbeat_interval_ms / 1000,
            self._config.max_poll_interval_ms / 1000,
        )
        fetcher = self._running()
        fetcher.follow(self._subscribed)
        self._membership = Membership(self._store, self._group_log, member, settings, self._clock, fetcher.wake)

    def unsubscribe(self) -> None:
        """End the subscription and leave the group. The partitions are revoked at once."""
        self._check_open()
        if self._membership is not None:
            self._revoke("revoke")
            self._membership.close()
        self._membership = None
        self._subscribed, self._patterns = frozenset(), ()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read exactly these partitions, each from its `offset`: a number, OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, or by
        default the committed offset, else `auto.offset.reset`."""
        self._check_open()
        if self._membership is not None and self._is_cooperative():
            raise WrongState("assign() cannot be used with cooperative-sticky: call incremental_assign()")
        wanted = self._checked(partitions)
        self._callback_assigned = True
        fetcher = self._running()
        if self._membership is None:
            fetcher.follow({tp.topic for tp in wanted})
        self._assignment().set(wanted)

    def unassign(self) -> None:
        """Read nothing."""
        self._check_open()
        self._callback_assigned = True
        self._running()
        self._assignment().set([])

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions too."""
        self._check_open()
        if self._membership is not None and not self._is_cooperative():
            raise WrongState("incremental_assign() needs partition.assignment.strategy cooperative-sticky: call assign()")
        wanted = self._checked(partitions)
        self._callback_assigned = True
        fetcher = self._running()
        if self._membership is None:
            held = {tp.topic for tp in self._assignment().partitions()}
            fetcher.follow(held | {tp.topic for tp in wanted})
        self._assignment().add(wanted)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions no longer."""
        self._check_open()
        if self._membership is not None and not self._is_cooperative():
            raise WrongState("incremental_unassign() needs partition.assignment.strategy cooperative-sticky: call unassign()")
        self._callback_assigned = True
        self._assignment().remove(self._checked(partitions))

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are being read."""
        self._check_open()
        return [] if self._held is None else self._held.partitions()

    # --- reading ---

    def poll(self, timeout: float | None = -1) -> Message | None:
        """The next message, or None if none came within `timeout` seconds (-1 or None: wait for ever).

        A message with an `error()` is an event, not a record. Raises GroupInUse if another consumer holds the group,
        and whatever a callback raises.
        """
        self._check_open()
        held = self._held
        if held is not None and self._membership is None and not self._events:
            message: Message | None = held.take_one()
            if message is not None:
                return message
        deadline = self._deadline(timeout)
        while True:
            self._serve()
            message = None if self._held is None else self._held.take_one()
            if message is None:
                message = self._next_event(deadline)
            if message is not None:
                return message
            if self._clock.monotonic() >= deadline and (self._held is None or not self._held.ready):
                return None

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message]:
        """Up to `num_messages` messages; fewer only if `timeout` seconds pass before there are as many."""
        self._check_open()
        if not 0 <= num_messages <= _CONSUME_MAX:
            raise ValueError(f"num_messages must be between 0 and {_CONSUME_MAX} (1M)")
        deadline = self._deadline(timeout)
        messages: list[Message] = []
        while len(messages) < num_messages:
            self._serve()
            if self._held is not None and self._held.ready:
                messages += self._held.take(num_messages - len(messages))
                continue
            event = self._next_event(deadline)
            if event is not None:
                messages.append(event)
            elif self._clock.monotonic() >= deadline and (self._held is None or not self._held.ready):
                break
        return messages

    def consume_arrow(self, num_rows: int = 65_536, timeout: float | None = -1) -> pa.RecordBatch | None:
        """The next records of one partition as Arrow, `num_rows` at most; None if none came within `timeout` seconds.

        The columns are `_topic`, then those of the topic's table: `_partition`, `_offset`, `_timestamp`, `_key`, `_headers`, and the
        value's. An event that `poll` would return as a message with an error is raised as a KafkaException.
        """
        self._check_open()
        if num_rows < 1:
            raise ValueError("num_rows must be at least 1")
        deadline = self._deadline(timeout)
        while True:
            self._serve()
            taken = None if self._held is None else self._held.take_arrow(num_rows)
            if taken is not None:
                topic, rows = taken
                return rows.add_column(0, "_topic", pa.repeat(topic, rows.num_rows))
            event = self._next_event(deadline)
            if event is not None and event.error() is not None:
                raise KafkaException(event.error())
            if self._clock.monotonic() >= deadline and (self._held is None or not self._held.ready):
                return None

    def __iter__(self) -> Iterator[Message]:
        """Messages for ever, until the consumer is closed. An event other than the end of a partition is raised."""
        while not self._closed:
            message = self.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)

    # --- positions ---

    def seek(self, partition: TopicPartition) -> None:
        """Go on at `partition.offset` (a number or an OFFSET_ constant). WrongState for a partition that is not assigned."""
        self._check_open()
        held = self._assignment()
        if not held.holds(partition.topic, partition.partition):
            raise WrongState(f"seek: {partition.topic}[{partition.partition}] is not assigned to this consumer")
        held.seek(partition.topic, partition.partition, partition.offset)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The offset after the last message returned, for each partition; OFFSET_INVALID where there was none."""
        self._check_open()
        held = self._held
        return [
            TopicPartition(
                tp.topic, tp.partition, OFFSET_INVALID if held is None else held.position(tp.topic, tp.partition)
            )
            for tp in partitions
        ]

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Return nothing from these partitions until `resume`; ones that are not assigned are passed over."""
        self._check_open()
        for tp in partitions:
            self._assignment().pause(tp.topic, tp.partition)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Go on with paused partitions."""
        self._check_open()
        for tp in partitions:
            self._assignment().resume(tp.topic, tp.partition)

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = -1, cached: bool = False
    ) -> tuple[int, int]:
        """(first offset, next offset) of a partition; `cached` gives what was seen while fetching. UnknownTopic."""
        self._check_open()
        if cached and self._fetcher is not None and (seen := self._fetcher.seen(partition.topic)) is not None:
            head = seen[1]
        else:
            head = self._lookup.head(partition.topic)
        if not 0 <= partition.partition < head.partitions:
            raise UnknownTopic(partition.topic, partition=partition.partition)
        return head.start_offsets[partition.partition], head.next_offsets[partition.partition]

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float | None = -1) -> list[TopicPartition]:
        """For each partition the first offset whose timestamp is at or after `.offset` (milliseconds); OFFSET_END if none is."""
        self._check_open()
        results = []
        for tp in partitions:
            try:
                offset = self._lookup.offset_for_time(tp.topic, tp.partition, tp.offset)
            except UnknownTopic as error:
                results.append(TopicPartition(tp.topic, tp.partition, OFFSET_INVALID, error=error.args[0]))
            else:
                results.append(TopicPartition(tp.topic, tp.partition, OFFSET_END if offset is None else offset))
        return results

    # --- committed offsets ---

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
        **keywords: Any,
    ) -> list[TopicPartition] | None:
        """Commit the position after `message`, the `offsets` given, or what is stored.

        Asynchronous: None at once, the outcome goes to `on_commit`. Otherwise the partitions, each with an `error` if it
        failed. Raises KafkaException _NO_OFFSET if there is nothing to commit, Fenced, Unavailable, OutcomeUnknown.
        """
        self._check_open()
        if unknown := set(keywords) - {"async"}:
            raise TypeError(f"commit() got an unexpected keyword argument {min(unknown)!r}")
        wanted = self._to_commit(message, offsets)
        self._running()
        committer = self._committer
        assert committer is not None
        if keywords.get("async", asynchronous):
            committer.commit_later(wanted)
            return None
        return committer.commit(wanted)

    def _to_commit(self, message: Message | None, offsets: list[TopicPartition] | None) -> list[TopicPartition]:
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            return [_after(message)]
        if offsets is None:
            offsets = [] if self._held is None else self._held.stored_offsets()
        wanted = [tp for tp in offsets if tp.offset >= 0]
        if not wanted:
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET))
        return wanted

    def committed(self, partitions: list[TopicPartition], timeout: float | None = -1) -> list[TopicPartition]:
        """The committed offset of each partition: OFFSET_INVALID where there is none, `error` for an unknown partition."""
        self._check_open()
        results = []
        for tp in partitions:
            result = TopicPartition(tp.topic, tp.partition)
            try:
                head = self._lookup.head(tp.topic)
                if not 0 <= tp.partition < head.partitions:
                    raise UnknownTopic(tp.topic, partition=tp.partition)
            except UnknownTopic:
                result.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            else:
                (found,) = self._group_log.committed([(tp.topic, head.topic_id, tp.partition)])
                if found is not None:
                    result.offset, result.metadata = found.offset, found.metadata
            results.append(result)
        return results

    def store_offsets(self, message: Message | None = None, offsets: list[TopicPartition] | None = None) -> None:
        """Note what the next commit is to commit. Needs `enable.auto.offset.store=false`."""
        self._check_open()
        if self._config.enable_auto_offset_store:
            raise InvalidConfig("store_offsets() needs enable.auto.offset.store=false", key="enable.auto.offset.store")
        if (message is None) == (offsets is None):
            raise ValueError("store_offsets() needs either message or offsets")
        held = self._assignment()
        for tp in [_after(message)] if message is not None else offsets or []:
            if not held.holds(tp.topic, tp.partition):
                raise WrongState(f"store_offsets: {tp.topic}[{tp.partition}] is not assigned to this consumer")
            held.store(tp.topic, tp.partition, tp.offset, tp.metadata)

    # --- the rest ---

    def memberid(self) -> str | None:
        """This consumer's id in the group; None while it is not subscribed."""
        self._check_open()
        return None if self._membership is None else self._membership.member_id

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """All topics, or one, with their partitions."""
        self._check_open()
        return list_topics(self._store, self._clock, topic, timeout)

    def cluster_id(self, timeout: float | None = -1) -> str:
        """A stable id of the root URL."""
        self._check_open()
        return cluster_id(self._store)

    def close(self) -> None:
        """Commit what is stored (with auto-commit), give the partitions back and leave the group. Idempotent."""
        if self._closed:
            return
        try:
            self.unsubscribe()
            if self._config.enable_auto_commit and self._committer is not None:
                self._committer.commit_stored()
            self._run_events()
        finally:
            self._closed = True
            if self._committer is not None:
                self._committer.close()
            if self._fetcher is not None:
                self._fetcher.close()

    def __enter__(self) -> Consumer:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer {self._store.url} group={self._group!r}>"

    # --- inside ---

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")

    def _deadline(self, timeout: float | None) -> float:
        return float("inf") if timeout is None or timeout < 0 else self._clock.monotonic() + timeout

    def _name(self, topic: str | Topic) -> str:
        if isinstance(topic, Topic):
            if topic.schema is not None:
                self._schemas[topic.name] = topic.schema
            return topic.name
        if not isinstance(topic, str):
            raise TypeError(f"a topic must be str or Topic, not {type(topic).__name__}")
        return topic

    def _checked(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        if not isinstance(partitions, list) or not all(isinstance(tp, TopicPartition) for tp in partitions):
            raise TypeError("expected a list of TopicPartition")
        for tp in partitions:
            check_topic(tp.topic)
            if tp.partition < 0:
                raise InvalidConfig(f"partition {tp.partition} of topic {tp.topic!r} is negative", key="partition")
        return partitions

    def _is_cooperative(self) -> bool:
        return self._config.partition_assignment_strategy == ("cooperative-sticky",)

    def _running(self) -> Fetcher:
        """The fetcher, started with the other threads at first use."""
        if self._fetcher is None:
            settings = FetchSettings(
                self._config.queued_max_messages_kbytes * 1024,
                self._config.auto_offset_reset,
                self._config.fetch_wait_max_ms / 1000,
                self._config.enable_partition_eof,
            )
            self._fetcher = Fetcher(self._store, settings, self._stored_offset, self._clock, self._group)
            self._held = Assignment(
                self._fetcher, self._schemas.get, self._config.enable_auto_offset_store, self._clock
            )
            interval_ms = self._config.auto_commit_interval_ms if self._config.enable_auto_commit else 0
            self._committer = OffsetCommitter(
                self._group_log,
                self._member_id,
                self._topic_id,
                self._held.stored_offsets,
                self._on_committed,
                interval_ms / 1000 if interval_ms else None,
                self._clock,
            )
        return self._fetcher

    def _assignment(self) -> Assignment:
        self._running()
        assert self._held is not None
        return self._held

    def _stored_offset(self, topic: str, topic_id: str, partition: int) -> int | None:
        (found,) = self._group_log.committed([(topic, topic_id, partition)])
        return None if found is None else found.offset

    def _topic_id(self, topic: str) -> str | None:
        seen = None if self._fetcher is None else self._fetcher.seen(topic)
        if seen is not None:
            return seen[0].topic_id
        try:
            return self._lookup.head(topic).topic_id
        except UnknownTopic:
            return None

    def _member_id(self) -> str | None:
        return None if self._membership is None else self._membership.member_id

    def _on_committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        callback = self._config.on_commit
        if callback is not None:
            self._events.append(lambda: callback(error, partitions))

    def _serve(self) -> None:
        """Run what has to run on the application's thread: callbacks, and changes of the assignment."""
        if self._events:
            self._run_events()
        membership = self._membership
        if membership is None:
            return
        if membership.polled():
            self._revoke("lost")
            raise KafkaException(KafkaError(KafkaError._MAX_POLL_EXCEEDED, "poll() was not called within max.poll.interval.ms"))
        if not membership.joined:
            if self._owns_group_assignment:
                self._revoke("lost")
            error = membership.take_error()
            if error is not None:
                raise error
            return
        self._match_patterns()
        self._follow_growth()

    def _run_events(self) -> None:
        while self._events:
            self._events.popleft()()

    def _match_patterns(self) -> None:
        """Look for topics that the subscription's regular expressions match, every `topic.metadata.refresh.interval.ms`."""
        now = self._clock.monotonic()
        if self._patterns and now - self._patterns_checked_at >= self._config.topic_metadata_refresh_interval_ms / 1000:
            self._patterns_checked_at = now
            found = {name for name in topic_names(self._store) if any(p.search(name) for p in self._patterns)}
            self._running().follow(self._subscribed | found)

    def _follow_growth(self) -> None:
        """Hold all partitions of all subscribed topics; tell the application when these have become others."""
        wanted = [
            TopicPartition(topic, partition)
            for topic, count in sorted(self._running().counts().items())
            for partition in range(count or 0)
        ]
        if self._owns_group_assignment and set(wanted) == set(self._group_assignment):
            return
        if not wanted and not self._owns_group_assignment:
            return
        if self._owns_group_assignment and not self._is_cooperative():
            self._revoke("revoke")
        elif self._owns_group_assignment:
            gone = [tp for tp in self._group_assignment if tp not in set(wanted)]
            if gone:
                self._call("revoke", gone, lambda: self.incremental_unassign(gone))
        before = self._group_assignment if self._owns_group_assignment else []
        new = [tp for tp in wanted if tp not in set(before)]
        self._owns_group_assignment, self._group_assignment = True, wanted
        if self._is_cooperative():
            self._call("assign", new, lambda: self.incremental_assign(new))
        else:
            self._call("assign", wanted, lambda: self.assign(wanted))

    def _revoke(self, why: str) -> None:
        """Give all partitions back, having committed what is stored unless they are lost already."""
        if not self._owns_group_assignment:
            return
        assert self._committer is not None
        partitions, self._group_assignment = self._group_assignment, []
        self._owns_group_assignment = False
        if why == "lost" and "lost" not in self._callbacks:
            self._call("revoke", partitions, self.unassign)
        else:
            if why == "revoke" and self._config.enable_auto_commit:
                self._committer.commit_stored()
            self._call(why, partitions, self.unassign)
        self._committer.forget()

    def _call(self, name: str, partitions: list[TopicPartition], otherwise: Callable[[], None]) -> None:
        """Run a rebalance callback; what it does not do itself is done after it."""
        self._callback_assigned = False
        callback = self._callbacks.get(name)
        if callback is not None:
            callback(self, [TopicPartition(tp.topic, tp.partition) for tp in partitions])
        if not self._callback_assigned:
            otherwise()

    def _next_event(self, deadline: float) -> Message | None:
        """Take the next thing from the fetcher: records become ready in the assignment, an event comes back as a message."""
        left = min(_SLICE_S, deadline - self._clock.monotonic())
        if self._fetcher is None or self._held is None:
            if left > 0:
                self._clock.sleep(left)
            return None
        item = self._fetcher.next(left)
        if isinstance(item, PartitionRecords):
            self._held.accept(item)
        elif isinstance(item, PartitionEnd):
            if self._held.is_current(item.topic, item.partition, item.epoch):
                return _end_of_partition(item)
        elif isinstance(item, PartitionError):
            if item.partition < 0 or self._held.is_current(item.topic, item.partition, item.epoch):
                error: KafkaError = item.error.args[0]
                partition = None if item.partition < 0 else item.partition
                return Message(item.topic, str(error.str()).encode(), None, partition, error=error)
        return None


def _pattern(name: str) -> re.Pattern[str]:
    try:
        return re.compile(name)
    except re.error as error:
        raise InvalidConfig(f"{name!r} is not a regular expression: {error}", key="topics") from error


def _after(message: Message) -> TopicPartition:
    """Where to read on after a message."""
    topic, partition, offset, error = message.topic(), message.partition(), message.offset(), message.error()
    if error is not None or topic is None or partition is None or offset is None:
        raise InvalidConfig("the message is an event or has no offset; only a consumed record can be committed", key="message")
    return TopicPartition(topic, partition, offset + 1)


def _end_of_partition(end: PartitionEnd) -> Message:
    error = KafkaError(KafkaError._PARTITION_EOF)
    return Message(end.topic, b"Broker: No more messages", None, end.partition, end.offset, error=error)
