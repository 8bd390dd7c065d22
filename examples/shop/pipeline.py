"""Run the jobs of the shop on Spark. Killed and started again, it goes on where it was, and doubles
nothing.

Each micro-batch of a query is one commit of each topic that it writes, and carries the query's name
and the number of the micro-batch. When Spark repeats a micro-batch, the topic knows the number and
accepts nothing twice.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from deltaq.spark import latest_by_key, spark_session, upsert_to_topic
from examples._programs import on_stop
from examples.shop import jobs
from examples.shop.layout import (
    DEAD_LETTERS,
    ENRICHED,
    PRODUCTS,
    RUNNING_TOTALS,
    WINDOWS,
    clock_of,
    create_topics,
    shop_parser,
)
from examples.shop.queries import SparkSql, ask_all

ATTEMPTS = 5


def append(frame: DataFrame, root: str, topic: str, batch_id: int, columns: str = "table") -> None:
    """Write the rows of a micro-batch to a topic, unless an earlier attempt has done so.

    The name of the topic stands for the query. A query that starts with a new checkpoint therefore
    needs a new root.
    """
    writer = (
        frame.write.format("deltaq")
        .option("topic", topic)
        .option("columns", columns)
        .mode("append")
    )
    writer.option("txnAppId", topic).option("txnVersion", batch_id).save(root)


def writers(spark: SparkSession, root: str, checkpoints: Path) -> dict[str, DataStreamWriter]:
    """The three streaming queries by name, not started yet. The topics exist."""

    def enrich(frame: DataFrame, batch_id: int) -> None:
        checked = jobs.checked(frame).persist()  # two topics are written: read the micro-batch once
        products = latest_by_key(frame.sparkSession, PRODUCTS, root, columns="table")
        valid = checked.where("reason IS NULL")
        append(jobs.enriched(valid, products), root, ENRICHED, batch_id)
        append(jobs.dead_letters(checked), root, DEAD_LETTERS, batch_id, columns="kafka")
        checked.unpersist()

    def publish(topic: str, *key: str) -> Callable[[DataFrame, int], None]:
        return upsert_to_topic(root, topic, key, {"columns": "table", "txnAppId": topic})

    messages = jobs.messages(spark.readStream, root)
    purchases = jobs.purchases(messages)
    plans: dict[str, tuple[DataFrame, str, Callable[[DataFrame, int], None]]] = {
        ENRICHED: (messages, "append", enrich),
        # In update mode a micro-batch has the rows that it changed.
        RUNNING_TOTALS: (
            jobs.running_totals(purchases),
            "update",
            publish(RUNNING_TOTALS, "product_id"),
        ),
        WINDOWS: (
            jobs.sales_windows(purchases),
            "update",
            publish(WINDOWS, "product_id", "window_start"),
        ),
    }
    return {
        name: frame.writeStream.outputMode(mode)
        .option("checkpointLocation", str(checkpoints / name))
        .foreachBatch(write)
        for name, (frame, mode, write) in plans.items()
    }


def start(writer: DataStreamWriter, stopping: threading.Event) -> StreamingQuery:
    """Start a query, and wait for its first micro-batch: on few cores, queries that start together
    delay each other.

    Spark gives a new Python worker ten seconds to connect. If that is too little on a busy machine,
    start it again.
    """
    for attempt in range(ATTEMPTS):
        query = writer.start()
        while query.isActive and query.lastProgress is None and not stopping.wait(0.1):
            pass
        error = query.exception()
        if error is None:
            break
        if "worker failed to connect back" not in str(error) or attempt == ATTEMPTS - 1:
            raise error
    return query


def report(queries: Mapping[str, StreamingQuery], reported: dict[str, int]) -> None:
    """Print each micro-batch that has rows once. Raises what ended a query."""
    for name, query in queries.items():
        if (error := query.exception()) is not None:
            raise error
        progress = query.lastProgress
        if (
            progress is not None
            and progress.numInputRows
            and progress.batchId > reported.get(name, -1)
        ):
            reported[name] = progress.batchId
            rows, took_ms = progress.numInputRows, progress.batchDuration
            print(
                f"{name}: micro-batch {progress.batchId} with {rows} messages in {took_ms} ms",
                flush=True,
            )


def main() -> None:
    """Run the program."""
    parser = shop_parser(__doc__)
    parser.add_argument(
        "--checkpoints",
        type=Path,
        default=Path("deltaq-checkpoints"),
        help="where Spark keeps state",
    )
    parser.add_argument(
        "--trigger", type=float, default=1.0, help="seconds between two micro-batches of a query"
    )
    parser.add_argument(
        "--ask-every", type=float, default=5.0, help="seconds between two rounds of SQL queries"
    )
    args = parser.parse_args()

    stopping = threading.Event()
    on_stop(stopping.set, until_eof=args.until_eof)
    create_topics(args.root)
    spark = spark_session("shop", conf={"spark.log.level": "ERROR"})
    queries: dict[str, StreamingQuery] = {}
    for name, writer in writers(spark, args.root, args.checkpoints.absolute()).items():
        queries[name] = start(writer.trigger(processingTime=f"{args.trigger} seconds"), stopping)
    print(f"reading {args.root}", flush=True)
    clock, engine = clock_of(args), SparkSql(spark, args.root)
    reported: dict[str, int] = {}
    ask_at = time.monotonic() + args.ask_every
    while not stopping.wait(0.5):
        report(queries, reported)
        if time.monotonic() >= ask_at:
            print(json.dumps(ask_all(engine, clock)), flush=True)
            ask_at = time.monotonic() + args.ask_every
    for query in queries.values():
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
