"""Clients for asyncio, with the names of `confluent_kafka.aio`. Their methods do not block the
event loop.

Modules:

* `producer`, `consumer`, `share_consumer`: clients for asyncio
* `serializing`, `schema_registry`: clients whose messages are objects; the registry's client and
  serializers for asyncio
* `reports`, `calls`, `serial_client`, `threads`: delivery reports on the event loop; calls of a
  consumer one after the other, with its callbacks; a client of such calls; threads for calls that
  block
"""

from __future__ import annotations

from deltaq.aio.consumer import AIOConsumer
from deltaq.aio.producer import AIOProducer
from deltaq.aio.serializing import AsyncDeserializingConsumer, AsyncSerializingProducer
from deltaq.aio.share_consumer import AIOShareConsumer

__all__ = [
    "AIOConsumer",
    "AIOProducer",
    "AIOShareConsumer",
    "AsyncDeserializingConsumer",
    "AsyncSerializingProducer",
]
