"""A streaming query with state, as a program: counts and sums of `events` by window and key,
written to `windows`.

Its argument is JSON: `root`, `checkpoint`, `offsets_max` per micro-batch, `lateness_ms`, how far
apart in event time the records of a micro-batch may be, and `dies_from`. If that is a number, its
processes are killed right after the first commit of this or a later micro-batch that adds rows: the
topic has them, and Spark has no note of it yet.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from deltaq import Topic
from deltaq.spark import spark_session
from deltaq.spark.data_source import DeltaqDataSource

__all__ = ["EVENTS", "WINDOWS", "WINDOW_MS", "start"]

EVENTS, WINDOWS = "events", "windows"

WINDOW_MS = 1000
_FORMAT = "dying"


class DyingSource(DataSource):
    """`format("deltaq")` as a sink whose driver dies between the commit of the topic and that of
    Spark.
    """

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DyingWriter:  # noqa: N802  # Spark's name
        given = dict(self.options)
        dies_from, group = int(given.pop("dies_from")), int(given.pop("group"))
        writer = DeltaqDataSource(given).streamWriter(schema, overwrite)
        return DyingWriter(writer, given["path"], dies_from, group)


class DyingWriter(DataSourceStreamArrowWriter):
    """Passes everything to the real writer, and kills the process group after a commit."""

    def __init__(self, writer: Any, root: str, dies_from: int, group: int) -> None:
        self._writer, self._root, self._dies_from, self._group = writer, root, dies_from, group

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message: WriterCommitMessage = self._writer.write(iterator)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        before = self._rows()
        self._writer.commit(messages, batchId)
        if batchId >= self._dies_from and self._rows() > before:
            os.killpg(self._group, signal.SIGKILL)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        self._writer.abort(messages, batchId)

    def _rows(self) -> int:
        return sum(
            partition.next_offset
            for partition in Topic(WINDOWS, bootstrap_servers=self._root).describe().partitions
        )


def windows(spark: SparkSession, root: str, offsets_max: int, lateness_ms: int) -> DataFrame:
    """Each window and key once, when the watermark has passed it."""
    reader = spark.readStream.format("deltaq").options(subscribe=EVENTS, startingOffsets="earliest")
    events = reader.option("maxOffsetsPerTrigger", offsets_max).load(root)
    by_window = events.withWatermark("timestamp", f"{lateness_ms} milliseconds").groupBy(
        sql.window("timestamp", f"{WINDOW_MS} milliseconds"), "key"
    )
    number = sql.col("value").cast("string").cast("long")
    rows = by_window.agg(sql.count("*").alias("count"), sql.sum(number).alias("sum"))
    return rows.select(
        "key",
        sql.to_json(
            sql.struct(sql.unix_millis("window.start").alias("start"), "count", "sum")
        ).alias("value"),
    )


def start(spark: SparkSession, given: Mapping[str, Any]) -> StreamingQuery:
    """Start the query, or start it again."""
    rows = windows(spark, given["root"], given["offsets_max"], given["lateness_ms"])
    sink = rows.writeStream.options(topic=WINDOWS, checkpointLocation=given["checkpoint"])
    if given["dies_from"] is None:
        return sink.format("deltaq").start(given["root"])
    spark.dataSource.register(DyingSource)
    return (
        sink.format(_FORMAT)
        .options(dies_from=given["dies_from"], group=os.getpgrp())
        .start(given["root"])
    )


def end_with_the_test() -> None:
    """Wait for the end of the input, which comes when the process that started this one has ended,
    however it did.
    """
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def main(text: str) -> None:
    """Run the query until it is killed."""
    threading.Thread(target=end_with_the_test, daemon=True).start()
    spark = spark_session(
        "windows", quick_start=True, conf={"spark.master": "local[2]", "spark.log.level": "ERROR"}
    )
    start(spark, json.loads(text)).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1])
