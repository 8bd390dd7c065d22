"""`AsyncSerializingProducer` and `AsyncDeserializingConsumer`: clients for asyncio whose messages are objects."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Generator, Mapping
from typing import Any, Generic, Self

from deltaq.aio.consumer import AIOConsumer
from deltaq.aio.producer import AIOProducer
from deltaq.errors import KafkaError
from deltaq.message import K, Message, V
from deltaq.producer.producer import DeliveryCallback
from deltaq.producer.topic_handle import HeadersInput
from deltaq.serde.conversion import take_functions
from deltaq.serde.errors import (
    ConsumeError,
    KeyDeserializationError,
    KeySerializationError,
    ValueDeserializationError,
    ValueSerializationError,
)
from deltaq.serde.serializers import MessageField, SerializationContext
from deltaq.topic import Topic


class AsyncSerializingProducer(AIOProducer, Generic[K, V]):
    """An `AIOProducer` with the settings `key.serializer` and `value.serializer`: functions `(object, context)` that
    return bytes, or coroutine functions, such as an `AsyncAvroSerializer`.

    Mirrors `confluent_kafka.aio.AsyncSerializingProducer`, which has to be awaited when it is made: this one may be.
    Functions run on the event loop, so they must not block.
    """

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        rest, others, self._key_serializer, self._value_serializer = take_functions(conf, keywords, "serializer")
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
        copy: Any = headers  # a serializer may append to it
        if headers is None or isinstance(headers, Mapping | list):
            copy = [*(headers.items() if isinstance(headers, Mapping) else headers or ())]
        parts: list[Any] = [key, value]
        for at, (serializer, field, failure) in enumerate(
            (
                (self._key_serializer, MessageField.KEY, KeySerializationError),
                (self._value_serializer, MessageField.VALUE, ValueSerializationError),
            )
        ):
            if serializer is not None:
                try:
                    parts[at] = await _result(serializer(parts[at], SerializationContext(name, field, copy)))
                except Exception as error:
                    raise failure(error) from error
        return await super().produce_future(
            topic, parts[1], parts[0], partition, None, on_delivery, timestamp, copy or None
        )


class AsyncDeserializingConsumer(AIOConsumer[K, V]):
    """An `AIOConsumer` with the settings `key.deserializer` and `value.deserializer`: functions `(bytes, context)` that
    return an object, or coroutine functions, such as an `AsyncAvroDeserializer`.

    Mirrors `confluent_kafka.aio.AsyncDeserializingConsumer`, which has to be awaited when it is made: this one may be.
    Functions run on the event loop, so they must not block. A call that is cancelled while a deserializer runs leaves
    its messages to the next call; a commit before that call includes them.
    """

    def __init__(self, conf: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        rest, others, self._key_deserializer, self._value_deserializer = take_functions(conf, keywords, "deserializer")
        self._waiting: deque[Message[K, V]] = deque()  # taken from the consumer, and returned by no call yet
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
            await self._deserialize(message)
        except ConsumeError:
            self._waiting.popleft()
            raise
        self._waiting.popleft()
        return message

    async def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message[K, V]]:
        """Up to `num_messages` messages with their keys and values deserialized.

        A record that cannot be deserialized raises nothing here, because the records after it would be lost. It has an
        `error()` of code _KEY_DESERIALIZATION or _VALUE_DESERIALIZATION, and the key and value that were read.
        """
        if not self._waiting:
            self._waiting.extend(await super().consume(num_messages, timeout))
        count = min(num_messages, len(self._waiting))
        found = [self._waiting[at] for at in range(count)]
        for message in found:
            if message.error() is None:
                try:
                    await self._deserialize(message)
                except ConsumeError as error:
                    message.set_error(error.error)
        for _ in range(count):
            self._waiting.popleft()
        return found

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

    async def _deserialize(self, message: Message[K, V]) -> None:
        """Replace key and value of a record by what they stand for, or neither of them."""
        topic, headers = message.topic() or "", message.headers()
        key: Any = message.key()
        value: Any = message.value()
        if self._key_deserializer is not None:
            try:
                key = await _result(self._key_deserializer(key, SerializationContext(topic, MessageField.KEY, headers)))
            except Exception as error:
                raise KeyDeserializationError(error, message) from error
        if self._value_deserializer is not None:
            context = SerializationContext(topic, MessageField.VALUE, headers)
            try:
                value = await _result(self._value_deserializer(value, context))
            except Exception as error:
                raise ValueDeserializationError(error, message) from error
        message.set_key(key)
        message.set_value(value)


async def _itself(client: Any) -> Any:
    return client


async def _result(value: Any) -> Any:
    """A value, or what it becomes when it is awaited."""
    return await value if inspect.isawaitable(value) else value
