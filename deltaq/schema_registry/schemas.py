"""Schemas as values, with the names and fields of `confluent_kafka.schema_registry`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from deltaq.schema_registry.rules import RuleSet


@dataclass(frozen=True)
class SchemaReference:
    """A schema that another one uses: `name` is how the text calls it, `subject` and `version`
    where it is.
    """

    name: str
    subject: str
    version: int

    def to_dict(self) -> dict[str, Any]:
        """The reference as JSON has it."""
        return {"name": self.name, "subject": self.subject, "version": self.version}

    @classmethod
    def from_dict(cls, src_dict: Mapping[str, Any]) -> SchemaReference:
        """The reference that JSON stands for."""
        return cls(src_dict["name"], src_dict["subject"], src_dict["version"])


@dataclass(frozen=True)
class MetadataProperties:
    """Properties of a schema, by name."""

    properties: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class MetadataTags:
    """Tags of the parts of a schema, by path."""

    tags: dict[str, list[str]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Metadata:
    """What a team notes about a schema. `get_latest_with_metadata` finds a version by its
    properties.
    """

    tags: MetadataTags | None = None
    properties: MetadataProperties | None = None
    sensitive: list[str] | None = field(default=None, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """The metadata as JSON has it."""
        parts = {
            "tags": None if self.tags is None else self.tags.tags,
            "properties": None if self.properties is None else self.properties.properties,
            "sensitive": self.sensitive,
        }
        return {name: part for name, part in parts.items() if part is not None}

    @classmethod
    def from_dict(cls, src_dict: Mapping[str, Any]) -> Metadata:
        """The metadata that JSON stands for."""
        tags, properties = src_dict.get("tags"), src_dict.get("properties")
        return cls(
            None if tags is None else MetadataTags(tags),
            None if properties is None else MetadataProperties(properties),
            src_dict.get("sensitive"),
        )


@dataclass(frozen=True)
class Schema:
    """A schema before it is registered. `schema_type` is `AVRO`, `JSON` or `PROTOBUF`.

    Rules (`rule_set`) are not supported: a schema with some is refused by the registry and by
    serializers.
    """

    schema_str: str
    schema_type: str = "AVRO"
    references: list[SchemaReference] = field(default_factory=list, hash=False)
    metadata: Metadata | None = None
    rule_set: object = field(default=None, hash=False)

    def to_dict(self) -> dict[str, Any]:
        """The schema as JSON has it."""
        found: dict[str, Any] = {
            "schema": self.schema_str,
            "schemaType": self.schema_type,
            "references": [reference.to_dict() for reference in self.references or ()],
        }
        if self.metadata is not None:
            found["metadata"] = self.metadata.to_dict()
        if isinstance(self.rule_set, RuleSet):
            found["ruleSet"] = self.rule_set.to_dict()
        return found

    @classmethod
    def from_dict(cls, src_dict: Mapping[str, Any]) -> Schema:
        """The schema that JSON stands for."""
        metadata, rule_set = src_dict.get("metadata"), src_dict.get("ruleSet")
        return cls(
            src_dict["schema"],
            src_dict.get("schemaType", "AVRO"),
            [
                SchemaReference.from_dict(reference)
                for reference in src_dict.get("references") or ()
            ],
            None if metadata is None else Metadata.from_dict(metadata),
            None if rule_set is None else RuleSet.from_dict(rule_set),
        )


@dataclass(frozen=True)
class RegisteredSchema:
    """A version of a subject. `schema_id` is unique under the root, `guid` is derived from the
    content.
    """

    subject: str
    version: int
    schema_id: int
    guid: str
    schema: Schema

    def to_dict(self) -> dict[str, Any]:
        """The version as JSON has it."""
        place = {
            "id": self.schema_id,
            "guid": self.guid,
            "subject": self.subject,
            "version": self.version,
        }
        return {**self.schema.to_dict(), **place}

    @classmethod
    def from_dict(cls, src_dict: Mapping[str, Any]) -> RegisteredSchema:
        """The version that JSON stands for."""
        schema = Schema.from_dict(src_dict)
        return cls(
            src_dict["subject"],
            src_dict["version"],
            src_dict["id"],
            src_dict.get("guid", ""),
            schema,
        )


@dataclass(frozen=True)
class SchemaVersion:
    """A subject and the number of one of its versions."""

    subject: str
    version: int


class ConfigCompatibilityLevel(str, Enum):  # noqa: UP042 - confluent-kafka's has this base
    """The compatibility levels. DISABLED is AWS Glue's: a subject keeps its first version and gets
    no other.
    """

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"
    DISABLED = "DISABLED"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class ServerConfig:
    """The settings of a subject or of the whole registry. Either of the first two fields sets the
    compatibility; results have both. `set_config` refuses the others, which only a server of
    Confluent's applies.
    """

    compatibility: ConfigCompatibilityLevel | None = None
    compatibility_level: ConfigCompatibilityLevel | None = None
    compatibility_group: str | None = None
    default_metadata: Metadata | None = None
    override_metadata: Metadata | None = None
    default_rule_set: object = field(default=None, hash=False)
    override_rule_set: object = field(default=None, hash=False)
