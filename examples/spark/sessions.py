"""Find the sessions of users: clicks of one user with at most five minutes from one to the next.

A session is written once, when the watermark shows that no click can join it. As in
windowed_counts.py, a click is late if it is sent more than ten minutes after it happened. The
watermark is one minute behind that, since Spark takes a session for over when a click at its very
end can still join it.
"""

import json
from datetime import UTC, datetime, timedelta
from random import Random
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from pyspark.sql.functions import count_if, expr, from_json, session_window, struct, to_json

from deltaq import Producer, Topic
from deltaq.spark import spark_session

CHANCE, OPENED = Random(2), datetime(2026, 1, 5, 9, tzinfo=UTC)
SENT = [OPENED + timedelta(seconds=30 * number) for number in range(200)]
CLICKS = [
    (
        CHANCE.choice(("ada", "bob", "eve")),
        sent - timedelta(minutes=CHANCE.choice((0, 0, 0, 2, 10, 30))),
        sent,
    )
    for sent in SENT
    if CHANCE.random() < 0.4
]
"""User, time of the click, time at which it is sent."""

CLOSED = SENT[-1] + timedelta(hours=1)


def main(spark: SparkSession, folder: str) -> None:
    """Produce clicks, and print the sessions."""
    root = f"{folder}/events"
    with Producer({"bootstrap.servers": root}) as producer:
        for user, at, sent in [*CLICKS, ("closing", CLOSED, CLOSED)]:
            value = json.dumps({"user": user, "at": at.isoformat()})
            producer.produce("clicks", value, timestamp=int(sent.timestamp() * 1000))

    source = spark.readStream.format("deltaq").options(
        subscribe="clicks", startingOffsets="earliest"
    )
    stream = source.option("maxOffsetsPerTrigger", 40).load(root)
    clicks = stream.select(
        "timestamp", from_json(stream.value.cast("string"), "user STRING, at TIMESTAMP").alias("c")
    )
    late = expr("timestamp > at + INTERVAL 10 MINUTES")
    clicks = clicks.select("timestamp", "c.*").observe("clicks", count_if(late).alias("late"))
    in_time = clicks.where(~late).withWatermark("at", "11 minutes")
    sessions = in_time.groupBy("user", session_window("at", "5 minutes").alias("session")).count()
    records = sessions.select(sessions.user.alias("key"), to_json(struct("*")).alias("value"))
    writer = records.writeStream.format("deltaq").option("topic", "sessions").outputMode("append")
    query = (
        writer.option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(root)
    )
    query.awaitTermination()

    for row in Topic("sessions", bootstrap_servers=root).to_arrow().to_pylist():
        print(row["value"].decode())
    found = [
        progress.observedMetrics["clicks"].late
        for progress in query.recentProgress
        if progress.numInputRows
    ]
    print(f"{sum(found)} late clicks")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(spark_session("sessions"), folder)
