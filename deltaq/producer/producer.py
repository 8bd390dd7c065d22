"""The producer: `confluent_kafka.Producer` on a Delta log."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout
from deltaq.config import ProducerConfig, parse_client_config
from deltaq.errors import (
    InvalidValue,
    KafkaError,
    KafkaException,
    MessageTooLarge,
    QueueFull,
    UnknownTopic,
)
from deltaq.log_forwarding import forward_logs
from deltaq.message import Message, TopicPartition
from deltaq.metadata import ClusterMetadata, cluster_id, list_topics
from deltaq.names import check_topic
from deltaq.producer.accumulator import (
    CLOSED,
    FIELDS,
    ArrowBlock,
    Flush,
    RecordAccumulator,
)
from deltaq.producer.callbacks import (
    CallbackQueue,
    DeliveryFuture,
    ProducerStatistics,
    not_callable,
)
from deltaq.producer.encoding import LARGE_MESSAGE_BYTES_MAX, LargeBlock, large_block
from deltaq.producer.lifecycle import EXIT_WAIT_S, close_handle, ends_when_dropped
from deltaq.producer.sender import Sender, topic_sender
from deltaq.producer.topic_handle import (
    HeadersInput,
    ProduceCall,
    TopicHandle,
    TopicHandles,
    accepted_headers,
    as_bytes,
    check_before_io,
    check_timestamp,
    with_header,
)
from deltaq.producer.transaction_calls import TransactionCalls
from deltaq.producer.transactions import Outlet, Transactions
from deltaq.root import open_root
from deltaq.store import Store
from deltaq.topic import Topic
from deltaq.topics.arrow_input import ArrowInput, check_arrow, columns_from_arrow
from deltaq.topics.columns import Headers, prepare_arrow
from deltaq.topics.delivery_time import delivery_header
from deltaq.topics.lookup import TopicLookup
from deltaq.version import __version__
from deltaq.weak import weakly

DeliveryCallback: TypeAlias = Callable[["KafkaError | None", Message], object]
TableCallback: TypeAlias = "Callable[[KafkaError | None, list[TopicPartition]], object]"
_log = logging.getLogger("deltaq.producer")


class Producer(TransactionCalls):
    """Writes messages to topics. Thread-safe. Mirrors `confluent_kafka.Producer`;
    `bootstrap.servers` is the root URL.

    `produce` only queues; delivery callbacks run inside `poll`, `flush` and `close`, never
    elsewhere.

    The configuration is a dict, keywords (`linger_ms=5`), or both. `store` and `clock` replace the
    components that the configuration selects. Raises InvalidConfig for a setting that cannot be
    used. Does no I/O.
    """

    _serializes: ClassVar[bool] = False

    def __init__(
        self,
        conf: Mapping[str, Any] | None = None,
        /,
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        config = parse_client_config(ProducerConfig, conf, keywords)
        self._config = config
        self._clock = clock
        self._monotonic = clock.monotonic
        self._store = open_root(config, clock) if store is None else store
        prepare_arrow()
        if config.maintenance_enable:
            import deltaq.maintenance.background  # noqa: F401, PLC0415 - `import deltaq` does not need it
        self._on_delivery: DeliveryCallback | None = config.on_delivery
        self._rows_max = config.queue_buffering_max_messages or 2**63
        self._bytes_max = config.queue_buffering_max_kbytes * 1024
        self._message_bytes_max = (
            LARGE_MESSAGE_BYTES_MAX if config.large_message_enabled else config.message_max_bytes
        )
        self._lookup = TopicLookup(self._store, clock)
        self._callbacks = CallbackQueue(config, clock)
        self._topics = TopicHandles(
            self._store, config, clock, self._callbacks, takes_serializers=self._serializes
        )
        self._handles = self._topics.by_topic
        # Those that `produce` may use now: all, or inside no transaction none.
        self._producible: Mapping[str | Topic, TopicHandle] = self._handles
        self._transactions = self._new_transactions()
        self._closed = False
        self._why_closed = CLOSED
        self._dropped = ends_when_dropped(self, self._handles, clock)
        self._statistics: ProducerStatistics | None = None
        if config.stats_cb is not None and config.statistics_interval_ms:
            self._statistics = ProducerStatistics(config, clock, self._callbacks, self._handles)
        self._forwarding = forward_logs(config.logger, self)
        _log.info(
            "producer started client.id=%r root=%r version=%s",
            config.client_id,
            self._store.url,
            __version__,
        )

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
        *,
        deliver_at: datetime | float | None = None,
    ) -> None:
        """Queue one message and return at once.

        `value` is bytes, str (sent as UTF-8) or None (a tombstone); for a typed topic a dict or an
        instance of its model. `partition` -1 leaves the choice to the partitioner. `timestamp` is
        milliseconds since 1970 UTC, 0 for now. Share groups deliver the message from `deliver_at`
        on, seconds since 1970 UTC or a datetime with its time zone; all other readers get it at
        once. `callback` (or `on_delivery`) is called with (error,
        message) from `poll`, `flush` or `close`.

        Raises QueueFull after `max.block.ms` (a BufferError: call `poll` and try again),
        MessageTooLarge, UnknownTopic for a partition the topic does not have, InvalidValue for a
        value that does not fit a typed topic or a null key where the topic is compacted,
        InvalidConfig for a schema that is not the topic's, Unavailable if the store refuses to
        answer, TypeError, UnicodeEncodeError for text that UTF-8 cannot hold, RuntimeError after
        `close`.
        """
        if deliver_at is not None:
            headers = with_header(headers, delivery_header(deliver_at))
        handle = self._producible.get(topic)
        if handle is None:
            check_before_io(
                topic, value, key, partition, timestamp, headers, self._message_bytes_max
            )
            if (
                not callable(notify := on_delivery if callback is None else callback)
                and notify is not None
            ):
                raise not_callable(notify)
            handle = self._topics.open(topic, self._check_may_produce)
        if type(value) is handle.plain:
            size = len(value)
        else:
            value, size = handle.accepted(value)
        if key is not None:
            if type(key) is not bytes:
                key = as_bytes(key, "key")
            size += len(key)
        elif handle.keyed:
            raise InvalidValue(
                f"topic {handle.name!r} is compacted: every message needs a key",
                field="key",
                topic=handle.name,
            )
        checked_headers: Headers = None
        if headers is not None:
            checked_headers, header_bytes = accepted_headers(headers)
            size += header_bytes
        if size > handle.size_max:
            if self._config.large_message_enabled:
                notify = on_delivery if callback is None else callback
                self._produce_large(
                    handle, size, value, key, partition, timestamp, checked_headers, notify
                )
                return
            raise MessageTooLarge(size=size, limit=handle.size_max, topic=handle.name)
        if partition != -1 or timestamp != 0:
            partition, timestamp = self._checked_numbers(handle, partition, timestamp)
        notify = on_delivery if callback is None else callback
        if notify is None:
            notify = self._on_delivery
        elif not callable(notify):
            raise not_callable(notify)
        buffer = handle.buffer
        queue = buffer.queue
        if len(queue) >= buffer.room_length or buffer.bytes >= buffer.room_bytes:
            self._make_room(buffer)
        queue.extend((value, key, partition, timestamp, checked_headers, self._monotonic(), notify))
        buffer.bytes += size
        if len(queue) >= buffer.wake_length or buffer.bytes >= buffer.wake_bytes:
            buffer.wake()

    def produce_future(
        self,
        topic: str | Topic,
        value: Any = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: HeadersInput = None,
        *,
        deliver_at: datetime | float | None = None,
    ) -> Future[Message]:
        """Queue one message as `produce` does. The future returns the delivered message, or raises
        why it was not written; neither needs `poll`.

        What `add_done_callback` is given runs on a thread of the sender, and must not block.
        """
        self._callbacks.has_futures = True
        delivered = DeliveryFuture()
        self.produce(
            topic,
            value=value,
            key=key,
            partition=partition,
            on_delivery=delivered,
            timestamp=timestamp,
            headers=headers,
            deliver_at=deliver_at,
        )
        return delivered

    def produce_batch(
        self,
        topic: str | Topic,
        messages: Iterable[dict[str, Any]],
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """Queue many messages: dicts with `value` and perhaps `key`, `partition`, `timestamp`,
        `headers`, `callback`.

        Returns how many were queued. A message that is refused gets its KafkaError under `_error`;
        it raises nothing. From the first message that finds the queue full (`_QUEUE_FULL`) on, none
        is queued, which keeps their order. Raises TypeError for arguments and fields of a wrong
        type, before anything is queued, and RuntimeError after `close`.
        """
        self._check_open()
        batch = ProduceCall(
            list(messages), partition, on_delivery if callback is None else callback
        )
        batch.check(topic, serializes=self._serializes)
        if not self._serializes and (found := batch.unplain()) is not None:
            self._check_is_typed(topic, *found)
        return batch.queue(partial(self.produce, topic))

    def _check_is_typed(self, topic: str | Topic, at: int, value: object) -> None:
        """Raise TypeError for a value of a batch that no untyped topic takes, if this topic is
        one.
        """
        with suppress(KafkaException):  # with which each message is refused
            handle = self._producible.get(topic) or self._topics.open(
                topic, self._check_may_produce
            )
            if handle.schema is None:
                raise TypeError(
                    f"message at index {at}: value must be bytes or str, not {type(value).__name__}"
                )

    def produce_arrow(
        self, topic: str | Topic, data: ArrowInput, on_delivery: TableCallback | None = None
    ) -> int:
        """Queue a whole Arrow table or record batch, without a Python step per row; the number of
        rows.

        The columns of an untyped topic are `value` (binary or string) and, all optional, `key`,
        `partition` (int), `timestamp` and `headers`; of a typed topic its own columns and,
        optional, `_key`, `_partition`, `_timestamp`, `_headers`. The rows are committed together.
        `on_delivery` is called once, with an error or None and a TopicPartition for each partition
        that got rows, whose offset is that of its first row.

        Raises InvalidValue naming the column that does not fit, and what `produce` raises.
        """
        check_arrow(data)
        if on_delivery is not None and not callable(on_delivery):
            raise not_callable(on_delivery)
        handle = self._producible.get(topic) or self._topics.open(topic, self._check_may_produce)
        handle.check()
        about = handle.name, handle.schema, handle.partitions, handle.size_max
        columns = columns_from_arrow(data, *about, keyed=handle.keyed, now_ms=self._clock.time_ms())
        if not len(columns):
            return 0
        size = columns.values.nbytes + columns.keys.nbytes + columns.headers.nbytes
        self._queue_block(handle, ArrowBlock(columns, on_delivery, self._monotonic()), size)
        return len(columns)

    def _checked_numbers(
        self, handle: TopicHandle, partition: int, timestamp: int
    ) -> tuple[int, int]:
        partition, timestamp = operator.index(partition), operator.index(timestamp)
        if partition < -1 or (handle.partitions is not None and partition >= handle.partitions):
            # It may have grown.
            count = 0 if partition < -1 else self._lookup.head(handle.name).partitions
            if not 0 <= partition < count:
                raise UnknownTopic(
                    handle.name, partition=partition, code=KafkaError._UNKNOWN_PARTITION
                )
            handle.partitions = count
        check_timestamp(timestamp, handle.name)
        return partition, timestamp

    # --- how much is waiting ---

    def _pending(self) -> tuple[int, int]:
        """Messages undelivered or waiting for their callback, and the bytes of the former. Needs
        `changed`.
        """
        buffers = self._buffers()
        rows = sum(buffer.pending_rows for buffer in buffers) + sum(map(len, self._callbacks.due))
        return rows, sum(buffer.pending_bytes for buffer in buffers)

    def _buffers(self) -> Iterable[RecordAccumulator]:
        """Each buffer once, in the order of the topics."""
        return dict.fromkeys(handle.buffer for handle in tuple(self._handles.values()))

    def _make_room(self, buffer: RecordAccumulator) -> None:
        """Grant a buffer room that `produce` may fill without checking the limits: half of what its
        topic may have, so that all topics together stay within them. Waits or raises QueueFull at a
        limit.
        """

        def grant() -> bool:
            rows, size = self._pending()
            if rows >= self._rows_max or size >= self._bytes_max:
                return False
            parts = 2 * max(1, len(self._handles))
            buffer.room_length = len(buffer.queue) + FIELDS * max(
                1, (self._rows_max - rows) // parts
            )
            buffer.room_bytes = buffer.bytes + max(1, (self._bytes_max - size) // parts)
            return True

        self._find_room(grant)

    def _produce_large(self, handle: TopicHandle, size: int, *row: Any) -> None:
        """Queue a message of `size` bytes, more than a record of the topic may have. Raises what
        `produce` raises.
        """
        value, key, partition, timestamp, headers, notify = row
        partition, timestamp = self._checked_numbers(handle, partition, timestamp)
        if not callable(notify := notify or self._on_delivery) and notify is not None:
            raise not_callable(notify)
        row = value, key, partition, timestamp, headers, self._monotonic(), notify
        self._queue_block(handle, large_block(row, size, self._clock.unique_id(), handle), size)

    def _queue_block(self, handle: TopicHandle, block: LargeBlock | ArrowBlock, size: int) -> None:
        """Queue records of `size` bytes that are committed together. Waits or raises QueueFull at a
        limit.
        """

        def has_room() -> bool:
            rows, waiting = self._pending()
            # A block larger than the limit is accepted when nothing else waits. Otherwise it could
            # never be produced.
            return rows < self._rows_max and (not rows or waiting + size <= self._bytes_max)

        self._find_room(has_room)
        handle.sender.append_block(handle.buffer, block, size)

    def _find_room(self, find: Callable[[], bool]) -> None:
        """Call `find`, with `changed` held, until it finds room. Waits for that up to
        `max.block.ms`, running callbacks that are due, and then raises QueueFull.
        """
        callbacks = self._callbacks
        with callbacks.changed:
            if find():
                return
        # Inside a callback, those that would make room cannot run.
        if not self._config.max_block_ms or callbacks.is_running_here():
            raise QueueFull
        deadline = self._monotonic() + self._config.max_block_ms / 1000

        def serve() -> None:
            while not callbacks.serve_until(find, deadline):
                if self._monotonic() >= deadline:
                    raise QueueFull

        self._without_lingering(serve)

    # --- serving ---

    def poll(self, timeout: float | None = -1) -> int:
        """Run due delivery callbacks, waiting up to `timeout` seconds (-1 or None: for ever) until
        a message has been reported, with a callback or without. Returns the number of messages
        reported since the last call. Raises what a callback raised, after all due callbacks have
        run.
        """
        callbacks = self._callbacks
        if timeout == 0 and not (
            callbacks.due or callbacks.silent or callbacks.running or self._closed
        ):
            return 0  # `poll(0)` after each message must not pay for a lock each time
        self._check_open()
        return callbacks.serve(self._deadline(timeout), self.__len__)

    def flush(self, timeout: float | None = -1) -> int:
        """Send all messages without lingering, and wait up to `timeout` seconds while running
        callbacks. Returns the number of messages still queued (0: all done).

        It also waits for callbacks that other threads are running, unless it is called inside a
        callback.
        """
        self._check_open()
        deadline = self._deadline(timeout)

        def serve() -> None:
            while len(self) and (deadline is None or self._monotonic() < deadline):
                self._callbacks.serve(deadline, self.__len__)
            self._callbacks.serve(self._monotonic(), self.__len__)

        self._without_lingering(serve)
        return len(self)

    def _without_lingering(self, serve: Callable[[], None]) -> None:
        """Send messages at once while `serve` runs. No generator does this: Ctrl-C could leave one
        suspended.
        """
        flush = Flush()
        try:
            self._callbacks.flushes.append(flush)
            for buffer in self._buffers():
                buffer.wake()
            serve()
        finally:
            flush.is_over = True
            self._callbacks.forget_flushes()

    def purge(
        self,
        in_queue: bool = True,
        in_flight: bool = True,
        blocking: bool = True,  # noqa: ARG002 - Kafka's signature
    ) -> None:
        """Drop messages. At the next `poll` or `flush`, callbacks of queued messages get
        _PURGE_QUEUE, and those of messages being written _PURGE_INFLIGHT. The latter may still be
        written to the topic.
        """
        self._check_open()
        handles = tuple(self._handles.values())
        # In the order of the topics, so that their callbacks come in the same order in each run.
        for sender, buffer in dict.fromkeys((of.sender, of.buffer) for of in handles):
            sender.purge(buffer, in_queue=in_queue, in_flight=in_flight)

    def close(self) -> bool:
        """Flush without a time limit, then close; returns True. Idempotent. Afterwards methods
        raise RuntimeError.

        An exception raised in a callback is raised after the close. After Ctrl-C the producer is
        still open. A message that another thread produces meanwhile is delivered, or refused with
        RuntimeError.
        """
        failure: Exception | None = None
        if self._transactions is not None and not self._closed:
            self._transactions.close()
        while not self._closed:
            try:
                self.flush()
            except Exception as error:  # noqa: BLE001 - raised by a callback; later messages must still be flushed
                failure = failure or error
            else:
                self._end(if_idle=True)
        if failure is not None:
            raise failure
        return True

    def _end(self, *, if_idle: bool = False) -> None:
        """Close; with `if_idle`, not if another thread has produced since the flush."""
        with self._topics.lock:  # no other thread opens a handle meanwhile
            handles = dict(self._handles)  # they keep the senders until this producer has ended
            if if_idle and (
                not all(close_handle(self._handles, topic) for topic in handles) or len(self)
            ):
                return
            self._closed, self._handles, self._topics.by_topic = True, {}, {}
            self._producible = {}
            self._dropped.detach()
        for sender, buffer in dict.fromkeys((of.sender, of.buffer) for of in handles.values()):
            sender.detach(buffer)
        if self._statistics is not None:
            self._statistics.close()
        _log.info("producer closed client.id=%r root=%r", self._config.client_id, self._store.url)
        if self._forwarding is not None:
            self._forwarding()

    def _flush_at_exit(self) -> None:
        """Wait up to `message.timeout.ms` for messages not delivered or reported when the process
        ends, then close.
        """
        if self._closed:
            return
        # A clock that the program controls stands still at its exit: the wait would have no end.
        waiting = len(self) if self._clock is SYSTEM_CLOCK else 0
        timeout_s = min(EXIT_WAIT_S, self._topics.settings.timeout_s)
        if waiting:
            advice = "call flush() or close() before the end"
            text = (
                "the program ends with %d messages not delivered or reported: waiting up to %g "
                "s; %s"
            )
            _log.warning(text, waiting, timeout_s, advice)
        deadline = self._monotonic() + timeout_s
        while waiting:
            try:
                waiting = self.flush(max(0.0, deadline - self._monotonic()))
            except Exception:  # noqa: BLE001 - raised by a callback; later messages must still be flushed
                _log.exception("a delivery callback failed at the exit of the program")
            else:
                break
        if waiting:
            _log.error(
                "the program ends without waiting longer for %d messages, which may be lost",
                waiting,
            )
        self._end()

    def _refuse_in_child(self, why: str) -> None:
        """Refuse further calls, in a forked child."""
        self._dropped.detach()
        self._closed, self._why_closed = True, why
        self._handles, self._topics.by_topic, self._producible = {}, {}, {}

    def resolve(self, topic: str, token: str, timeout: float = 60.0) -> bool:
        """Resolve a delivery whose outcome is unknown: True if its messages are in the topic, else
        False.

        `token` is in the error's text and in `OutcomeUnknown.token`. The answer is final: messages
        reported as not written are never written later. Works after `close` too. Raises
        OutcomeUnknown if the outcome cannot be resolved within `timeout` seconds.
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
        """No effect: a store takes its credentials from the settings `store.*` or from the
        environment.
        """
        self._check_open()

    def __len__(self) -> int:
        """Messages queued, being written, or waiting for their callback."""
        if self._closed:
            return 0
        with self._callbacks.changed:
            if self._callbacks.running:
                self._callbacks.take_back()
            return self._pending()[0] + self._callbacks.in_other_threads()

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer {self._store.url} {self._config.client_id!r}>"

    # --- transactions ---

    def _new_transactions(self) -> Transactions | None:
        """The transactions of a producer with a `transactional.id`."""
        if self._topics.staging is None:
            return None
        return Transactions(
            self._store,
            self._config,
            self._clock,
            self._topics.staging,
            self._lookup,
            Outlet(
                flush=weakly(self._flush_until, (0, None)),
                purge=weakly(self.purge, None),
                admit=weakly(self._admit, None),
                senders=weakly(self._senders, {}),
            ),
        )

    def _flush_until(self, deadline: float) -> tuple[int, Exception | None]:
        """Flush. The number of messages that are left, and the first exception of a callback."""
        failure: Exception | None = None
        while not self._closed:
            try:
                return self.flush(max(0.0, deadline - self._monotonic())), failure
            except Exception as error:  # noqa: BLE001 - raised by a callback; later ones must still run
                failure = failure or error
        return 0, failure

    def _admit(self, is_allowed: bool) -> None:
        """Whether `produce` is valid from now on."""
        self._producible = self._handles if is_allowed else {}

    def _senders(self) -> dict[str, Sender]:
        return {handle.name: handle.sender for handle in tuple(self._handles.values())}

    def _check_may_produce(self) -> None:
        self._check_open()
        if self._transactions is not None:
            self._transactions.check_may_produce()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(self._why_closed)

    def _deadline(self, timeout: float | None) -> float | None:
        seconds = checked_timeout(timeout)
        return None if seconds == float("inf") else self._monotonic() + seconds
