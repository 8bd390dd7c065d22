"""The names of `confluent_kafka.schema_registry.avro`."""

from __future__ import annotations

from deltaq.aio.schema_registry import AsyncAvroDeserializer, AsyncAvroSerializer
from deltaq.schema_registry.avro import AvroDeserializer, AvroSerializer

__all__ = ["AsyncAvroDeserializer", "AsyncAvroSerializer", "AvroDeserializer", "AvroSerializer"]
