"""What Spark computes for the shop. Each function takes a batch or a stream; one logic serves
both.
"""

from __future__ import annotations

from typing import TypeAlias

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, Window
from pyspark.sql.functions import (
    array,
    broadcast,
    col,
    count,
    desc,
    expr,
    from_json,
    lit,
    max,  # noqa: A004  # Spark's name
    round,  # noqa: A004  # Spark's name
    row_number,
    struct,
    sum,  # noqa: A004  # Spark's name
    when,
    window,
)
from pyspark.sql.streaming.readwriter import DataStreamReader

Reader: TypeAlias = DataFrameReader | DataStreamReader
"""`spark.read` or `spark.readStream`."""

MONEY = "DECIMAL(10,2)"
"""Also of sums: Spark fails, and does not round, where a sum exceeds 99,999,999.99."""

IN_TIME = "10 minutes"
"""How long after the sale a till may send it. A purchase that is sent later is late, and counts in
no window.
"""

WINDOW, SLIDE = "10 minutes", "5 minutes"
"""Every moment is in two windows."""

_PURCHASE = f"""
    transaction_time STRING, transaction_id STRING, product_id STRING, price {MONEY}, quantity BIGINT,
    is_member BOOLEAN, member_discount {MONEY}, add_supplements BOOLEAN, supplement_price {MONEY},
    total_purchase {MONEY}, malformed STRING
"""  # noqa: E501
_TIMESTAMP = "transaction_timestamp"
_FIELDS = (
    "transaction_time",
    "product_id",
    "price",
    "quantity",
    "is_member",
    "member_discount",
    "add_supplements",
    "supplement_price",
    "total_purchase",
)
"""The fields that every purchase has. `transaction_id` is not among them: some tills give their
purchases none.
"""


def messages(reader: Reader, root: str) -> DataFrame:
    """The topic `purchases` from its beginning, with the columns of Kafka."""
    return (
        reader.format("deltaq")
        .option("subscribe", "purchases")
        .option("startingOffsets", "earliest")
        .load(root)
    )


def table(spark: SparkSession, root: str, topic: str) -> DataFrame:
    """A topic with the columns of its table."""
    return (
        spark.read.format("deltaq").option("subscribe", topic).option("columns", "table").load(root)
    )


def checked(messages: DataFrame) -> DataFrame:
    """Messages with the fields of the purchase, and as `reason` why it is not valid: null for a
    valid one.
    """
    purchase = from_json(
        col("value").cast("string"),
        _PURCHASE,
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "malformed"},
    )
    parsed = messages.withColumn("purchase", purchase).select("*", "purchase.*").drop("purchase")
    parsed = parsed.withColumn(_TIMESTAMP, expr("try_cast(transaction_time AS TIMESTAMP)"))
    missing = lit(False)
    for field in (*_FIELDS, _TIMESTAMP):
        missing = missing | col(field).isNull()
    unreadable = col("malformed").isNotNull() | missing
    reason = when(unreadable, "not a purchase").when(
        col("total_purchase") != _total(), "wrong total"
    )
    return parsed.withColumn("reason", reason)


def _total() -> Column:
    paid = (
        col("quantity")
        * (col("price") + col("supplement_price"))
        * (lit(1) - col("member_discount"))
    )
    return round(paid, 2)


def purchases(messages: DataFrame) -> DataFrame:
    """The valid purchases."""
    return checked(messages).where("reason IS NULL")


def dead_letters(checked: DataFrame) -> DataFrame:
    """The messages that are not valid, unchanged, with headers that say why and where they are."""

    def header(name: str, value: Column) -> Column:
        return struct(lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))

    headers = array(*(header(name, col(name)) for name in ("reason", "partition", "offset")))
    return checked.where("reason IS NOT NULL").select(
        "key", "value", "timestamp", headers.alias("headers")
    )


def enriched(purchases: DataFrame, products: DataFrame) -> DataFrame:
    """Each purchase once, with its product. The fields of the product are null where it is not
    known.

    `products` is the table of the newest products, as `latest_by_key` returns it.
    """
    product = broadcast(products).alias("product")
    joined = purchases.alias("sold").join(
        product, col("sold.product_id") == col("product.product_id"), "left"
    )
    return joined.select(
        col("sold.timestamp").alias("_timestamp"),
        "transaction_time",
        _TIMESTAMP,
        "transaction_id",
        "sold.product_id",
        col("category").alias("product_category"),
        col("item").alias("product_name"),
        col("size").alias("product_size"),
        col("cogs").alias("product_cogs"),
        col("product.price").alias("product_price"),
        "contains_fruit",
        "contains_veggies",
        "contains_nuts",
        "contains_caffeine",
        col("sold.price").alias("purchase_price"),
        col("quantity").alias("purchase_quantity"),
        "is_member",
        "member_discount",
        "add_supplements",
        "supplement_price",
        "total_purchase",
    )


def running_totals(purchases: DataFrame) -> DataFrame:
    """The sales of each product, late purchases included."""
    return purchases.groupBy("product_id").agg(max(_TIMESTAMP).alias("event_time"), *_sums())


def sales_windows(purchases: DataFrame) -> DataFrame:
    """The sales of each product in windows of ten minutes, of which one begins every five minutes.

    Whether a purchase is late depends only on itself: the time at which it was sent and the time of
    the sale. Spark's watermark depends on what has arrived before; here it only tells Spark which
    windows to forget, and it drops nothing that is in time as long as the messages arrive in the
    order in which they were sent.
    """
    in_time = purchases.where(col("timestamp") <= col(_TIMESTAMP) + expr(f"INTERVAL {IN_TIME}"))
    by_window = in_time.withWatermark(_TIMESTAMP, IN_TIME).groupBy(
        window(_TIMESTAMP, WINDOW, SLIDE), "product_id"
    )
    start_and_end = (
        col("window.start").alias("window_start"),
        col("window.end").alias("window_end"),
    )
    return by_window.agg(*_sums()).select(
        *start_and_end, "product_id", "transactions", "quantities", "sales"
    )


def _sums() -> tuple[Column, ...]:
    return (
        count("*").alias("transactions"),
        sum("quantity").alias("quantities"),
        sum("total_purchase").cast(MONEY).alias("sales"),
    )


def top_products(purchases: DataFrame, most: int = 25) -> DataFrame:
    """The products with the highest sales, with their rank. For batches: a stream cannot be
    sorted.
    """
    ranked = running_totals(purchases).withColumn(
        "rank", row_number().over(Window.orderBy(desc("sales"), "product_id"))
    )
    return (
        ranked.where(col("rank") <= most)
        .select("rank", "product_id", "sales", "quantities")
        .orderBy("rank")
    )
