"""Join two topics: each order with its payment, if that is made within an hour. Both topics are
streams.
"""

from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from deltaq import Producer, Topic
from deltaq.spark import spark_session

OPENED = datetime(2026, 1, 5, 9, tzinfo=UTC)
ORDERS = {f"order-{number}": OPENED + timedelta(minutes=number) for number in range(60)}
PAYMENTS = {
    name: at + timedelta(minutes=7 * int(name[6:]) % 90)
    for name, at in ORDERS.items()
    if name[-1] != "3"
}
"""Some are never paid, some after more than an hour."""


def produce(root: str, topic: str, times: dict[str, datetime]) -> None:
    """Write a message for each order, with the time as its timestamp, in the order of the times."""
    with Producer({"bootstrap.servers": root}) as producer:
        for name, at in sorted(times.items(), key=lambda entry: entry[1]):
            producer.produce(topic, f"{at:%H:%M}", key=name, timestamp=int(at.timestamp() * 1000))


def read(spark: SparkSession, root: str, topic: str, prefix: str) -> DataFrame:
    """A topic as a stream. The watermark says how long a message of the other topic has to be
    remembered.
    """
    stream = (
        spark.readStream.format("deltaq")
        .options(subscribe=topic, startingOffsets="earliest")
        .load(root)
    )
    columns = (f"{column} AS {prefix}_{column}" for column in ("key", "value", "timestamp"))
    return stream.selectExpr(*columns).withWatermark(f"{prefix}_timestamp", "10 minutes")


def main(spark: SparkSession, folder: str) -> None:
    """Produce orders and payments, and print the orders that were paid in time."""
    root = f"{folder}/events"
    produce(root, "orders", ORDERS)
    produce(root, "payments", PAYMENTS)

    orders = read(spark, root, "orders", "order")
    payments = read(spark, root, "payments", "payment")
    in_time = "payment_timestamp BETWEEN order_timestamp AND order_timestamp + INTERVAL 1 HOUR"
    paid = orders.join(payments, expr(f"order_key = payment_key AND {in_time}"))
    records = paid.selectExpr(
        "order_key AS key", "concat(order_value, ' ', payment_value) AS value"
    )
    writer = records.writeStream.format("deltaq").option("topic", "paid")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start(root).awaitTermination()

    for row in Topic("paid", bootstrap_servers=root).to_arrow().to_pylist():
        print(row["_key"].decode(), row["value"].decode())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(spark_session("join"), folder)
