"""The producer: `confluent_kafka.Producer` on a Delta log."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, count
from types import TracebackType
from typing import Any, TypeAlias

from deltaq.arrow_input import ArrowInput, columns_from_arrow
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config import ProducerConfig, parse_client_config, topic_properties
from deltaq.delivery import deliveries, wants_callback
from deltaq.errors import (
    InvalidConfig,
    InvalidValue,
    KafkaError,
    KafkaException,
    MessageTooLarge,
    QueueFull,
    Unavailable,
    UnknownTopic,
)
from deltaq.log.buffer import ArrowBlock, BufferSettings, RecordBuffer, Report
from deltaq.log.records import TIMESTAMP_MS_MAX, Headers
from deltaq.log.topic_view import NewTopicPlan, TopicView
from deltaq.log.topic_writer import TopicWriter, topic_writer
from deltaq.message import Message, TopicPartition
from deltaq.metadata import ClusterMetadata, cluster_id, list_topics
from deltaq.names import check_topic
from deltaq.root import open_root
from deltaq.serde.typed import TopicSchema
from deltaq.store import Store
from deltaq.topic import Topic

__all__ = ["DeliveryCallback", "Producer"]

DeliveryCallback: TypeAlias = Callable[["KafkaError | None", Message], object]
HeadersInput: TypeAlias = "Mapping[str, str | bytes | None] | list[tuple[str, str | bytes | None]] | None"

_log = logging.getLogger("deltaq.producer")

_SLICE_S = 0.2
"""Longest uninterrupted wait, so that Ctrl-C is answered."""


class _Lane:
    """One producer's way into one topic. `plain` is the type of value that needs no conversion."""

    __slots__ = ("buffer", "client_schema", "keyed", "name", "partitions", "plain", "schema", "size_max", "topic_size_max", "writer")

    def __init__(self, name: str, writer: TopicWriter, buffer: RecordBuffer, size_max: int) -> None:
        self.name = name
        self.writer = writer
        self.buffer = buffer
        self.size_max = size_max
        self.partitions: int | None = None
        self.plain: type = bytes
        self.schema: TopicSchema | None = None
        self.keyed = False

    def saw(self, view: TopicView, client_schema: TopicSchema | None) -> None:
        """Take over what the topic demands of its records. InvalidConfig if the client's schema is not the topic's."""
        if client_schema is not None and (view.schema is None or view.schema.arrow != client_schema.arrow):
            raise InvalidConfig(
                f"the schema given for topic {self.name!r} is not the one it was created with: "
                f"{'bytes' if view.schema is None else view.schema.arrow.to_string()}"
            )
        self.partitions = view.partitions
        self.schema = client_schema or view.schema
        self.plain = bytes if self.schema is None else _NoPlainValue
        self.size_max = min(self.size_max, view.settings.max_message_bytes)
        self.keyed = "compact" in view.settings.cleanup_policy

    def accepted(self, value: object) -> tuple[object, int]:
        """A value that is not plain, converted, and its size. TypeError, InvalidValue."""
        if self.schema is not None:
            return self.schema.accept(value), 0 
        if value is None:
            return None, 0
        data = _as_bytes(value, "value")
        return data, len(data)


class _NoPlainValue:
    """No value is an instance of this: every value of a typed topic is converted."""


