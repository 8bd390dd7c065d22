"""Spark: the source and sink `deltaq` next to those of Kafka, in the same sessions, alternately."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

from benchmarks.machine import KAFKA_VERSION
from benchmarks.spark.plan import FULL_SPARK, QUICK_SPARK, SparkPlan
from benchmarks.suite import Place

if TYPE_CHECKING:
    from benchmarks.spark.measuring import Spark

__all__ = ["FULL_SPARK", "QUICK_SPARK", "measure_spark", "spark_versions"]


def measure_spark(plan: SparkPlan, place: Place) -> Iterator[Spark]:
    """Carry a plan out: one outcome."""
    from benchmarks.spark.measuring import measure  # noqa: PLC0415 - the other suites run without pyspark

    yield measure(plan, place)


def spark_versions() -> Mapping[str, str]:
    """Spark, and the broker if the command that started it has set its version."""
    return {
        "Spark": version("pyspark"),
        "Kafka": os.environ.get(KAFKA_VERSION, "of unknown version"),
    }
