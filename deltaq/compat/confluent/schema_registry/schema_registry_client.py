"""The names of `confluent_kafka.schema_registry.schema_registry_client`."""

from __future__ import annotations

from deltaq.aio.schema_registry import AsyncSchemaRegistryClient
from deltaq.schema_registry.client import SchemaRegistryClient
from deltaq.schema_registry.errors import SchemaRegistryError
from deltaq.schema_registry.rules import Rule, RuleKind, RuleMode, RuleParams, RuleSet
from deltaq.schema_registry.schemas import (
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    MetadataTags,
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaVersion,
    ServerConfig,
)

__all__ = [
    "AsyncSchemaRegistryClient",
    "ConfigCompatibilityLevel",
    "Metadata",
    "MetadataProperties",
    "MetadataTags",
    "RegisteredSchema",
    "Rule",
    "RuleKind",
    "RuleMode",
    "RuleParams",
    "RuleSet",
    "Schema",
    "SchemaReference",
    "SchemaRegistryClient",
    "SchemaRegistryError",
    "SchemaVersion",
    "ServerConfig",
]
