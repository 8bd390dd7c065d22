"""The data source `deltaq`, for `spark.read`, `readStream`, `write` and `writeStream` with
`format("deltaq")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

# Each worker process of Spark imports this module to find the format or to carry out one of its
# methods. So each method imports what it needs.
# ruff: noqa: PLC0415

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceWriter
    from pyspark.sql.types import StructType

    from deltaq.spark.sink import DeltaqStreamWriter
    from deltaq.spark.source import DeltaqStreamReader


class DeltaqDataSource(DataSource):
    """Topics as a source and a sink, with the options and columns of Spark's Kafka source and
    sink.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format()`."""
        return "deltaq"

    def schema(self) -> StructType:
        """The columns of a read: Kafka's, or those of the topic's table if the option `columns` is
        `table`.
        """
        from deltaq.spark.options import parse_source_options

        options = parse_source_options(self.options)
        if options.columns == "kafka":  # spares this process the log, and Arrow
            from deltaq.spark.kafka_columns import kafka_columns

            return kafka_columns(headers=options.headers)
        from deltaq.spark.source import columns_of

        return columns_of(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from deltaq.spark.options import parse_source_options
        from deltaq.spark.source import DeltaqReader

        return DeltaqReader(parse_source_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DeltaqStreamReader:  # noqa: N802  # Spark's name
        """A streaming read."""
        from deltaq.spark.options import parse_source_options
        from deltaq.spark.source import DeltaqStreamReader

        return DeltaqStreamReader(parse_source_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from deltaq.spark.options import parse_sink_options
        from deltaq.spark.sink import DeltaqWriter

        return DeltaqWriter(parse_sink_options(self.options), schema, overwrite)

    def streamWriter(  # noqa: N802  # Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002  # complete mode appends, as Kafka's sink does
    ) -> DeltaqStreamWriter:
        """A streaming sink."""
        from deltaq.spark.options import parse_sink_options
        from deltaq.spark.sink import DeltaqStreamWriter

        return DeltaqStreamWriter(parse_sink_options(self.options), schema)
