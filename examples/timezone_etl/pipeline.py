"""Convert the local times in two topics to one time in one topic, with a Spark query that can be
restarted.

Each message arrives in `timezone_unified` exactly once, however often the program is killed and
restarted: a micro-batch is one commit of the topic, which also records the number of the
micro-batch.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, to_timestamp, unix_micros
from pyspark.sql.streaming.query import StreamingQuery

from deltaq.spark import spark_session
from examples._programs import parser_of
from examples.timezone_etl.layout import CLOCKS, UNIFIED, wait_for_topics


def readings(spark: SparkSession, root: str, topic: str, rows_max: int) -> DataFrame:
    """The messages of one clock as `timestamp`, in epoch milliseconds with a fraction, and
    `message`.
    """
    messages = (
        spark.readStream.format("deltaq")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", rows_max)
        .load(root)
    )
    # An invalid message stops the pipeline, because dropping it would lose data silently.
    reading = from_json(
        col("value").cast("string"), "date STRING, message STRING", {"mode": "FAILFAST"}
    )
    time = to_timestamp(reading["date"], "yyyy-MM-dd HH:mm:ss.SSSSSS xx")
    return messages.select(
        (unix_micros(time) / 1000).alias("timestamp"), reading["message"].alias("message")
    )


def unify(
    spark: SparkSession, root: str, checkpoint: str, rows_max: int, *, available_now: bool
) -> StreamingQuery:
    """Start the query. Its output is a typed topic, created from the columns when the first rows
    arrive.
    """
    first, second = (readings(spark, root, topic, rows_max) for topic in CLOCKS)
    writer = (
        first.unionByName(second)
        .writeStream.format("deltaq")
        .option("topic", UNIFIED)
        .option("columns", "table")
        .option("checkpointLocation", checkpoint)
    )
    trigger = (
        writer.trigger(availableNow=True)
        if available_now
        else writer.trigger(processingTime="100 milliseconds")
    )
    return trigger.start(root)


def show_progress(query: StreamingQuery) -> None:
    """Print each micro-batch until the query ends."""
    shown = -1
    while not query.awaitTermination(1):
        progress = query.lastProgress
        if progress is not None and progress.numInputRows and progress.batchId > shown:
            shown = progress.batchId
            print(
                f"batch {shown}: {progress.numInputRows} messages in {progress.batchDuration} ms",
                flush=True,
            )


def main() -> None:
    """Run the program."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--checkpoint", default="./deltaq-checkpoint", help="where Spark stores its progress"
    )
    parser.add_argument(
        "--available-now", action="store_true", help="process the existing messages, then end"
    )
    parser.add_argument(
        "--max-offsets",
        type=int,
        default=100_000,
        help="maximum number of messages of a clock in one micro-batch",
    )
    args = parser.parse_args()

    wait_for_topics(args.root, CLOCKS)
    spark = spark_session("timezone_etl", conf={"spark.log.level": "ERROR"})
    checkpoint = str(Path(args.checkpoint).absolute())
    query = unify(spark, args.root, checkpoint, args.max_offsets, available_now=args.available_now)
    print(f"unifying {', '.join(CLOCKS)} into {UNIFIED}", flush=True)
    try:
        show_progress(query)
    except KeyboardInterrupt:
        query.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main()