class Producer:
    """Writes messages to topics. Thread-safe. Mirrors `confluent_kafka.Producer`; `bootstrap.servers` is the root URL.

    `produce` only queues; delivery callbacks run inside `poll`, `flush` and `close`, never elsewhere.

    Configuration as a dict, as keywords (`linger_ms=5`), or both. `store` and `clock` replace the components behind it.
    Raises InvalidConfig for what cannot be used; does no I/O.
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
        config = parse_client_config("producer", conf, keywords)
        assert isinstance(config, ProducerConfig)
        self._config = config
        self._clock = clock
        self._monotonic = clock.monotonic
        self._store = open_root(config, clock) if store is None else store
        self._buffer_settings = BufferSettings(
            linger_s=config.linger_ms / 1000,
            batch_bytes=config.batch_size,
            batch_rows=config.batch_num_messages,
            timeout_s=config.message_timeout_ms / 1000 if config.message_timeout_ms else float("inf"),
            compression=config.compression_type,
            compression_level=config.compression_level,
            partitioner=config.partitioner,
        )
        self._on_delivery: DeliveryCallback | None = config.on_delivery
        self._rows_max = config.queue_buffering_max_messages or 2**63
        self._bytes_max = config.queue_buffering_max_kbytes * 1024
        self._lanes: dict[str | Topic, _Lane] = {}
        self._lanes_lock = clock.lock()
        # The number of a message is drawn from a counter, which is atomic, so that produce() needs no lock.
        # What has been drawn less what is finished is in the queue; whoever changes `_finished` holds `_events`.
        self._tickets = count(1)
        self._events = clock.condition()
        self._reports: deque[Report] = deque()
        self._finished = 0
        self._bytes_in_flight = 0  # of tables
        self._flushing = 0
        self._closed = False

    # --- producing ---

    def produce(
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

        `value` is bytes, str (sent as UTF-8) or None (a tombstone); for a typed topic a dict or an instance of its model.
        `partition` -1 leaves the choice to the partitioner. `timestamp` is milliseconds since 1970 UTC, 0 for now.
        `callback` (or `on_delivery`) is called with (error, message) from `poll`, `flush` or `close`.

        Raises QueueFull (a BufferError: call `poll` and try again), MessageTooLarge, UnknownTopic for a partition the topic
        does not have, InvalidValue for a value that does not fit a typed topic, TypeError, RuntimeError after `close`.
        """
        lane = self._lanes.get(topic)
        if lane is None:
            lane = self._open_lane(topic)
        if type(value) is lane.plain:
            size = len(value)
        else:
            value, size = lane.accepted(value)
        if key is not None:
            if type(key) is not bytes:
                key = _as_bytes(key, "key")
            size += len(key)
        elif lane.keyed:
            raise InvalidValue(f"topic {lane.name!r} is compacted: every message needs a key", field="key", topic=lane.name)
        checked_headers: Headers = None
        if headers is not None:
            checked_headers, header_bytes = _headers(headers)
            size += header_bytes
        if size > lane.size_max:
            raise MessageTooLarge(size=size, limit=lane.size_max, topic=lane.name)
        if partition != -1 or timestamp:
            self._check_numbers(lane, partition, timestamp)
        buffer = lane.buffer
        if next(self._tickets) - self._finished > self._rows_max or buffer.bytes + self._bytes_in_flight > self._bytes_max:
            self._refuse()
        rows = buffer.rows
        rows.append(
            (value, key, partition, timestamp, checked_headers, callback or on_delivery or self._on_delivery, self._monotonic())
        )
        buffer.bytes += size
        waiting = len(rows)
        if waiting == 1 or waiting == buffer.full_at or buffer.bytes - size < buffer.settings.batch_bytes <= buffer.bytes:
            buffer.wake()

    def produce_batch(
        self,
        topic: str | Topic,
        messages: Iterable[dict[str, Any]],
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """Queue many messages: dicts with `value`, and optionally `key`, `partition`, `timestamp`, `headers`, `callback`.

        Returns how many were queued. A message that is refused gets the KafkaError under `_error` instead; none raises.
        """
        queued = 0
        for message in messages:
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
            except TypeError as error:
                message["_error"] = KafkaError(KafkaError._INVALID_ARG, str(error))
            else:
                queued += 1
        return queued

    def produce_arrow(
        self, topic: str | Topic, data: ArrowInput, on_delivery: Callable[[KafkaError | None, list[TopicPartition]], object] | None = None
    ) -> int:
        """Queue a whole Arrow table or record batch, without a Python step per row; the number of rows.

        The columns of an untyped topic are `value` (binary or string) and, all optional, `key`, `partition` (int), `timestamp`
        and `headers`; of a typed topic its own columns and, optional, `_key`, `_partition`, `_timestamp`, `_headers`.
        The rows are committed together. `on_delivery` is called once, with an error or None and a TopicPartition
        for each partition that got rows, whose offset is that of its first row.

        Raises InvalidValue naming the column that does not fit, and what `produce` raises.
        """
        lane = self._lanes.get(topic) or self._open_lane(topic)
        columns = columns_from_arrow(
            data,
            lane.name,
            lane.schema,
            lane.partitions,
            lane.size_max,
            keyed=lane.keyed,
            now_ms=self._clock.time_ms(),
        )
        if not len(columns):
            return 0
        size = columns.values.nbytes + columns.keys.nbytes
        if len(self) and lane.buffer.bytes + self._bytes_in_flight + size > self._bytes_max:
            raise QueueFull
        with self._events:
            self._bytes_in_flight += size
            self._finished -= len(columns)
        lane.buffer.append_block(ArrowBlock(columns, on_delivery, self._monotonic(), size))
        return len(columns)

    def _open_lane(self, topic: str | Topic) -> _Lane:
        """The way into a topic, at first use. Looks the topic up, so that bad input is refused at `produce`."""
        if self._closed:
            raise RuntimeError("Producer has been closed")
        if not isinstance(topic, str | Topic):
            raise TypeError(f"topic must be str or Topic, not {type(topic).__name__}")
        name = topic.name if isinstance(topic, Topic) else check_topic(topic)
        with self._lanes_lock:
            if (lane := self._lanes.get(topic)) is not None:
                return lane
            writer = topic_writer(self._store, name, self._clock, self._config.client_id)
            buffer = RecordBuffer(self._buffer_settings, self._reported, writer.wake)
            lane = _Lane(name, writer, buffer, self._config.message_max_bytes)
            schema = topic.schema if isinstance(topic, Topic) else None
            try:
                view = writer.view(self._new_topic(topic))
            except Unavailable:
                view = None  # the writer goes on looking until the messages' deadline
                lane.schema, lane.plain = schema, bytes if schema is None else _NoPlainValue
            if view is not None:
                lane.saw(view, schema)
            writer.attach(buffer)
            self._lanes[topic] = lane
            return lane

    def _new_topic(self, topic: str | Topic) -> NewTopicPlan | None:
        """How to create the topic if it does not exist; None if that is not wanted."""
        if isinstance(topic, Topic):
            return topic.plan(self._config.num_partitions)
        if not self._config.auto_create_topics_enable:
            return None
        return NewTopicPlan(self._config.num_partitions, None, topic_properties({}))

    def _check_numbers(self, lane: _Lane, partition: int, timestamp: int) -> None:
        if type(partition) is not int or type(timestamp) is not int:
            raise TypeError("partition and timestamp must be int")
        if partition < -1 or (lane.partitions is not None and partition >= lane.partitions):
            view = lane.writer.view()  # it may have grown
            if view is None or not -1 <= partition < view.partitions:
                raise UnknownTopic(lane.name, partition=partition)
            lane.partitions = view.partitions
        if not 0 <= timestamp <= TIMESTAMP_MS_MAX:
            raise InvalidValue(
                f"timestamp {timestamp} is outside 0..{TIMESTAMP_MS_MAX} ms (1970 to 2262); it counts milliseconds, 0 means now",
                field="timestamp",
                topic=lane.name,
            )

    def _refuse(self) -> None:
        with self._events:
            self._finished += 1  # gives the drawn ticket back
        raise QueueFull

    # --- serving ---

    def poll(self, timeout: float | None = -1) -> int:
        """Serve delivery callbacks, waiting up to `timeout` seconds (-1 or None: for ever) for one; how many were served.

        An exception raised in a callback comes out of here once all due callbacks have run.
        """
        self._check_open()
        return self._serve(self._deadline(timeout))

    def flush(self, timeout: float | None = -1) -> int:
        """Send everything now and wait for it, serving callbacks; the number of messages still queued (0: all done)."""
        self._check_open()
        deadline = self._deadline(timeout)
        self._set_flushing(+1)
        try:
            while len(self) and (deadline is None or self._monotonic() < deadline):
                self._serve(deadline)
            self._serve(self._monotonic())
        finally:
            self._set_flushing(-1)
        return len(self)

    def _set_flushing(self, change: int) -> None:
        """Several threads may flush at once; records linger again when the last has ended."""
        with self._events:
            self._flushing += change
        for lane in tuple(self._lanes.values()):
            lane.buffer.flushing = self._flushing > 0
            lane.buffer.wake()

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Drop queued messages; their callbacks get _PURGE_QUEUE at the next `poll` or `flush`.

        Messages that are being written cannot be called back: they are reported as what they become.
        """
        self._check_open()
        for lane in tuple(self._lanes.values()) if in_queue else ():
            lane.writer.purge(lane.buffer)

    def close(self) -> bool:
        """Flush without a time limit and end; True. Idempotent. Afterwards methods raise RuntimeError."""
        if not self._closed:
            try:
                self.flush()
            finally:
                self._closed = True
                lanes, self._lanes = self._lanes, {}
                for lane in lanes.values():
                    lane.writer.detach(lane.buffer)
        return True

    def resolve(self, topic: str, token: str, timeout: float = 60.0) -> bool:
        """What became of messages whose delivery ended in an unknown outcome: True if they are in the log, False if not.

        `token` stands in the error's text and in `OutcomeUnknown.token`. After the answer it can no longer change.
        Raises OutcomeUnknown if the answer cannot be had within `timeout` seconds.
        """
        return topic_writer(self._store, check_topic(topic), self._clock, self._config.client_id).settle(token, timeout)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """All topics, or one, with their partitions."""
        self._check_open()
        return list_topics(self._store, self._clock, topic, timeout)

    def cluster_id(self, timeout: float = -1) -> str:
        """A stable id of the root URL."""
        self._check_open()
        return cluster_id(self._store)

    def __len__(self) -> int:
        """Messages queued, being written, or waiting for their callback."""
        if self._closed:
            return 0
        with self._events:
            drawn = next(self._tickets)
            self._finished += 1  # gives the ticket back
            return drawn - self._finished

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Producer:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer {self._store.url} {self._config.client_id!r}>"

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Producer has been closed")

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None or timeout < 0 else self._monotonic() + timeout

    # --- reports ---

    def _reported(self, report: Report) -> None:
        """Called by the topic's writer when the fate of some records is known."""
        wanted = wants_callback(report, only_errors=self._config.delivery_report_only_error)
        with self._events:
            if isinstance(report.records, ArrowBlock):
                self._bytes_in_flight -= report.records.bytes
            if wanted:
                self._reports.append(report)
            else:
                self._finished += len(report)
            self._events.notify_all()
        if report.error is not None and not wanted:
            _log.warning("messages lost, and no callback to tell: count=%d error=%s", len(report), report.error)

    def _serve(self, deadline: float | None) -> int:
        """Run all due callbacks, waiting for the first until the deadline; for ever only while there is something to wait for."""
        with self._events:
            while not self._reports:
                left = _SLICE_S if deadline is None else min(_SLICE_S, deadline - self._monotonic())
                if left <= 0 or (self._flushing and not len(self)):
                    return 0
                self._events.wait(left)
            due = list(self._reports)
            self._reports.clear()
            self._finished += sum(map(len, due))
        served = 0
        failure: BaseException | None = None
        for callback, error, result in chain.from_iterable(map(deliveries, due)):
            served += 1
            try:
                callback(error, result)
            except Exception as raised:  # the callback's own: one comes out of poll, the others' messages must still be told
                failure = failure or raised
        if failure is not None:
            raise failure
        return served


def _as_bytes(data: object, what: str) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes):
        return bytes(data)
    raise TypeError(f"{what} must be bytes or str, not {type(data).__name__}")


def _headers(headers: HeadersInput) -> tuple[Headers, int]:
    """Headers as a list of (str, bytes or None), and their size. TypeError for anything else than the documented forms."""
    if not isinstance(headers, Mapping | list):
        raise TypeError(f"headers must be a dict or a list of (name, value) pairs, not {type(headers).__name__}")
    checked: list[tuple[str, bytes | None]] = []
    size = 0
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"a header must be a (str, bytes, str or None) pair, not {pair!r:.60}")
        name, content = pair
        data = None if content is None else _as_bytes(content, f"header {name!r:.60}")
        checked.append((name, data))
        size += len(name) + len(data or b"")
    return checked or None, size
