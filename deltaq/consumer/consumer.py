"""The consumer: `confluent_kafka.Consumer` on Delta logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, overload

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout
from deltaq.config import ConsumerConfig, parse_client_config
from deltaq.consumer.calls import (
    CallGuard,
    ConsumerLifecycle,
    PendingEvents,
    assignable,
    check_count,
    check_partition,
    exclusive,
    partition_list,
    topic_name,
)
from deltaq.consumer.fetch_buffer import AcceptedBatch, AcceptedBatches, Fetch, RecordBatch
from deltaq.consumer.health import ConsumerHealth, HealthCheck, closed_health, start_statistics
from deltaq.consumer.reader import OffsetQueries, Reader, group_maintenance, open_reader, watermarks
from deltaq.consumer.reconciliation import RebalanceCallback, no_callback, rebalance_callbacks
from deltaq.consumer.subscription import SubscriptionState
from deltaq.errors import InvalidConfig, KafkaError, KafkaException
from deltaq.groups.log import GroupLog
from deltaq.groups.membership import MembershipMetadata
from deltaq.groups.rebalance import strategies
from deltaq.groups.session import GroupView
from deltaq.groups.state import NO_MEMBER
from deltaq.message import OFFSET_INVALID, FetchedMessage, K, Message, TopicPartition, V
from deltaq.metadata import ClusterMetadata, cluster_id, list_topics
from deltaq.names import check_group
from deltaq.root import open_root
from deltaq.serde.schema import TopicSchema
from deltaq.store import Store
from deltaq.topic import Topic
from deltaq.topics.columns import prepare_arrow
from deltaq.topics.lookup import TopicLookup
from deltaq.version import __version__
from deltaq.weak import weakly

R = TypeVar("R")

_log = logging.getLogger("deltaq.consumer")

_SLICE_S = 0.2
"""Longest uninterrupted wait, in seconds. Between waits, Ctrl-C and group changes are handled."""


class Consumer(Generic[K, V]):
    """Reads messages from topics as a member of a group. Mirrors `confluent_kafka.Consumer`; for
    one thread at a time.

    `bootstrap.servers` is the root URL. The configuration is a dict, keywords (`group_id="g"`), or
    both. `topics` are `Topic` handles whose models decode the values of topics that are read
    through `assign`. `store` and `clock` replace the built-in components. The constructor does no
    I/O.
    """

    _deserializes: ClassVar[bool] = False

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
        config = parse_client_config(ConsumerConfig, conf, keywords)
        self._config = config
        self._clock = clock
        self._uptime = clock.uptime
        self._store = open_root(config, clock) if store is None else store
        prepare_arrow()
        self._group = check_group(config.group_id)
        self._maintenance = group_maintenance(config, self._store, clock)
        group_log = GroupLog(self._store, self._group, clock, config.client_id, self._maintenance)
        self._queries = OffsetQueries(
            self._store, TopicLookup(self._store, clock), group_log, clock
        )
        self._schemas: dict[str, TopicSchema] = {}
        for topic in topics:
            self._name(topic)
        self._calls = CallGuard()
        self._events = PendingEvents(config, self._calls, clock)
        self._life = ConsumerLifecycle(self, self._group, self._calls, config.logger)
        self._reader: Reader | None = None
        assigning = strategies(config.partition_assignment_strategy), self._calls, self._life
        self._state: SubscriptionState[Consumer[K, V]] = SubscriptionState(
            group_log, *assigning, config, self._store, clock
        )
        start_statistics(self, config, clock, self._life)
        started = "consumer started client.id=%r group=%r root=%r version=%s"
        _log.info(started, config.client_id, self._group, self._store.url, __version__)

    # --- choosing what to read ---

    @exclusive
    def subscribe(
        self,
        topics: list[str] | list[Topic] | list[str | Topic],
        on_assign: RebalanceCallback[Consumer[K, V]] = no_callback,
        on_revoke: RebalanceCallback[Consumer[K, V]] = no_callback,
        on_lost: RebalanceCallback[Consumer[K, V]] = no_callback,
    ) -> None:
        """Read these topics as a member of the group. Replaces the previous subscription.

        A subscribed consumer stays a member. With cooperative-sticky it keeps the partitions that
        stay; with other strategies all are revoked, and assigned anew. Either happens in the next
        calls of `poll`.

        A name that starts with `^` is a regular expression. Values of a `Topic` with a model are
        decoded to instances of the model. The callbacks get (consumer, partitions) and run inside
        `poll`, `consume`, `unsubscribe` and `close`.
        """
        if not isinstance(topics, list):
            raise TypeError(f"topics must be a list, not {type(topics).__name__}")
        callbacks = rebalance_callbacks(assign=on_assign, revoke=on_revoke, lost=on_lost)
        if not topics:
            raise InvalidConfig(
                "subscribe() needs at least one topic; unsubscribe() ends a subscription",
                key="topics",
            )
        names = [self._name(topic) for topic in topics]
        self._state.subscribe(self, names, callbacks, self._running)

    @exclusive
    def unsubscribe(self) -> None:
        """End the subscription and leave the group. The partitions are revoked before this
        returns.
        """
        self._state.unsubscribe(self, self._running, keeps_place=False)

    @exclusive
    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read exactly these partitions, each from its `offset`: a number or an OFFSET_ constant.

        The default is the committed offset. A partition without one starts where
        `auto.offset.reset` says.
        """
        self._state.check_eager()
        wanted = assignable(partitions)
        reader = self._running()
        self._state.follow(reader, (tp.topic for tp in wanted))
        reader.held.set(wanted)
        self._state.follow(reader)
        self._state.was_assigned()

    def unassign(self) -> None:
        """Stop reading all partitions."""
        if self._state.is_cooperative:
            self.incremental_unassign(self.assignment())
        else:
            self.assign([])

    @exclusive
    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Add partitions to the assignment. Raises KafkaException (_CONFLICT) for one that is
        assigned already.
        """
        self._state.check_incremental("assign")
        wanted = assignable(partitions)
        reader = self._running()
        reader.held.check_new(wanted)
        self._state.follow(reader, (tp.topic for tp in wanted))
        reader.held.add(wanted)
        self._state.was_assigned()

    @exclusive
    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Remove assigned partitions. Raises InvalidConfig for one that is not assigned."""
        self._state.check_incremental("unassign")
        unwanted = assignable(partitions)
        held = self._built().held
        held.check_assigned(unwanted)
        held.remove(unwanted)
        self._state.follow(self._running())
        self._state.was_assigned()

    @property
    def commits_automatically(self) -> bool:
        """Whether `enable.auto.commit` is on."""
        return self._config.enable_auto_commit

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are assigned, sorted by topic and number, each with the offset given
        to `assign`.
        """
        self._calls.check_open()
        return [] if self._reader is None else self._reader.held.partitions()

    # --- reading ---

    def poll(self, timeout: float | None = -1) -> Message[K, V] | None:
        """The next message, or None if none arrives within `timeout` seconds (-1 or None: no
        limit).

        A message with an `error()` is an event, not a record: `_FATAL` if another consumer
        has taken over the `group.instance.id`. Raises what a callback raises.
        """
        if self._calls.is_closed:
            self._calls.check_open()
        batch = self._current_batch()
        if batch is not None and batch.row < batch.count:
            row = batch.row
            message = object.__new__(FetchedMessage)  # as `FetchedMessage.of`
            message._records = batch.records
            message._row = row
            batch.row = row + 1  # marks the message as returned
            return message
        found = self._wait_for_one(timeout)
        if found is None or self._calls.is_closed:
            return None
        first: Message[K, V] = found.message(found.row)
        found.row += 1
        return first

    def _current_batch(self) -> RecordBatch | None:
        """The batch that `poll` may return from directly; None if callbacks or group changes have
        to be handled first.

        Takes no lock.
        """
        reader, subscription = self._reader, self._state.current
        if reader is None or (batch := reader.accepted.batch) is None or self._events.pending:
            return None
        if subscription is None:
            return batch
        lease = subscription.lease
        now = lease.polled_at = self._uptime()
        return batch if now < lease.until else None

    @exclusive
    def _wait_for_one(self, timeout: float | None) -> AcceptedBatch | None:
        """The batch whose `row` is the next message. The caller increments `row` to mark the
        message as returned.
        """
        return self._wait_for(AcceptedBatches.first, self._deadline(timeout))

    def _wait_for(self, take: Callable[[AcceptedBatches], R], deadline: float) -> R | None:
        """What `take` finds in the accepted batches; None if the deadline passes or the consumer is
        about to close. Before each look, the work is done that belongs to the application's thread:
        callbacks and changes of the assignment.
        """
        while True:
            if self._events.pending:
                self._events.run()
            reader, subscription = self._reader, self._state.current
            if subscription is not None and reader is not None:
                raised = subscription.serve(self)
                if raised is not None:
                    reader.accepted.put_first(raised)
            if self._calls.is_ending:
                return None
            found = None if self._reader is None else take(self._reader.ready())
            if found is not None:
                return found
            left = min(_SLICE_S, deadline - self._clock.monotonic())
            if self._reader is None:
                self._clock.sleep(max(0.0, left))
            elif self._reader.accept_next(left, self._state.wanted.is_only_matched):
                continue
            if left <= 0:
                return None

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message[K, V]]:
        """Up to `num_messages` messages; fewer only if `timeout` seconds pass first (-1 or None: no
        limit), or where a topic was deleted and created again: a call returns messages of one of
        the two.

        If the call ends early (Ctrl-C, an exception in a callback, a lost membership), the messages
        that it had already taken are not committed, and are returned again later.
        """
        self._calls.check_open()
        check_count(num_messages)
        fetch = Fetch()
        if num_messages:
            self._wait_for_many(num_messages, timeout, fetch)
        if self._calls.is_closed:
            return []  # the messages taken are not committed, so the next member reads them
        messages = fetch.messages()
        fetch.returned = True
        return messages

    @exclusive
    def _wait_for_many(self, num_messages: int, timeout: float | None, fetch: Fetch) -> None:
        def take(accepted: AcceptedBatches) -> bool | None:
            accepted.drop_stale(fetch)
            left = num_messages - fetch.count
            return False if left <= 0 else accepted.take(left, fetch)

        deadline = self._deadline(timeout)
        while self._wait_for(take, deadline):
            pass  # not complete: callbacks may run, and withdraw messages that were taken

    def consume_arrow(
        self, num_rows: int = 65_536, timeout: float | None = -1
    ) -> pa.RecordBatch | None:
        """The next records of one partition as Arrow, at most `num_rows`; None if none arrive
        within `timeout` seconds.

        The columns are `_topic`, then those of the topic's table: `_partition`, `_offset`,
        `_timestamp`, `_key`, `_headers`, and the columns of the value. An event that `poll` would
        return as a message with an error is raised as a KafkaException.
        """
        self._calls.check_open()
        if num_rows < 1:
            raise ValueError("num_rows must be at least 1")
        fetch = Fetch()
        taken = self._wait_for_rows(num_rows, timeout, fetch)
        if taken is None or self._calls.is_closed:
            return None
        if isinstance(taken, Message):
            fetch.returned = True
            raise KafkaException(taken.error())
        topic, rows = taken
        found = rows.add_column(0, "_topic", pa.repeat(topic, rows.num_rows))
        fetch.returned = True
        return found

    @exclusive
    def _wait_for_rows(
        self, num_rows: int, timeout: float | None, fetch: Fetch
    ) -> tuple[str, Any] | Message | None:
        deadline = self._deadline(timeout)
        return self._wait_for(lambda accepted: accepted.take_arrow(num_rows, fetch), deadline)

    def __iter__(self) -> Iterator[Message[K, V]]:
        """Yield messages until the consumer is closed. An event other than the end of a partition
        is raised as a KafkaException.
        """
        while not self._calls.is_closed:
            found: AcceptedBatch | None = self._current_batch()
            if found is None or found.row >= found.count:
                found = self._wait_for_one(1.0)
            if found is None or self._calls.is_closed:
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

    @exclusive
    def seek(self, partition: TopicPartition) -> None:
        """Continue at `partition.offset` (a number or an OFFSET_ constant).

        Raises WrongState for a partition that is not assigned.
        """
        (wanted,) = assignable([partition])
        self._built().held.seek(wanted.topic, wanted.partition, wanted.offset)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """For each partition, the offset after the last message returned; OFFSET_INVALID if none
        was returned.
        """
        self._calls.check_open()
        held = None if self._reader is None else self._reader.held
        places = [(tp.topic, tp.partition) for tp in partition_list(partitions)]
        return [
            TopicPartition(*place, OFFSET_INVALID if held is None else held.position(*place))
            for place in places
        ]

    @exclusive
    def pause(self, partitions: list[TopicPartition]) -> None:
        """Return no messages from these assigned partitions until `resume`, also if they are
        revoked and come back.
        """
        for tp in partition_list(partitions):
            self._running().held.pause(tp.topic, tp.partition)

    @exclusive
    def resume(self, partitions: list[TopicPartition]) -> None:
        """Continue reading paused partitions. Partitions that are not paused are ignored."""
        for tp in partition_list(partitions):
            self._running().held.resume(tp.topic, tp.partition)

    @exclusive
    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = -1, cached: bool = False
    ) -> tuple[int, int]:
        """(first offset, next offset) of a partition.

        With `cached` the store is not read: the result is what the consumer last saw of the topic,
        or OFFSET_INVALID twice for a topic that it does not read. Raises UnknownTopic,
        InvalidConfig for a negative partition number, and KafkaException (_TIMED_OUT) if the store
        does not answer within `timeout` seconds.
        """
        check_partition(partition_list([partition])[0])
        if not cached:
            return watermarks(self._queries.head_with(partition, timeout), partition.partition)
        seen = None if self._reader is None else self._reader.fetcher.seen(partition.topic)
        return watermarks(None if seen is None else seen.head, partition.partition)

    @exclusive
    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float | None = -1
    ) -> list[TopicPartition]:
        """For each partition, the first offset whose timestamp is at or after `.offset`, in
        milliseconds since 1970.

        The result is OFFSET_END if there is no such record. OFFSET_BEGINNING and OFFSET_END in
        place of a time give the partition's first and next offset.

        A partition that does not exist has its `error` set. Raises UnknownTopic if none of the
        partitions exists, and KafkaException (_TIMED_OUT) if the store does not answer within
        `timeout` seconds.
        """
        return self._queries.offsets_for_times(partitions, timeout)

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
        """Commit the offset after `message`, the given `offsets`, or by default all stored offsets
        not committed yet.

        Asynchronous (the default): returns None immediately, and `on_commit` gets the result:
        _NO_OFFSET if there is nothing to commit. Synchronous: returns the partitions, each with an
        `error` if its topic or partition does not exist; without arguments also the other assigned
        partitions, with OFFSET_INVALID. Raises KafkaException (_NO_OFFSET), UnknownTopic if none of
        the partitions exists, Fenced, Unavailable, OutcomeUnknown.
        """
        self._calls.check_open()
        if unknown := set(keywords) - {"async"}:
            raise TypeError(f"commit() got an unexpected keyword argument {min(unknown)!r}")
        return self._commit(message, offsets, bool(keywords.get("async", asynchronous)))

    @exclusive
    def _commit(
        self, message: Message | None, offsets: list[TopicPartition] | None, asynchronous: bool
    ) -> list[TopicPartition] | None:
        if asynchronous:
            self._built().commit_later(message, offsets)
            return None
        if self._state.current is not None:
            self._state.current.check_not_lost()
        return self._built().commit(message, offsets)

    @exclusive
    def committed(
        self, partitions: list[TopicPartition], timeout: float | None = -1
    ) -> list[TopicPartition]:
        """The committed offset of each partition; OFFSET_INVALID if there is none.

        A partition that its topic does not have has its `error` set. Raises KafkaException
        (_TIMED_OUT) if the store does not answer within `timeout` seconds.
        """
        return self._queries.committed(partitions, timeout)

    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """Store offsets for the next commit. Requires `enable.auto.offset.store=false`.

        Negative offsets are ignored, as in `commit`: `position` returns one before the first
        message.
        """
        self._calls.check_open()
        self._calls.check_not_inside()
        if self._config.enable_auto_offset_store:
            raise InvalidConfig(
                "store_offsets() needs enable.auto.offset.store=false",
                key="enable.auto.offset.store",
            )
        self._built().store(message, offsets)

    # --- the rest ---

    def health(self) -> ConsumerHealth:
        """What this consumer knows of its membership and its partitions, their lag, and why nothing
        comes.

        Does no I/O. May be called in any thread, also while another one polls, and after `close`.
        """
        if self._calls.is_closed:
            return closed_health(self._group)
        known, current = self._queries.group_log.last_read(), self._state.current
        return HealthCheck(self._group, self._reader, current, known, self._clock).health()

    def memberid(self) -> str | None:
        """This consumer's id in the group, new with each join; None while it is not a member."""
        view = self._view()
        return None if view is None else view.member_id

    def consumer_group_metadata(self) -> bytes:
        """Opaque bytes that identify this membership, in librdkafka's layout: the member and
        generation on whose behalf messages were returned, even if the group has gone on since.

        The ids of the topics of these messages follow: offsets sent with the bytes do not count for
        a topic that was created again since.
        """
        self._calls.check_open()
        topic_ids = {} if self._reader is None else self._reader.held.topic_ids()
        return MembershipMetadata(self._group, self._state.identity(), topic_ids).to_bytes()

    def _unsent(self) -> list[TopicPartition]:
        """For a transaction: see `Assignment.unsent`."""
        self._calls.check_open()
        return [] if self._reader is None else self._reader.held.unsent()

    def _to_send(self) -> list[TopicPartition]:
        """For a transaction: see `Assignment.to_send`."""
        return [] if self._reader is None else self._reader.held.to_send()

    def _mark_sent(self) -> None:
        """For a transaction: see `Assignment.mark_sent`."""
        if self._reader is not None:
            self._reader.held.mark_sent()

    def _view(self) -> GroupView | None:
        self._calls.check_open()
        current = self._state.current
        return None if current is None else current.view

    @exclusive
    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """All topics, or only `topic`, with their partitions (`timeout` -1 or None: no limit)."""
        return list_topics(self._store, self._clock, topic, timeout)

    @exclusive
    def cluster_id(self, timeout: float | None = -1) -> str:  # noqa: ARG002 - Kafka's signature
        """A stable id derived from the root URL."""
        return cluster_id(self._store)

    def set_sasl_credentials(self, username: str, password: str) -> None:  # noqa: ARG002 - Kafka's signature
        """Has no effect: a store has its credentials from `store.*` settings or the environment."""
        self._calls.check_open()

    def close(self) -> None:
        """Commit the stored offsets (with auto-commit), revoke the partitions and leave the group.
        Idempotent.

        An exception of a callback is raised after everything is closed. If a signal handler calls
        `close` inside another call of this consumer on the same thread, that call ends soon, and
        closes the consumer as it ends.
        """
        self._calls.run_close(self._close)

    def _close(self) -> None:
        try:
            try:
                self._state.unsubscribe(self, self._running, keeps_place=True, is_closing=True)
            finally:
                if self._reader is not None:
                    if self._config.enable_auto_commit:
                        self._reader.committer.commit_stored(wait=True)
                    self._reader.committer.close()
                self._events.run()
        finally:
            self._life.end()
            _log.info("consumer closed client.id=%r group=%r", self._config.client_id, self._group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer {self._store.url} group={self._group!r}>"

    # --- components, built at first use ---

    def _built(self) -> Reader:
        """The reader, whose threads may not have started yet."""
        if self._reader is None:
            identity = weakly(self._state.identity, NO_MEMBER)
            about = self._queries, self._events, self._schemas.get, identity
            self._reader = open_reader(self._config, self._store, self._clock, *about)
        for part in (self._maintenance, self._reader.fetcher, self._reader.committer):
            if part is not None:
                self._life.add(part)
        return self._reader

    def _running(self) -> Reader:
        reader = self._built()
        reader.begin()
        return reader

    def _deadline(self, timeout: float | None) -> float:
        return self._clock.monotonic() + checked_timeout(timeout)

    def _name(self, topic: str | Topic) -> str:
        name = topic_name(topic, deserializes=self._deserializes)
        if isinstance(topic, Topic) and topic.schema is not None:
            self._schemas[name] = topic.schema
        return name
