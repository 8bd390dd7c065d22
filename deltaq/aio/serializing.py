"""`AsyncSerializingProducer` and `AsyncDeserializingConsumer`: clients for asyncio whose messages
are objects.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Generic, Self

from deltaq.aio.consumer import AIOConsumer, StepwiseConsumer
from deltaq.aio.producer import AIOProducer, LoopProducer
from deltaq.errors import KafkaError
from deltaq.message import K, Message, V
from deltaq.producer.producer import DeliveryCallback
from deltaq.producer.topic_handle import HeadersInput
from deltaq.serde.conversion import MessageDeserializers, MessageSerializers, take_functions
from deltaq.serde.errors import ConsumeError
from deltaq.topic import Topic


class SerializingLoopProducer(LoopProducer):
    """A producer that takes handles with serializers: the messages that it gets have passed through
    them.
    """

    _serializes: ClassVar[bool] = True


class _StepwiseDeserializingConsumer(StepwiseConsumer):
    """A consumer that takes handles with deserializers, and remembers these by topic."""

    _deserializes: ClassVar[bool] = True

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.of_topics: dict[str, MessageDeserializers] = {}
        super().__init__(*arguments, **keywords)

    def _name(self, topic: str | Topic) -> str:
        if isinstance(topic, Topic):
            self.of_topics[topic.name] = topic.deserializers
        return super()._name(topic)


class AsyncSerializingProducer(AIOProducer, Generic[K, V]):
    """An `AIOProducer` with the settings `key.serializer` and `value.serializer`: functions
    `(object, context)` that return bytes, or coroutine functions, such as an `AsyncAvroSerializer`.
    Serializers of a `Topic` handle take precedence.

    Mirrors `confluent_kafka.aio.AsyncSerializingProducer`, which has to be awaited when it is made:
    this one may be. Functions run on the event loop, so they must not block.
    """

    _client: ClassVar[type[LoopProducer]] = SerializingLoopProducer

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        rest, others, key, value = take_functions(conf, keywords, "serializer", asynchronous=True)
        self._serializers = MessageSerializers(key, value)
        super().__init__(rest, **others)

    def __await__(self) -> Generator[Any, None, Self]:
        return _itself(self).__await__()

    async def produce(  # type: ignore[override]  # confluent-kafka's order: the key comes first
        self,
        topic: str | Topic,
        key: K | None = None,
        value: V | None = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersInput = None,
    ) -> Message:
        """Serialize key and value, write the message, and return it with its partition and offset.

        Raises KeySerializationError and ValueSerializationError, after which nothing is written,
        and what `AIOProducer.produce` raises.
        """
        arguments = (topic, key, value, partition, on_delivery, timestamp, headers)
        return await (await self.produce_future(*arguments))

    async def produce_future(  # type: ignore[override]  # as `produce`
        self,
        topic: str | Topic,
        key: K | None = None,
        value: V | None = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersInput = None,
    ) -> asyncio.Future[Message]:
        """Serialize key and value, and queue the message as `AIOProducer.produce_future`."""
        self._producer.check_open()  # before the serializers, which may register a schema
        if not isinstance(topic, str | Topic):
            raise TypeError(f"topic must be str or Topic, not {type(topic).__name__}")
        if isinstance(topic, Topic):
            name, serializers = topic.name, topic.serializers.over(self._serializers)
        else:
            name, serializers = topic, self._serializers
        made = await serializers.serialize_async(name, key, value, headers)
        return await super().produce_future(
            topic, made.value, made.key, partition, None, on_delivery, timestamp, made.headers
        )


class AsyncDeserializingConsumer(AIOConsumer[K, V]):
    """An `AIOConsumer` with the settings `key.deserializer` and `value.deserializer`: functions
    `(bytes, context)` that return an object, or coroutine functions, such as an
    `AsyncAvroDeserializer`. Deserializers of a `Topic` handle take precedence.

    Mirrors `confluent_kafka.aio.AsyncDeserializingConsumer`, which has to be awaited when it is
    made: this one may be. Functions run on the event loop, so they must not block. A call that is
    cancelled while a deserializer runs leaves its messages to the next call; a commit before that
    call includes them.
    """

    _client: ClassVar[type[StepwiseConsumer]] = _StepwiseDeserializingConsumer
    _consumer: _StepwiseDeserializingConsumer

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        rest, others, key, value = take_functions(conf, keywords, "deserializer", asynchronous=True)
        self._deserializers = MessageDeserializers(key, value)
        # Messages that a cancelled call has taken from the consumer, and whether it has
        # deserialized them.
        self._left: deque[tuple[Message[K, V], bool]] = deque()
        super().__init__(rest, **others)

    def __await__(self) -> Generator[Any, None, Self]:
        return _itself(self).__await__()

    async def poll(self, timeout: float | None = -1) -> Message[K, V] | None:
        """The next message with its key and value deserialized, or None if none arrives within
        `timeout` seconds.

        Raises KeyDeserializationError and ValueDeserializationError for a record that cannot be
        deserialized, and ConsumeError for an event such as _PARTITION_EOF. `kafka_message` has the
        message as it was read, and the next call continues after it.
        """
        is_finished = False
        if self._left:
            message, is_finished = self._left.popleft()
        elif (found := await super().poll(timeout)) is not None:
            message = found
        else:
            return None
        if (error := message.error()) is not None:
            raise ConsumeError(error, kafka_message=message)
        try:
            if not is_finished:
                await self._of(message).deserialize_async(message)
        except asyncio.CancelledError:
            self._left.appendleft((message, False))
            raise
        return message

    async def consume(
        self, num_messages: int = 1, timeout: float | None = -1
    ) -> list[Message[K, V]]:
        """Up to `num_messages` messages with their keys and values deserialized.

        A record that cannot be deserialized raises nothing here, because the records after it would
        be lost. It has an `error()` of code _KEY_DESERIALIZATION or _VALUE_DESERIALIZATION, and the
        key and value that were read.
        """
        found = [self._left.popleft() for _ in range(min(num_messages, len(self._left)))]
        if not found:
            found = [(message, False) for message in await super().consume(num_messages, timeout)]
        try:
            for at, (message, is_finished) in enumerate(found):
                if not is_finished and message.error() is None:
                    await self._deserialize(message)
                found[at] = message, True
        except asyncio.CancelledError:
            self._left.extendleft(reversed(found))
            raise
        return [message for message, _ in found]

    async def _deserialize(self, message: Message[K, V]) -> None:
        """Deserialize a message, or set its `error`."""
        try:
            await self._of(message).deserialize_async(message)
        except ConsumeError as error:
            message.set_error(error.error)

    def _of(self, message: Message[K, V]) -> MessageDeserializers:
        own = self._consumer.of_topics.get(message.topic() or "")
        return self._deserializers if own is None else own.over(self._deserializers)

    async def __anext__(self) -> Message[K, V]:
        while not (self._is_closing or self._consumer.is_closed):
            try:
                message = await self.poll(-1)
            except ConsumeError as error:
                if error.code == KafkaError._PARTITION_EOF:
                    continue
                raise
            if message is not None:
                return message
        raise StopAsyncIteration


async def _itself(client: Any) -> Any:
    return client
