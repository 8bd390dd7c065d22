"""`upsert_to_topic`: an aggregation in update mode, as the newest records of a compacted topic."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, window

from deltaq import InvalidConfig, Topic
from deltaq.spark import upsert_to_topic
from deltaq.spark.upsert import TopicUpsert
from tests.doubles.produced_tables import Produce

pytestmark = pytest.mark.spark

MINUTE_MS = 60_000
SALES = [(("tea", "milk", None)[number % 3], number * 20_000) for number in range(40)]
"""Item and time of sale, ms."""


def produce_sales(produce: Produce, sales: Sequence[tuple[str | None, int]]) -> None:
    items, times = zip(*sales, strict=True)
    produce(
        "sales",
        [None if item is None else item.encode() for item in items],
        timestamps=[t + 1 for t in times],
    )


def run(counts: DataFrame, upsert: TopicUpsert, checkpoint: Path) -> None:
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(checkpoint))
    writer.foreachBatch(upsert).trigger(availableNow=True).start().awaitTermination()


def sales(spark: SparkSession, root: str) -> DataFrame:
    reader = spark.readStream.format("deltaq").options(
        subscribe="sales", startingOffsets="earliest"
    )
    return (
        reader.option("maxOffsetsPerTrigger", "15")
        .load(root)
        .withColumn("item", col("value").cast("string"))
    )


def newest(root: str, topic: str) -> dict[bytes, bytes]:
    """The newest value of each key."""
    rows = Topic(topic, bootstrap_servers=root).to_arrow()
    return dict(zip(rows["_key"].to_pylist(), rows["value"].to_pylist(), strict=True))


def entries(root: str, topic: str) -> list[str]:
    return sorted(file.name for file in Path(root, "topics", topic, "_delta_log").glob("*.json"))


def test_the_newest_records_are_the_result_of_a_batch_whatever_is_repeated(
    spark: SparkSession, root: str, produce: Produce, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    by_minute = (
        sales(spark, root)
        .groupBy("item", window("timestamp", "1 minute"))
        .agg(count("*").alias("sold"))
    )
    produce_sales(produce, SALES[:25])
    run(by_minute, upsert_to_topic(root, "sold", ["item", "window"]), checkpoint)
    before = entries(root, "sold")
    # As after a crash between the topic's commit and Spark's note of it.
    for noted in ("1", ".1.crc"):
        (checkpoint / "commits" / noted).unlink()
    run(by_minute, upsert_to_topic(root, "sold", ["item", "window"]), checkpoint)
    assert entries(root, "sold") == before
    produce_sales(produce, SALES[25:])
    run(by_minute, upsert_to_topic(root, "sold", ["item", "window"]), checkpoint)

    expected = Counter((item, time // MINUTE_MS) for item, time in SALES)
    found = {}
    for key, value in newest(root, "sold").items():
        row, grouped_by = json.loads(value), json.loads(key)
        assert grouped_by == {"item": row.get("item"), "window": row["window"]}
        found[row.get("item"), int(row["window"]["start"][14:16])] = row["sold"]
    assert found == expected
    assert Topic("sold", bootstrap_servers=root).describe().settings.cleanup_policy == ("compact",)


@pytest.mark.long
def test_one_column_is_a_key_as_text_and_a_typed_topic_has_the_columns(
    spark: SparkSession, root: str, produce: Produce, tmp_path: Path
) -> None:
    produce_sales(produce, [sale for sale in SALES if sale[0] is not None])
    upsert = upsert_to_topic(
        root, "sold", "item", {"columns": "table", "kafka.num.partitions": "2"}
    )
    run(
        sales(spark, root).groupBy("item").agg(count("*").alias("sold")),
        upsert,
        tmp_path / "checkpoint",
    )
    topic = Topic("sold", bootstrap_servers=root)
    assert len(topic.describe().partitions) == 2
    rows = topic.to_arrow().select(["_key", "item", "sold"]).to_pylist()
    assert all(row["_key"].decode() == row["item"] for row in rows)
    expected = Counter(item for item, _ in SALES if item is not None)
    assert {row["item"]: row["sold"] for row in rows} == expected


def test_rows_with_the_columns_of_the_sink_are_written_as_they_are(
    spark: SparkSession, root: str
) -> None:
    upsert = upsert_to_topic(root, "sold", options={"txnAppId": "mine"})
    for number in (0, 0, 1):
        upsert(spark.createDataFrame([("tea", str(number))], "key string, value string"), number)
    assert Topic("sold", bootstrap_servers=root).to_arrow()["value"].to_pylist() == [b"0", b"1"]


@pytest.mark.parametrize(
    ("key", "options", "match"),
    [
        ("items", {"txnAppId": "mine"}, "the rows have no column 'items', but item, sold"),
        ("item", {}, 'Spark does not provide the id of the query: set option "txnAppId"'),
    ],
)
def test_rows_that_cannot_be_upserted_are_refused(
    spark: SparkSession, root: str, key: str, options: dict[str, str], match: str
) -> None:
    upsert = upsert_to_topic(root, "sold", key, options)
    with pytest.raises(InvalidConfig, match=match):
        upsert(spark.createDataFrame([("tea", 1)], "item string, sold int"), 0)


@pytest.mark.long
def test_a_topic_that_turns_out_not_to_be_compacted_ends_the_query(
    spark: SparkSession, root: str, produce: Produce, tmp_path: Path
) -> None:
    produce_sales(produce, SALES)
    upsert = upsert_to_topic(root, "sold", "item")
    Topic("sold", bootstrap_servers=root).create()
    with pytest.raises(StreamingQueryException, match="would keep every version of a row"):
        run(sales(spark, root).groupBy("item").count(), upsert, tmp_path / "checkpoint")
