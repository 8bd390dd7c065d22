"""Values that the serializers of the schema registry wrote, as values of JSON, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.errors import InvalidValue, KafkaException
from deltaq.schema_registry import SchemaRegistryClient
from deltaq.schema_registry.avro import AvroDeserializer
from deltaq.schema_registry.avro_json import from_json
from deltaq.schema_registry.formats import load_format
from deltaq.schema_registry.json_schema import JSONDeserializer
from deltaq.schema_registry.message_schemas import parsed_schema
from deltaq.schema_registry.protobuf import message_of
from deltaq.schema_registry.wire_format import SchemaId
from deltaq.serde.errors import SerializationError
from deltaq.store import Store
from deltaq.tools.records import Record, RegistryValue
from deltaq.topic import Topic

_MAGIC = 0
PREFIX_BYTES = 5
"""The length of the prefix of a value: a zero byte, and the id of its schema."""

_ID_DIGITS_MAX = 10

UNKNOWN_MAX = 3
"""Ids that are not in the registry after which values are taken for other bytes: each costs a
request.
"""


def schema_id_of(value: bytes) -> int | None:
    """The id of the schema that a value may begin with; None for other bytes."""
    if len(value) < PREFIX_BYTES or value[0] != _MAGIC:
        return None
    return int.from_bytes(value[1:PREFIX_BYTES], "big")


class RegistryDecoder:
    """Decodes values that begin with the id of a schema in the registry of the root: Avro, JSON
    Schema and Protobuf.

    It is for looking at messages, so it raises nothing: a value that cannot be decoded is None.
    """

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client
        self._avro: AvroDeserializer | None = None
        self._json: JSONDeserializer | None = None
        self._unknown: set[int] = set()

    def __call__(self, value: bytes) -> RegistryValue | None:
        """The value that these bytes stand for; None if they begin with no known id, or do not fit
        its schema.
        """
        number = schema_id_of(value)
        kind = None if number is None else self._type_of(number)
        if number is None or kind is None:
            return None
        try:
            return self.decoded(value, number, kind)
        except (KafkaException, ValueError, TypeError, KeyError, RecursionError):
            return None

    @classmethod
    def of_topic(cls, topic: Topic) -> RegistryDecoder | None:
        """The decoder for a topic's values; None for a typed topic, and where the registry has no
        schema.
        """
        client = SchemaRegistryClient(
            {"url": topic.store.url}, store=topic.store, clock=topic.clock
        )
        is_needed = topic.describe().schema is None and client.get_subjects(deleted=True)
        return cls(client) if is_needed else None

    def knows(self, number: int) -> bool:
        """Whether the registry has a schema with this id. After `UNKNOWN_MAX` others, no more are
        asked for.
        """
        return self._type_of(number) is not None

    def _type_of(self, number: int) -> str | None:
        if number in self._unknown or len(self._unknown) >= UNKNOWN_MAX:
            return None
        try:
            return self._client.get_schema(number).schema_type or "AVRO"
        except KafkaException:
            self._unknown.add(number)
            return None

    def column(self, values: pa.Array) -> list[RegistryValue | None]:
        """The values of a column of bytes; None where one is null, or cannot be decoded."""
        return [None if value is None else self(value) for value in values.to_pylist()]

    def record(self, record: Record) -> Record:
        """The record with its value decoded, if it can be."""
        found = self(record.value) if isinstance(record.value, bytes) else None
        return record if found is None else record._replace(value=found)

    def decoded(self, value: bytes, number: int, kind: str) -> RegistryValue:
        """The value that these bytes stand for, by the schema with this id and of this type. Raises
        KafkaException, ValueError, TypeError, KeyError, RecursionError.
        """
        if kind == "AVRO":
            self._avro = self._avro or AvroDeserializer(self._client)
            return RegistryValue(self._avro(value), kind, number)
        if kind == "JSON":
            self._json = self._json or JSONDeserializer(
                None, None, self._client, {"validate": False}
            )
            return RegistryValue(self._json(value), kind, number)
        name, fields = message_of(value, self._client)
        return RegistryValue(fields, kind, number, name)


class RegistryEncoder:
    """Encodes values of JSON with schemas of the root's registry, as its serializers do."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._client = SchemaRegistryClient({"url": store.url}, store=store, clock=clock)

    def id_of(self, name: str) -> int:
        """The id of the schema that is named by its id, or by a subject, whose latest version is
        meant. Raises SchemaRegistryError for an unknown one.
        """
        if name.isascii() and name.isdecimal() and len(name) <= _ID_DIGITS_MAX:
            self._client.get_schema(int(name))
            return int(name)
        return self._client.get_latest_version(name).schema_id

    def __call__(self, value: Any, schema_id: int, message_type: str | None = None) -> bytes:
        """The bytes of a value, after the id of its schema. `message_type` is the full name of a
        Protobuf message; None means the first one of the file.

        Raises InvalidValue for a value that does not conform, SchemaRegistryError for an unknown
        id, MissingLibrary.
        """
        schema = self._client.get_schema(schema_id)
        kind = schema.schema_type or "AVRO"
        try:
            payload, indexes = _encoded(
                kind, parsed_schema(schema, self._client), value, message_type
            )
        except (SerializationError, ValueError) as error:
            raise InvalidValue(f"no value of schema {schema_id}: {error!s:.500}") from None
        return SchemaId(kind, schema_id, None, indexes).id_to_bytes() + payload


def _encoded(
    kind: str, parsed: Any, value: Any, message_type: str | None
) -> tuple[bytes, list[int] | None]:
    """The payload, and the indexes of a Protobuf message."""
    format_ = load_format(kind)
    if kind == "AVRO":
        fitting = from_json(value, parsed.parsed)
        return format_.encode(parsed, fitting, strict=False, strict_allow_default=False), None
    if kind == "JSON":
        format_.check(parsed, value)
        return format_.encode(value, None), None
    message = format_.message_named(parsed, message_type)
    return format_.of_dict(value, message), format_.indexes_of(parsed, message)
