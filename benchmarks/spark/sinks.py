"""The sink alone: micro-batches of generated rows, written by one or several tasks."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.client import records_in
from benchmarks.spark.batch import WrongRows
from benchmarks.spark.plan import BATCH_ROWS
from benchmarks.spark.sides import Side, new_topic

__all__ = ["SinkCost", "measure_sink"]

TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class SinkCost:
    """Medians of micro-batches of `BATCH_ROWS` rows in so many tasks, in milliseconds.

    `add_batch`: all that Spark counts as writing. `job`: the tasks, from the submission of the job
    to its end.
    """

    sink: str
    tasks: int
    add_batch: float
    job: float

    @property
    def driver(self) -> float:
        """Before and after the tasks: preparing the write and committing it."""
        return self.add_batch - self.job


def measure_sink(spark: SparkSession, side: Side | None, tasks: int, batches: int) -> SinkCost:
    """So many micro-batches, after as many that do not count, to a side's topic or nowhere. Raises
    WrongRows.
    """
    rate = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=BATCH_ROWS, numPartitions=tasks
    )
    rows = rate.load().selectExpr("cast(rpad(cast(value AS string), 100, 'x') AS binary) AS value")
    topic = None if side is None else new_topic(side)
    with TemporaryDirectory() as checkpoint:
        writer = _sink(rows, side, topic).option("checkpointLocation", checkpoint)
        query = writer.start()
        try:
            _await(query, 2 * batches)
        finally:
            query.stop()
    found = [progress for progress in query.recentProgress if progress.numInputRows]
    if side is not None and topic is not None:
        # A query that is stopped inside a micro-batch has written more than it reports, with Kafka
        # also a part of one.
        written, reported = records_in(side.client, topic), len(found) * BATCH_ROWS
        if not 0 <= written - reported <= BATCH_ROWS:
            raise WrongRows(f"{side.name}: {reported:,} rows reported and {written:,} written")
    counted = found[batches : 2 * batches]
    jobs = _jobs_ms(spark, query)[batches : 2 * batches]
    return SinkCost(
        "none" if side is None else side.name,
        tasks,
        statistics.median(progress.durationMs["addBatch"] for progress in counted),
        statistics.median(jobs),
    )


def _sink(rows: DataFrame, side: Side | None, topic: str | None) -> DataStreamWriter:
    if side is None or topic is None:
        return rows.writeStream.format("noop")
    return side.sink(rows.writeStream, topic)


def _await(query: StreamingQuery, batches: int) -> None:
    give_up_at = monotonic() + TIMEOUT_S
    while (progress := query.lastProgress) is None or progress.batchId < batches:
        if not query.isActive or monotonic() > give_up_at:
            raise WrongRows(
                f"the query made {progress and progress.batchId} micro-batches: {query.exception()}"
            )
        sleep(0.1)


def _jobs_ms(spark: SparkSession, query: StreamingQuery) -> list[float]:
    """How long the job of each micro-batch took. Spark tells that to its JVM only."""
    store = spark.sparkContext._jsc.sc().statusStore()
    ids = sorted(spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.runId)))
    jobs = [store.job(number) for number in ids]
    return [
        float(job.completionTime().get().getTime() - job.submissionTime().get().getTime())
        for job in jobs
        if job.completionTime().isDefined()
    ]
