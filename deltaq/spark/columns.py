"""The columns of a read in Spark: those of Spark's Kafka source, or those of the topic's table."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from deltaq.errors import InvalidConfig
from deltaq.serde.columns import is_required
from deltaq.spark.kafka_columns import kafka_columns
from deltaq.spark.options import ColumnSet, needs_table_columns
from deltaq.topics.columns import PLACES, table_schema
from deltaq.topics.metadata import TopicDefinition
from deltaq.topics.record_faults import without_faults
from deltaq.topics.scan import Fetched, rows_of

_log = logging.getLogger("deltaq.spark")

OF_TABLE = {
    "key": "_key",
    "value": "value",
    "partition": "_partition",
    "offset": "_offset",
    "timestamp": "_timestamp",
    "headers": "_headers",
}
"""The table column of each column of Spark's Kafka source."""

CREATE_TIME, LOG_APPEND_TIME = 0, 1  # the numbers of Kafka's Java client, which Spark uses


def table_columns(view: TopicDefinition) -> StructType:
    """`_topic`, the topic's name, followed by the columns of the topic's table."""
    columns = from_arrow_schema(table_schema(view.schema), prefer_timestamp_ntz=False)
    return StructType([StructField("_topic", StringType()), *columns.fields])


def is_of_table(columns: StructType) -> bool:
    """Whether these are the columns of a topic's table. Those of a typed topic may have the names
    of Kafka's, too.
    """
    return "_topic" in columns.names


def quoted(name: str) -> str:
    """The name of a column as Spark's expressions have it."""
    return "`" + name.replace("`", "``") + "`"


class ReadColumns:
    """Converts fetched records to the columns promised to Spark: all of `which`, or those of the
    user's schema.
    """

    def __init__(self, which: ColumnSet, promised: StructType) -> None:
        self._kafka = which == "kafka"
        self._names = promised.fieldNames()
        self._arrow: pa.Schema = to_arrow_schema(promised, timezone="UTC")

    def check(self, topic: str, view: TopicDefinition) -> None:
        """Raise InvalidConfig if the topic cannot be read as these columns."""
        if self._kafka and view.schema is not None:
            raise needs_table_columns(topic)
        promises = kafka_columns(headers=True) if self._kafka else table_columns(view)
        types = dict(
            zip(promises.names, to_arrow_schema(promises, timezone="UTC").types, strict=True)
        )
        for name, wanted in zip(self._names, self._arrow.types, strict=True):
            if types.get(name) != wanted:
                found = f"has type {types[name]}" if name in types else "does not exist"
                raise InvalidConfig(
                    f"topic {topic!r} cannot be read with column {name!r} as {wanted}: in the topic"
                    f" it {found}; omit the schema, or read topics with different columns one "
                    "by one",
                    key="columns",
                )

    def in_files(self, table: pa.Schema) -> pa.Schema:
        """The columns of the topic's table that a task reads: the promised ones, and the place of
        each record.
        """
        promised = {OF_TABLE.get(name) if self._kafka else name for name in self._names}
        wanted = [field for field in table if field.name in promised | set(PLACES.names)]
        values = [field for field in wanted if not field.name.startswith("_")]
        if values and not any(is_required(field) for field in values):
            # Files older than a column lack it, and a file without any value column is taken for
            # damaged.
            first = next(field for field in table if not field.name.startswith("_"))
            wanted = [field for field in table if field in wanted or field.name == first.name]
        return pa.schema(wanted)

    def of(self, topic: str, parts: Iterable[Fetched], bytes_max: int) -> Iterator[pa.RecordBatch]:
        """The records as record batches with the promised columns, in order. Small files are
        joined, up to about `bytes_max` bytes.
        """
        for log_append_time, run in groupby(parts, lambda part: part.log_append_time):
            time_type = LOG_APPEND_TIME if log_append_time else CREATE_TIME
            for found in rows_of(run, bytes_max):
                rows = without_faults(found, topic, _log, _holds_decimals)
                arrays = [self._column(field, topic, time_type, rows) for field in self._arrow]
                yield pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _column(
        self, field: pa.Field, topic: str, time_type: int, rows: pa.RecordBatch
    ) -> pa.Array:
        if field.name == ("topic" if self._kafka else "_topic"):
            return pa.repeat(pa.scalar(topic, field.type), rows.num_rows)
        if self._kafka and field.name == "timestampType":
            return pa.repeat(pa.scalar(time_type, field.type), rows.num_rows)
        return rows.column(OF_TABLE[field.name] if self._kafka else field.name).cast(field.type)


def _holds_decimals(kind: pa.DataType) -> bool:
    """Whether values of a type can fail a query: Spark refuses decimals of more digits than their
    type has.
    """
    return pa.types.is_decimal(kind) or any(
        _holds_decimals(kind.field(at).type) for at in range(kind.num_fields)
    )


def in_batches(
    batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most `rows_max` rows. Small ones are joined, up to `bytes_max`
    bytes, because each costs Spark as much as hundreds of rows.
    """
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if small and (rows + batch.num_rows > rows_max or size + batch.nbytes > bytes_max):
            yield _joined(small)
            small, rows, size = [], 0, 0
        if batch.num_rows <= rows_max:
            small.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        else:
            yield from (batch.slice(row, rows_max) for row in range(0, batch.num_rows, rows_max))
    if small:
        yield _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
