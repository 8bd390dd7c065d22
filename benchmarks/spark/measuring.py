"""Carries out a plan, one part after the other, and each part alternately for both sides."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from benchmarks.machine import OthersLoad
from benchmarks.spark.batch import fill, measure_reads
from benchmarks.spark.fresh import Fresh, apart, first_batch, first_row
from benchmarks.spark.outcome import Spark
from benchmarks.spark.plan import BATCH_ROWS, SparkPlan
from benchmarks.spark.sides import Side, kafka_jars, session, sides
from benchmarks.spark.sinks import SinkCost, measure_sink
from benchmarks.spark.streams import EndToEnd, MicroBatch, measure_end_to_end, measure_micro_batches
from benchmarks.suite import Place, Report

__all__ = ["measure"]


def measure(plan: SparkPlan, place: Place) -> Spark:
    """The outcome. Raises WrongRows if a row is lost, doubled or changed where they are counted."""
    others = OthersLoad()
    place.report(
        f"spark: filling topics with {plan.messages:,} messages, and fetching the jars of Kafka's "
        "source"
    )
    jars, both = apart(kafka_jars), sides(place)
    filled = {side: fill(side, plan.messages, plan.partitions) for side in both}
    topics = {side: topic for side, (topic, _) in filled.items()}
    others_cores = others.cores()  # before the JVMs, which count as others while they run
    fresh = list(_fresh(plan, topics, jars, place.report))
    spark = session(jars)
    try:
        (content,) = {content for _, content in filled.values()}
        place.report(
            f"spark, reads of {plan.messages:,} messages, {plan.reads} times after {plan.warm_up}"
        )
        with TemporaryDirectory(dir=place.root if "://" not in place.root else None) as folder:
            reads = list(measure_reads(spark, topics, content, plan, folder, place.report))
        batches, loads, sinks = _streams(spark, both, plan, place.report)
    finally:
        spark.stop()
    return Spark(
        plan, tuple(reads), tuple(fresh), tuple(batches), tuple(loads), tuple(sinks), others_cores
    )


def _fresh(plan: SparkPlan, topics: dict[Side, str], jars: str, report: Report) -> Iterator[Fresh]:
    sources = {side: fill(side, BATCH_ROWS, 1)[0] for side in topics}
    for number in range(1, plan.sessions + 1):
        report(f"spark, fresh sessions, round {number} of {plan.sessions}")
        for side, topic in topics.items():
            for found in (
                apart(first_row, side, topic, jars),
                apart(first_batch, side, sources[side], BATCH_ROWS, jars),
            ):
                report(
                    f"  {found.what}, {side.name}: {found.session_s:.1f} + {found.seconds:.1f} s"
                )
                yield found


def _streams(
    spark: SparkSession, both: tuple[Side, ...], plan: SparkPlan, report: Report
) -> tuple[list[MicroBatch], list[EndToEnd], list[SinkCost]]:
    batches: list[MicroBatch] = []
    # The first pass of a side warms the session up for the second one of the other.
    for side in (*both, *both):
        report(f"spark, micro-batches of {BATCH_ROWS:,} rows, {side.name}")
        batches += measure_micro_batches(spark, side, plan.batches)
    loads: list[EndToEnd] = []
    for load in plan.loads:
        for side in both:
            report(f"spark, end to end at {load}, {side.name}")
            loads.append(measure_end_to_end(spark, side, load))
    sinks: list[SinkCost] = []
    for tasks in plan.tasks:
        for sink in (None, *both):
            sinks.append(measure_sink(spark, sink, tasks, plan.batches))
            cost = sinks[-1]
            report(
                f"spark, sink {cost.sink}, {tasks} tasks: {cost.add_batch:,.0f} ms, job "
                f"{cost.job:,.0f} ms"
            )
    return batches, loads, sinks
