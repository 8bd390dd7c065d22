"""The names of `confluent_kafka.schema_registry.protobuf`."""

from __future__ import annotations

from deltaq.aio.schema_registry import AsyncProtobufDeserializer, AsyncProtobufSerializer
from deltaq.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

__all__ = [
    "AsyncProtobufDeserializer",
    "AsyncProtobufSerializer",
    "ProtobufDeserializer",
    "ProtobufSerializer",
]
