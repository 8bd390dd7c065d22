"""A SparkSession that starts quickly and runs well on a few cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType

import pyspark
from pyspark.sql import SparkSession

from deltaq.errors import InvalidConfig

__all__ = ["SMALL_MACHINE", "choose_interpreter", "native_delta_settings", "spark_session"]

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

_SCALA = "2.13"

_INTERPRETERS: Mapping[str, str] = MappingProxyType(
    {"spark.pyspark.driver.python": "PYSPARK_DRIVER_PYTHON", "spark.pyspark.python": "PYSPARK_PYTHON"}
)
"""Where a user names the Python of Spark's workers: settings, with the variables that PySpark reads. The first wins."""

_HAS_DELTAQ = "import importlib.util; print('deltaq:', importlib.util.find_spec('pyspark_deltaq') is not None)"

_LISTS = ("spark.jars.packages", "spark.jars.excludes", "spark.sql.extensions")


def spark_session(
    app_name: str, *, native_delta: bool = False, conf: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """A session with the settings of `SMALL_MACHINE`, on `local[*]` unless Spark is configured otherwise.

    With `native_delta` also those of `native_delta_settings`, for `format("delta")` and SQL on topics (read-only);
    `format("deltaq")` needs no jar. `conf` has the last word; where a setting is a list, it adds to it.
    As always with Spark, a session that exists already keeps the settings which it was started with.
    Raises InvalidConfig if Spark's Python lacks deltaq, or if `native_delta` is asked for without delta-spark.
    """
    choose_interpreter(conf)
    settings = dict(SMALL_MACHINE)
    if native_delta:
        settings |= native_delta_settings()
    for name, value in conf.items():
        settings[name] = f"{settings[name]},{value}" if name in _LISTS and name in settings else value
    return SparkSession.builder.appName(app_name).config(map=dict(settings)).getOrCreate()


def native_delta_settings() -> dict[str, str]:
    """Settings that let Spark read topics as the Delta tables they are, with the Delta that delta-spark is made for.

    Spark fetches the jars (10 MB) from Maven Central, once. Raises InvalidConfig if delta-spark is not installed.
    """
    try:
        version = metadata.version("delta-spark")
    except metadata.PackageNotFoundError:
        raise InvalidConfig(
            "native_delta needs delta-spark, which says the version of the jars: install deltaq with its extra [spark]",
            key="native_delta",
        ) from None
    spark = ".".join(pyspark.__version__.split(".")[:2])
    return {
        "spark.jars.packages": f"io.delta:delta-spark_{spark}_{_SCALA}:{version},io.delta:delta-storage:{version}",
        # The two above are all that reading and SQL need; with all they depend on there would be 33 jars of 87 MB.
        "spark.jars.excludes": "com.*:*,org.*:*,io.unitycatalog:*,io.delta:delta-kernel-*",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


def choose_interpreter(conf: Mapping[str, str]) -> None:
    """Let Spark run deltaq in the Python that runs now, unless the user named another in `conf` or the environment.

    The `python3` on the path, which Spark takes by itself, may not have deltaq, and then Spark only says that there is
    no such data source. Raises InvalidConfig if the Python that the user named lacks it.
    """
    named = {variable: conf.get(name, os.environ.get(variable)) for name, variable in _INTERPRETERS.items()}
    for variable, python in named.items():
        if python is not None:
            _check_has_deltaq(variable, python)
            break
    # PySpark reads the variables; the settings only count where spark-submit made them variables.
    os.environ.update({variable: python for variable, python in named.items() if python is not None})
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _check_has_deltaq(variable: str, python: str) -> None:
    """Spark runs this Python on the driver too, so what it has can be asked here, in some 30 ms."""
    if python == sys.executable:
        return
    try:
        # The interpreter of the user's choice, as Spark itself would start it.
        asked = subprocess.run([python, "-c", _HAS_DELTAQ], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
        answer = asked.stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    if "deltaq: True" not in answer:
        lacks = "has no deltaq" if "deltaq: False" in answer else "does not run as a Python"
        raise InvalidConfig(
            f"{variable} is {python!r}, which {lacks}, and Spark runs deltaq there: install deltaq there, or leave "
            f"{variable} out to use {sys.executable}",
            key=variable,
        )
