"""`format("deltaq")` in a real Spark: batch and stream, both ways."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from deltaq import Consumer, Producer, Topic
from tests.doubles.produced_tables import Produce
from tests.doubles.reading import eventually, next_message
from tests.spark.class_archive import ARCHIVE
from tests.spark.conftest import WrittenThroughout
from tests.spark.standing_query import IN_FIRST_BATCH

pytestmark = pytest.mark.spark
STANDING_QUERY = Path(__file__).with_name("standing_query.py")


def read_stream(spark: SparkSession, root: str, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("deltaq").options(
        subscribe=topic, startingOffsets="earliest", **options
    )
    return reader.load(root)


def run(
    frame: DataFrame, root: str, topic: str, checkpoint: Path, *, mode: str = "append"
) -> StreamingQuery:
    """Run a query to the end of what is there now."""
    query = (
        frame.writeStream.format("deltaq")
        .outputMode(mode)
        .options(topic=topic, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start(root)
    )
    query.awaitTermination()
    return query


def values(root: str, topic: str) -> list[bytes | None]:
    found: list[bytes | None] = Topic(topic, bootstrap_servers=root).to_arrow()["value"].to_pylist()
    return found


def log_entries(root: str, topic: str) -> list[Path]:
    return sorted(Path(root, "topics", topic, "_delta_log").glob("*.json"))


def test_spark_finds_the_format_and_returns_kafkas_columns(spark: SparkSession, root: str) -> None:
    rows = spark.range(100).selectExpr("cast(id as string) key", "cast(2 * id as string) value")
    rows.write.format("deltaq").option("topic", "orders").option("kafka.num.partitions", "3").mode(
        "append"
    ).save(root)
    frame = (
        spark.read.format("deltaq").options(subscribe="orders", includeHeaders="true").load(root)
    )
    # By the documentation of Spark's Kafka source, in its order.
    assert frame.schema == StructType.fromDDL(
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
        " timestampType int, headers array<struct<key: string, value: binary>>"
    )
    found = frame.select("key", "value", "partition", "offset").collect()
    assert sorted((int(row.key), int(row.value)) for row in found) == [
        (number, 2 * number) for number in range(100)
    ]
    for partition in range(3):
        offsets = sorted(row.offset for row in found if row.partition == partition)
        assert offsets == list(range(len(offsets)))


def test_a_wrong_option_is_reported_with_the_right_one(spark: SparkSession, root: str) -> None:
    with pytest.raises(AnalysisException, match='did you mean "startingOffsets"'):
        spark.read.format("deltaq").options(subscribe="orders", startingOffset="earliest").load(
            root
        )


def test_a_stream_takes_what_its_limit_allows_and_each_record_once(
    spark: SparkSession, root: str, produce: Produce, tmp_path: Path
) -> None:
    expected = [b"%d" % number for number in range(1000)]
    produce("orders", expected[:600])
    produce("orders", expected[600:])
    query = run(
        read_stream(spark, root, "orders", maxOffsetsPerTrigger="300"),
        root,
        "copy",
        tmp_path / "checkpoint",
    )
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [300, 300, 300, 100]
    assert values(root, "copy") == expected
    # The topic's beginning, and one commit for each micro-batch.
    assert len(log_entries(root, "copy")) == 1 + 4


def test_micro_batches_that_name_their_topics_are_transactions(
    spark: SparkSession, root: str, produce: Produce, tmp_path: Path
) -> None:
    produce("orders", [b"%d" % number for number in range(20)])
    frame = read_stream(spark, root, "orders", maxOffsetsPerTrigger="10").selectExpr(
        "value", "if(cast(string(value) as int) % 2 = 0, 'even', 'odd') topic"
    )
    for _ in range(2):  # a query that ends and is started again
        query = (
            frame.writeStream.format("deltaq")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(root)
        )
        query.awaitTermination()
    for topic, first in (("even", 0), ("odd", 1)):
        assert values(root, topic) == [b"%d" % number for number in range(first, 20, 2)]
        assert len(log_entries(root, topic)) == 1 + 2
    # The first producer, and a decision for each micro-batch.
    (of_query,) = Path(root, "transactions").iterdir()
    assert len(list(of_query.glob("_delta_log/*.json"))) == 1 + 2


def has_entries(root: str, topic: str, count: int) -> bool:
    return len(log_entries(root, topic)) >= count


def test_the_progress_of_a_query_is_part_of_its_micro_batches(
    spark: SparkSession, root: str, produce: Produce, tmp_path: Path
) -> None:
    for topic in ("a", "b"):
        produce(topic, [b"%d" % number for number in range(1000)])
    frame = read_stream(spark, root, "a,b", maxOffsetsPerTrigger="7")
    writer = (
        frame.selectExpr("value", "concat('copy_', topic) topic")
        .writeStream.format("deltaq")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("group.id", "copies")
    )
    for batches in (2, 5):  # a query that is stopped and started again
        query = writer.trigger(processingTime="0 seconds").start(root)
        eventually(partial(has_entries, root, "copy_a", 1 + batches))
        query.stop()
    conf = {"bootstrap.servers": root, "group.id": "copies", "enable.auto.commit": "false"}
    first: dict[str | None, int | None] = {}
    with Consumer(conf | {"auto.offset.reset": "error"}) as consumer:
        consumer.subscribe(["a", "b"])
        while len(first) < 2:
            message = next_message(consumer)
            first.setdefault(message.topic(), message.offset())
        # The consumer has ended what the stopped driver left, so this is the output.
        for topic in ("a", "b"):
            copied = values(root, f"copy_{topic}")
            assert copied == [b"%d" % number for number in range(len(copied))]
            assert first[topic] == len(copied) > 0
            assert len(copied) < 1000


@pytest.mark.parametrize(
    "trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}], ids=str
)
def test_a_query_started_on_a_busy_topic_reads_each_later_record(
    spark: SparkSession,
    root: str,
    written_throughout: WrittenThroughout,
    tmp_path: Path,
    trigger: dict[str, Any],
) -> None:
    orders = (
        spark.readStream.format("deltaq").option("subscribe", "orders").load(root).select("value")
    )
    sink = orders.writeStream.format("deltaq").options(
        topic="copy", checkpointLocation=str(tmp_path / "checkpoint")
    )
    with written_throughout("orders") as writer:
        before = writer.count
        query = sink.trigger(**trigger).start(root)
        while query.isActive and not (query.lastProgress and query.lastProgress.numInputRows):
            query.awaitTermination(1)
        after = writer.count
    if query.isActive:
        query.processAllAvailable()
        query.stop()
    else:  # with `availableNow` it ended where it began, at the end
        assert query.exception() is None
        sink.trigger(**trigger).start(root).awaitTermination()
    copied = [int(value or b"") for value in values(root, "copy")]
    assert copied == list(range(copied[0], writer.count))
    assert before <= copied[0] <= after


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_query_killed_in_its_first_micro_batch_begins_where_it_did_before(
    spark: SparkSession,
    root: str,
    written_throughout: WrittenThroughout,
    child_environment: dict[str, str],
    tmp_path: Path,
) -> None:
    checkpoint = tmp_path / "checkpoint"
    command = [sys.executable, str(STANDING_QUERY), root, str(checkpoint)]
    with written_throughout("orders") as writer:
        before = writer.count
        with subprocess.Popen(
            command,
            env=child_environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as driver:
            assert driver.stdout is not None
            assert any(IN_FIRST_BATCH in line for line in driver.stdout)
            begun = writer.count
            os.killpg(driver.pid, signal.SIGKILL)
        assert not list(checkpoint.glob("commits/*"))
        orders = (
            spark.readStream.format("deltaq")
            .option("subscribe", "orders")
            .load(root)
            .select("value")
        )
        run(orders, root, "copy", checkpoint)
    run(orders, root, "copy", checkpoint)
    copied = [int(value or b"") for value in values(root, "copy")]
    assert copied == list(range(copied[0], writer.count))
    assert before <= copied[0] <= begun


@pytest.mark.fault("P3")
def test_a_query_killed_after_its_commit_writes_nothing_twice(
    spark: SparkSession,
    root: str,
    produce: Produce,
    written_throughout: WrittenThroughout,
    tmp_path: Path,
) -> None:
    produce("orders", [b"1", b"2"])
    checkpoint = tmp_path / "checkpoint"
    query = run(read_stream(spark, root, "orders").select("value"), root, "copy", checkpoint)
    for noted in ("0", ".0.crc"):  # as after a crash in just that moment
        (checkpoint / "commits" / noted).unlink()
    entries = log_entries(root, "copy")
    copy = Topic("copy", conf={"bootstrap.servers": root}).describe().topic_id
    assert f'"txn":{{"appId":"spark:{query.id}/{copy}","version":0' in entries[-1].read_text()
    with written_throughout("orders") as writer:
        wanted = writer.count
        again = run(read_stream(spark, root, "orders").select("value"), root, "copy", checkpoint)
    assert again.id == query.id
    assert [progress.batchId for progress in again.recentProgress if progress.numInputRows] == [
        0,
        1,
    ]
    assert log_entries(root, "copy")[: len(entries)] == entries
    first, second, *rest = values(root, "copy")
    assert (first, second) == (b"1", b"2")
    assert rest == [b"%d" % number for number in range(len(rest))]
    assert wanted <= len(rest) <= writer.count


def test_a_query_continues_only_with_the_topic_it_has_read(
    spark: SparkSession, root: str, produce: Produce, tmp_path: Path
) -> None:
    produce("orders", [b"old"])
    run(read_stream(spark, root, "orders").select("value"), root, "copy", tmp_path / "checkpoint")
    Topic("orders", bootstrap_servers=root).delete()
    produce("orders", [b"new"])
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        run(
            read_stream(spark, root, "orders").select("value"),
            root,
            "copy",
            tmp_path / "checkpoint",
        )
    frame = read_stream(spark, root, "orders", failOnDataLoss="false").select("value")
    run(frame, root, "copy", tmp_path / "checkpoint")
    assert values(root, "copy") == [b"old", b"new"]


def test_a_typed_topic_has_its_own_columns_in_a_stream(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    schema = pa.schema(
        [("item", pa.string()), ("amount", pa.int64()), ("tags", pa.map_(pa.string(), pa.string()))]
    )
    Topic("sales", schema, bootstrap_servers=root).create()
    with Producer({"bootstrap.servers": root}) as producer:
        for number in range(10):
            item = "tea" if number % 2 else "milk"
            producer.produce("sales", {"item": item, "amount": number, "tags": {"n": str(number)}})
    sales = read_stream(spark, root, "sales", columns="table")
    totals = sales.groupBy("item").sum("amount").selectExpr("item key", "to_json(struct(*)) value")
    run(totals, root, "totals", tmp_path / "checkpoint", mode="complete")
    found = [json.loads(value or b"") for value in values(root, "totals")]
    assert {row["item"]: row["sum(amount)"] for row in found} == {"tea": 25, "milk": 20}
    tags = (
        spark.read.format("deltaq")
        .options(subscribe="sales", columns="table")
        .load(root)
        .where("tags['n'] = '7'")
    )
    assert [(row.item, row._offset, row._topic) for row in tags.collect()] == [("tea", 7, "sales")]


def test_the_session_has_settings_for_small_machines(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext._jvm is not None
    options = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()  # noqa: E501
    assert "-XX:+UseSerialGC" in list(options)


def test_workers_are_daemons_that_import_the_installed_pyspark(spark: SparkSession) -> None:
    class Places(DataSource):
        """The pyspark of the process that plans, as the name of a column, and that of a task with
        its main module.
        """

        def schema(self) -> StructType:
            columns = str(importlib.import_module("pyspark").__file__), "main"
            return StructType([StructField(name, StringType()) for name in columns])

        def reader(self, schema: StructType) -> DataSourceReader:
            class Reader(DataSourceReader):
                def read(self, partition: InputPartition) -> Iterator[tuple[str | None, str]]:
                    yield (
                        importlib.import_module("pyspark").__file__,
                        (
                            f"{Path(str(sys.modules['__main__'].__file__)).name} "
                            f"{'pyspark.daemon' in sys.modules}"
                        ),
                    )

            return Reader()

    spark.dataSource.register(Places)
    frame = spark.read.format("Places").load()
    # Not those of Spark's archive; and `freeze_loaded` knows the workers by the module of Spark's
    # daemon.
    assert frame.columns == [pyspark.__file__, "main"]
    assert frame.collect() == [(pyspark.__file__, "worker_daemon.py True")]


def test_the_jvm_of_the_tests_may_map_an_archive_of_classes(spark):
    """The option reaches the JVM. Whether the archive is there yet is another question: Spark
    starts without it too.
    """
    beans = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
    assert f"-XX:SharedArchiveFile={ARCHIVE}" in list(beans.getInputArguments())
