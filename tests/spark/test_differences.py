"""The table of differences from Spark's Kafka source and sink in docs/guides/spark.md: each row is
tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from deltaq import InvalidConfig, InvalidValue, KafkaException, Producer, Topic
from deltaq.partitioner import assign_partitions
from deltaq.spark import offsets_behind, read_topic
from deltaq.spark.data_source import DeltaqDataSource
from deltaq.spark.source import DeltaqStreamReader
from tests.doubles.produced_tables import producing_to

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/spark.md"


def differences() -> list[str]:
    """What the first column of the table names."""
    section = (
        GUIDE.read_text()
        .partition("## Differences from Spark's Kafka source and sink\n")[2]
        .partition("\n## ")[0]
    )
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [row.split(" | ")[0].removeprefix("| ") for row in rows if not row.startswith("| |")]


def stream(root: str, **options: str) -> DeltaqStreamReader:
    data_source = DeltaqDataSource({"path": root, "subscribe": "orders", **options})
    return data_source.streamReader(data_source.schema())


def begun(reader: DeltaqStreamReader) -> dict[str, Any]:
    """Where a query stands after its first micro-batch."""
    return reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())


def write(root: str, rows: pa.Table, **options: str) -> None:
    writer = DeltaqDataSource({"path": root, "topic": "orders", **options}).writer(
        from_arrow_schema(rows.schema), False
    )
    writer.commit([writer.write(iter(rows.to_batches()))])


def partitions_of(root: str) -> dict[bytes, int]:
    rows = Topic("orders", bootstrap_servers=root).to_arrow()
    return dict(zip(rows["_key"].to_pylist(), rows["_partition"].to_pylist(), strict=True))


# --- without a session ---


def brokers(root: str) -> None:
    with pytest.raises(InvalidConfig, match="is a list of brokers: set it to the root"):
        DeltaqDataSource(
            {"kafka.bootstrap.servers": "one:9092,two:9092", "subscribe": "orders"}
        ).schema()
    assert DeltaqDataSource({"kafka.bootstrap.servers": root, "subscribe": "orders"}).schema()


def partition_of_key(root: str) -> None:
    keys: list[bytes | None] = [b"%d" % number for number in range(50)]
    rows = pa.table({"key": keys, "value": keys})
    for partitioner, options in (
        ("consistent", {}),
        ("murmur2", {"kafka.partitioner": "murmur2_random"}),
    ):
        Topic("orders", partitions=5, bootstrap_servers=root).create()
        write(root, rows, **options)
        assert partitions_of(root) == dict(
            zip(keys, assign_partitions(partitioner, keys, 5, 0), strict=True)
        )
        Topic("orders", bootstrap_servers=root).delete()


def classes_of_java(root: str) -> None:
    rows = pa.table({"value": [b"x"]})
    for name in ("partitioner.class", "interceptor.classes"):
        with pytest.raises(InvalidConfig, match="a class of Java cannot run here"):
            write(root, rows, **{f"kafka.{name}": "com.example.Mine"})
    for name in ("DefaultPartitioner", "RoundRobinPartitioner", "UniformStickyPartitioner"):
        write(
            root, rows, **{"kafka.partitioner.class": f"org.apache.kafka.clients.producer.{name}"}
        )


def timestamps_of_rows(root: str) -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    write(root, pa.table({"value": [b"x"], "timestamp": pa.array([at], pa.timestamp("us", "UTC"))}))
    assert Topic("orders", bootstrap_servers=root).to_arrow()["_timestamp"].to_pylist() == [at]
    for kind in (pa.array(["2024"]), pa.array([datetime(2024, 1, 1)])):
        with pytest.raises(InvalidValue, match="field 'timestamp'"):
            write(root, pa.table({"value": [b"x"], "timestamp": kind}))


def repeated_micro_batches(root: str) -> None:
    rows = pa.table({"value": [b"x"]})
    for _ in range(2):
        data_source = DeltaqDataSource({"path": root, "topic": "orders", "txnAppId": "query"})
        writer = data_source.streamWriter(from_arrow_schema(rows.schema), False)
        writer.commit([writer.write(iter(rows.to_batches()))], 0)
    assert Topic("orders", bootstrap_servers=root).to_arrow().num_rows == 1


def unknown_options(root: str) -> None:
    with pytest.raises(InvalidConfig, match='did you mean "startingOffsets"'):
        stream(root, startingOffset="earliest")
    with pytest.raises(InvalidConfig, match=r'did you mean "group\.id"'):
        stream(root, **{"kafka.group.ids": "x"})


def end_of_a_stream(root: str) -> None:
    for option, value in (("endingTimestamp", "5"), ("endingOffsets", "latest")):
        with pytest.raises(InvalidConfig, match=f"a stream has no end: omit {option}"):
            stream(root, **{option: value})


def nothing_left_behind(root: str) -> None:
    producing_to(root)("orders", [b"x"] * 3)
    reader = stream(
        root,
        startingOffsets='{"orders":{"0":0}}',
        minOffsetsPerTrigger="3",
        maxOffsetsPerTrigger="3",
    )
    reader.prepareForTriggerAvailableNow()
    position = begun(reader)
    producing_to(root)("orders", [b"x"])
    again = stream(root, minOffsetsPerTrigger="3", maxOffsetsPerTrigger="3")
    again.prepareForTriggerAvailableNow()
    assert again.latestOffset(position, again.getDefaultReadLimit())["orders"]["next_offsets"] == {
        "0": 4
    }


def patterns_of_python(root: str) -> None:
    with pytest.raises(InvalidConfig, match="not a regular expression"):
        DeltaqDataSource({"path": root, "subscribePattern": r"\p{Alpha}+"}).schema()


def tasks_by_size(root: str) -> None:
    produce = producing_to(root)
    produce("orders", [b"x"], partitions=3)
    for partition in (1, 2):
        produce("orders", [b"x"], to=partition)
    reader = stream(root, startingOffsets="earliest")
    assert len(reader.partitions(reader.initialOffset(), begun(reader))) == 1


def created_again(root: str) -> None:
    producing_to(root)("orders", [b"x"])
    position = begun(stream(root, startingOffsets="earliest"))
    Topic("orders", bootstrap_servers=root).delete()
    producing_to(root)("orders", [b"x"] * 5)
    reader = stream(root)
    with pytest.raises(KafkaException, match="deleted and created again"):
        reader.partitions(position, reader.latestOffset(position, reader.getDefaultReadLimit()))


def checkpoint_of_kafka(root: str) -> None:
    producing_to(root)("orders", [b"x"])
    reader = stream(root)
    with pytest.raises(InvalidConfig, match="set another checkpointLocation"):
        reader.latestOffset({"orders": {"0": 1}}, reader.getDefaultReadLimit())


def no_groups(root: str) -> None:
    producing_to(root)("orders", [b"x"])
    begun(stream(root, groupIdPrefix="job", **{"kafka.group.id": "job"}))
    assert not list(Path(root).glob("groups/*"))


def large_messages(root: str) -> None:
    with Producer({"bootstrap.servers": root, "large.message.enabled": True}) as producer:
        producer.produce("orders", b"x" * 1_500_000)
    source = DeltaqDataSource({"path": root, "subscribe": "orders"})
    reader = source.reader(source.schema())
    with pytest.raises(InvalidConfig, match="has messages in pieces"):
        reader.partitions()
    with pytest.raises(InvalidConfig, match="Spark writes no large messages"):
        write(root, pa.table({"value": [b"x"]}), **{"kafka.large.message.enabled": "true"})


WITHOUT_SESSION: Mapping[str, Callable[[str], None]] = {
    "`kafka.bootstrap.servers`": brokers,
    "The partition of a key": partition_of_key,
    "A class of Java in `kafka.partitioner.class` or `kafka.interceptor.classes`": classes_of_java,
    "A column `timestamp` of rows": timestamps_of_rows,
    "Repeated micro-batches": repeated_micro_batches,
    "Unknown options": unknown_options,
    "`endingTimestamp` on a stream": end_of_a_stream,
    "`minOffsetsPerTrigger` with `availableNow`": nothing_left_behind,
    "`subscribePattern`": patterns_of_python,
    "Read tasks": tasks_by_size,
    "A topic that was deleted and created again": created_again,
    "A checkpoint of the other source": checkpoint_of_kafka,
    "Consumer groups": no_groups,
    "A topic with [large messages](produce.md#large-messages)": large_messages,
}


# --- in a session ---


def read(spark: SparkSession, root: str) -> DataFrame:
    return spark.read.format("deltaq").option("subscribe", "orders").load(root)


def write_without_a_mode(spark: SparkSession, root: str, checkpoint: str) -> None:
    sink = (
        spark.range(3)
        .selectExpr("cast(id as string) value")
        .write.format("deltaq")
        .option("topic", "orders")
    )
    with pytest.raises(
        AnalysisException, match=r'UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*use either the "Append"'
    ):
        sink.save(root)
    for mode, remedy in (
        ("overwrite", r'use mode\("append"\)'),
        ("ignore", 'use either the "Append"'),
    ):
        with pytest.raises(AnalysisException, match=remedy):
            sink.mode(mode).save(root)
    sink.mode("append").save(root)
    assert read(spark, root).count() == 3


def streaming(spark: SparkSession, root: str) -> DataFrame:
    producing_to(root)("orders", [b"1", b"1"])
    return (
        spark.readStream.format("deltaq")
        .options(subscribe="orders", startingOffsets="earliest")
        .load(root)
    )


def update_mode(spark: SparkSession, root: str, checkpoint: str) -> None:
    counts = (
        streaming(spark, root)
        .groupBy("value")
        .count()
        .selectExpr("value key", "cast(count as string) value")
    )
    sink = counts.writeStream.format("deltaq").outputMode("update").trigger(availableNow=True)
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        sink.options(topic="counts", checkpointLocation=checkpoint).start(root).awaitTermination()

    def publish(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("deltaq").mode("append")
        writer.options(topic="counts", txnAppId="counts", txnVersion=batch_id).save(root)

    each = counts.writeStream.foreachBatch(publish).outputMode("update").trigger(availableNow=True)
    each.option("checkpointLocation", f"{checkpoint}-2").start().awaitTermination()
    assert Topic("counts", bootstrap_servers=root).to_arrow()["value"].to_pylist() == [b"2"]


def other_triggers(spark: SparkSession, root: str, checkpoint: str) -> None:
    sink = (
        streaming(spark, root).writeStream.format("noop").option("checkpointLocation", checkpoint)
    )
    with pytest.raises(Exception, match="does not support continuous processing"):
        sink.trigger(continuous="1 second").start()


def tables_of_the_catalog(spark: SparkSession, root: str, checkpoint: str) -> None:
    producing_to(root)("orders", [b"1"])
    options = (
        f"USING deltaq OPTIONS (`kafka.bootstrap.servers` '{root}', subscribe 'orders', topic "
        "'orders')"
    )
    with pytest.raises(AnalysisException, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE events {options}")
    spark.sql(f"CREATE TEMPORARY VIEW events (value binary) {options}")
    try:
        spark.sql("INSERT INTO events SELECT cast('2' as binary)")
        assert sorted(bytes(row.value) for row in spark.sql("SELECT * FROM events").collect()) == [
            b"1",
            b"2",
        ]
    finally:
        spark.catalog.dropTempView("events")


def frames_used_again(spark: SparkSession, root: str, checkpoint: str) -> None:
    producing_to(root)("orders", [b"1"])
    frame = read(spark, root)
    assert frame.count() == 1
    producing_to(root)("orders", [b"2"])
    assert frame.count() == 1
    assert read(spark, root).count() == 2


def columns_and_filters(spark: SparkSession, root: str, checkpoint: str) -> None:
    producing_to(root)("orders", [b"1"])
    query = "partition = 0 AND timestamp > '2020-01-01' AND key IS NULL"

    def plan(frame: DataFrame) -> str:
        with redirect_stdout(StringIO()) as printed:
            frame.where(query).select("value").explain("formatted")
        return printed.getvalue()

    assert "BatchScan deltaq\nOutput [7]: [key#" in plan(read(spark, root))
    named = spark.read.format("deltaq").option("subscribe", "orders").schema("value binary")
    assert named.load(root).columns == ["value"]
    native = plan(read_topic(spark, "orders", root))
    assert re.search(
        r"PushedFilters: \[.*EqualTo\(_partition,0\).*GreaterThan\(_timestamp,2020-01-01", native
    )
    assert "_headers" not in native


def metrics(spark: SparkSession, root: str, checkpoint: str) -> None:
    sink = (
        streaming(spark, root).writeStream.format("noop").option("checkpointLocation", checkpoint)
    )
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.lastProgress is not None
    (source,) = query.lastProgress.sources
    assert not source.metrics
    assert offsets_behind(source)["maxOffsetsBehindLatest"] == 0
    assert '"0": 2' in str(source.latestOffset)


IN_SESSION: Mapping[str, Callable[[SparkSession, str, str], None]] = {
    "`.save()` without a mode": write_without_a_mode,
    '`outputMode("update")`': update_mode,
    "Continuous and real-time triggers": other_triggers,
    "`CREATE TABLE ... USING`": tables_of_the_catalog,
    "Columns and filters of a query": columns_and_filters,
    "A batch frame used again": frames_used_again,
    "Metrics of a query's progress": metrics,
}


def test_the_table_has_a_check_for_each_row() -> None:
    assert sorted(differences()) == sorted([*WITHOUT_SESSION, *IN_SESSION])


@pytest.mark.parametrize("check", WITHOUT_SESSION.values(), ids=WITHOUT_SESSION)
def test_a_difference_is_as_the_guide_says(check: Callable[[str], None], root: str) -> None:
    check(root)


@pytest.mark.spark
@pytest.mark.parametrize("check", IN_SESSION.values(), ids=IN_SESSION)
def test_a_difference_in_spark_is_as_the_guide_says(
    check: Callable[[SparkSession, str, str], None], spark: SparkSession, root: str, tmp_path: Path
) -> None:
    check(spark, root, str(tmp_path / "checkpoint"))


@pytest.mark.spark
def test_filters_of_one_query_leave_the_rows_of_another_on_the_same_frame(
    spark: SparkSession, root: str
) -> None:
    produce = producing_to(root)
    produce("orders", [b"1"], partitions=2)
    produce("orders", [b"2"], to=1)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, root)
        first, second = (frame.where(f"partition = {partition}") for partition in (0, 1))
        assert (first.count(), frame.count(), first.union(second).count()) == (1, 2, 2)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
