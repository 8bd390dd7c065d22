"""`AIOConsumer`: a consumer for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, ClassVar, Generic, Self, TypeVar

import pyarrow as pa

from deltaq.aio.calls import Fairness, Worker
from deltaq.aio.serial_client import SerialClient
from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout
from deltaq.consumer import Consumer, ConsumerHealth
from deltaq.consumer.calls import check_count, exclusive
from deltaq.consumer.fetch_buffer import AcceptedBatch, Fetch
from deltaq.consumer.reconciliation import RebalanceCallback, no_callback
from deltaq.errors import KafkaError, KafkaException
from deltaq.message import K, Message, TopicPartition, V
from deltaq.metadata import ClusterMetadata
from deltaq.store import Store
from deltaq.topic import Topic

R = TypeVar("R")

_SLICE_S = 0.2
"""Longest blocking step in seconds: a call that follows a cancelled one waits for its last step."""


class StepwiseConsumer(Consumer):
    """A consumer whose waiting, which blocks, is apart from taking what is ready, which does not.

    Only taking moves the position, so a record that was waited for and not taken comes again.
    """

    def take_message(self) -> Message | None:
        """The next message if it can be taken without blocking. Runs no callback."""
        batch: AcceptedBatch | None = None if self._calls.is_closed else self._current_batch()
        if batch is None or batch.row >= batch.count:
            batch = self._first_ready() if self.is_quiet() else None
        return None if batch is None else _take(batch)

    def take_messages(self, count: int, fetch: Fetch) -> bool:
        """Take messages without blocking until there are `count`; whether there are. They are
        returned once `fetch.returned` is set. Runs no callback.
        """
        return self.is_quiet() and self._take_ready(count, fetch)

    def is_quiet(self) -> bool:
        """Whether no callback and no change of the group has to be handled before the next
        message.
        """
        subscription = self._state.current
        if self._calls.is_closed or self._reader is None or self._events.pending:
            return False
        if subscription is None:
            return True
        lease = subscription.lease
        now = lease.polled_at = self._uptime()
        return now < lease.until

    @exclusive
    def _first_ready(self) -> AcceptedBatch | None:
        """The batch of the next message, if it was fetched already."""
        while (reader := self._reader) is not None:
            found = reader.ready().first()
            if found is not None or not reader.accept_next(0.0, self._state.wanted.is_only_matched):
                return found
        return None

    @exclusive
    def _take_ready(self, count: int, fetch: Fetch) -> bool:
        while (reader := self._reader) is not None:
            accepted = reader.ready()
            accepted.drop_stale(fetch)
            while fetch.count < count and accepted.take(count - fetch.count, fetch):
                pass
            if fetch.count >= count or not reader.accept_next(
                0.0, self._state.wanted.is_only_matched
            ):
                break
        return fetch.count >= count

    def wait_for_message(self, timeout: float) -> AcceptedBatch | None:
        """Wait for a message, and run callbacks that are due. `_take` takes the message."""
        return self._wait_for_one(timeout)

    def wait_for_messages(self, count: int, timeout: float, fetch: Fetch) -> None:
        """Wait until `fetch` has `count` messages. They are returned once `fetch.returned` is
        set.
        """
        self._wait_for_many(count, timeout, fetch)

    def wait_for_rows(
        self, count: int, timeout: float, fetch: Fetch
    ) -> tuple[str, Any] | Message | None:
        """Wait for records of one partition. They are returned once `fetch.returned` is set."""
        return self._wait_for_rows(count, timeout, fetch)

    @property
    def is_closed(self) -> bool:
        return self._calls.is_closed

    def check_open(self) -> None:
        """Raise RuntimeError if the consumer is closed."""
        self._calls.check_open()


def _take(batch: AcceptedBatch) -> Message:
    message = batch.message(batch.row)
    batch.row += 1
    return message


class AIOConsumer(SerialClient, Generic[K, V]):
    """A `Consumer` for asyncio. Mirrors `confluent_kafka.aio.AIOConsumer`; all calls belong to one
    event loop.

    Calls of several tasks run one after the other. `poll` and `consume` can be cancelled: a message
    that they did not return is returned by the next call. Any other call that is cancelled still
    takes effect. Callbacks may be functions or coroutine functions; they run on the event loop,
    inside a call, and may call the consumer.

    Blocking work runs on up to `max_workers` threads, at least two, or on those of `executor`,
    which needs as many: a call inside a callback takes the second.
    """

    _client: ClassVar[type[StepwiseConsumer]] = StepwiseConsumer
    _consumer: StepwiseConsumer

    def __init__(
        self,
        consumer_conf: Mapping[str, Any] | None = None,
        max_workers: int = 100,
        executor: Executor | None = None,
        *,
        topics: Iterable[Topic] = (),
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        super().__init__(max_workers, executor, clock)
        self._fairness = Fairness(clock)
        conf = None if consumer_conf is None else self._with_callbacks(consumer_conf)
        others = self._with_callbacks(keywords)
        self._consumer = self._client(conf, topics=topics, store=store, clock=clock, **others)

    # --- reading ---

    async def poll(self, timeout: float | None = -1) -> Message[K, V] | None:
        """The next message, or None if none arrives within `timeout` seconds (-1 or None: no
        limit).

        A message that is ready is returned without waiting for a thread. `close` in another task
        ends the wait.
        """
        self._consumer.check_open()
        deadline = self._deadline(timeout)
        await self._fairness.let_others_run()
        if self._calls.is_idle:
            message = self._consumer.take_message()
            if message is not None or (timeout == 0 and self._consumer.is_quiet()):
                return message
        async with self._calls.exclusive() as worker:
            found = await self._wait(worker, self._consumer.wait_for_message, deadline)
            # From here on nothing is awaited: a cancelled call has taken nothing.
            return None if found is None or self._consumer.is_closed else _take(found)

    async def consume(
        self, num_messages: int = 1, timeout: float | None = -1
    ) -> list[Message[K, V]]:
        """Up to `num_messages` messages; fewer only if `timeout` seconds pass first (-1 or None: no
        limit).
        """
        self._consumer.check_open()
        check_count(num_messages)
        if num_messages == 0:
            return []
        deadline, fetch = self._deadline(timeout), Fetch()
        await self._fairness.let_others_run()
        if self._calls.is_idle:
            is_complete = self._consumer.take_messages(num_messages, fetch)
            if is_complete or (timeout == 0 and self._consumer.is_quiet()):
                messages = fetch.messages()
                fetch.returned = True
                return messages
        async with self._calls.exclusive() as worker:

            def wait(slice_s: float) -> bool | None:
                self._consumer.wait_for_messages(num_messages, slice_s, fetch)
                return True if fetch.count >= num_messages else None

            await self._wait(worker, wait, deadline)
            if self._consumer.is_closed:
                return []
            messages = fetch.messages()
            fetch.returned = True
            return messages

    async def consume_arrow(
        self, num_rows: int = 65_536, timeout: float | None = -1
    ) -> pa.RecordBatch | None:
        """The next records of one partition as Arrow, as `Consumer.consume_arrow` returns them;
        None if none arrive within `timeout` seconds. Raises KafkaException for an event.
        """
        self._consumer.check_open()
        if num_rows < 1:
            raise ValueError("num_rows must be at least 1")
        deadline, fetch = self._deadline(timeout), Fetch()
        async with self._calls.exclusive() as worker:

            def wait(slice_s: float) -> tuple[str, Any] | Message | None:
                return self._consumer.wait_for_rows(num_rows, slice_s, fetch)

            taken = await self._wait(worker, wait, deadline)
            if taken is None or self._consumer.is_closed:
                return None
            fetch.returned = True
            if isinstance(taken, Message):
                raise KafkaException(taken.error())
            topic, rows = taken
            return rows.add_column(0, "_topic", pa.repeat(topic, rows.num_rows))

    async def _wait(self, worker: Worker, wait: Callable[[float], R], deadline: float) -> R | None:
        """What `wait(seconds)` finds, in steps: None if the deadline passes or the consumer is
        about to close.
        """
        found = None
        while found is None and not (self._is_closing or self._consumer.is_closed):
            left = deadline - self._clock.monotonic()
            found = await worker.run(partial(wait, max(0.0, min(_SLICE_S, left))))
            if left <= _SLICE_S:
                break
        return found

    def __aiter__(self) -> Self:
        """Yield messages until the consumer is closed. An event other than the end of a partition
        is raised as a KafkaException.
        """
        return self

    async def __anext__(self) -> Message[K, V]:
        while not (self._is_closing or self._consumer.is_closed):
            message = await self.poll(-1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                return message
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
        raise StopAsyncIteration

    # --- what to read ---

    async def subscribe(
        self,
        topics: list[str] | list[Topic] | list[str | Topic],
        on_assign: RebalanceCallback[AIOConsumer[K, V]] = no_callback,
        on_revoke: RebalanceCallback[AIOConsumer[K, V]] = no_callback,
        on_lost: RebalanceCallback[AIOConsumer[K, V]] = no_callback,
    ) -> None:
        """Read these topics as a member of the group, as `Consumer.subscribe`. The callbacks get
        (this consumer, partitions), inside `poll`, `consume`, `unsubscribe` and `close`.
        """
        callbacks = [
            self._rebalance_callback(callback) for callback in (on_assign, on_revoke, on_lost)
        ]
        await self._call(self._consumer.subscribe, topics, *callbacks)

    def _rebalance_callback(self, callback: Any) -> Any:
        if callback is no_callback or not callable(callback):
            return callback  # `subscribe` refuses what cannot be called
        on_loop = self._calls.on_loop(callback)
        return lambda _, partitions: on_loop(self, partitions)

    async def unsubscribe(self) -> None:
        """End the subscription and leave the group. The partitions are revoked before this
        returns.
        """
        await self._call(self._consumer.unsubscribe)

    async def assign(self, partitions: list[TopicPartition]) -> None:
        """Read exactly these partitions, each from its `offset`, as `Consumer.assign`."""
        await self._call(self._consumer.assign, partitions)

    async def unassign(self) -> None:
        """Stop reading all partitions."""
        await self._call(self._consumer.unassign)

    async def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Add partitions to the assignment."""
        await self._call(self._consumer.incremental_assign, partitions)

    async def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Remove partitions from the assignment."""
        await self._call(self._consumer.incremental_unassign, partitions)

    async def assignment(self) -> list[TopicPartition]:
        """The partitions that are assigned."""
        return await self._call_here(self._consumer.assignment)

    # --- positions and committed offsets ---

    async def seek(self, partition: TopicPartition) -> None:
        """Continue at `partition.offset`."""
        await self._call(self._consumer.seek, partition)

    async def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """For each partition, the offset after the last message returned; OFFSET_INVALID if none
        was returned.
        """
        return await self._call_here(self._consumer.position, partitions)

    async def pause(self, partitions: list[TopicPartition]) -> None:
        """Return no messages from these partitions until `resume`."""
        await self._call(self._consumer.pause, partitions)

    async def resume(self, partitions: list[TopicPartition]) -> None:
        """Continue reading paused partitions."""
        await self._call(self._consumer.resume, partitions)

    async def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
        **keywords: Any,
    ) -> list[TopicPartition] | None:
        """Commit offsets, as `Consumer.commit`. With `asynchronous=False` the result is awaited and
        returned.
        """
        return await self._call(self._consumer.commit, message, offsets, asynchronous, **keywords)

    async def committed(
        self, partitions: list[TopicPartition], timeout: float | None = -1
    ) -> list[TopicPartition]:
        """The committed offset of each partition; OFFSET_INVALID if there is none."""
        return await self._call(self._consumer.committed, partitions, timeout)

    async def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """Store offsets for the next commit. Requires `enable.auto.offset.store=false`."""
        await self._call_here(self._consumer.store_offsets, message, offsets)

    async def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = -1, cached: bool = False
    ) -> tuple[int, int]:
        """(first offset, next offset) of a partition."""
        return await self._call(self._consumer.get_watermark_offsets, partition, timeout, cached)

    async def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float | None = -1
    ) -> list[TopicPartition]:
        """For each partition, the first offset whose timestamp is at or after `.offset`, in
        milliseconds since 1970.
        """
        return await self._call(self._consumer.offsets_for_times, partitions, timeout)

    # --- the rest ---

    def health(self) -> ConsumerHealth:
        """What this consumer knows of itself, without I/O."""
        return self._consumer.health()

    async def memberid(self) -> str | None:
        """This consumer's id in the group; None while it is not a member."""
        return await self._call_here(self._consumer.memberid)

    async def consumer_group_metadata(self) -> bytes:
        """Opaque bytes that identify this membership."""
        return await self._call_here(self._consumer.consumer_group_metadata)

    async def list_topics(
        self, topic: str | None = None, timeout: float | None = -1
    ) -> ClusterMetadata:
        """All topics, or only `topic`, with their partitions."""
        return await self._call(self._consumer.list_topics, topic, timeout)

    async def cluster_id(self, timeout: float | None = -1) -> str:
        """A stable id derived from the root URL."""
        return await self._call(self._consumer.cluster_id, timeout)

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """Has no effect, as `Consumer.set_sasl_credentials`."""
        await self._call_here(self._consumer.set_sasl_credentials, username, password)

    def __repr__(self) -> str:
        return f"<AIO{repr(self._consumer)[1:]}"

    def _deadline(self, timeout: float | None) -> float:
        return self._clock.monotonic() + checked_timeout(timeout)
