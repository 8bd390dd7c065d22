"""Batch reads in a warm session: messages a second through each source, each read complete."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, crc32
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import sum as total

from benchmarks.load import DeliveryFailures, send_patiently
from benchmarks.payload import as_arrow, random_values
from benchmarks.spark.plan import SparkPlan
from benchmarks.spark.sides import Side, new_topic
from benchmarks.suite import Report
from deltaq.spark import read_topic

_BLOCK = 100_000


class WrongRows(Exception):
    """What Spark read or wrote is not what was sent."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a topic holds: messages, and sums of the CRC-32 of their values, their partitions and
    their offsets.
    """

    messages: int
    crc: int
    partitions: int
    offsets: int


@dataclass(frozen=True, slots=True)
class Read:
    """One read of all messages through a source."""

    source: str
    messages: int
    seconds: float


def fill(side: Side, messages: int, partitions: int) -> tuple[str, Content]:
    """A new topic with so many messages, block by block to one partition after the other; its name
    and content.
    """
    topic, failures = new_topic(side, partitions), DeliveryFailures()
    crc = 0
    with side.client.api.Producer(
        {**side.client.conf, **failures.conf, "linger.ms": 5}
    ) as producer:
        for number, first in enumerate(range(0, messages, _BLOCK)):
            values = random_values(min(_BLOCK, messages - first), number)
            crc += sum(map(zlib.crc32, values))
            rows = len(values) // partitions
            if rows * partitions != len(values):
                raise ValueError(
                    f"{messages:,} messages cannot be divided evenly among {partitions} partitions"
                )
            if side.client.library == "deltaq":
                owners = pa.array([place // rows for place in range(len(values))], pa.int32())
                producer.produce_arrow(
                    topic, pa.table({"value": as_arrow(values), "partition": owners})
                )
            else:
                for place, value in enumerate(values):
                    send_patiently(producer, topic, value, partition=place // rows)
            producer.flush()
    failures.check()
    each = messages // partitions
    return topic, Content(
        messages,
        crc,
        each * partitions * (partitions - 1) // 2,
        partitions * each * (each - 1) // 2,
    )


def measure_reads(
    spark: SparkSession,
    topics: dict[Side, str],
    content: Content,
    plan: SparkPlan,
    folder: str,
    report: Report,
) -> Iterator[Read]:
    """Each source alternately, `read_topic`, and native Parquet files of the same rows. Raises
    WrongRows.
    """
    parquet = f"{folder}/parquet"
    ours = next(side for side in topics if side.format == "deltaq")
    ours.reader(spark.read, topics[ours]).write.parquet(parquet)
    sources: dict[str, Callable[[], DataFrame]] = {
        **{side.name: partial(_load, spark, side, topic) for side, topic in topics.items()},
        "read_topic": lambda: read_topic(spark, topics[ours], ours.client.bootstrap),
        "Parquet": lambda: spark.read.parquet(parquet),
    }
    for number in range(-plan.warm_up, plan.reads):
        for name, frame in sources.items():
            start = perf_counter()
            found = _content(frame())
            seconds = perf_counter() - start
            if found != content:
                raise WrongRows(f"{name}: {found} instead of {content}")
            if number >= 0:
                report(f"  {name}: {content.messages / seconds:,.0f} messages/s")
                yield Read(name, content.messages, seconds)


def _load(spark: SparkSession, side: Side, topic: str) -> DataFrame:
    return side.reader(spark.read, topic)


def _content(frame: DataFrame) -> Content:
    """Looks at all columns that are not the same in every row."""
    sums = (
        count("value"),
        total(crc32("value")),
        total("partition"),
        total("offset"),
        greatest(col("timestamp")),
    )
    messages, crc, partitions, offsets, _ = frame.agg(*sums).collect()[0]
    return Content(messages, crc, partitions, offsets)
