"""Count words: a query reads lines from a topic, and keeps the count of each word as the newest
record of its key.
"""

from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from deltaq import Producer, Topic
from deltaq.spark import spark_session, upsert_to_topic

LINES = ("a rose is a rose", "is a rose", "a daisy is not")


def main(spark: SparkSession, folder: str) -> None:
    """Write the lines, count their words, and print the counts."""
    root = f"{folder}/events"
    with Producer({"bootstrap.servers": root}) as producer:
        for line in LINES:
            producer.produce("lines", line)

    lines = (
        spark.readStream.format("deltaq")
        .option("subscribe", "lines")
        .option("startingOffsets", "earliest")
    )
    words = lines.load(root).selectExpr("explode(split(cast(value AS string), ' ')) AS word")
    writer = words.groupBy("word").count().writeStream.outputMode("update")
    writer = writer.foreachBatch(upsert_to_topic(root, "counts", key="word"))
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()

    for row in Topic("counts", bootstrap_servers=root).to_arrow().to_pylist():
        print(row["_key"].decode(), row["value"].decode())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(spark_session("word count"), folder)
