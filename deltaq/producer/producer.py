"""The producer: `confluent_kafka.Producer` on a Delta log."""

from __future__ import annotations

import logging
import operator
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias
from weakref import WeakSet, finalize

import pyarrow as pa

from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout, this_thread
from deltaq.config import ProducerConfig, parse_client_config, topic_properties
from deltaq.errors import (
    InvalidConfig,
    InvalidValue,
    KafkaError,
    KafkaException,
    MessageTooLarge,
    OutcomeUnknown,
    QueueFull,
    Unavailable,
    UnknownTopic,
)
from deltaq.message import Message, TopicPartition
from deltaq.metadata import ClusterMetadata, cluster_id, list_topics
from deltaq.names import check_topic
from deltaq.producer.accumulator import AccumulatorSettings, ArrowBlock, BatchResult, Flush, RecordAccumulator
from deltaq.producer.delivery import Due, ErrorNotice, PendingCallbacks
from deltaq.producer.sender import Sender
from deltaq.producer.senders import topic_sender
from deltaq.root import open_root
from deltaq.serde.schema import TopicSchema, schema_conflict
from deltaq.store import Store
from deltaq.topic import Topic
from deltaq.topics.arrow_input import ArrowInput, check_arrow, columns_from_arrow
from deltaq.topics.columns import TIMESTAMP_MS_MAX, Headers
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.metadata import NewTopicPlan, TopicDefinition
from deltaq.version import __version__
from deltaq.weak import weakly

__all__ = ["DeliveryCallback", "Producer", "TableCallback"]

DeliveryCallback: TypeAlias = Callable[["KafkaError | None", Message], object]
TableCallback: TypeAlias = "Callable[[KafkaError | None, list[TopicPartition]], object]"
HeadersInput: TypeAlias = (
    "Mapping[str, str | bytes | None] | list[tuple[str, str | bytes | None]] | list[tuple[str, bytes | None]]"
    " | list[tuple[str, str]] | list[tuple[str, bytes]] | None"
)
"""A dict, or a list of pairs. Lists of one value type are named too: `list` is invariant to a type checker."""

_log = logging.getLogger("deltaq.producer")

_SLICE_S = 0.2
"""Longest uninterrupted wait in seconds, so that Ctrl-C is answered."""

_FIND_TOPIC_S = 5.0
"""Seconds for which the first `produce` to a topic tries to create it, before the sender's threads take over."""

_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_OF_THE_STORE = (KafkaError._TRANSPORT, KafkaError._MSG_TIMED_OUT)


class _NoPlainValue:
    """A type without instances: it marks topics whose every value must be converted."""


class _TopicHandle:
    """What one producer knows of one topic. Values of type `plain` need no conversion."""

    __slots__ = (
        "_client_limit",
        "_client_schema",
        "_refusal",
        "buffer",
        "keyed",
        "name",
        "partitions",
        "plain",
        "schema",
        "sender",
        "size_max",
    )

    def __init__(
        self, name: str, sender: Sender, buffer: RecordAccumulator, limit: int, schema: TopicSchema | None
    ) -> None:
        self.name = name
        self.sender = sender
        self.buffer = buffer
        self.size_max = limit
        self.partitions: int | None = None
        self.plain: type[Any] = bytes if schema is None else _NoPlainValue
        self.schema = schema
        self.keyed = False
        self._client_limit = limit
        self._client_schema = schema
        self._refusal: InvalidConfig | None = None

    def saw(self, definition: TopicDefinition) -> None:
        """Apply the topic's partitions, schema, size limit and clean-up policy."""
        self._refusal = self._contradiction(definition)
        self.partitions = definition.partitions
        self.schema = self._client_schema or definition.schema
        self.plain = bytes if self.schema is None and self._refusal is None else _NoPlainValue
        self.size_max = min(self._client_limit, definition.settings.max_message_bytes)
        self.keyed = "compact" in definition.settings.cleanup_policy

    def check(self) -> None:
        """Raises InvalidConfig if the client's schema is not the topic's."""
        if self._refusal is not None:
            raise self._refusal

    def _contradiction(self, definition: TopicDefinition) -> InvalidConfig | None:
        wanted = self._client_schema
        conflict = wanted and schema_conflict(self.name, wanted, definition.schema)
        return InvalidConfig(conflict, key="schema") if conflict else None

    def accepted(self, value: object) -> tuple[object, int]:
        """Convert a value that is not plain; with its size in bytes. Raises TypeError, InvalidValue, InvalidConfig."""
        self.check()
        if value is None:
            return None, 0
        if self.schema is not None:
            row = self.schema.accept(value)
            return row, _size(row)
        data = _as_bytes(value, "value")
        return data, len(data)


