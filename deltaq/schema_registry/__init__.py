"""The schema registry under the root.

Modules:

* `client`, `log`, `mirror`: `SchemaRegistryClient`; the commits that change the registry; copies of
  it in other roots
* `state`, `changes`, `schemas`, `rules`, `associations`, `errors`: what its log says, and how it
  changes, as pure functions; schemas and the rules of contracts as values
* `formats`, `avro_format`, `json_format`, `protobuf_format`, `protobuf_text`: what the registry
  needs of a format, loaded with its first schema; with `compatibility/avro`, `avro_fields`,
  `json_drafts`, `json_unevaluated` and `json_validators`, the only modules that know the libraries
  of their format
* `work`, `avro_bounds`, `avro_guards`, `avro_fields`, `json_drafts`, `json_validators`,
  `json_unevaluated`, `json_patterns`, `protobuf_bounds`: how much work and memory a foreign schema
  or payload may cause, checked before native and recursive code; with which schema damaged values
  are refused; which field of an Avro record cannot be written
* `compatibility/`: which schemas may follow which: the levels, and the rules of Avro, JSON Schema
  and Protobuf
* `avro`, `json_schema`, `protobuf`, `avro_json`: serializer and deserializer of a format; values of
  Avro from those of JSON
* `table_columns`: the columns that hold the values of a schema
* `message_schemas`, `wire_format`, `subject_names`, `serde_settings`: what these share: which
  schema a message is written and read with, how the message names it, its subject, their settings
"""

from __future__ import annotations

from deltaq.schema_registry.client import SchemaRegistryClient
from deltaq.schema_registry.errors import SchemaRegistryError
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

__all__ = [
    "ConfigCompatibilityLevel",
    "Metadata",
    "MetadataProperties",
    "MetadataTags",
    "RegisteredSchema",
    "Schema",
    "SchemaId",
    "SchemaReference",
    "SchemaRegistryClient",
    "SchemaRegistryError",
    "SchemaVersion",
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
