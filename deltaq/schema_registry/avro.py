"""Avro records as the bytes of a message, with the names of
`confluent_kafka.schema_registry.avro`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

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

ToDict: TypeAlias = Callable[[Any, SerializationContext], Any]
FromDict: TypeAlias = Callable[[Any, SerializationContext], Any]

_TYPE = "AVRO"


class AvroSerializer(Serializer):
    """Records as Avro, after the id of their schema. Mirrors
    `confluent_kafka.schema_registry.avro.AvroSerializer`.

    `schema_str` is the schema as text, or a `Schema` if it has references. `to_dict(object,
    context)` makes a dict of an object. `conf` has confluent-kafka's settings:

    * `auto.register.schemas` (True): register the schema at the first message of a subject;
      otherwise look it up there
    * `normalize.schemas` (False): ignore differences without a meaning
    * `use.latest.version` (False), `use.latest.with.metadata`, `use.schema.id`: write with a
      registered schema instead
    * `subject.name.strategy`: a function `(context, record name) -> subject`, or
      `subject.name.strategy.type`
    * `schema.id.serializer`: `prefix_schema_id_serializer` or `header_schema_id_serializer`
    * `validate.strict` (False): refuse fields that the schema does not have, and missing fields
    * `validate.strict.allow.default` (False): like it, but a field with a default may be missing
    """

    __slots__ = ("_format", "_schema", "_schemas", "_settings", "_to_dict")

    def __init__(
        self,
        schema_registry_client: SchemaRegistryClient,
        schema_str: str | Schema | None = None,
        to_dict: ToDict | None = None,
        conf: Mapping[str, Any] | None = None,
        rule_conf: Mapping[str, Any] | None = None,
        rule_registry: object = None,
    ) -> None:
        refuse_rules(rule_conf, rule_registry)
        self._settings = serializer_settings(
            conf, {"validate.strict": False, "validate.strict.allow.default": False}
        )
        self._to_dict = checked_callable(to_dict, "to_dict")
        self._format = load_format(_TYPE)
        client = checked_client(schema_registry_client)
        self._schemas = WriterSchemas(client, self._settings)
        self._schema = given_schema(schema_str, _TYPE)
        if self._schema is not None:
            # An invalid schema is refused before the first message.
            parsed_schema(self._schema, client)

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        """The bytes of a record; None for None. Raises SerializationError for a record that does
        not conform, SchemaRegistryError if the schema cannot be registered or found.
        """
        if obj is None:
            return None
        name = None if self._schema is None else self._parsed(self._schema).name
        registered = self._schemas.of_subject(self._schemas.subject(ctx, name), self._schema)
        value = obj if self._to_dict is None else self._to_dict(obj, needed_context(ctx))
        payload = self._format.encode(
            self._parsed(registered.schema),
            value,
            strict=self._settings.own["validate.strict"],
            strict_allow_default=self._settings.own["validate.strict.allow.default"],
        )
        return self._settings.serialize_id(
            payload, ctx, SchemaId(_TYPE, registered.schema_id, registered.guid)
        )

    def _parsed(self, schema: Schema) -> Any:
        return parsed_schema(schema, self._schemas.client)


class AvroDeserializer(Deserializer):
    """Records from Avro. Mirrors `confluent_kafka.schema_registry.avro.AvroDeserializer`.

    `schema_str` is the reader's schema; without it, a record has the fields that it was written
    with. `from_dict(dict, context)` makes an object of a dict. With `return_record_name`, a record
    of a union is a tuple of its name and its fields. `conf` has confluent-kafka's settings:

    * `use.latest.version` (False), `use.latest.with.metadata`: the reader's schema is this version
      of the subject
    * `subject.name.strategy`, `subject.name.strategy.type`: where to look for it
    * `schema.id.deserializer`: `dual_schema_id_deserializer`, or `prefix_schema_id_deserializer` to
      ignore headers
    """

    __slots__ = ("_client", "_format", "_from_dict", "_return_record_name", "_schema", "_schemas")

    def __init__(
        self,
        schema_registry_client: SchemaRegistryClient,
        schema_str: str | Schema | None = None,
        from_dict: FromDict | None = None,
        return_record_name: bool = False,
        conf: Mapping[str, Any] | None = None,
        rule_conf: Mapping[str, Any] | None = None,
        rule_registry: object = None,
    ) -> None:
        refuse_rules(rule_conf, rule_registry)
        settings = deserializer_settings(conf, {})
        self._from_dict = checked_callable(from_dict, "from_dict")
        if not isinstance(return_record_name, bool):
            raise InvalidSetting(
                "return_record_name must be a boolean value", key="return_record_name"
            )
        self._return_record_name = return_record_name
        self._format = load_format(_TYPE)
        self._client = checked_client(schema_registry_client)
        self._schemas = ReaderSchemas(self._client, settings, _TYPE)
        self._schema = given_schema(schema_str, _TYPE)
        if self._schema is not None:
            self._parsed(self._schema)

    def __call__(self, data: bytes | None, ctx: SerializationContext | None = None) -> Any:
        """The record; None for None. Raises SerializationError for bytes that cannot be decoded,
        SchemaRegistryError for an unknown schema.
        """
        if data is None:
            return None
        schema_id, payload = self._schemas.split(data, ctx)
        writer = self._parsed(self._schemas.writer(schema_id))
        latest = self._schemas.latest(ctx, writer.name)
        reader = latest or self._schema
        record = self._format.decode(
            payload,
            writer,
            None if reader is None else self._parsed(reader),
            return_record_name=self._return_record_name,
        )
        return record if self._from_dict is None else self._from_dict(record, needed_context(ctx))

    def _parsed(self, schema: Schema) -> Any:
        return parsed_schema(schema, self._client)
