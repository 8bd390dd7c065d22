"""Spark: the data source `deltaq`, which Spark finds by itself, and a session fit for small machines."""

from deltaq.spark.session import spark_session

__all__ = ["spark_session"]
