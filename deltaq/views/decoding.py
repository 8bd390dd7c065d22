"""The bytes of a topic as rows with declared columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from deltaq.errors import InvalidValue, KafkaException, printable
from deltaq.message import Message
from deltaq.schema_registry import SchemaRegistryClient, SchemaRegistryError
from deltaq.serde.errors import MissingLibrary, SerializationError, ValueDeserializationError
from deltaq.serde.json_text import typed_json
from deltaq.serde.schema import TopicSchema
from deltaq.tools.json_lines import JSON_LINES
from deltaq.tools.positions import Ranges
from deltaq.tools.reading import read
from deltaq.topic import Topic
from deltaq.topics.columns import table_schema
from deltaq.topics.record_faults import NAMED_AT_ONCE, without_faults
from deltaq.views.declared import REGISTRY_TYPES, DeclaredInput
from deltaq.views.engine import DELETED
from deltaq.views.registry_inputs import RegistryFields

_log = logging.getLogger("deltaq.views")

_FAULTS = (InvalidValue, SchemaRegistryError, ValueError, TypeError, KeyError, RecursionError)
"""What the value of a record may raise. A SerializationError is a ValueError."""


def decoded_rows(
    topic: Topic,
    ranges: Ranges,
    declared: DeclaredInput,
    schema: TopicSchema,
    registry: SchemaRegistryClient,
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The records between these offsets, with these columns in place of their bytes, and `DELETED`.

    The iterator raises ValueDeserializationError for a record that does not fit the columns, unless
    such records are skipped, and what reading a topic raises.
    """
    decoder = _RowDecoder(topic, declared, schema, registry)
    batches = (without_faults(batch, topic.name, _log) for batch in read(topic, ranges))
    return decoder.columns, decoder.decoded(batches)


@dataclass(eq=False)
class _RowDecoder:
    """Decodes the records of one topic."""

    topic: Topic
    declared: DeclaredInput
    schema: TopicSchema
    registry: SchemaRegistryClient

    def __post_init__(self) -> None:
        self.columns = table_schema(self.schema).append(pa.field(DELETED, pa.bool_()))
        self._converters = [(column.name, _converter(column)) for column in self.schema.arrow]
        self._fields_of: Callable[[bytes], Any] = (
            RegistryFields.of(self.registry, self.declared, self.schema)
            if self.declared.format in REGISTRY_TYPES
            else _json_fields
        )

        self._skipped = 0

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self._decoded(batch)
        if self._skipped > NAMED_AT_ONCE:
            more = self._skipped - NAMED_AT_ONCE
            _log.warning("%d more records are skipped topic=%s", more, self.topic.name)

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column("value").to_pylist()
        rows: list[dict[str, object] | None] = []
        kept = []
        for at, value in enumerate(values):
            try:
                rows.append(None if value is None else self._row(value))
                kept.append(at)
            except MissingLibrary:
                raise
            except _FAULTS as error:
                self._refuse(batch, at, error)
        if len(kept) < len(values):
            batch = batch.take(pa.array(kept, pa.int64()))
        deleted = pa.array([row is None for row in rows], pa.bool_())
        own = batch.drop_columns("value")
        return pa.RecordBatch.from_arrays(
            [*own.columns, *self.schema.to_arrow(rows).columns, deleted],
            schema=self.columns,
        )

    def _row(self, value: bytes) -> dict[str, object]:
        fields = self._fields_of(value)
        if not isinstance(fields, dict):
            raise SerializationError("it is no object with fields")
        row = {
            name: fields[name] if convert is None else convert(fields[name])
            for name, convert in self._converters
            if name in fields
        }
        if not self.schema.required and all(value is None for value in row.values()):
            # No topic takes it, as a row of nulls means deletion there. Here `DELETED` does.
            return {}
        return self.schema.accept(row)

    def _refuse(self, batch: pa.RecordBatch, at: int, error: Exception) -> None:
        partition, offset = (batch.column(name)[at].as_py() for name in ("_partition", "_offset"))
        about = error.error.str() if isinstance(error, KafkaException) else str(error)
        if self.declared.on_error == "skip":
            self._skipped += 1
            if self._skipped <= NAMED_AT_ONCE:
                _log.warning(
                    "a record is skipped topic=%s partition=%d offset=%d %s",
                    self.topic.name, partition, offset, printable(about)[:300],
                )  # fmt: skip
            return
        remedy = "change the columns of the input, or skip such records with on_error='skip'"
        reason = SerializationError(f"{about:.1000}; {remedy}")
        reason.field = getattr(error, "field", None)
        value = batch.column("value")[at].as_py()
        message = Message[Any, Any](self.topic.name, partition, offset, value=value)
        raise ValueDeserializationError(reason, message) from error


def _converter(column: pa.Field) -> Callable[[Any], Any] | None:
    """What makes a value of a column of one of JSON; None if they are the same."""
    kind, typed = column.type, JSON_LINES.typed(column.type, column.name)
    if typed is None or not kind.num_fields:
        return typed
    return lambda value: typed(_chosen(value, kind))


def _chosen(value: Any, kind: pa.DataType) -> Any:
    """A value of JSON with the fields that its type has only, as at the top."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {
            field.name: _chosen(value[field.name], field.type)
            for field in kind
            if field.name in value
        }
    if isinstance(value, dict) and pa.types.is_map(kind) and kind.item_type.num_fields:
        return {name: _chosen(inner, kind.item_type) for name, inner in value.items()}
    if isinstance(value, list) and pa.types.is_list(kind) and kind.value_type.num_fields:
        return [_chosen(inner, kind.value_type) for inner in value]
    return value


def _json_fields(value: bytes) -> Any:
    try:
        return typed_json(value)
    except ValueError as error:
        raise SerializationError(f"it is no JSON: {error}") from None