@dataclass(slots=True, eq=False)
class _CallbackBatch:
    """Callbacks that a `poll` or `flush` on `thread` has taken and not called yet. Those that an exception leaves over
    become due again once that call `is_over`."""

    thread: int
    due: deque[Due] = field(default_factory=deque)
    is_over: bool = False


class Producer:
    """Writes messages to topics. Thread-safe. Mirrors `confluent_kafka.Producer`; `bootstrap.servers` is the root URL.

    `produce` only queues; delivery callbacks run inside `poll`, `flush` and `close`, never elsewhere.

    The configuration is a dict, keywords (`linger_ms=5`), or both. `store` and `clock` replace the components that the
    configuration selects. Raises InvalidConfig for a setting that cannot be used. Does no I/O.
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
        config: ProducerConfig = parse_client_config("producer", conf, keywords)
        self._config = config
        self._clock = clock
        self._monotonic = clock.monotonic
        self._store = open_root(config, clock) if store is None else store
        if config.transactional_id is not None:
            raise InvalidConfig(
                "transactional.id: this version of deltaq has no transactions; leave it out",
                key="transactional.id",
                code=KafkaError._UNSUPPORTED_FEATURE,
            )
        _load_for_messages(maintenance=config.maintenance_enable)
        self._buffer_settings = AccumulatorSettings(
            linger_s=config.linger_ms / 1000,
            batch_bytes=config.batch_size,
            batch_rows=config.batch_num_messages,
            timeout_s=config.message_timeout_ms / 1000 if config.message_timeout_ms else float("inf"),
            compression=config.compression_type,
            compression_level=config.compression_level,
            partitioner=config.partitioner,
            sticky_s=config.sticky_partitioning_linger_ms / 1000,
            # On a local disk a lost race costs a millisecond, so group commit gains nothing.
            group_commit={"true": True, "false": False}.get(config.deltaq_group_commit, self._store.is_remote),
        )
        self._on_delivery: DeliveryCallback | None = config.on_delivery
        self._rows_max = config.queue_buffering_max_messages or 2**63
        self._bytes_max = config.queue_buffering_max_kbytes * 1024
        self._lookup = TopicLookup(self._store, clock)
        self._handles: dict[str | Topic, _TopicHandle] = {}
        self._handles_lock = clock.lock()
        # `_events` guards the fields below: threads that report results and threads that run callbacks hold it.
        self._events = clock.condition()
        self._due: deque[Due] = deque()
        self._callback_batches: list[_CallbackBatch] = []
        self._flushes: list[Flush] = []
        self._closed = False
        self._why_closed = "Producer has been closed"
        _PRODUCERS.add(self)
        self._dropped = finalize(self, _dropped, self._handles)
        _log.info("producer started client.id=%r root=%r version=%s", config.client_id, self._store.url, __version__)

    # --- producing ---

    def produce(  # noqa: PLR0912 - called for each message: a function costs as much as three of these branches
        self,
        topic: str | Topic,
        value: Any = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersInput = None,
    ) -> None:
        """Queue one message and return at once.

        `value` is bytes, str (sent as UTF-8) or None (a tombstone); for a typed topic a dict or an instance of its
        model. `partition` -1 leaves the choice to the partitioner. `timestamp` is milliseconds since 1970 UTC, 0 for
        now. `callback` (or `on_delivery`) is called with (error, message) from `poll`, `flush` or `close`.

        Raises QueueFull (a BufferError: call `poll` and try again), MessageTooLarge, UnknownTopic for a partition the
        topic does not have, InvalidValue for a value that does not fit a typed topic or a null key where the topic is
        compacted, InvalidConfig for a schema that is not the topic's, Unavailable if the store refuses to answer,
        TypeError, UnicodeEncodeError for text that UTF-8 cannot hold, RuntimeError after `close`.
        """
        handle = self._handles.get(topic)
        if handle is None:
            self._check_before_io(topic, value, key, partition, timestamp, headers)
            if not callable(notify := callback or on_delivery) and notify is not None:
                raise _refused(notify)
            handle = self._open_handle(topic)
        if type(value) is handle.plain:
            size = len(value)
        else:
            value, size = handle.accepted(value)
        if key is not None:
            if type(key) is not bytes:
                key = _as_bytes(key, "key")
            size += len(key)
        elif handle.keyed:
            raise InvalidValue(
                f"topic {handle.name!r} is compacted: every message needs a key", field="key", topic=handle.name
            )
        checked_headers: Headers = None
        if headers is not None:
            checked_headers, header_bytes = _headers(headers)
            size += header_bytes
        if size > handle.size_max:
            raise MessageTooLarge(size=size, limit=handle.size_max, topic=handle.name)
        if partition != -1 or timestamp != 0:
            partition, timestamp = self._checked_numbers(handle, partition, timestamp)
        notify = callback or on_delivery
        if notify is None:
            notify = self._on_delivery
        elif not callable(notify):
            raise _refused(notify)
        buffer = handle.buffer
        queue = buffer.queue
        if len(queue) >= buffer.room_length or buffer.bytes >= buffer.room_bytes:
            self._make_room(buffer)
        queue.extend(((value, key, partition, timestamp, checked_headers, self._monotonic()), notify))
        buffer.bytes += size
        if len(queue) >= buffer.wake_length or buffer.bytes >= buffer.wake_bytes:
            buffer.wake()

    def produce_batch(
        self,
        topic: str | Topic,
        messages: Iterable[dict[str, Any]],
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """Queue many messages: dicts with `value` and perhaps `key`, `partition`, `timestamp`, `headers`, `callback`.

        Returns how many were queued. A message that is refused gets its KafkaError under `_error`; it raises nothing.
        Raises TypeError for messages that are not dicts.
        """
        queued = 0
        for at, message in enumerate(messages):
            if not isinstance(message, dict):
                raise TypeError(f"message at index {at} must be a dict, not {type(message).__name__}")
            try:
                self.produce(
                    topic,
                    message.get("value"),
                    message.get("key"),
                    message.get("partition", partition),
                    message.get("callback") or callback or on_delivery,
                    timestamp=message.get("timestamp", 0),
                    headers=message.get("headers"),
                )
            except KafkaException as error:
                message["_error"] = error.args[0]
            except (TypeError, UnicodeEncodeError) as error:
                message["_error"] = KafkaError(KafkaError._INVALID_ARG, str(error))
            else:
                message.pop(
                    "_error", None
                )  # left by an earlier call; a loop that retries refused messages would never end
                queued += 1
        return queued

    def produce_arrow(self, topic: str | Topic, data: ArrowInput, on_delivery: TableCallback | None = None) -> int:
        """Queue a whole Arrow table or record batch, without a Python step per row; the number of rows.

        The columns of an untyped topic are `value` (binary or string) and, all optional, `key`, `partition` (int),
        `timestamp` and `headers`; of a typed topic its own columns and, optional, `_key`, `_partition`, `_timestamp`,
        `_headers`. The rows are committed together. `on_delivery` is called once, with an error or None and a
        TopicPartition for each partition that got rows, whose offset is that of its first row.

        Raises InvalidValue naming the column that does not fit, and what `produce` raises.
        """
        check_arrow(data)
        handle = self._handles.get(topic) or self._open_handle(topic)
        handle.check()
        columns = columns_from_arrow(
            data,
            handle.name,
            handle.schema,
            handle.partitions,
            handle.size_max,
            keyed=handle.keyed,
            now_ms=self._clock.time_ms(),
        )
        if not len(columns):
            return 0
        size = columns.values.nbytes + columns.keys.nbytes + columns.headers.nbytes
        with self._events:
            rows, waiting = self._pending()
            # A table larger than the limit is accepted when nothing else waits. Otherwise it could never be produced.
            if rows >= self._rows_max or (rows and waiting + size > self._bytes_max):
                raise QueueFull
        handle.sender.append_block(handle.buffer, ArrowBlock(columns, on_delivery, self._monotonic(), size))
        return len(columns)

    def _open_handle(self, topic: str | Topic) -> _TopicHandle:
        """Create the handle of a topic at first use. Looks the topic up, so that `produce` can refuse bad input."""
        self._check_open()
        if not isinstance(topic, str | Topic):
            raise TypeError(f"topic must be str or Topic, not {type(topic).__name__}")
        name = topic.name if isinstance(topic, Topic) else check_topic(topic)
        plan = self._new_topic(topic)
        with self._handles_lock:
            self._check_open()  # `close` may have run during the wait for the lock
            if (handle := self._handles.get(topic)) is not None:
                return handle
            sender = topic_sender(self._store, name, self._clock, self._config.client_id)
            if self._config.maintenance_enable and sender.maintenance is None:
                from deltaq.maintenance.background import BackgroundTopicMaintenance  # noqa: PLC0415

                retention_ms = self._config.offsets_retention_minutes * 60_000
                sender.maintenance = BackgroundTopicMaintenance(
                    self._store, name, self._clock, sender.log, offsets_retention_ms=retention_ms
                )
            # A topic used by name and by `Topic` shares one buffer, which keeps the order of its messages.
            known = next((other.buffer for other in self._handles.values() if other.name == name), None)
            buffer = self._new_buffer(name, sender, plan) if known is None else known
            schema = topic.schema if isinstance(topic, Topic) else None
            handle = _TopicHandle(name, sender, buffer, self._config.message_max_bytes, schema)
            definition = self._find_topic(sender, plan)
            if definition is None:
                buffer.unchecked = True  # the upload thread retries the lookup until the messages' deadline
            else:
                handle.saw(definition)
                handle.check()
            try:
                if known is None:
                    sender.attach(buffer)
                self._handles[topic] = handle
            except (
                BaseException
            ):  # also from a signal handler: a buffer without a handle would keep the sender's threads alive
                if known is None:
                    sender.detach(buffer)
                raise
            return handle

    def _new_buffer(self, name: str, sender: Sender, plan: NewTopicPlan | None) -> RecordAccumulator:
        # Weak callbacks: the sender must not keep a dropped producer alive.
        reported, saw = weakly(self._reported, None), partial(weakly(self._saw, None), name)
        return RecordAccumulator(self._buffer_settings, reported, sender.wake, saw, plan, self._flushes)

    def _find_topic(self, sender: Sender, plan: NewTopicPlan | None) -> TopicDefinition | None:
        """The topic; None if it does not exist, or if the store is temporarily unavailable."""
        try:
            return sender.view(plan, _FIND_TOPIC_S, anew=True)
        except OutcomeUnknown:  # of creating the topic
            return None
        except Unavailable as error:
            if error.error.retriable():
                return None
            raise

    def _new_topic(self, topic: str | Topic) -> NewTopicPlan | None:
        """How to create the topic if it does not exist; None if `auto.create.topics.enable` is false."""
        if not self._config.auto_create_topics_enable:
            return None
        if isinstance(topic, Topic):
            return topic.plan(self._config.num_partitions)
        return NewTopicPlan(self._config.num_partitions, None, topic_properties({}))

    def _saw(self, name: str, definition: TopicDefinition) -> None:
        """Called by the sender when partitions or settings of the topic have changed."""
        for handle in tuple(self._handles.values()):
            if handle.name == name:
                handle.saw(definition)

    def _checked_numbers(self, handle: _TopicHandle, partition: int, timestamp: int) -> tuple[int, int]:
        partition, timestamp = operator.index(partition), operator.index(timestamp)
        if partition < -1 or (handle.partitions is not None and partition >= handle.partitions):
            count = 0 if partition < -1 else self._lookup.head(handle.name).partitions  # it may have grown
            if not 0 <= partition < count:
                raise UnknownTopic(handle.name, partition=partition, code=KafkaError._UNKNOWN_PARTITION)
            handle.partitions = count
        _check_timestamp(timestamp, handle.name)
        return partition, timestamp

    def _check_before_io(
        self, topic: str | Topic, value: object, key: object, partition: int, timestamp: int, headers: object
    ) -> None:
        """Refuse what no topic accepts, before the first `produce` to a topic looks it up or creates it."""
        if not isinstance(topic, str | Topic):
            raise TypeError(f"topic must be str or Topic, not {type(topic).__name__}")
        name = topic.name if isinstance(topic, Topic) else check_topic(topic)
        size = 0 if key is None else len(_as_bytes(key, "key"))
        size += 0 if headers is None else _headers(headers)[1]
        if isinstance(topic, Topic) and topic.schema is not None:
            size += 0 if value is None else _size(topic.schema.accept(value))
        elif value is not None and not isinstance(value, dict) and not hasattr(value, "model_fields_set"):
            size += len(_as_bytes(value, "value"))  # only typed topics take dicts and models
        if size > self._config.message_max_bytes:
            raise MessageTooLarge(size=size, limit=self._config.message_max_bytes, topic=name)
        if operator.index(partition) < -1:
            raise UnknownTopic(name, partition=partition, code=KafkaError._UNKNOWN_PARTITION)
        _check_timestamp(operator.index(timestamp), name)

    # --- how much is waiting ---

    def _pending(self) -> tuple[int, int]:
        """Messages undelivered or waiting for their callback, and the bytes of the former. Needs `_events`."""
        buffers = self._buffers()
        rows = sum(buffer.pending_rows for buffer in buffers) + sum(map(len, self._due))
        return rows, sum(buffer.pending_bytes for buffer in buffers)

    def _in_other_threads(self) -> int:
        """Messages whose callbacks other threads are running; 0 inside a callback, since two callbacks that flush would
        otherwise wait for each other for ever. The caller holds `_events`."""
        if any(batch.thread == this_thread() for batch in self._callback_batches):
            return 0
        return sum(len(deliveries) for batch in self._callback_batches for deliveries in tuple(batch.due))

    def _buffers(self) -> set[RecordAccumulator]:
        return {handle.buffer for handle in tuple(self._handles.values())}

    def _make_room(self, buffer: RecordAccumulator) -> None:
        """Grant a buffer room that `produce` may fill without checking the limits. Raises QueueFull at a limit.

        Each topic is granted half of its share, so that all topics together stay within the limits. The checks become
        more frequent as a limit comes closer.
        """
        with self._events:
            rows, size = self._pending()
            if rows >= self._rows_max or size >= self._bytes_max:
                raise QueueFull
            shares = 2 * max(1, len(self._handles))
            buffer.room_length = len(buffer.queue) + 2 * max(1, (self._rows_max - rows) // shares)
            buffer.room_bytes = buffer.bytes + max(1, (self._bytes_max - size) // shares)

    # --- serving ---

    def poll(self, timeout: float | None = -1) -> int:
        """Run due delivery callbacks, waiting up to `timeout` seconds (-1 or None: for ever) for the first. Returns the
        number of messages served.

        An exception raised in a callback is raised here after all due callbacks have run.
        """
        self._check_open()
        if timeout == 0 and not self._due and not self._callback_batches:
            return 0  # `poll(0)` after each message must not pay for a lock each time
        return self._serve(self._deadline(timeout))

    def flush(self, timeout: float | None = -1) -> int:
        """Send all messages without lingering, and wait up to `timeout` seconds while running callbacks. Returns the
        number of messages still queued (0: all done).

        It also waits for callbacks that other threads are running, unless it is called inside a callback.
        """
        self._check_open()
        deadline = self._deadline(timeout)
        flush = Flush()
        try:
            self._flushes.append(flush)
            for buffer in self._buffers():
                buffer.wake()
            while len(self) and (deadline is None or self._monotonic() < deadline):
                self._serve(deadline)
            self._serve(self._monotonic())
        finally:
            flush.is_over = True
            self._forget_flushes()
        return len(self)

    @property
    def _is_flushing(self) -> bool:
        return any(not flush.is_over for flush in self._flushes)

    def _forget_flushes(self) -> None:
        """Several threads may flush at once. Records linger again once the last flush has ended."""
        with self._events:
            self._flushes[:] = [flush for flush in self._flushes if not flush.is_over]

    def purge(
        self,
        in_queue: bool = True,
        in_flight: bool = True,
        blocking: bool = True,  # noqa: ARG002 - Kafka's signature
    ) -> None:
        """Drop messages. At the next `poll` or `flush`, callbacks of queued messages get _PURGE_QUEUE, and those of
        messages being written _PURGE_INFLIGHT. The latter may still be written to the topic."""
        self._check_open()
        for sender, buffer in {(handle.sender, handle.buffer) for handle in tuple(self._handles.values())}:
            sender.purge(buffer, in_queue=in_queue, in_flight=in_flight)

    def close(self) -> bool:
        """Flush without a time limit, then close; returns True. Idempotent. Afterwards methods raise RuntimeError.

        An exception raised in a callback is raised after the close. After Ctrl-C the producer is still open.
        """
        failure: Exception | None = None
        while not self._closed:
            try:
                self.flush()
            except Exception as error:  # noqa: BLE001 - raised by a callback; later messages must still be flushed
                failure = failure or error
            else:
                self._end()
        if failure is not None:
            raise failure
        return True

    def _end(self) -> None:
        with self._handles_lock:  # no other thread opens a handle meanwhile
            self._closed = True
            self._dropped.detach()
            handles, self._handles = self._handles, {}
        for sender, buffer in {(handle.sender, handle.buffer) for handle in handles.values()}:
            sender.detach(buffer)
        _log.info("producer closed client.id=%r root=%r", self._config.client_id, self._store.url)

    def resolve(self, topic: str, token: str, timeout: float = 60.0) -> bool:
        """Resolve a delivery whose outcome is unknown: True if its messages are in the topic, else False.

        `token` is in the error's text and in `OutcomeUnknown.token`. The answer is final: messages reported as not
        written are never written later. Works after `close` too. Raises OutcomeUnknown if the outcome cannot be
        resolved within `timeout` seconds.
        """
        sender = topic_sender(self._store, check_topic(topic), self._clock, self._config.client_id)
        return sender.resolve(token, checked_timeout(timeout))

    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """All topics, or one, with their partitions."""
        self._check_open()
        return list_topics(self._store, self._clock, topic, timeout)

    def cluster_id(self, timeout: float | None = -1) -> str:  # noqa: ARG002 - Kafka's signature
        """A stable id of the root URL."""
        self._check_open()
        return cluster_id(self._store)

    def set_sasl_credentials(self, username: str, password: str) -> None:  # noqa: ARG002 - Kafka's signature
        """No effect: a store takes its credentials from the settings `store.*` or from the environment."""
        self._check_open()

    def __len__(self) -> int:
        """Messages queued, being written, or waiting for their callback."""
        if self._closed:
            return 0
        with self._events:
            if self._callback_batches:
                self._take_back()
            return self._pending()[0] + self._in_other_threads()

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Producer:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer {self._store.url} {self._config.client_id!r}>"

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(self._why_closed)

    def _deadline(self, timeout: float | None) -> float | None:
        seconds = checked_timeout(timeout)
        return None if seconds == float("inf") else self._monotonic() + seconds

    # --- reports ---

    def _reported(self, buffer: RecordAccumulator, report: BatchResult) -> None:
        """Called by the sender when the outcome of records is known, or known to be unknown."""
        deliveries = PendingCallbacks(report)
        wanted = deliveries.is_wanted(only_errors=self._config.delivery_report_only_error)
        if report.error is not None and (count := deliveries.without_callback):
            _log_failure(report.topic, report.error, count)  # before `flush` can return
        notify = self._config.error_cb
        with self._events:
            if notify is not None and report.error is not None and report.error.error.code() in _OF_THE_STORE:
                self._due.append(ErrorNotice(notify, report.error.error))
            if wanted:
                self._due.append(deliveries)
            buffer.reported_rows += len(report)
            buffer.reported_bytes += report.bytes
            self._events.notify_all()

    def _serve(self, deadline: float | None) -> int:
        """Run all due callbacks, waiting for the first until the deadline; returns the number of messages served.
        During a flush, the wait ends once nothing is queued. Raises the first exception that a callback raised."""
        batch = _CallbackBatch(this_thread())
        try:
            with self._events:
                if not self._wait_for_due(deadline):
                    return 0
                # Signal handlers run between calls only, so no exception can split this exchange.
                self._callback_batches.append(batch)
                batch.due, self._due = self._due, batch.due
            return _run(batch.due)
        finally:
            batch.is_over = True  # one assignment, which no exception of a signal handler can split
            if self._callback_batches:
                self._take_back()

    def _wait_for_due(self, deadline: float | None) -> bool:
        """Wait until callbacks are due; False if none are by the deadline. The caller holds `_events`."""
        while True:
            if self._callback_batches:
                self._take_back()
            if self._due:
                return True
            left = _SLICE_S if deadline is None else min(_SLICE_S, deadline - self._monotonic())
            if left <= 0 or (self._is_flushing and not len(self)):
                return False
            self._events.wait(left)

    def _take_back(self) -> None:
        """Put callbacks left over by ended calls in front of those that are due. If an exception ends this, the next
        `poll`, `flush` or `len` completes it."""
        with self._events:
            over = [batch for batch in self._callback_batches if batch.is_over]
            for batch in reversed(over):
                if batch.due:
                    due, nothing = batch.due + self._due, deque[Due]()
                    self._due, batch.due = due, nothing
            self._callback_batches = [batch for batch in self._callback_batches if batch not in over]
            if self._flushes:
                self._events.notify_all()  # `flush` waits for these callbacks too


def _log_failure(topic: str, error: KafkaException, count: int) -> None:
    """Log the failure of messages that have no callback, in one line per batch."""
    about = f"{count} messages without a delivery callback, topic={topic!r}"
    if error.error.code() in _PURGED:
        _log.debug("purged: %s", about)
    elif isinstance(error, OutcomeUnknown):
        advice = f"Producer.resolve({topic!r}, {error.token!r}) tells whether they are in the topic"
        _log.warning("outcome unknown: %s; %s: %s", about, advice, error)
    elif error.error.code() == KafkaError._FAIL:
        _log.warning("failed by a defect, perhaps in the topic: %s: %s", about, error)
    else:
        _log.warning("not written: %s: %s", about, error)


def _run(due: deque[Due]) -> int:
    """Run and remove callbacks; the number of messages served. Raises the first exception that a callback raised."""
    served = 0
    failure: Exception | None = None
    while due:
        count, raised = due[0].call()
        served += count
        failure = failure or raised
        due.popleft()
    if failure is not None:
        raise failure
    return served


_PRODUCERS: WeakSet[Producer] = WeakSet()


def _refuse_forked() -> None:
    """Close the parent's producers in a forked child, which lacks their threads. The parent sends their messages."""
    for producer in tuple(_PRODUCERS):
        producer._closed, producer._handles = True, {}
        producer._dropped.detach()
        producer._why_closed = (
            "this Producer was made before the process forked; make one in the child (in gunicorn or Celery: in the "
            "worker's start-up hook)"
        )
    _PRODUCERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_forked)


