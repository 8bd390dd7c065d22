"""The names of `confluent_kafka.schema_registry.error`."""

from __future__ import annotations

from deltaq.schema_registry.errors import SchemaRegistryError

__all__ = ["SchemaRegistryError"]
