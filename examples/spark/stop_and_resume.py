"""Stop a query and start it again: it continues where it was, and the topic that it writes has each
record once.
"""

from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from deltaq import Producer, Topic
from deltaq.spark import spark_session


def produce(root: str, numbers: range) -> None:
    """Write a message for each number."""
    with Producer({"bootstrap.servers": root}) as producer:
        for number in numbers:
            producer.produce("numbers", str(number))


def squares(spark: SparkSession, root: str, checkpoint: str) -> DataStreamWriter:
    """The query. Its checkpoint makes a later run the continuation of an earlier one."""
    stream = spark.readStream.format("deltaq").options(
        subscribe="numbers", startingOffsets="earliest"
    )
    numbers = (
        stream.option("maxOffsetsPerTrigger", 20)
        .load(root)
        .selectExpr("cast(cast(value AS string) AS long) AS number")
    )
    writer = numbers.selectExpr("cast(number * number AS string) AS value").writeStream.format(
        "deltaq"
    )
    return writer.option("topic", "squares").option("checkpointLocation", checkpoint)


def main(spark: SparkSession, folder: str) -> None:
    """Stop the query in the middle of its work, and let it do the rest later."""
    root = f"{folder}/events"
    topic = Topic("squares", bootstrap_servers=root)
    produce(root, range(100))
    query = squares(spark, root, f"{folder}/checkpoint").start(root)
    while not query.lastProgress:  # no micro-batch is done yet
        query.awaitTermination(1)
    # Spark logs a micro-batch that is interrupted with its stack traces.
    spark.sparkContext.setLogLevel("OFF")
    query.stop()
    spark.sparkContext.setLogLevel("WARN")
    print(f"stopped after {len(topic.to_arrow())} squares")

    produce(root, range(100, 120))
    squares(spark, root, f"{folder}/checkpoint").trigger(availableNow=True).start(
        root
    ).awaitTermination()
    found = [int(value) for value in topic.to_arrow()["value"].to_pylist()]
    print(f"{len(found)} squares, each once: {found == [number * number for number in range(120)]}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(spark_session("stop and resume"), folder)
