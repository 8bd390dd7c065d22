"""Which schema a message is written with, and which schemas it is read with."""

from __future__ import annotations

import io
from typing import Any

from deltaq.schema_registry.client import SchemaRegistryClient
from deltaq.schema_registry.errors import InvalidSetting
from deltaq.schema_registry.formats import load_format
from deltaq.schema_registry.rules import NO_RULES, has_rules
from deltaq.schema_registry.schemas import RegisteredSchema, Schema
from deltaq.schema_registry.serde_settings import (
    DeserializerSettings,
    LatestSchema,
    SerializerSettings,
)
from deltaq.schema_registry.wire_format import SchemaId
from deltaq.serde.errors import SerializationError
from deltaq.serde.serializers import SerializationContext


def checked_client(client: object) -> SchemaRegistryClient:
    """The client. Raises TypeError."""
    if not isinstance(client, SchemaRegistryClient):
        text = (
            "schema_registry_client must be a deltaq SchemaRegistryClient, not "
            f"{type(client).__name__}"
        )
        raise TypeError(text)
    return client


def given_schema(text: object, schema_type: str) -> Schema | None:
    """The schema that was passed as text or as a Schema. Raises TypeError, InvalidSetting."""
    if text is None:
        return None
    schema = Schema(text, schema_type) if isinstance(text, str) else text
    if not isinstance(schema, Schema):
        raise TypeError(f"schema_str must be str or Schema, not {type(text).__name__}")
    if schema.schema_type != schema_type:
        raise InvalidSetting(
            f"the schema must be of type {schema_type}, not {schema.schema_type!r:.60}",
            key="schema_str",
        )
    if has_rules(schema.rule_set):
        raise InvalidSetting(NO_RULES, key="schema_str")
    return schema


def parsed_schema(schema: Schema, client: SchemaRegistryClient | None) -> Any:
    """The schema as its format parses it. Raises SerializationError if it is invalid."""
    chosen = load_format(schema.schema_type)
    try:
        references = () if client is None else client.references_of(schema)
        return chosen.prepared(schema.schema_str, references)
    except ValueError as error:
        raise SerializationError(f"invalid {schema.schema_type} schema: {error!s:.1000}") from error


def needed_context(ctx: SerializationContext | None) -> SerializationContext:
    """The context for a callable of the application. Raises TypeError without one."""
    if ctx is None:
        raise TypeError("to_dict and from_dict need a SerializationContext")
    return ctx


class WriterSchemas:
    """The schema that a serializer writes with, by subject. It is registered or looked up once for
    each subject.
    """

    def __init__(self, client: SchemaRegistryClient, settings: SerializerSettings) -> None:
        self.client = client
        self._settings = settings
        self._registered: dict[tuple[str, Schema], RegisteredSchema] = {}

    def subject(self, ctx: SerializationContext | None, record_name: str | None) -> str:
        """The subject of a message. Raises SerializationError, ValueError."""
        subject = self._settings.subject_name(ctx, record_name)
        if subject is None:
            raise SerializationError(
                "the schema has no name, which its subject would have: use another strategy"
            )
        return subject

    def of_subject(self, subject: str, given: Schema | None) -> RegisteredSchema:
        """The schema to write with: the latest if the settings say so, and else the given one.
        Raises SchemaRegistryError, SerializationError, and what clients raise when the store fails.
        """
        settings = self._settings
        if settings.latest:
            return latest_schema(self.client, subject, settings.latest)
        if given is None:
            text = (
                "without a schema, set use.latest.version, use.latest.with.metadata or "
                "use.schema.id"
            )
            raise SerializationError(text)
        # Two threads may both get here. They get the same answer.
        found = self._registered.get((subject, given))
        if found is None:
            find = (
                self.client.register_schema_full_response
                if settings.auto_register
                else self.client.lookup_schema
            )
            found = find(subject, given, normalize_schemas=settings.normalize)
            self._registered[subject, given] = found
        return found


def latest_schema(
    client: SchemaRegistryClient, subject: str, latest: LatestSchema
) -> RegisteredSchema:
    """The version that `latest` names, as the client last saw it. Raises SchemaRegistryError."""
    if latest.schema_id is not None:
        schema_id = latest.schema_id
        return client.remembered(
            (subject, schema_id),
            lambda: client.lookup_schema(subject, client.get_schema(schema_id), deleted=True),
        )
    if latest.metadata is not None:
        metadata = dict(latest.metadata)
        key = (subject, *sorted(metadata.items()))
        return client.remembered(
            key, lambda: client.get_latest_with_metadata(subject, metadata, deleted=True)
        )
    return client.remembered((subject,), lambda: client.get_latest_version(subject))


class ReaderSchemas:
    """The schemas that a deserializer reads a message with."""

    def __init__(
        self, client: SchemaRegistryClient | None, settings: DeserializerSettings, schema_type: str
    ) -> None:
        self._client = client
        self._settings = settings
        self._schema_type = schema_type

    def split(self, data: bytes, ctx: SerializationContext | None) -> tuple[SchemaId, io.BytesIO]:
        """The id of a message's schema, and the payload. Raises SerializationError."""
        schema_id = SchemaId(self._schema_type)
        payload: Any = self._settings.deserialize_id(data, ctx, schema_id)
        return schema_id, io.BytesIO(payload) if isinstance(payload, bytes) else payload

    def writer(self, schema_id: SchemaId) -> Schema:
        """The schema that a message was written with. Raises SerializationError for one of another
        format, SchemaRegistryError for an unknown one.
        """
        client = checked_client(self._client)
        if schema_id.id is not None:
            found = client.get_schema(schema_id.id)
        else:
            found = client.get_schema_by_guid(str(schema_id.guid))
        if found.schema_type != self._schema_type:
            raise SerializationError(
                f"the message's schema is {found.schema_type}, not {self._schema_type}"
            )
        return found

    def latest(self, ctx: SerializationContext | None, record_name: str | None) -> Schema | None:
        """The schema of the version that the settings name in place of the written one; None if
        they name none.
        """
        if not self._settings.latest or ctx is None or self._client is None:
            return None
        subject = self._settings.subject_name(ctx, record_name)
        if subject is None:
            return None
        return latest_schema(self._client, subject, self._settings.latest).schema
