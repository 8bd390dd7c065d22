"""The names of `confluent_kafka.schema_registry.json_schema`."""

from __future__ import annotations

from deltaq.aio.schema_registry import AsyncJSONDeserializer, AsyncJSONSerializer
from deltaq.schema_registry.json_schema import JSONDeserializer, JSONSerializer

__all__ = ["AsyncJSONDeserializer", "AsyncJSONSerializer", "JSONDeserializer", "JSONSerializer"]
