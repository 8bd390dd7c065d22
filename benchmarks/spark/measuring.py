"""Carries out the Spark suite, each part alternately for both sides; its tables and targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from benchmarks.finding import Table, Target, at_least, at_most, known_cores
from benchmarks.machine import OthersLoad
from benchmarks.spark.batch import Read, fill, measure_reads
from benchmarks.spark.fresh import Fresh, apart, first_batch, first_row
from benchmarks.spark.plan import BATCH_ROWS, SparkPlan
from benchmarks.spark.sides import Side, kafka_jars, session, sides
from benchmarks.spark.streams import (
    STAGES,
    EndToEnd,
    MicroBatch,
    measure_end_to_end,
    measure_micro_batches,
)
from benchmarks.suite import Place, Report

READ_AIM = 2.0
NATIVE_AIM = 0.8
FIRST_ROW_AIM = 1.2
OTHER_AIM = 1.5

_SIDES = ("deltaq", "Kafka")


@dataclass(frozen=True, slots=True)
class Spark:
    """The outcome of a plan. Of all that is measured several times, medians are shown."""

    plan: SparkPlan
    reads: tuple[Read, ...]
    fresh: tuple[Fresh, ...]
    batches: tuple[MicroBatch, ...]
    loads: tuple[EndToEnd, ...]
    others: float | None

    @property
    def is_clean(self) -> bool:
        """Whether every message of every load arrived once, in order. (What went wrong elsewhere
        has raised.)
        """
        return all(load.verdict.is_clean for load in self.loads)

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores([self.others])

    def speed(self, source: str) -> float:
        """Messages a second through a source."""
        return statistics.median(
            read.messages / read.seconds for read in self.reads if read.source == source
        )

    def first(self, what: str, side: str) -> tuple[float, float, float]:
        """Seconds until a session is there, from then on to the first row or micro-batch, and both
        together.
        """
        same = [one for one in self.fresh if (one.what, one.side) == (what, side)]
        figures = zip(*((one.session_s, one.seconds, one.all_s) for one in same), strict=True)
        session_s, seconds, all_s = map(statistics.median, figures)
        return session_s, seconds, all_s

    def micro_batch(self, side: str, stage: str = "") -> float:
        """Milliseconds of a micro-batch, or of one of its stages."""
        same = [one for one in self.batches if one.side == side]
        return statistics.median(
            one.stages.get(stage, 0.0) if stage else one.milliseconds for one in same
        )

    def tables(self) -> Iterator[Table]:
        """Reads, fresh sessions, micro-batches by stage, and loads."""
        messages, partitions = self.plan.messages, self.plan.partitions
        sources = tuple(dict.fromkeys(read.source for read in self.reads))
        kafka = self.speed("Kafka")
        yield Table(
            f"Spark: batch reads of {messages:,} messages in {partitions} partitions, warm; "
            "messages complete",
            ("source", "messages/s", "to Kafka's"),
            tuple(
                (name, f"{self.speed(name):,.0f}", f"{self.speed(name) / kafka:.2f}")
                for name in sources
            ),
        )
        yield self._fresh_table()
        yield self._batch_table()
        yield Table(
            "Spark: ms from `produce` to one topic until another process has the value from a "
            "second one",
            ("load", "side", "p50", "p99", "max", "rows of a micro-batch", "messages"),
            tuple(
                (
                    str(one.load),
                    one.side,
                    *(
                        f"{mark:,.0f}"
                        for mark in (one.latency.p50, one.latency.p99, one.latency.max)
                    ),
                    f"{one.batch_rows:,.0f}",
                    str(one.verdict),
                )
                for one in self.loads
            ),
        )

    def targets(self) -> Iterator[Target]:
        """The targets next to Kafka's source and sink."""
        yield at_least(
            "batch read, warm, deltaq/Kafka", READ_AIM, self.speed("deltaq") / self.speed("Kafka")
        )
        yield at_least(
            "read_topic/native Parquet",
            NATIVE_AIM,
            self.speed("read_topic") / self.speed("Parquet"),
        )
        ours, theirs = (self.first("first row", side)[2] for side in _SIDES)
        yield at_most("cold start to the first row, deltaq/Kafka", FIRST_ROW_AIM, ours / theirs)
        ours, theirs = (self.first("first batch", side)[1] for side in _SIDES)
        yield at_most("first batch of a fresh session, deltaq/Kafka", OTHER_AIM, ours / theirs)
        ours, theirs = (self.micro_batch(side) for side in _SIDES)
        yield at_most(f"micro-batch of {BATCH_ROWS:,} rows, deltaq/Kafka", OTHER_AIM, ours / theirs)
        for load in self.plan.loads:
            ours, theirs = (self._p50(side, load) for side in _SIDES)
            yield at_most(f"end to end p50, {load}, deltaq/Kafka", OTHER_AIM, ours / theirs)

    def _p50(self, side: str, load: object) -> float:
        return next(one.latency.p50 for one in self.loads if (one.side, one.load) == (side, load))

    def _fresh_table(self) -> Table:
        kinds = tuple(dict.fromkeys((one.what, one.side) for one in self.fresh))
        rows = tuple(
            (what, side, *(f"{part:.1f}" for part in self.first(what, side)))
            for what, side in sorted(kinds)[::-1]
        )
        return Table(
            "Spark: seconds in a fresh session", ("until", "side", "session", "then", "all"), rows
        )

    def _batch_table(self) -> Table:
        rows = tuple(
            (side, *(f"{self.micro_batch(side, stage):,.0f}" for stage in ("", *STAGES)))
            for side in _SIDES
        )
        title = f"Spark: a micro-batch of {BATCH_ROWS:,} rows from topic to topic, ms by stage"
        return Table(title, ("side", "all", *STAGES), rows)


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
        batches, loads = _streams(spark, both, plan, place.report)
    finally:
        spark.stop()
    return Spark(plan, tuple(reads), tuple(fresh), tuple(batches), tuple(loads), others_cores)


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
) -> tuple[list[MicroBatch], list[EndToEnd]]:
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
    return batches, loads
