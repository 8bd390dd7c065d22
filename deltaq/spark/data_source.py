"""The data source `deltaq`, for `spark.read`, `readStream`, `write` and `writeStream` with `format("deltaq")`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from deltaq.spark.options import parse_sink_options, parse_source_options
from deltaq.spark.sink import DeltaqStreamWriter, DeltaqWriter
from deltaq.spark.source import DeltaqReader, DeltaqStreamReader, columns_of


class DeltaqDataSource(DataSource):
    """Topics as a source and a sink, with the options and columns of Spark's Kafka source and sink."""

    @classmethod
    def name(cls) -> str:
        """The name for `format()`."""
        return "deltaq"

    def schema(self) -> StructType:
        """The columns of a read: Kafka's, or those of the topic's table if the option `columns` is `table`."""
        return columns_of(parse_source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        return DeltaqReader(parse_source_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DeltaqStreamReader:  # noqa: N802  # Spark's name
        """A streaming read."""
        return DeltaqStreamReader(parse_source_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        return DeltaqWriter(parse_sink_options(self.options), schema, overwrite)

    def streamWriter(  # noqa: N802  # Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002  # complete mode appends, as Kafka's sink does
    ) -> DeltaqStreamWriter:
        """A streaming sink."""
        return DeltaqStreamWriter(parse_sink_options(self.options), schema)
