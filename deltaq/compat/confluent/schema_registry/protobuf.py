"""The names of `confluent_kafka.schema_registry.protobuf`."""

from __future__ import annotations

from deltaq.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

__all__ = ["ProtobufDeserializer", "ProtobufSerializer"]
