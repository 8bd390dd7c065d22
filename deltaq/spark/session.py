"""A SparkSession with settings for quick starts and a few cores."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from types import MappingProxyType

import pyspark
from pyspark.sql import SparkSession

from deltaq.errors import InvalidConfig
from deltaq.spark.interpreter import choose_interpreter, is_launched

SMALL_MACHINE: Mapping[str, str] = MappingProxyType(
    {
        # These three settings save half of the time of a small job.
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        # Times written as text in one time zone and read in another would otherwise be shifted.
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
)
"""Settings for jobs of megabytes, not terabytes. On a large cluster, configure your own session."""

QUICK_START: Mapping[str, str] = MappingProxyType(
    # No optimizing compiler, and a simple garbage collector.
    {"spark.driver.defaultJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
)
"""A JVM for programs of seconds. Code that runs for longer stays up to three times slower than it
would become.
"""

_SOCKETS = "spark.python.unix.domain.socket"

_SOCKET_FOLDER_BYTES = 60
"""Longest folder of sockets. Of the 104 bytes that macOS has for the path of a socket (Linux: 108),
Spark's names take 43, with the slash, and the end takes one.
"""

REDACTION: Mapping[str, str] = MappingProxyType(
    {"spark.redaction.regex": r"(?i)secret|password|token|access[._]?key|store\.\w*(key|proxy_url)"}
)
"""Spark masks options with such names in the plans of SQL commands. Its default misses some of
`store.*`.
"""

_SCALA = "2.13"

_LISTS = ("spark.jars.packages", "spark.jars.excludes", "spark.sql.extensions")


def spark_session(
    app_name: str,
    *,
    native_delta: bool = False,
    quick_start: bool = False,
    conf: Mapping[str, str] = MappingProxyType({}),
) -> SparkSession:
    """A session with the settings of `SMALL_MACHINE`, on `local[*]` unless Spark is configured
    otherwise.

    `socket_settings` and `REDACTION` are set as well. `native_delta` adds the settings of
    `native_delta_settings`, for `format("delta")` and SQL on topics (read-only); `format("deltaq")`
    needs no jar. `quick_start` adds those of `QUICK_START`. `conf` overrides all other settings;
    values of settings that are lists are appended. As always with Spark, an existing session keeps
    the settings that it was started with.

    Raises InvalidConfig if Spark's Python lacks deltaq, or for `native_delta` if delta-spark is not
    installed.
    """
    choose_interpreter(conf)
    settings = session_settings(native_delta=native_delta, quick_start=quick_start, conf=conf)
    return SparkSession.builder.appName(app_name).config(map=dict(settings)).getOrCreate()


def session_settings(
    *, native_delta: bool, quick_start: bool, conf: Mapping[str, str]
) -> dict[str, str]:
    """The settings of `spark_session` with these arguments. Raises InvalidConfig if delta-spark is
    not installed.
    """
    settings = {**SMALL_MACHINE, **REDACTION, **(socket_settings() if is_launched() else {})}
    if native_delta:
        settings |= native_delta_settings()
    if quick_start:
        settings |= QUICK_START
    for name, value in conf.items():
        settings[name] = (
            f"{settings[name]},{value}" if name in _LISTS and name in settings else value
        )
    return settings


def socket_settings() -> dict[str, str]:
    """Settings with which Spark and its Python processes talk without TCP, whose delayed
    acknowledgements hold up each task by some 40 ms (decision 0045); none if Python's folder for
    temporary files has a long path.
    """
    folder = _socket_folder()
    return {} if folder is None else {f"{_SOCKETS}.enabled": "true", f"{_SOCKETS}.dir": folder}


@cache
def _socket_folder() -> str | None:
    """A folder for the sockets of this process, removed at its exit; None if their paths would be
    too long.

    Spark leaves a socket there if a program ends without `stop()`.
    """
    folder = tempfile.mkdtemp(prefix="deltaq-")
    owner = os.getpid()  # a forked child also runs what is registered
    atexit.register(
        lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None
    )
    return folder if len(os.fsencode(folder)) <= _SOCKET_FOLDER_BYTES else None


def native_delta_settings() -> dict[str, str]:
    """Settings with which Spark reads topics as Delta tables, with the Delta version of the
    installed delta-spark.

    Spark downloads the jars (10 MB) from Maven Central, once. Raises InvalidConfig if delta-spark
    is not installed.
    """
    try:
        version = metadata.version("delta-spark")
    except metadata.PackageNotFoundError:
        raise InvalidConfig(
            "native_delta needs delta-spark, which determines the version of the jars: install "
            "deltaq[spark]",
            key="native_delta",
        ) from None
    spark = ".".join(pyspark.__version__.split(".")[:2])
    return {
        "spark.jars.packages": (
            f"io.delta:delta-spark_{spark}_{_SCALA}:{version},io.delta:delta-storage:{version}"
        ),
        # Reading and SQL need only the two jars above. With all their dependencies Spark would load
        # 33 jars of 87 MB.
        "spark.jars.excludes": "com.*:*,org.*:*,io.unitycatalog:*,io.delta:delta-kernel-*",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
