"""`AIOProducer`: a producer for asyncio."""

from __future__ import annotations

import asyncio
import contextvars
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from datetime import datetime
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Self, TypeVar

from deltaq.aio.calls import Fairness, running_loop
from deltaq.aio.reports import LoopReports
from deltaq.aio.threads import ThreadExecutor, run_blocking
from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout
from deltaq.config import ProducerConfig, parse_client_config
from deltaq.errors import QueueFull
from deltaq.message import Message, TopicPartition
from deltaq.metadata import ClusterMetadata
from deltaq.producer import Producer
from deltaq.producer.producer import DeliveryCallback
from deltaq.producer.topic_handle import HeadersInput
from deltaq.share_groups.transaction_acknowledgements import (
    ShareAcknowledgements,
    ShareGroupMetadata,
)
from deltaq.store import Store
from deltaq.topic import Topic
from deltaq.topics.arrow_input import ArrowInput
from deltaq.weak import weakly

if TYPE_CHECKING:
    from deltaq.aio.consumer import AIOConsumer
    from deltaq.aio.share_consumer import AIOShareConsumer
    from deltaq.consumer import Consumer
    from deltaq.share_consumer import ShareConsumer

P = ParamSpec("P")
R = TypeVar("R")

_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb")
_OWN_SETTINGS = MappingProxyType({"delivery.report.only.error": False, "max.block.ms": 0})
"""Futures need all reports, and the event loop must not be blocked."""


