"""The names of `confluent_kafka.aio`."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from deltaq.aio import AIOConsumer, AsyncDeserializingConsumer
from deltaq.aio import AIOProducer as NativeAIOProducer
from deltaq.aio import AsyncSerializingProducer as NativeAsyncSerializingProducer
from deltaq.aio.producer import LoopProducer
from deltaq.aio.serializing import SerializingLoopProducer
from deltaq.compat.confluent.producer import Producer
from deltaq.errors import KafkaException
from deltaq.message import Message
from deltaq.producer.producer import DeliveryCallback
from deltaq.producer.topic_handle import HeadersInput
from deltaq.serde.errors import ProduceError
from deltaq.topic import Topic

__all__ = ["AIOConsumer", "AIOProducer", "AsyncDeserializingConsumer", "AsyncSerializingProducer"]


class _LoopProducer(LoopProducer, Producer):
    """Reports the errors of a broker where `confluent_kafka` does."""


class _SerializingLoopProducer(SerializingLoopProducer, _LoopProducer):
    """The same, for messages that have passed through serializers."""


class AIOProducer(NativeAIOProducer):
    """`deltaq.aio.AIOProducer`, whose `produce` returns a future: `await (await
    producer.produce(...))`.
    """

    _client: ClassVar[type[LoopProducer]] = _LoopProducer

    async def produce(  # type: ignore[override]  # confluent-kafka's result is a future that has to be awaited
        self,
        topic: str | Topic,
        value: Any = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersInput = None,
    ) -> asyncio.Future[Message]:
        """Queue one message, waiting while the queue is full. The future returns the delivered
        message, or raises why it was not written, a message that is refused at once included.
        """
        arguments = (topic, value, key, partition, callback, on_delivery, timestamp, headers)
        try:
            return await self.produce_future(*arguments)
        except KafkaException as error:
            refused: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused


class AsyncSerializingProducer(NativeAsyncSerializingProducer[Any, Any]):
    """`deltaq.aio.AsyncSerializingProducer`, whose `produce` returns a future, as that of
    `AIOProducer` here.
    """

    _client: ClassVar[type[LoopProducer]] = _SerializingLoopProducer

    async def produce(  # type: ignore[override]  # confluent-kafka's result is a future that has to be awaited
        self,
        topic: str | Topic,
        key: Any = None,
        value: Any = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersInput = None,
    ) -> asyncio.Future[Message]:
        """Serialize key and value, and queue the message. Raises KeySerializationError,
        ValueSerializationError.
        """
        try:
            return await self.produce_future(
                topic, key, value, partition, on_delivery, timestamp, headers
            )
        except ProduceError:
            raise
        except KafkaException as error:
            refused: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused
