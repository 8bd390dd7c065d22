"""Rows of files and frames as the model of a `Topic` handle writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from deltaq.errors import InvalidConfig, InvalidValue
from deltaq.serde.schema import TopicSchema, python_values
from deltaq.serde.source import schema_of
from deltaq.topic import Topic
from deltaq.topics.arrow_input import values_from_arrow


@dataclass(frozen=True)
class ModelRows:
    """Makes rows of the topic `topic` from rows of columns, as a producer writes the instances that
    a model makes of them: by its rules, changed by its validators, and with its defaults for what
    the rows lack.

    `held` is the schema of the topic, `wanted` that of the model, which may leave columns of the
    topic out.
    """

    topic: str
    held: TopicSchema
    wanted: TopicSchema

    @cached_property
    def _columns(self) -> TopicSchema:
        """The columns of the topic without what is required: the model may have a default."""
        return schema_of(
            pa.schema([pa.field(column.name, column.type) for column in self.held.arrow])
        )

    def row(self, given: Mapping[str, object]) -> dict[str, object]:
        """A row from some of its columns. Raises InvalidValue with the field."""
        row = self._columns.accept(dict(given))
        found = self.wanted.accept_columns({name: row[name] for name in given})
        return self.held.accept(row | {name: value for name, value in found.items() if name in row})

    def table(self, data: pa.Table | pa.RecordBatch, first: int) -> pa.Table:
        """A table for `Producer.produce_arrow`. `first` is the number of its first row in errors.
        Raises InvalidValue with the field and the row (`name[row]`).
        """
        values = values_from_arrow(data, self.topic, self.held)
        given = python_values(
            values.select([name for name in values.schema.names if name in data.schema.names])
        )
        batch = self.held.to_arrow(
            [self._numbered(row, number) for number, row in enumerate(given, first)]
        )
        columns = dict(zip(data.schema.names, data.columns, strict=True))
        return pa.table(columns | dict(zip(batch.schema.names, batch.columns, strict=True)))

    def _numbered(self, row: Mapping[str, object], number: int) -> dict[str, object]:
        try:
            return self.row(row)
        except InvalidValue as error:
            reason = error.error.str()
            if error.field is None:
                raise InvalidValue(f"row {number}: {reason}", topic=self.topic) from error
            reason = reason.removeprefix(f"field {error.field!r}: ")
            raise InvalidValue(
                reason, field=f"{error.field}[{number}]", topic=self.topic
            ) from error


def model_rows(topic: Topic) -> ModelRows | None:
    """For a handle with a model; None without one. Raises InvalidConfig for a topic of bytes, and
    as `Topic.describe`.
    """
    wanted = topic.schema
    if wanted is None or wanted.model is None:
        return None
    held = topic.describe().schema
    if held is None:
        raise InvalidConfig(
            f"topic {topic.name!r} holds bytes, and the handle has a model", key="schema"
        )
    return ModelRows(topic.name, held, wanted)
