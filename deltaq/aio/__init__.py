"""Clients for asyncio, with the names of `confluent_kafka.aio`. Their methods do not block the
event loop.
"""

from __future__ import annotations

from deltaq.aio.consumer import AIOConsumer
from deltaq.aio.producer import AIOProducer
from deltaq.aio.serializing import AsyncDeserializingConsumer, AsyncSerializingProducer

__all__ = ["AIOConsumer", "AIOProducer", "AsyncDeserializingConsumer", "AsyncSerializingProducer"]