class LoopProducer(Producer):
    """A producer that says what would block, and when delivery reports are there."""

    def is_known(self, topic: str | Topic, partition: int) -> bool:
        """Whether `produce` needs no I/O, since the topic was looked up and has the partition."""
        handle = self._handles.get(topic)
        return handle is not None and (handle.partitions is None or partition < handle.partitions)

    def on_reports(self, notify: Callable[[], object]) -> None:
        """Have `notify` called, in any thread, when callbacks may be due. It must not block."""
        self._callbacks.on_change = notify

    def serve_reports(self) -> int:
        """Run the callbacks that are due. Returns the number of messages served."""
        return 0 if self._closed else self.poll(0)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise RuntimeError if the producer is closed."""
        self._check_open()


class AIOTransaction:
    """A transaction as an asynchronous context manager; see `Producer.transaction`."""

    def __init__(self, producer: AIOProducer, consumer: Consumer | ShareConsumer | None) -> None:
        self._of = producer
        self._block = producer._producer.transaction(consumer=consumer)

    async def __aenter__(self) -> None:
        # This can happen when the task of the block before was cancelled while that ended.
        if (ending := self._of._ending) is not None:
            await asyncio.wait([ending])
        self._block.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        serving = self._of._serve(self._block.__exit__, kind, error, trace)
        self._of._ending = ending = asyncio.ensure_future(serving)
        await asyncio.shield(ending)


class AIOProducer:
    """A `Producer` for asyncio. Mirrors `confluent_kafka.aio.AIOProducer`; all calls belong to one
    event loop.

    `await produce(...)` returns the delivered message. Where one task produces many messages,
    `produce_future` queues each and returns a future. Both wait while the queue is full. Callbacks
    may be functions or coroutine functions; they run on the event loop as soon as they are due,
    without calls of `poll`.

    Blocking work, such as looking up a topic, runs on up to `max_workers` threads, or on those of
    `executor`. `batch_size` and `buffer_timeout` are accepted and have no effect: `linger.ms` and
    `batch.num.messages` decide.
    """

    _client: ClassVar[type[LoopProducer]] = LoopProducer

    def __init__(
        self,
        producer_conf: Mapping[str, Any] | None = None,
        max_workers: int = 4,
        executor: Executor | None = None,
        batch_size: int = 1000,  # noqa: ARG002 - Kafka's signature
        buffer_timeout: float = 1.0,  # noqa: ARG002 - Kafka's signature
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        config = parse_client_config(ProducerConfig, producer_conf, keywords)
        self._reports = LoopReports(only_errors=config.delivery_report_only_error)
        self._on_delivery = config.on_delivery
        self._owns_executor = executor is None
        self.executor = ThreadExecutor(clock, max_workers) if executor is None else executor
        conf = None if producer_conf is None else self._with_callbacks(producer_conf)
        others = {**self._with_callbacks(keywords), **_OWN_SETTINGS}
        self._producer = self._client(conf, store=store, clock=clock, **others)
        self._producer.on_reports(self._reports.wake)
        # The producer refers to the reports.
        self._reports.serve = weakly(self._producer.serve_reports, 0)
        self._turns: defaultdict[str | Topic, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fairness = Fairness(clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Future[None] | None = None  # the end of the newest transaction

    def _with_callbacks(self, conf: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration with callbacks that run on the event loop."""
        return {
            name: self._reports.on_loop(value) if name in _CALLBACKS and callable(value) else value
            for name, value in conf.items()
        }

    # --- producing ---

    async def produce(
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
    ) -> Message:
        """Write one message, and return it with its partition and offset.

        Raises KafkaException if it was not written, and what `Producer.produce` raises, but not
        QueueFull. If the task is cancelled, a message that was queued is still written.
        """
        arguments = (topic, value, key, partition, callback, on_delivery, timestamp, headers)
        return await (await self.produce_future(*arguments, deliver_at=deliver_at))

    async def produce_future(
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
    ) -> asyncio.Future[Message]:
        """Queue one message, waiting while the queue is full. The future returns the delivered
        message, or raises KafkaException if it was not written.

        If the task is cancelled before this returns, the message was not queued, unless its topic
        was being looked up.
        """
        loop = self._bind()
        notify = on_delivery if callback is None else callback
        if notify is not None and not callable(notify):
            raise TypeError(f"on_delivery must be callable, not {type(notify).__name__}")
        delivered: asyncio.Future[Message] = loop.create_future()
        report = self._reports.callback(delivered, self._on_delivery if notify is None else notify)
        arguments = (topic, value, key, partition, report, None, timestamp, headers)
        produce = partial(self._producer.produce, *arguments, deliver_at=deliver_at)
        await self._fairness.let_others_run()
        async with self._turns[topic]:  # messages of a topic are queued in the order of the calls
            while True:
                room = self._reports.next_report(loop)
                try:
                    if self._producer.is_known(topic, operator.index(partition)):
                        produce()
                    else:
                        await self._run(produce)
                except BufferError:  # of both producers; QueueFull is one
                    # Shared: a cancelled task must not cancel the others.
                    await asyncio.shield(room)
                else:
                    return delivered

    async def produce_arrow(self, topic: str | Topic, data: ArrowInput) -> list[TopicPartition]:
        """Write a whole Arrow table or record batch, as `Producer.produce_arrow`. Returns a
        TopicPartition with the offset of its first row for each partition that got rows.
        """
        loop = self._bind()
        delivered: asyncio.Future[list[TopicPartition]] = loop.create_future()
        produce = partial(
            self._producer.produce_arrow, topic, data, self._reports.callback(delivered, None)
        )
        async with self._turns[topic]:
            while True:
                room = self._reports.next_report(loop)
                try:
                    rows = await self._run(produce)
                except QueueFull:
                    await asyncio.shield(room)
                else:
                    break
        return await delivered if rows else []

    # --- serving ---

    async def poll(self, timeout: float | None = 0) -> int:
        """Wait up to `timeout` seconds (-1 or None: for ever) for delivery reports, and return how
        many were served. Not needed: reports are served without it.
        """
        if checked_timeout(timeout) == 0:
            self._bind()
            self._producer.check_open()
            await asyncio.sleep(0)
            return self._reports.serve_due()
        return await self._serve(self._producer.poll, timeout)

    async def flush(self, timeout: float | None = -1) -> int:
        """Send all messages without lingering, and wait up to `timeout` seconds (-1 or None: no
        limit) for their reports. Returns the number of messages still queued.
        """
        return await self._serve(self._producer.flush, timeout)

    async def purge(
        self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True
    ) -> None:
        """Drop messages, as `Producer.purge`. Their futures raise KafkaException."""
        await self._run(partial(self._producer.purge, in_queue, in_flight, blocking))

    async def close(self) -> None:
        """Flush without a time limit, then close. Idempotent. Afterwards methods raise
        RuntimeError.
        """
        if not self._producer.is_closed:
            await self._serve(self._producer.close)
        if self._owns_executor:
            self.executor.shutdown(wait=False)

    async def _serve(self, call: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R:
        """Run a call that serves reports on a thread. The event loop serves none meanwhile: which
        of the two served a report would be chance, and `poll` counts.
        """
        with self._reports.served_elsewhere():
            return await self._run(partial(call, *arguments, **keywords))

    # --- transactions ---

    async def init_transactions(self, timeout: float | None = -1, /) -> None:
        """See `Producer.init_transactions`."""
        await self._serve(self._producer.init_transactions, timeout)

    async def begin_transaction(self) -> None:
        """See `Producer.begin_transaction`."""
        await self._run(self._producer.begin_transaction)  # it may wait for another call

    async def send_offsets_to_transaction(
        self,
        positions: list[TopicPartition],
        group_metadata: object,
        timeout: float | None = -1,
        /,
    ) -> None:
        """See `Producer.send_offsets_to_transaction`."""
        await self._run(
            partial(self._producer.send_offsets_to_transaction, positions, group_metadata, timeout)
        )

    async def send_share_acknowledgements_to_transaction(
        self,
        acknowledgements: ShareAcknowledgements,
        group_metadata: ShareGroupMetadata,
        timeout: float | None = -1,
        /,
    ) -> None:
        """See `Producer.send_share_acknowledgements_to_transaction`."""
        send = self._producer.send_share_acknowledgements_to_transaction
        await self._run(partial(send, acknowledgements, group_metadata, timeout))

    async def commit_transaction(self, timeout: float | None = -1, /) -> None:
        """See `Producer.commit_transaction`."""
        await self._serve(self._producer.commit_transaction, timeout)

    async def abort_transaction(self, timeout: float | None = -1, /) -> None:
        """See `Producer.abort_transaction`."""
        await self._serve(self._producer.abort_transaction, timeout)

    def transaction(
        self, *, consumer: AIOConsumer[Any, Any] | AIOShareConsumer[Any, Any] | None = None
    ) -> AIOTransaction:
        """A transaction as a context manager; see `Producer.transaction`."""
        return AIOTransaction(self, None if consumer is None else consumer._consumer)

    # --- the rest ---

    async def list_topics(
        self, topic: str | None = None, timeout: float | None = -1
    ) -> ClusterMetadata:
        """All topics, or one, with their partitions."""
        return await self._run(partial(self._producer.list_topics, topic, timeout))

    async def cluster_id(self, timeout: float | None = -1) -> str:
        """A stable id of the root URL."""
        return await self._run(partial(self._producer.cluster_id, timeout))

    async def resolve(self, topic: str, token: str, timeout: float = 60.0) -> bool:
        """Resolve a delivery whose outcome is unknown, as `Producer.resolve`."""
        return await self._run(partial(self._producer.resolve, topic, token, timeout))

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """Has no effect, as `Producer.set_sasl_credentials`."""
        self._producer.set_sasl_credentials(username, password)

    def __len__(self) -> int:
        return len(self._producer)

    def __bool__(self) -> bool:
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # --- the event loop ---

    def _bind(self) -> asyncio.AbstractEventLoop:
        """The event loop of this producer: that of its first call. RuntimeError in another loop."""
        if self._loop is None:
            self._reports.loop = asyncio.get_running_loop()
        self._loop = running_loop(self._loop, "AIOProducer")
        return self._loop

    async def _run(self, call: Callable[[], R]) -> R:
        """The result of a blocking call, which runs to its end even if the task is cancelled."""
        loop = self._bind()
        self._producer.check_open()
        return await asyncio.shield(
            run_blocking(self.executor, loop, call, contextvars.copy_context())
        )
