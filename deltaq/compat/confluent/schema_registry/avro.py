"""The names of `confluent_kafka.schema_registry.avro`."""

from __future__ import annotations

from deltaq.schema_registry.avro import AvroDeserializer, AvroSerializer

__all__ = ["AvroDeserializer", "AvroSerializer"]
