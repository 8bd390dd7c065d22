"""Count page views in tumbling and sliding windows, and the views that are sent too late for them.

A view is late if it is sent more than ten minutes after it happened. That depends on the view
alone, so a restarted query and a batch find the same. The watermark only says which windows Spark
may forget.
"""

import json
from datetime import UTC, datetime, timedelta
from random import Random
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count_if, expr, window

from deltaq import Producer, Topic
from deltaq.spark import spark_session, upsert_to_topic

CHANCE, OPENED = Random(1), datetime(2026, 1, 5, 9, tzinfo=UTC)
SENT = [OPENED + timedelta(seconds=20 * number) for number in range(300)]
DELAYS = [timedelta(minutes=CHANCE.choice((0, 1, 9, 10, 11, 45))) for _ in SENT]
VIEWS = [
    (CHANCE.choice(("/home", "/cart")), at - delay, at)
    for at, delay in zip(SENT, DELAYS, strict=True)
]
"""Page, time of the view, time at which it is sent."""


def produce(root: str) -> None:
    """Write the views in the order in which they are sent."""
    with Producer({"bootstrap.servers": root}) as producer:
        for page, at, sent in VIEWS:
            value = json.dumps({"page": page, "at": at.isoformat()})
            producer.produce("views", value, timestamp=int(sent.timestamp() * 1000))


def count_windows(views: DataFrame, slide: str, root: str, topic: str, checkpoint: str) -> int:
    """Write the count of each window and page to a topic. Returns how many views were late."""
    late = expr("timestamp > at + INTERVAL 10 MINUTES")
    in_time = (
        views.observe("views", count_if(late).alias("late"))
        .where(~late)
        .withWatermark("at", "10 minutes")
    )
    writer = (
        in_time.groupBy(window("at", "10 minutes", slide), "page")
        .count()
        .writeStream.outputMode("update")
    )
    writer = writer.foreachBatch(upsert_to_topic(root, topic, key=["window", "page"]))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(
        progress.observedMetrics["views"].late
        for progress in query.recentProgress
        if progress.numInputRows
    )


def main(spark: SparkSession, folder: str) -> None:
    """Produce views, count them in both kinds of windows, and print what was found."""
    root = f"{folder}/events"
    produce(root)
    stream = spark.readStream.format("deltaq").options(
        subscribe="views", startingOffsets="earliest"
    )
    sent = stream.option("maxOffsetsPerTrigger", 100).load(root)
    parsed = sent.selectExpr(
        "timestamp", "from_json(cast(value AS string), 'page STRING, at TIMESTAMP') AS view"
    )
    views = parsed.select("timestamp", "view.*")
    for topic, slide in (("tumbling", "10 minutes"), ("sliding", "5 minutes")):
        late = count_windows(views, slide, root, topic, f"{folder}/{topic}")
        print(
            f"{topic}: {len(Topic(topic, bootstrap_servers=root).to_arrow())} records, {late} late "
            "views"
        )


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(spark_session("windowed counts"), folder)
