"""A SparkSession that starts quickly and runs well on a few cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import SparkSession

__all__ = ["NATIVE_DELTA", "SMALL_MACHINE", "spark_session"]

SMALL_MACHINE: Mapping[str, str] = MappingProxyType(
    {
        # Half of the time of a small job is spent in what these three keep from happening.
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        # Compile less, collect simply, load classes from the archive of the JDK.
        "spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto",
        # What is written as text in one zone and read in another must not move.
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
)
"""Settings for jobs of megabytes, not terabytes. On a large cluster use a session of your own."""

NATIVE_DELTA: Mapping[str, str] = MappingProxyType(
    {
        "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0,io.delta:delta-storage:4.4.0",
        # The two above are all that reading and SQL need; with all they depend on there would be 33 jars of 87 MB.
        "spark.jars.excludes": "com.*:*,org.*:*,io.unitycatalog:*,io.delta:delta-kernel-*",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
)
"""Settings that let Spark read topics as the Delta tables they are. The jars (10 MB) come from Maven Central, once."""

_LISTS = ("spark.jars.packages", "spark.jars.excludes", "spark.sql.extensions")


def spark_session(
    app_name: str, *, native_delta: bool = False, conf: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """A session with the settings of `SMALL_MACHINE`, on `local[*]` unless Spark is configured otherwise.

    With `native_delta` also those of `NATIVE_DELTA`, for `format("delta")` and SQL on topics (read-only);
    `format("deltaq")` needs no jar. `conf` has the last word; where a setting is a list, it adds to it.
    As always with Spark, a session that exists already keeps the settings which it was started with.
    """
    # Workers must find deltaq: the Python that runs now has it, the `python3` on the path may not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = dict(SMALL_MACHINE)
    if native_delta:
        settings |= NATIVE_DELTA
    for name, value in conf.items():
        settings[name] = f"{settings[name]},{value}" if name in _LISTS and name in settings else value
    return SparkSession.builder.appName(app_name).config(map=dict(settings)).getOrCreate()
