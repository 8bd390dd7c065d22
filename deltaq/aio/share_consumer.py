"""`AIOShareConsumer`: a share consumer for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from types import TracebackType
from typing import Any, Generic

from deltaq.aio.serial_client import SerialClient
from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout
from deltaq.errors import IllegalStateException
from deltaq.message import AcknowledgeType, K, Message, V
from deltaq.share_consumer import Messages, ShareConsumer
from deltaq.share_consumer.consumer import LOOP_POLL_S, CommitCallback, Results
from deltaq.share_groups.transaction_acknowledgements import (
    ShareAcknowledgements,
    ShareGroupMetadata,
)
from deltaq.store import Store
from deltaq.topic import Topic

_SLICE_S = 0.2
"""Longest blocking step in seconds: a call that follows a cancelled one waits for its last step."""


class StepwiseShareConsumer(ShareConsumer[K, V]):
    """A share consumer whose waiting may be abandoned: what a step has taken and no call has
    returned is there for the next one.
    """

    _kept: Messages[K, V] | None = None

    def wait_for_messages(self, timeout: float, *, in_loop: bool = False) -> Messages[K, V]:
        """Messages that were taken and not returned, or those of a `poll`."""
        if self._kept is not None and self._clock.uptime() >= self._held_until:
            self._give_back_unseen(self._kept)
            self._kept = None
        if self._kept is None:
            found = self._poll_in_loop(timeout) if in_loop else self.poll(timeout)
            self._kept = None if found.is_empty() else found
        return self._kept or Messages()

    def _return_all(self) -> None:
        """A commit must not accept what the application does not get: see `return_messages`."""

    def return_messages(self, *, in_loop: bool) -> None:
        """The messages that were waited for are returned. Those of a loop wait for their turn."""
        for message in self._kept or ():
            if (record := self._open_record(message)) is not None:
                record.is_waiting = in_loop
        self._returned.return_all()
        self._kept = None

    def yield_each(self, messages: Messages[K, V]) -> Iterator[Message[K, V]]:
        """The messages of one call, for a loop. Does no I/O."""
        return self._yield_each(messages)

    def note_exception(self, error: BaseException | None) -> None:
        """An exception leaves the block of the consumer."""
        self._note_exception(error)

    @property
    def is_closed(self) -> bool:
        return self._calls.is_closed

    def check_open(self) -> None:
        """Raise IllegalStateException if the consumer is closed."""
        if self._calls.refusal is not None:
            raise IllegalStateException(self._calls.refusal)


class _MessageLoop(AsyncIterator[Message[K, V]]):
    """An `async for` over messages. No asynchronous generator: the event loop would end it some
    time after it was left, and the next call might accept what it had not yielded.
    """

    def __init__(self, more: Callable[[], Awaitable[Iterator[Message[K, V]] | None]]) -> None:
        self._more = more
        self._messages: Iterator[Message[K, V]] = iter(())

    async def __anext__(self) -> Message[K, V]:
        while True:
            # Nothing is awaited once a message is at hand: a cancelled task would lose it.
            if (message := next(self._messages, None)) is not None:
                return message
            if (messages := await self._more()) is None:
                raise StopAsyncIteration
            self._messages = messages


class AIOShareConsumer(SerialClient, Generic[K, V]):
    """A `ShareConsumer` for asyncio, with its methods; all calls belong to one event loop.

    Calls of several tasks run one after the other. `poll` can be cancelled: messages that it did
    not return are returned by the next call, unless their lock is over. Any other call that is
    cancelled still takes effect. The callback for acknowledgements may be a function or a coroutine
    function; it runs on the event loop, inside a call, and may not call the consumer.

    Blocking work runs on up to `max_workers` threads, at least two, or on those of `executor`.
    """

    _consumer: StepwiseShareConsumer[K, V]

    def __init__(
        self,
        consumer_conf: Mapping[str, Any] | None = None,
        max_workers: int = 100,
        executor: Executor | None = None,
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        super().__init__(max_workers, executor, clock)
        conf, others = (self._with_callbacks(each) for each in (consumer_conf or {}, keywords))
        self._consumer = StepwiseShareConsumer(conf, store=store, clock=clock, **others)

    async def poll(self, timeout: float = -1) -> Messages[K, V]:
        """Take messages, as `ShareConsumer.poll`. `close` in another task ends the wait."""
        return await self._poll(timeout, in_loop=False)

    async def _poll(self, timeout: float, *, in_loop: bool) -> Messages[K, V]:
        deadline = self._clock.monotonic() + checked_timeout(timeout)
        async with self._exclusive() as worker:
            while True:
                left_s = deadline - self._clock.monotonic()
                slice_s = max(0.0, min(_SLICE_S, left_s))
                step = partial(self._consumer.wait_for_messages, slice_s, in_loop=in_loop)
                found = await worker.run(step)
                # From here on nothing is awaited: a cancelled call has returned nothing.
                if not found.is_empty() or left_s <= _SLICE_S or self._is_closing:
                    self._consumer.return_messages(in_loop=in_loop)
                    return found

    def __aiter__(self) -> AsyncIterator[Message[K, V]]:
        """Yield messages until the consumer is closed, as a loop over a `ShareConsumer`: a message
        is accepted when the body has come to its end, and released if it is left by an exception,
        by `break` or `return`, or because the task is cancelled. `poll` is not for a loop's body,
        nor for other tasks during it: it would accept the message at hand, in implicit mode.
        """
        return _MessageLoop(self._next_messages)

    async def _next_messages(self) -> Iterator[Message[K, V]] | None:
        """The next messages of a loop, perhaps none; None once the consumer closes."""
        if self._is_closing:
            return None
        return self._consumer.yield_each(await self._poll(LOOP_POLL_S, in_loop=True))

    async def subscribe(self, topics: list[str] | list[Topic] | list[str | Topic]) -> None:
        """Read these topics, as `ShareConsumer.subscribe`."""
        await self._call(self._consumer.subscribe, topics)

    async def unsubscribe(self) -> None:
        """End the subscription. What was returned stays locked, and can be acknowledged."""
        await self._call(self._consumer.unsubscribe)

    async def subscription(self) -> list[str]:
        """The names of the subscribed topics."""
        return await self._call_here(self._consumer.subscription)

    async def acknowledge(
        self, message: Message[Any, Any], ack_type: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> None:
        """Decide, in explicit mode, what is to become of a message, as
        `ShareConsumer.acknowledge`.
        """
        await self._call_here(self._consumer.acknowledge, message, ack_type)

    async def acknowledge_offset(
        self,
        topic: str,
        partition: int,
        offset: int,
        ack_type: AcknowledgeType = AcknowledgeType.ACCEPT,
    ) -> None:
        """As `acknowledge`, for the message at this place."""
        await self._call_here(self._consumer.acknowledge_offset, topic, partition, offset, ack_type)

    async def release(
        self,
        message: Message[Any, Any],
        delay: float = 0.0,
        error: BaseException | str | None = None,
    ) -> None:
        """Have a message delivered again, as `ShareConsumer.release`."""
        await self._call_here(self._consumer.release, message, delay, error)

    async def reject(
        self, message: Message[Any, Any], error: BaseException | str | None = None
    ) -> None:
        """Have a message not delivered again, as `ShareConsumer.reject`."""
        await self._call_here(self._consumer.reject, message, error)

    async def renew(self, message: Message[Any, Any], timeout: float = 60) -> None:
        """Begin the lock of a message anew, as `ShareConsumer.renew`."""
        await self._call(self._consumer.renew, message, timeout)

    async def share_group_metadata(self) -> ShareGroupMetadata:
        """Which member of which group this is, as `ShareConsumer.share_group_metadata`."""
        return await self._call_here(self._consumer.share_group_metadata)

    async def acknowledgements_for_transaction(self, timeout: float = 60) -> ShareAcknowledgements:
        """Hand over what is decided, as `ShareConsumer.acknowledgements_for_transaction`."""
        return await self._call(self._consumer.acknowledgements_for_transaction, timeout)

    async def commit_sync(self, timeout: float = 60) -> Results:
        """Write what is decided, and return the results, as `ShareConsumer.commit_sync`."""
        return await self._call(self._consumer.commit_sync, timeout)

    async def commit_async(self) -> None:
        """Write what is decided; the callback for acknowledgements gets the results, in the next
        call.
        """
        await self._call(self._consumer.commit_async)

    async def set_acknowledgement_commit_callback(self, callback: CommitCallback | None) -> None:
        """Call a function or coroutine function after acknowledgements were written or refused, as
        `ShareConsumer.set_acknowledgement_commit_callback`.
        """
        on_loop: Any = self._calls.on_loop(callback) if callable(callback) else callback
        await self._call_here(self._consumer.set_acknowledgement_commit_callback, on_loop)

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """Has no effect, as `ShareConsumer.set_sasl_credentials`."""
        await self._call_here(self._consumer.set_sasl_credentials, username, password)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._consumer.note_exception(error)
        await self.close()

    def __repr__(self) -> str:
        return f"<AIO{repr(self._consumer).removeprefix('<Stepwise')}"
