"""The names of `confluent_kafka.schema_registry`. `url` of the client is the root of the topics."""

from __future__ import annotations

import importlib
import typing

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
from deltaq.schema_registry.subject_names import (
    SubjectNameStrategyType,
    record_subject_name_strategy,
    reference_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from deltaq.schema_registry.wire_format import (
    SchemaId,
    dual_schema_id_deserializer,
    header_schema_id_serializer,
    prefix_schema_id_deserializer,
    prefix_schema_id_serializer,
)
from deltaq.serde.errors import SerializationError
from deltaq.serde.serializers import MessageField, SerializationContext

__all__ = [
    "AsyncSchemaRegistryClient",
    "ConfigCompatibilityLevel",
    "MessageField",
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
    "SchemaId",
    "SchemaReference",
    "SchemaRegistryClient",
    "SchemaRegistryError",
    "SchemaVersion",
    "SerializationContext",
    "SerializationError",
    "ServerConfig",
    "SubjectNameStrategyType",
    "dual_schema_id_deserializer",
    "header_schema_id_serializer",
    "prefix_schema_id_deserializer",
    "prefix_schema_id_serializer",
    "record_subject_name_strategy",
    "reference_subject_name_strategy",
    "topic_record_subject_name_strategy",
    "topic_subject_name_strategy",
]


if typing.TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any name
    from deltaq.compat.confluent.schema_registry import avro as avro
    from deltaq.compat.confluent.schema_registry import error as error
    from deltaq.compat.confluent.schema_registry import json_schema as json_schema
    from deltaq.compat.confluent.schema_registry import protobuf as protobuf
else:

    def __getattr__(name: str) -> object:
        """`schema_registry.avro` and the other formats need no import of their own."""
        if name in ("avro", "error", "json_schema", "protobuf"):
            return importlib.import_module("deltaq.compat.confluent.schema_registry." + name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
