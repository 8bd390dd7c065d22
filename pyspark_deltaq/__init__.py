"""Registers `format("deltaq")`: Spark imports data sources from modules whose names begin with
`pyspark_`.
"""

from deltaq.spark.data_source import DeltaqDataSource as DefaultSource

__all__ = ["DefaultSource"]
