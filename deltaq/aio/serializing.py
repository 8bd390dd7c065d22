"""`AsyncSerializingProducer` and `AsyncDeserializingConsumer`: clients for asyncio whose messages are objects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Mapping
from itertools import islice
from typing import Any, Generic, Self

from deltaq.aio.consumer import AIOConsumer
from deltaq.aio.producer import AIOProducer
from deltaq.errors import KafkaError
from deltaq.message import K, Message, V
from deltaq.producer.producer import DeliveryCallback
from deltaq.producer.topic_handle import HeadersInput
from deltaq.serde.conversion import MessageDeserializers, MessageSerializers, take_functions
from deltaq.serde.errors import ConsumeError
from deltaq.topic import Topic


class AsyncSerializingProducer(AIOProducer, Generic[K, V]):
    """An `AIOProducer` with the settings `key.serializer` and `value.serializer`: functions `(object, context)` that
    return bytes, or coroutine functions, such as an `AsyncAvroSerializer`.

    Mirrors `confluent_kafka.aio.AsyncSerializingProducer`, which has to be awaited when it is made: this one may be.
    Functions run on the event loop, so they must not block.
    """

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        rest, others, key, value = take_functions(conf, keywords, "serializer")
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

        Raises KeySerializationError and ValueSerializationError, after which nothing is written, and what
        `AIOProducer.produce` raises.
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
        name = topic.name if isinstance(topic, Topic) else topic
        made = await self._serializers.serialize_async(name, key, value, headers)
        return await super().produce_future(
            topic, made.value, made.key, partition, None, on_delivery, timestamp, made.headers
        )


class AsyncDeserializingConsumer(AIOConsumer[K, V]):
    """An `AIOConsumer` with the settings `key.deserializer` and `value.deserializer`: functions `(bytes, context)` that
    return an object, or coroutine functions, such as an `AsyncAvroDeserializer`.

    Mirrors `confluent_kafka.aio.AsyncDeserializingConsumer`, which has to be awaited when it is made: this one may be.
    Functions run on the event loop, so they must not block. A call that is cancelled while a deserializer runs leaves
    its messages to the next call; a commit before that call includes them.
    """

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        rest, others, key, value = take_functions(conf, keywords, "deserializer")
        self._deserializers = MessageDeserializers(key, value)
        self._waiting: deque[Message[K, V]] = deque()  # taken from the consumer, and returned by no call yet
        self._finished = 0  # how many of them, in front, a call that was cancelled later has deserialized
        super().__init__(rest, **others)

    def __await__(self) -> Generator[Any, None, Self]:
        return _itself(self).__await__()

    async def poll(self, timeout: float | None = -1) -> Message[K, V] | None:
        """The next message with its key and value deserialized, or None if none arrives within `timeout` seconds.

        Raises KeyDeserializationError and ValueDeserializationError for a record that cannot be deserialized, and
        ConsumeError for an event such as _PARTITION_EOF. `kafka_message` has the message as it was read, and the next
        call continues after it.
        """
        if not self._waiting:
            message = await super().poll(timeout)
            if message is None:
                return None
            self._waiting.append(message)
        message = self._waiting[0]
        try:
            if (error := message.error()) is not None:
                raise ConsumeError(error, kafka_message=message)
            if not self._finished:
                await self._deserializers.deserialize_async(message)
        except ConsumeError:
            self._returned(1)
            raise
        self._returned(1)
        return message

    async def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message[K, V]]:
        """Up to `num_messages` messages with their keys and values deserialized.

        A record that cannot be deserialized raises nothing here, because the records after it would be lost. It has an
        `error()` of code _KEY_DESERIALIZATION or _VALUE_DESERIALIZATION, and the key and value that were read.
        """
        if not self._waiting:
            self._waiting.extend(await super().consume(num_messages, timeout))
        found = list(islice(self._waiting, num_messages))
        for message in found[self._finished :]:
            if message.error() is None:
                try:
                    await self._deserializers.deserialize_async(message)
                except ConsumeError as error:
                    message.set_error(error.error)
            self._finished += 1
        self._returned(len(found))
        return found

    def _returned(self, count: int) -> None:
        """Forget messages that a call is about to return."""
        for _ in range(count):
            self._waiting.popleft()
        self._finished = max(0, self._finished - count)

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
