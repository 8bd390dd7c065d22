"""Keep totals in a database with `foreachBatch`: the number of the micro-batch is stored in the
same transaction.

If Spark repeats a micro-batch, because it was killed before it has recorded it, the database knows
the number.
"""

import sqlite3
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

from deltaq import Producer
from deltaq.spark import spark_session

SALES = [("tea", "milk", "rice")[number % 3] for number in range(20)]
ADD = (
    "INSERT INTO totals VALUES (?, ?) ON CONFLICT (item) DO UPDATE SET sold = sold + excluded.sold"
)


class Database:
    """Totals of items, and the last micro-batch that each query has stored."""

    def __init__(self, path: str) -> None:
        self._path = path
        with sqlite3.connect(path) as transaction:
            transaction.execute(
                "CREATE TABLE IF NOT EXISTS totals (item TEXT PRIMARY KEY, sold INTEGER)"
            )
            transaction.execute(
                "CREATE TABLE IF NOT EXISTS ledger (query TEXT PRIMARY KEY, batch INTEGER)"
            )

    def store(self, frame: DataFrame, batch_id: int) -> None:
        """Add up the rows of a micro-batch, unless that is done already."""
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        rows = [tuple(row) for row in frame.groupBy("item").count().collect()]
        with sqlite3.connect(self._path) as transaction:
            stored = transaction.execute(
                "SELECT batch FROM ledger WHERE query = ?", (query,)
            ).fetchone()
            if stored is None or stored[0] < batch_id:
                transaction.executemany(ADD, rows)
                transaction.execute("REPLACE INTO ledger VALUES (?, ?)", (query, batch_id))

    def totals(self) -> dict[str, int]:
        """How often each item was sold."""
        with sqlite3.connect(self._path) as transaction:
            return dict(transaction.execute("SELECT item, sold FROM totals ORDER BY item"))


def main(spark: SparkSession, folder: str) -> None:
    """Produce sales, add them up, and print the totals."""
    root, database = f"{folder}/events", Database(f"{folder}/totals.db")
    with Producer({"bootstrap.servers": root}) as producer:
        for item in SALES:
            producer.produce("sales", item)
    stream = spark.readStream.format("deltaq").options(
        subscribe="sales", startingOffsets="earliest"
    )
    sales = (
        stream.option("maxOffsetsPerTrigger", 10)
        .load(root)
        .selectExpr("cast(value AS string) AS item")
    )
    writer = sales.writeStream.foreachBatch(database.store).option(
        "checkpointLocation", f"{folder}/checkpoint"
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    print(database.totals())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(spark_session("foreachBatch"), folder)
