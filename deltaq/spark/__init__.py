"""Spark: the data source `deltaq`, which Spark discovers automatically, and a session for small machines."""

from deltaq.spark.session import spark_session

__all__ = ["spark_session"]
