"""Protobuf messages as the bytes of a message, with the names of
`confluent_kafka.schema_registry.protobuf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltaq.schema_registry.client import SchemaRegistryClient
from deltaq.schema_registry.errors import InvalidSetting
from deltaq.schema_registry.formats import load_format
from deltaq.schema_registry.message_schemas import (
    ReaderSchemas,
    WriterSchemas,
    checked_client,
    parsed_schema,
)
from deltaq.schema_registry.schemas import Schema, SchemaReference
from deltaq.schema_registry.serde_settings import (
    deserializer_settings,
    refuse_rules,
    serializer_settings,
)
from deltaq.schema_registry.subject_names import reference_subject_name_strategy
from deltaq.schema_registry.wire_format import SchemaId
from deltaq.serde.errors import SerializationError
from deltaq.serde.serializers import Deserializer, SerializationContext, Serializer

_TYPE = "PROTOBUF"
_DEPRECATED_FORMAT = "use.deprecated.format"


class ProtobufSerializer(Serializer):
    """Messages of Protobuf, after the id of their schema and their place in it. Mirrors
    `confluent_kafka.schema_registry.protobuf.ProtobufSerializer`.

    `msg_type` is the class that protoc has generated. Its file is the schema; the files that it
    imports are registered as references. `conf` has the settings of `AvroSerializer` and, in place
    of `validate.strict`:

    * `skip.known.types` (True): do not register imports of `google/protobuf/`
    * `reference.subject.name.strategy`: a function `(context, file) -> subject` for imports; by
      default their path
    """

    __slots__ = (
        "_client",
        "_file",
        "_format",
        "_message_type",
        "_schemas",
        "_settings",
        "_with_references",
    )

    def __init__(
        self,
        msg_type: Any,
        schema_registry_client: SchemaRegistryClient,
        conf: Mapping[str, Any] | None = None,
        rule_conf: Mapping[str, Any] | None = None,
        rule_registry: object = None,
    ) -> None:
        refuse_rules(rule_conf, rule_registry)
        own = {
            "skip.known.types": True,
            "reference.subject.name.strategy": reference_subject_name_strategy,
        }
        self._settings = serializer_settings(conf, {**own, _DEPRECATED_FORMAT: False})
        _refuse_deprecated_format(self._settings.own)
        self._format = load_format(_TYPE)
        self._message_type = _checked_class(self._format, msg_type)
        self._file = msg_type.DESCRIPTOR.file
        self._client = checked_client(schema_registry_client)
        self._schemas = WriterSchemas(self._client, self._settings)
        self._with_references: dict[tuple[str, ...], Schema] = {}

    def __call__(self, message: Any, ctx: SerializationContext | None = None) -> bytes | None:
        """The bytes of a message; None for None. Raises SerializationError for a message of another
        class or without a required field, SchemaRegistryError if the schema cannot be registered or
        found.
        """
        if message is None:
            return None
        payload = self._format.encode(message, self._message_type)
        descriptor = self._message_type.DESCRIPTOR
        subject = self._schemas.subject(ctx, descriptor.full_name)
        given = None if self._settings.latest else self._schema(ctx)
        registered = self._schemas.of_subject(subject, given)
        # Another version may have other messages before this one.
        file = (
            parsed_schema(registered.schema, self._client) if self._settings.latest else self._file
        )
        schema_id = SchemaId(
            _TYPE, registered.schema_id, registered.guid, self._format.indexes_of(file, descriptor)
        )
        return self._settings.serialize_id(payload, ctx, schema_id)

    def _schema(self, ctx: SerializationContext | None) -> Schema:
        """The schema of the class, whose imports are registered under the names that the strategy
        gives them.
        """
        files = self._imports(self._file)
        subjects = tuple(self._subject_of(ctx, file) for file in files)
        if subjects not in self._with_references:
            self._with_references[subjects] = self._registered_imports(ctx, self._file)
        return self._with_references[subjects]

    def _registered_imports(self, ctx: SerializationContext | None, file: Any) -> Schema:
        references = []
        for imported in self._imports(file):
            subject = self._subject_of(ctx, imported)
            schema = self._registered_imports(ctx, imported)
            version = self._schemas.of_subject(subject, schema).version
            references.append(SchemaReference(imported.name, subject, version))
        return Schema(self._format.schema_text(file), _TYPE, references)

    def _imports(self, file: Any) -> list[Any]:
        found: list[Any] = self._format.imports(
            file, known_too=not self._settings.own["skip.known.types"]
        )
        return found

    def _subject_of(self, ctx: SerializationContext | None, file: Any) -> str:
        subject = self._settings.own["reference.subject.name.strategy"](ctx, file)
        if not isinstance(subject, str):
            raise SerializationError(
                f"reference.subject.name.strategy gave no subject to the import {file.name!r}"
            )
        return subject


class ProtobufDeserializer(Deserializer):
    """Messages of Protobuf. Mirrors
    `confluent_kafka.schema_registry.protobuf.ProtobufDeserializer`.

    `message_type` is the class that protoc has generated, with which all messages are read. With a
    client, the schema of each message must be known there. `conf` has the settings of
    `AvroDeserializer`.
    """

    __slots__ = ("_client", "_format", "_message_type", "_schemas")

    def __init__(
        self,
        message_type: Any,
        conf: Mapping[str, Any] | None = None,
        schema_registry_client: SchemaRegistryClient | None = None,
        rule_conf: Mapping[str, Any] | None = None,
        rule_registry: object = None,
    ) -> None:
        refuse_rules(rule_conf, rule_registry)
        settings = deserializer_settings(conf, {_DEPRECATED_FORMAT: False})
        _refuse_deprecated_format(settings.own)
        self._format = load_format(_TYPE)
        self._message_type = _checked_class(self._format, message_type)
        self._client = (
            None if schema_registry_client is None else checked_client(schema_registry_client)
        )
        self._schemas = ReaderSchemas(self._client, settings, _TYPE)

    def __call__(self, data: bytes | None, ctx: SerializationContext | None = None) -> Any:
        """The message; None for None. Raises SerializationError for bytes that are no such message,
        SchemaRegistryError for an unknown schema.
        """
        if data is None:
            return None
        schema_id, payload = self._schemas.split(data, ctx)
        if self._client is not None:
            file = parsed_schema(self._schemas.writer(schema_id), self._client)
            self._format.message_at(file, schema_id.message_indexes)
        return self._format.decode(payload.read(), self._message_type)


def message_of(
    value: bytes, client: SchemaRegistryClient, *, with_defaults: bool = False
) -> tuple[str, dict[str, Any]]:
    """The full name and the fields of a message of any schema in the registry, for programs without
    its class; `with_defaults`, also fields that are not written for their default, such as 0.
    Raises SerializationError for bytes that are no such message, SchemaRegistryError for
    an unknown schema.
    """
    schemas = ReaderSchemas(client, deserializer_settings(None, {}), _TYPE)
    schema_id, payload = schemas.split(value, None)
    file = parsed_schema(schemas.writer(schema_id), client)
    protobuf_format = load_format(_TYPE)
    message = protobuf_format.message_at(file, schema_id.message_indexes)
    return message.full_name, protobuf_format.as_dict(
        payload.read(), message, with_defaults=with_defaults
    )


def _checked_class(protobuf_format: Any, message_type: Any) -> Any:
    if not protobuf_format.is_message_class(message_type):
        raise TypeError(
            f"the message type must be a class that protoc has generated, not {message_type!r:.60}"
        )
    return message_type


def _refuse_deprecated_format(own: Mapping[str, Any]) -> None:
    if own[_DEPRECATED_FORMAT]:
        raise InvalidSetting(f"{_DEPRECATED_FORMAT} is no longer supported", key=_DEPRECATED_FORMAT)
