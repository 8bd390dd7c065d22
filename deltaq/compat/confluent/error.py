"""The names of `confluent_kafka.error`."""

from __future__ import annotations

from deltaq.errors import KafkaError, KafkaException
from deltaq.message import Message
from deltaq.serde.errors import (
    ConsumeError,
    KeyDeserializationError,
    KeySerializationError,
    ProduceError,
    SerializationError,
    ValueDeserializationError,
    ValueSerializationError,
)

__all__ = [
    "ConsumeError",
    "KafkaError",
    "KafkaException",
    "KeyDeserializationError",
    "KeySerializationError",
    "Message",
    "ProduceError",
    "SerializationError",
    "ValueDeserializationError",
    "ValueSerializationError",
]
