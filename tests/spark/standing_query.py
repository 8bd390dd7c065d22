"""A streaming query, as a program, that stands still in its first micro-batch until it is killed.

Its arguments are the root and the checkpoint; it reads the topic `orders` from its end.
"""

from __future__ import annotations

import sys
import threading

from pyspark.sql import DataFrame

from deltaq.spark import spark_session

IN_FIRST_BATCH = "in the first micro-batch"


def stand_still(frame: DataFrame, batch_id: int) -> None:
    """Say so, and never return."""
    print(IN_FIRST_BATCH, flush=True)
    threading.Event().wait()


def main(root: str, checkpoint: str) -> None:
    """Start the query."""
    spark = spark_session(
        "standing", quick_start=True, conf={"spark.master": "local[1]", "spark.log.level": "ERROR"}
    )
    orders = spark.readStream.format("deltaq").option("subscribe", "orders").load(root)
    query = (
        orders.writeStream.option("checkpointLocation", checkpoint)
        .foreachBatch(stand_still)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
