"""The names of `confluent_kafka.schema_registry.json_schema`."""

from __future__ import annotations

from deltaq.schema_registry.json_schema import JSONDeserializer, JSONSerializer

__all__ = ["JSONDeserializer", "JSONSerializer"]
