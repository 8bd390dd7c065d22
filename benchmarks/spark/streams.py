"""Streams from topic to topic: what a micro-batch takes by stage, and how long messages are under
way.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.client import records_in
from benchmarks.distribution import Percentiles, distribution
from benchmarks.history import Verdict, judge
from benchmarks.latency import send_and_read, waits_ns
from benchmarks.load import DeliveryFailures, Load
from benchmarks.payload import random_values
from benchmarks.spark.batch import WrongRows
from benchmarks.spark.plan import BATCH_ROWS
from benchmarks.spark.sides import Side, new_topic

STAGES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
"""The parts of a micro-batch, in their order, as Spark names them."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of `BATCH_ROWS` rows: milliseconds of the whole, and of each stage that Spark
    reports.
    """

    side: str
    milliseconds: float
    stages: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EndToEnd:
    """One load, from `produce` to one topic until the value comes from the other one in another
    process.
    """

    side: str
    load: Load
    verdict: Verdict
    latency: Percentiles
    batch_rows: float
    """Rows of the median micro-batch."""


def measure_micro_batches(spark: SparkSession, side: Side, batches: int) -> list[MicroBatch]:
    """So many micro-batches, after as many that do not count. Raises WrongRows."""
    source, copy = new_topic(side), new_topic(side)
    values, failures = random_values(BATCH_ROWS, 1), DeliveryFailures()
    conf = {**side.client.conf, **failures.conf, "linger.ms": 1_000}  # one request or commit each
    with _copying(spark, side, source, copy) as query, side.client.api.Producer(conf) as producer:
        for _ in range(2 * batches):
            for value in values:
                producer.produce(source, value)
            producer.flush()
            query.processAllAvailable()
    failures.check()
    found = [progress for progress in query.recentProgress if progress.numInputRows]
    rows, copied = [progress.numInputRows for progress in found], records_in(side.client, copy)
    if (sum(rows), copied) != (2 * batches * BATCH_ROWS,) * 2:
        raise WrongRows(
            f"{side.name}: {sum(rows):,} rows read and {copied:,} written of "
            f"{2 * batches * BATCH_ROWS:,}"
        )
    whole = [progress.durationMs for progress in found if progress.numInputRows == BATCH_ROWS]
    if len(whole) <= batches:
        raise WrongRows(
            f"{side.name}: micro-batches of {rows} rows, so those of {BATCH_ROWS:,} cannot be "
            "compared"
        )
    return [MicroBatch(side.name, took["triggerExecution"], took) for took in whole[-batches:]]


def measure_end_to_end(spark: SparkSession, side: Side, load: Load) -> EndToEnd:
    """Send a load to one topic and read it from the other one."""
    source, copy = new_topic(side), new_topic(side)
    with _copying(spark, side, source, copy) as query:
        _, consumed = send_and_read(side.client, source, load, copy)
    rows = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    verdict = judge(load.total, consumed.sequences, consumed.foreign)
    return EndToEnd(
        side.name, load, verdict, distribution(waits_ns(load, consumed)), statistics.median(rows)
    )


@contextmanager
def _copying(spark: SparkSession, side: Side, source: str, copy: str) -> Iterator[StreamingQuery]:
    """A query that copies a topic to another one, a micro-batch as soon as the last one is over."""
    with TemporaryDirectory() as checkpoint:
        writer = side.sink(side.stream(spark.readStream, source).select("value").writeStream, copy)
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            query.processAllAvailable()  # there is nothing yet, but the query runs
            yield query
        finally:
            query.stop()
