"""A job for a cluster, as a program: a batch written and read, a stream, and a stream with state.

Its input is JSON: `conf` of the session, `root`, `options` of the store, `checkpoint`, `marker`, a
file that does not exist, and `rows`. In the middle of the first stream a task kills its executor,
which leaves the file behind. The last line of its output is JSON: what it has read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from deltaq.spark import spark_session

ORDERS, COPY, TOTALS = "orders", "copy", "totals"
PARTITIONS = 4


def killing_its_executor(marker: Path, fatal: bytes) -> Any:
    """A function for `mapInArrow`: the first task that meets this value kills its executor with
    SIGKILL.
    """

    def pass_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if fatal in batch.column("value").to_pylist() and not marker.exists():
                # The parent of this worker is PySpark's daemon, and its parent is the executor.
                found = subprocess.run(
                    ["ps", "-o", "ppid=", "-p", str(os.getppid())], capture_output=True, check=True
                )
                marker.touch()
                os.kill(int(found.stdout), signal.SIGKILL)
            yield batch

    return pass_on


class ClusterJob:
    """The steps of the program."""

    def __init__(self, spark: SparkSession, given: dict[str, Any]) -> None:
        self._spark, self._root, self._checkpoint, self._options = (
            spark,
            given["root"],
            given["checkpoint"],
            given["options"],
        )
        self._marker, self._rows = Path(given["marker"]), given["rows"]

    def write(self) -> None:
        """Write the values 0, 1, 2, ... in several tasks."""
        rows = self._spark.range(self._rows, numPartitions=PARTITIONS).selectExpr(
            "cast(id as string) as value"
        )
        keyed = (
            rows.selectExpr("value as key", "value").write.format("deltaq").options(**self._options)
        )
        keyed.options(topic=ORDERS).option("kafka.num.partitions", PARTITIONS).mode("append").save(
            self._root
        )

    def read(self) -> tuple[int, int]:
        """How many rows there are, and the sum of their values."""
        rows = (
            self._spark.read.format("deltaq")
            .options(subscribe=ORDERS, **self._options)
            .load(self._root)
        )
        found = rows.selectExpr("count(*)", "sum(cast(cast(value as string) as long))").first()
        assert found is not None
        return found[0], found[1]

    def copy(self) -> list[int]:
        """Copy the topic in several micro-batches; the rows of each."""
        rows = self._stream(ORDERS, maxOffsetsPerTrigger=self._rows // 4).select("key", "value")
        copied = rows.mapInArrow(
            killing_its_executor(self._marker, b"%d" % (self._rows // 2)),
            "key binary, value binary",
        )
        return self._run(copied, COPY, "append")

    def total(self) -> list[int]:
        """Count the rows and add up their values, with state in the checkpoint."""
        value = "cast(cast(value as string) as long)"
        totals = (
            self._stream(COPY)
            .selectExpr(f"{value} as value")
            .groupBy()
            .agg({"*": "count", "value": "sum"})
        )
        return self._run(totals.selectExpr("to_json(struct(*)) as value"), TOTALS, "complete")

    def _stream(self, topic: str, **options: int) -> DataFrame:
        reader = self._spark.readStream.format("deltaq").options(
            subscribe=topic, startingOffsets="earliest"
        )
        return reader.options(**self._options, **options).load(self._root)

    def _run(self, rows: DataFrame, topic: str, mode: str) -> list[int]:
        sink = (
            rows.writeStream.format("deltaq").outputMode(mode).options(topic=topic, **self._options)
        )
        sink = sink.option("checkpointLocation", f"{self._checkpoint}/{topic}").trigger(
            availableNow=True
        )
        query = sink.start(self._root)
        query.awaitTermination()
        query.explain(extended=True)
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def main(text: str) -> None:
    """Run all steps."""
    given = json.loads(text)
    spark = spark_session("cluster", conf=given["conf"])
    job = ClusterJob(spark, given)
    job.write()
    read = job.read()
    answer = {"read": read, "micro-batches": [job.copy(), job.total()]}
    spark.stop()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.stdin.read())
