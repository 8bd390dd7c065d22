"""The schema of a typed topic's values: its columns, and the conversion of rows to Arrow and back.

Topics of bytes do not need pydantic, so it is loaded with the first schema (`deltaq/serde/validated.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from deltaq.errors import KafkaError, KafkaException

if TYPE_CHECKING:
    import pydantic

SchemaSource: TypeAlias = "pa.Schema | type[pydantic.BaseModel]"
"""The schema of a typed topic as a user passes it."""

_REMEDY = "a topic keeps the schema that it was created with: use that schema here, or a topic of another name"


@dataclass(frozen=True, slots=True)
class TopicSchema(ABC):
    """The columns of a topic's values (`arrow`) and the model, if any. Created by `schema_of`.

    A value is a dict of plain Python values or an instance of the model. An accepted value is read back equal. All
    columns are nullable, because a tombstone is a row of nulls. Two schemas are equal if their columns and models are
    equal.
    """

    arrow: pa.Schema
    model: type[pydantic.BaseModel] | None

    @abstractmethod
    def accept(self, value: object) -> dict[str, object]:
        """The row for a value: every column by name, in order, with None for missing optional fields.

        A dict is validated strictly: "5" is not accepted as 5, and the only conversion is from int to float. Raises
        InvalidValue, with the field's name, for a value that could not be stored without loss.
        """

    @abstractmethod
    def restore(self, row: Mapping[str, object]) -> pydantic.BaseModel | dict[str, object]:
        """The row as an instance of the model; without a model, a copy of the row.

        A required field that the row lacks takes the model's default: the row may be older than the field. Raises
        KafkaException (_VALUE_DESERIALIZATION) if the model rejects the row.
        """

    def to_arrow(self, rows: Sequence[Mapping[str, object] | None]) -> pa.RecordBatch:
        """Accepted rows as a batch with the columns of `arrow`. None, a tombstone, becomes a row of nulls."""
        columns = [
            pa.array([None if row is None else row[column.name] for row in rows], column.type) for column in self.arrow
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def to_python(self, batch: pa.RecordBatch) -> list[dict[str, object] | None]:
        """The rows of a batch that has at least the columns of `arrow`. A row of nulls becomes None, a tombstone.

        Raises KafkaException (_VALUE_DESERIALIZATION) for a missing column, and for values without an equal in Python,
        such as a date in the year 10000 or a map with a repeated key. Such values come only from produced Arrow data.
        """
        missing = [name for name in self.arrow.names if name not in batch.schema.names]
        if missing:
            raise unreadable(f"the topic has no column {missing[0]!r}; {_REMEDY}")
        rows = python_values(batch.select(self.arrow.names))
        return [row if any(value is not None for value in row.values()) else None for row in rows]

    def __reduce__(self) -> tuple[Callable[..., TopicSchema], tuple[object]]:
        # The conversions are closures, which cannot be pickled: the other process creates its own.
        return schema_of, (self.model or self.arrow,)


def python_values(data: pa.RecordBatch | pa.Array) -> list[Any]:
    """Rows or values as Python's, maps as dicts. Raises KafkaException (_VALUE_DESERIALIZATION) as
    `TopicSchema.to_python`."""
    try:
        found: list[Any] = data.to_pylist(maps_as_pydicts="strict")
    except (ValueError, OverflowError, KeyError) as error:  # KeyError: a map with one key twice
        raise unreadable(str(error)) from error
    return found


def schema_of(source: SchemaSource) -> TopicSchema:
    """The schema of a topic whose values have these columns or are instances of this model.

    Raises InvalidConfig for a column that a Delta table cannot have, TypeError for any other kind of source.
    """
    from deltaq.serde.validated import validated_schema  # noqa: PLC0415 - loads pydantic

    return validated_schema(source)


def schema_conflict(topic: str, wanted: TopicSchema, held: TopicSchema | None) -> str | None:
    """The reason why values of the schema `wanted` do not fit a topic with the schema `held`, with the remedy; None if
    they fit. `held` is None for a topic of bytes."""
    if held is not None and held.arrow == wanted.arrow:
        return None
    return f"topic {topic!r} has another schema: {_difference(wanted.arrow, held)}; {_REMEDY}"


def _difference(wanted: pa.Schema, held: TopicSchema | None) -> str:
    """The first column that differs between a schema and that of a topic."""
    if held is None:
        return "it holds bytes"
    there: pa.Schema = held.arrow
    for column in wanted:
        if column.name not in there.names:
            return f"it has no column {column.name!r}"
        kind = there.field(column.name).type
        if kind != column.type:
            return f"its column {column.name!r} is {kind}, not {column.type}"
    extra = [name for name in there.names if name not in wanted.names]
    return (
        f"it has the column {extra[0]!r} too" if extra else f"its columns are {', '.join(there.names)}, in this order"
    )


def unreadable(reason: str) -> KafkaException:
    """The error for a row that cannot be returned as a value."""
    return KafkaException(KafkaError(KafkaError._VALUE_DESERIALIZATION, reason))
