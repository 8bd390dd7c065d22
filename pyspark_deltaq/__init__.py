"""How Spark finds `format("deltaq")` by itself: it looks into modules whose names begin with `pyspark_`."""

from deltaq.spark.data_source import DeltaqDataSource as DefaultSource

__all__ = ["DefaultSource"]
