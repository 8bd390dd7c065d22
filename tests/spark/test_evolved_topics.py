"""Spark reads all rows of a topic whose schema has changed, natively and through
`format("deltaq")`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from deltaq.spark import read_topic
from tests.doubles.evolved_topic import NEW, OLD, EvolvedTopic, Row, appended, compacted
from tests.spark.native_spark import NativeSpark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def plain(value: Any) -> Any:
    """A value as JSON would have it."""
    return json.loads(json.dumps(value, default=float))


def of_frame(frame: DataFrame) -> dict[bytes, Row]:
    rows = [row.asDict(recursive=True) for row in frame.drop("_topic").collect()]
    return {
        bytes(row["_key"]): plain({n: v for n, v in row.items() if not n.startswith("_")})
        for row in rows
    }


@pytest.mark.parametrize("table", [appended, compacted], ids=lambda table: table.__name__)
def test_batch_reads_have_the_rows_of_both_schemas(
    spark: SparkSession, tmp_path: Path, table: Any
) -> None:
    topic: EvolvedTopic = table(tmp_path)
    expected = {key: plain(row) for key, row in topic.rows.items()}
    read = spark.read.format("deltaq").options(subscribe="t", columns="table").load(topic.root)
    assert of_frame(read) == expected
    assert of_frame(read_topic(spark, "t", topic.root, columns="table")) == expected


def test_native_delta_reads_the_rows_of_both_schemas(native: NativeSpark, tmp_path: Path) -> None:
    topic = compacted(tmp_path)
    columns = [
        "CAST(_key AS STRING) AS key",
        *(name for name in sorted(set(OLD.names) | set(NEW.names))),
    ]
    (answer,) = native.values(topic.table, [f"to_json(collect_list(struct({', '.join(columns)})))"])
    found = {row.pop("key").encode(): row for row in json.loads(answer)}

    def without_nulls(value: Any) -> Any:  # which Spark leaves out of JSON
        if isinstance(value, dict):
            return {name: without_nulls(each) for name, each in value.items() if each is not None}
        return [without_nulls(each) for each in value] if isinstance(value, list) else value

    assert {key: without_nulls(row) for key, row in found.items()} == {
        key: without_nulls(plain(row)) for key, row in topic.rows.items()
    }


def test_a_stream_that_starts_again_goes_on_with_the_columns_of_the_new_schema(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = EvolvedTopic(tmp_path / "root").write(OLD, range(2))

    def go_on() -> None:
        stream = spark.readStream.format("deltaq").options(
            subscribe="t", columns="table", startingOffsets="earliest"
        )
        frame = stream.load(topic.root).select("_key", "id", "gone")
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    go_on()
    topic.write(NEW, range(10, 12))
    go_on()
    keys = [
        bytes(row["_key"])
        for row in spark.read.parquet(str(tmp_path / "out")).select("_key").collect()
    ]
    assert sorted(keys) == sorted(topic.rows)


def test_a_running_stream_refuses_a_column_that_became_wider(
    spark: SparkSession, tmp_path: Path
) -> None:
    topic = EvolvedTopic(tmp_path / "root").write(OLD, range(2))
    stream = spark.readStream.format("deltaq").options(
        subscribe="t", columns="table", startingOffsets="earliest"
    )
    query = (
        stream.load(topic.root)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        topic.write(NEW, range(10, 12))
        with pytest.raises(
            StreamingQueryException, match="cannot be read with column 'id' as int32"
        ):
            query.processAllAvailable()
    finally:
        query.stop()
