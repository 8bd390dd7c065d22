"""JSON with a schema as the bytes of a message, with the names of
`confluent_kafka.schema_registry.json_schema`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deltaq.schema_registry.client import SchemaRegistryClient
from deltaq.schema_registry.errors import InvalidSetting
from deltaq.schema_registry.formats import load_format
from deltaq.schema_registry.message_schemas import (
    ReaderSchemas,
    WriterSchemas,
    checked_client,
    given_schema,
    needed_context,
    parsed_schema,
)
from deltaq.schema_registry.schemas import Schema
from deltaq.schema_registry.serde_settings import (
    checked_callable,
    deserializer_settings,
    refuse_rules,
    serializer_settings,
)
from deltaq.schema_registry.wire_format import SchemaId
from deltaq.serde.serializers import Deserializer, SerializationContext, Serializer

_TYPE = "JSON"


class JSONSerializer(Serializer):
    """Values as JSON, after the id of their schema. Mirrors
    `confluent_kafka.schema_registry.json_schema.JSONSerializer`.

    `schema_str` is the schema as text, or a `Schema` if it has references. Without `$schema`, the
    draft is 2020-12. `to_dict(object, context)` makes a dict of an object, `json_encode(dict)` the
    text. `conf` has the settings of `AvroSerializer` and, in place of `validate.strict`:

    * `validate` (True): refuse values that do not conform to the schema
    """

    __slots__ = ("_format", "_json_encode", "_schema", "_schemas", "_settings", "_to_dict")

    def __init__(
        self,
        schema_str: str | Schema | None,
        schema_registry_client: SchemaRegistryClient,
        to_dict: Callable[[Any, SerializationContext], Any] | None = None,
        conf: Mapping[str, Any] | None = None,
        rule_conf: Mapping[str, Any] | None = None,
        rule_registry: object = None,
        json_encode: Callable[[Any], Any] | None = None,
    ) -> None:
        refuse_rules(rule_conf, rule_registry)
        self._settings = serializer_settings(conf, {"validate": True})
        self._to_dict = checked_callable(to_dict, "to_dict")
        self._json_encode = checked_callable(json_encode, "json_encode")
        self._format = load_format(_TYPE)
        self._schemas = WriterSchemas(checked_client(schema_registry_client), self._settings)
        self._schema = given_schema(schema_str, _TYPE)
        if self._schema is not None:
            self._parsed(self._schema)  # an invalid schema is refused before the first message

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        """The bytes of a value; None for None. Raises SerializationError for a value that does not
        conform, SchemaRegistryError if the schema cannot be registered or found.
        """
        if obj is None:
            return None
        name = None if self._schema is None else self._parsed(self._schema).name
        registered = self._schemas.of_subject(self._schemas.subject(ctx, name), self._schema)
        value = obj if self._to_dict is None else self._to_dict(obj, needed_context(ctx))
        if self._settings.own["validate"]:
            self._format.check(self._parsed(registered.schema), value)
        payload = self._format.encode(value, self._json_encode)
        return self._settings.serialize_id(
            payload, ctx, SchemaId(_TYPE, registered.schema_id, registered.guid)
        )

    def _parsed(self, schema: Schema) -> Any:
        return parsed_schema(schema, self._schemas.client)


class JSONDeserializer(Deserializer):
    """Values from JSON. Mirrors `confluent_kafka.schema_registry.json_schema.JSONDeserializer`.

    `schema_str` is the reader's schema; without it, a value is checked against the schema that it
    was written with, for which the client is needed. `from_dict(dict, context)` makes an object of
    a dict, `json_decode(bytes)` the dict. `conf` has the settings of `AvroDeserializer` and:

    * `validate` (True): refuse values that do not conform to the schema
    """

    __slots__ = (
        "_client",
        "_format",
        "_from_dict",
        "_json_decode",
        "_schema",
        "_schemas",
        "_validate",
    )

    def __init__(
        self,
        schema_str: str | Schema | None,
        from_dict: Callable[[Any, SerializationContext], Any] | None = None,
        schema_registry_client: SchemaRegistryClient | None = None,
        conf: Mapping[str, Any] | None = None,
        rule_conf: Mapping[str, Any] | None = None,
        rule_registry: object = None,
        json_decode: Callable[[bytes], Any] | None = None,
    ) -> None:
        refuse_rules(rule_conf, rule_registry)
        settings = deserializer_settings(conf, {"validate": True})
        self._validate = settings.own["validate"]
        self._from_dict = checked_callable(from_dict, "from_dict")
        self._json_decode = checked_callable(json_decode, "json_decode")
        self._format = load_format(_TYPE)
        self._client = (
            None if schema_registry_client is None else checked_client(schema_registry_client)
        )
        self._schemas = ReaderSchemas(self._client, settings, _TYPE)
        self._schema = given_schema(schema_str, _TYPE)
        if self._client is None and (self._schema is None or self._schema.references):
            text = (
                "schema_registry_client is needed without a schema, and for a schema with "
                "references"
            )
            raise InvalidSetting(text, key="schema_registry_client")
        if self._schema is not None:
            parsed_schema(self._schema, self._client)

    def __call__(self, data: bytes | None, ctx: SerializationContext | None = None) -> Any:
        """The value; None for None. Raises SerializationError for bytes that are no JSON and values
        that do not conform, SchemaRegistryError for an unknown schema.
        """
        if data is None:
            return None
        schema_id, payload = self._schemas.split(data, ctx)
        reader = self._schema
        if self._client is not None:
            writer = self._schemas.writer(schema_id)
            reader = (
                self._schemas.latest(ctx, parsed_schema(writer, self._client).name)
                or reader
                or writer
            )
        found = self._format.decode(payload.read(), self._json_decode)
        if self._validate and reader is not None:
            self._format.check(parsed_schema(reader, self._client), found)
        return found if self._from_dict is None else self._from_dict(found, needed_context(ctx))
