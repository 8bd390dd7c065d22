"""Values of the schema registry as rows: their fields, and the columns that their schemas name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from deltaq.errors import InvalidConfig
from deltaq.schema_registry import SchemaRegistryClient, SchemaRegistryError
from deltaq.schema_registry.message_schemas import parsed_schema
from deltaq.schema_registry.protobuf import message_of
from deltaq.schema_registry.table_columns import columns_of, columns_of_all
from deltaq.serde.errors import SerializationError
from deltaq.serde.schema import TopicSchema
from deltaq.serde.source import schema_of
from deltaq.tools.records import plain
from deltaq.tools.registry_values import RegistryDecoder, schema_id_of
from deltaq.views.declared import REGISTRY_TYPES, DeclaredInput


@dataclass(frozen=True, slots=True)
class RegistryColumns:
    """The columns of subjects, which are derived once for each version."""

    client: SchemaRegistryClient
    _known: dict[tuple[DeclaredInput, tuple[int, ...]], TopicSchema] = field(default_factory=dict)

    def schema(self, declared: DeclaredInput) -> TopicSchema:
        """The columns of all versions of the subject `<topic>-value`, so that they become no fewer.
        Raises InvalidConfig if there is no such subject, it has another format, or a field needs
        declared columns; MissingLibrary, Unavailable.
        """
        subject = _subject(declared)
        try:
            versions = tuple(self.client.get_versions(subject, deleted=True))
            known = self._known.get((declared, versions))
            if known is None:
                known = self._known[declared, versions] = self._derived(declared, versions)
            return known
        except SchemaRegistryError as error:
            raise _refused(declared, f"{error.error_message}; declare its columns") from None

    def _derived(self, declared: DeclaredInput, versions: Sequence[int]) -> TopicSchema:
        subject, wanted = _subject(declared), REGISTRY_TYPES[declared.format]
        found = []
        for version in versions:
            schema = self.client.get_version(subject, version, deleted=True).schema
            if schema.schema_type != wanted:
                reason = f"subject {subject!r} has schemas of the type {schema.schema_type}"
                raise _refused(declared, f"{reason}, not {wanted}")
            found.append(schema)
        try:
            columns = [columns_of(wanted, parsed_schema(schema, self.client)) for schema in found]
            return schema_of(columns_of_all(columns))
        except InvalidConfig as error:
            raise _refused(declared, error.error.str()) from None


def _subject(declared: DeclaredInput) -> str:
    return f"{declared.name}-value"


def _refused(declared: DeclaredInput, reason: str) -> InvalidConfig:
    return InvalidConfig(f"input {declared.name!r}: {reason}", key=declared.name)


@dataclass(frozen=True, slots=True)
class RegistryFields:
    """Reads the fields of values that begin with the id of a schema."""

    client: SchemaRegistryClient
    decoder: RegistryDecoder
    kind: str
    columns: pa.Schema

    @classmethod
    def of(
        cls, client: SchemaRegistryClient, declared: DeclaredInput, schema: TopicSchema
    ) -> RegistryFields:
        """Those of a declared input."""
        kind = REGISTRY_TYPES[declared.format]
        return cls(client, RegistryDecoder(client), kind, schema.arrow)

    def __call__(self, value: bytes) -> Any:
        """The fields as JSON has them. Raises SerializationError, SchemaRegistryError, and what
        decoding raises.
        """
        number = schema_id_of(value)
        if number is None:
            raise SerializationError("it does not begin with the id of a schema")
        found = self.client.get_schema(number).schema_type or "AVRO"
        if found != self.kind:
            raise SerializationError(f"it has a schema of the type {found}, not {self.kind}")
        if self.kind != "PROTOBUF":
            return plain(self.decoder.decoded(value, number, found).value)
        _, fields = message_of(value, self.client, with_defaults=True)
        types = {column.name: column.type for column in self.columns}
        return {
            name: _of_protobuf(inner, types[name]) if name in types else inner
            for name, inner in fields.items()
        }


def _of_protobuf(value: Any, kind: pa.DataType) -> Any:
    """A value as the JSON of Protobuf has it, with its long integers and bytes as `typed_row` takes
    them.
    """
    if isinstance(value, str):
        if pa.types.is_integer(kind):
            return int(value)
        return {"base64": value} if pa.types.is_binary(kind) else value
    if isinstance(value, list) and pa.types.is_list(kind):
        return [_of_protobuf(inner, kind.value_type) for inner in value]
    if isinstance(value, dict) and pa.types.is_map(kind):
        return {name: _of_protobuf(inner, kind.item_type) for name, inner in value.items()}
    if isinstance(value, dict) and pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        return {
            name: _of_protobuf(inner, types[name]) if name in types else inner
            for name, inner in value.items()
        }
    return value