def _load_for_messages(*, maintenance: bool) -> None:
    """Load what the first message would otherwise wait for.

    For its first array of Python values, pyarrow imports pandas if that is installed: 0.2 s.
    """
    pa.array([], pa.null())
    if maintenance:
        import deltaq.maintenance.background  # noqa: F401, PLC0415 - `import deltaq` does not need it


def _dropped(handles: Mapping[str | Topic, _TopicHandle]) -> None:
    """Runs when a producer was dropped without `close`, or the program ends."""
    routes = {(handle.sender, handle.buffer) for handle in handles.values()}
    waiting = sum(buffer.pending_rows for _, buffer in routes)
    if waiting:
        _log.warning("a Producer was dropped with %d messages not yet delivered: call flush() or close()", waiting)
    for sender, buffer in routes:
        sender.detach(buffer)


def _refused(callback: object) -> TypeError:
    return TypeError(f"on_delivery must be callable, not {type(callback).__name__}")


def _check_timestamp(timestamp: int, topic: str) -> None:
    if not 0 <= timestamp <= TIMESTAMP_MS_MAX:
        raise InvalidValue(
            f"timestamp {timestamp} is outside 0..{TIMESTAMP_MS_MAX} ms (1970 to 2262); "
            "it counts milliseconds, 0 means now",
            field="timestamp",
            topic=topic,
        )


def _as_bytes(data: object, what: str) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes):
        return bytes(data)
    raise TypeError(f"{what} must be bytes or str, not {type(data).__name__}")


def _size(value: object) -> int:
    """Approximate size of an accepted value in bytes: the length of text and bytes, 8 for other scalars."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 8


def _headers(headers: object) -> tuple[Headers, int]:
    """Headers as a list of (str, bytes or None), and their size. TypeError for what `HeadersInput` does not allow."""
    if not isinstance(headers, Mapping | list):
        raise TypeError(f"headers must be a dict or a list of (name, value) pairs, not {type(headers).__name__}")
    checked: list[tuple[str, bytes | None]] = []
    size = 0
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(
                f"a header must be a (str, bytes, str or None) pair, not {type(pair).__name__} {pair!r:.60}"
            )
        name, content = pair
        data = None if content is None else _as_bytes(content, f"header {name!r:.60}")
        checked.append((name, data))
        # Refuse a name that UTF-8 cannot hold here: at the upload it would fail its whole batch.
        size += (len(name) if name.isascii() else len(name.encode())) + len(data or b"")
    return checked or None, size
