"""The Spark suite: its figures from what was measured, and rows that it refuses."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.client import deltaq_client
from benchmarks.distribution import distribution
from benchmarks.history import Verdict
from benchmarks.spark import QUICK_SPARK
from benchmarks.spark.batch import Content, Read, WrongRows, fill, measure_reads
from benchmarks.spark.fresh import Fresh
from benchmarks.spark.measuring import Spark
from benchmarks.spark.sides import Side
from benchmarks.spark.streams import EndToEnd, MicroBatch

LOAD = QUICK_SPARK.loads[0]


def found(**slower: float) -> Spark:
    """An outcome in which deltaq takes as long as Kafka; `slower` says how many times as long a
    part takes.
    """
    reads, fresh, batches, loads = [], [], [], []
    for side in ("deltaq", "Kafka"):
        factor = {"read": 1.0, "session": 1.0, "row": 1.0, "batch": 1.0, "micro": 1.0, "load": 1.0}
        factor |= slower if side == "deltaq" else {}
        reads += [Read(side, 1_000, seconds * factor["read"]) for seconds in (9.0, 1.0, 2.0)]
        for what, part in (("first row", "row"), ("first batch", "batch")):
            fresh.append(Fresh(what, side, 6.0 * factor["session"], 2.0 * factor[part]))
        batches += [
            MicroBatch(side, taken * factor["micro"], {"addBatch": taken / 2})
            for taken in (100, 900, 200)
        ]
        clean = Verdict(10, 10, 0, 0, 0, 0)
        waits = [round(taken * factor["load"] * 1e6) for taken in (100, 200, 300)]
        loads.append(EndToEnd(side, LOAD, clean, distribution(waits), 50.0))
    reads += [
        Read("Parquet", 1_000, 0.1),
        Read("read_topic", 1_000, 0.1 * slower.get("native", 1.0)),
    ]
    parts = tuple(reads), tuple(fresh), tuple(batches), tuple(loads)
    return Spark(QUICK_SPARK, *parts, 0.5)


def missed(outcome: Spark) -> list[str]:
    return [
        target.name.removesuffix(", deltaq/Kafka") for target in outcome.targets() if not target.met
    ]


def test_each_target_is_missed_by_the_part_that_it_is_about():
    assert missed(found(read=0.5)) == []
    assert missed(found()) == ["batch read, warm"]
    assert missed(found(read=0.5, native=1.3)) == ["read_topic/native Parquet"]
    assert missed(found(read=0.5, row=2)) == ["cold start to the first row"], (
        "8 of 10 s are less than 1.2 times"
    )
    assert missed(found(read=0.5, session=1.3)) == ["cold start to the first row"], (
        "the first batch waits for it too"
    )
    assert missed(found(read=0.5, batch=1.6)) == ["first batch of a fresh session"]
    assert missed(found(read=0.5, micro=1.6)) == ["micro-batch of 1,000 rows"]
    assert missed(found(read=0.5, load=1.6)) == [f"end to end p50, {LOAD}"]


def test_medians_are_shown_of_what_was_measured_several_times():
    outcome = found(micro=2)
    assert outcome.speed("Kafka") == 500
    assert outcome.micro_batch("deltaq") == 400
    assert outcome.micro_batch("Kafka", "addBatch") == 100
    assert outcome.first("first row", "Kafka") == (6, 2, 8)
    assert all(len(row) == len(table.head) for table in outcome.tables() for row in table.rows)
    assert [len(table.rows) for table in outcome.tables()] == [4, 4, 2, 2]
    assert json.loads(json.dumps(asdict(outcome)))


def test_a_lost_message_voids_the_figures():
    outcome = found()
    assert outcome.is_clean
    lost = replace(outcome.loads[0], verdict=Verdict(10, 9, 1, 0, 0, 0))
    assert not replace(outcome, loads=(*outcome.loads, lost)).is_clean


@pytest.mark.spark
def test_a_read_of_other_rows_than_those_sent_is_noticed(spark: SparkSession, tmp_path: Path):
    side = Side(deltaq_client(str(tmp_path / "root")))
    topic, content = fill(side, 1_000, 2)

    def reads(name: str, content: Content) -> list[Read]:
        return list(
            measure_reads(spark, {side: topic}, content, QUICK_SPARK, str(tmp_path / name), print)
        )

    assert content.messages == 1_000
    assert [read.source for read in reads("right", content)] == ["deltaq", "read_topic", "Parquet"]
    with pytest.raises(WrongRows, match="instead of"):
        reads("wrong", replace(content, crc=content.crc + 1))
