"""The schema of a typed topic's values: its columns, and the conversion of rows to Arrow and back.

Topics of bytes do not need pydantic, so it is loaded with the first schema
(`deltaq/serde/source.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.errors import InvalidValue, KafkaError, KafkaException
from deltaq.serde.column_values import as_stored, contains, faults, long_decimal

if TYPE_CHECKING:
    import pydantic

SchemaSource: TypeAlias = "pa.Schema | type[pydantic.BaseModel]"
"""The schema of a typed topic as a user passes it."""


@dataclass(frozen=True, slots=True)
class TopicSchema(ABC):
    """The columns of a topic's values (`arrow`) and the model, if any. Created by `schema_of`.

    A value is a dict of plain Python values or an instance of the model. An accepted value is read
    back equal. All columns are nullable, because a tombstone is a row of nulls: `required` are
    those that every value has, and `defaults` those for which the model has a default. `members`
    has the values that an enum or `Literal` may have. Two schemas are equal if their columns and
    models are equal.
    """

    arrow: pa.Schema
    model: type[pydantic.BaseModel] | None
    required: frozenset[str]  # Arrow compares columns without their metadata, which say the same
    defaults: frozenset[str]
    # By path, as `deltaq.serde.columns.Members`.
    members: frozenset[tuple[str, frozenset[str | int]]]

    @abstractmethod
    def accept(self, value: object) -> dict[str, object]:
        """The row for a value: every column by name, in order, with None for missing optional
        fields.

        A dict is validated strictly: "5" is not accepted as 5, and the only conversion is from int
        to float. Raises InvalidValue, with the field's name, for a value that could not be stored
        without loss.
        """

    @abstractmethod
    def accept_columns(self, row: Mapping[str, object]) -> dict[str, object]:
        """As `accept`, for values as columns hold them, such as those of `restore`: the row of the
        instance that the model makes of them. Columns that the schema does not have are passed
        over.
        """

    @abstractmethod
    def restore(self, row: Mapping[str, object]) -> pydantic.BaseModel | dict[str, object]:
        """The row as an instance of the model; without a model, a copy of the row.

        A required field that the row lacks takes the model's default: the row may be older than the
        field. Raises KafkaException (_VALUE_DESERIALIZATION) if the model rejects the row.
        """

    def to_arrow(self, rows: Sequence[Mapping[str, object] | None]) -> pa.RecordBatch:
        """Rows accepted by this schema, or by one whose columns are among its own, as a batch with
        all its columns.

        None, a tombstone, becomes a row of nulls. Raises InvalidValue for a row with another
        column.
        """
        names = frozenset(self.arrow.names)
        for row in rows:
            if row is not None and not row.keys() <= names:
                raise InvalidValue("the topic has no such column", field=min(row.keys() - names))
        columns = [
            pa.array([None if row is None else row.get(column.name) for row in rows], column.type)
            for column in self.arrow
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def to_python(self, batch: pa.RecordBatch) -> list[dict[str, object] | Unreadable | None]:
        """The rows of a batch of a topic's table. A row whose value columns are all null becomes
        None, a tombstone. A row with a value that cannot be returned becomes that `Unreadable`, and
        the others are returned.

        A column that the topic does not have (yet) is None. Raises KafkaException
        (_VALUE_DESERIALIZATION) if that column is required and has no default.
        """
        there = [name for name in batch.schema.names if not name.startswith("_")]
        known = [name for name in self.arrow.names if name in there]
        missing = [name for name in self.arrow.names if name not in there]
        lost = [name for name in missing if name in self.required - self.defaults]
        if lost or not known:
            remedy = "give it a default, or let a producer with this schema write first"
            raise unreadable(f"the topic has no column {(lost or missing)[0]!r}; {remedy}")
        rows = python_values(batch.select(known))
        is_value = [any(value is not None for value in row.values()) for row in rows]
        others = [batch.column(name) for name in there if name not in self.arrow.names]
        if others and not all(is_value):
            in_others = reduce(pc.or_, map(pc.is_valid, others)).to_pylist()
            is_value = [
                here or elsewhere for here, elsewhere in zip(is_value, in_others, strict=True)
            ]
        for row in rows if missing else ():
            row.update(dict.fromkeys(missing))
        return [
            _unreadable_part(row) or row if is_there else None
            for row, is_there in zip(rows, is_value, strict=True)
        ]


def _unreadable_part(row: Mapping[str, object]) -> Unreadable | None:
    return next((value for value in row.values() if isinstance(value, Unreadable)), None)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a stored value that cannot be returned, such as text that is no UTF-8 or a time in
    the year 10000: the path of its column, the reason, and what is stored, as bytes and numbers.

    No producer accepts such a value: an earlier version did, or another program wrote the file.
    """

    path: str
    reason: str
    stored: object

    def __str__(self) -> str:
        return f"column {self.path!r} {self.reason}"


def python_values(data: pa.RecordBatch | pa.Array, path: str = "") -> list[Any]:
    """Rows, or the values of the column `path`, as Python's, maps as dicts, and an `Unreadable` for
    each value that cannot be returned. A time that Python has in UTC only is in UTC.
    """
    try:
        _refuse_long_decimals(data)
        found: list[Any] = data.to_pylist(maps_as_pydicts="strict")
    except (ValueError, OverflowError, KeyError) as error:  # KeyError: a map with one key twice
        if isinstance(data, pa.RecordBatch):
            names = data.schema.names
            columns = [
                python_values(column, name)
                for name, column in zip(names, data.columns, strict=True)
            ]
            return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        if len(data) > 1:
            half = len(data) // 2
            return python_values(data.slice(0, half), path) + python_values(data.slice(half), path)
        if pa.types.is_timestamp(data.type) and data.type.tz not in (None, "UTC"):
            # In its zone, the time may be one of the year 10000.
            return python_values(data.cast(pa.timestamp(data.type.unit, "UTC")), path)
        fault = next(faults(data, path), None)
        about = (path, str(error)) if fault is None else (fault.path, fault.reason)
        return [Unreadable(*about, as_stored(data)[0].as_py())]
    return found


def _refuse_long_decimals(data: pa.RecordBatch | pa.Array) -> None:
    """ValueError for a decimal with more digits than its type has, which Python would return."""
    is_batch = isinstance(data, pa.RecordBatch)
    for at, kind in enumerate(data.schema.types if is_batch else (data.type,)):
        # Most columns are neither, and looking into the cache of `contains` takes longer.
        if kind.num_fields or type(kind) is pa.Decimal128Type:
            column = data.column(at) if is_batch else data
            if contains(kind, pa.types.is_decimal) and (found := long_decimal(column, "")):
                raise ValueError(found[1])


def unreadable(reason: str) -> KafkaException:
    """The error for a row that cannot be returned as a value."""
    return KafkaException(KafkaError(KafkaError._VALUE_DESERIALIZATION, reason))
