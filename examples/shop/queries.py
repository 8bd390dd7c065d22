"""Four questions to the shop in SQL, which DuckDB and Spark answer alike while the topics are
written.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import ceil
from types import MappingProxyType
from typing import Any, Protocol

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession

from deltaq.spark import latest_by_key
from examples.shop import jobs
from examples.shop.layout import ENRICHED, PRODUCTS, PURCHASES, ShopClock

QUERIES: Mapping[str, str] = MappingProxyType(
    {
        "purchases": "SELECT count(*) AS purchases, max(sent) AS newest FROM purchases",
        "products": """
            SELECT count(*) AS products,
                   CAST(avg(price) AS DECIMAL(10, 2)) AS price,
                   CAST(avg(cogs) AS DECIMAL(10, 2)) AS cogs,
                   CAST(avg(price - cogs) AS DECIMAL(10, 2)) AS difference
            FROM latest_products
        """,
        "purchases per product": """
            SELECT product_id,
                   CAST(sum(quantity) AS BIGINT) AS quantity,
                   CAST(sum(total_purchase) AS DECIMAL(10, 2)) AS sales,
                   CAST(avg(total_purchase) AS DECIMAL(10, 2)) AS sale
            FROM purchases
            WHERE total_purchase = round(quantity * (price + supplement_price) * (1 - member_discount), 2)
            GROUP BY product_id ORDER BY sales DESC, product_id
        """,  # noqa: E501
        "enriched per product": """
            SELECT product_id, product_name, product_category,
                   CAST(sum(purchase_quantity) AS BIGINT) AS quantity,
                   CAST(sum(total_purchase) AS DECIMAL(10, 2)) AS sales,
                   max(_timestamp) AS newest
            FROM enriched
            GROUP BY product_id, product_name, product_category ORDER BY sales DESC, product_id
        """,
    }
)
"""The text is the same for both engines; they differ in how they read JSON and the newest record of
a product.
"""


DUCKDB_VIEWS: Mapping[str, str] = MappingProxyType(
    {
        PURCHASES: """
            WITH texts AS (SELECT *, try(decode(value)) AS text FROM purchases_table),
                 parsed AS (SELECT *, CASE WHEN json_valid(text) THEN text::JSON END AS purchase FROM texts)
            SELECT _partition, _offset, _timestamp AS sent, value,
                   epoch_us(try_cast(purchase->>'$.transaction_time' AS TIMESTAMPTZ)) AS sold_us,
                   purchase->>'$.transaction_id' AS transaction_id,
                   purchase->>'$.product_id' AS product_id,
                   try_cast(purchase->>'$.price' AS DECIMAL(10, 2)) AS price,
                   try_cast(purchase->>'$.quantity' AS INTEGER) AS quantity,
                   try_cast(purchase->>'$.is_member' AS BOOLEAN) AS is_member,
                   try_cast(purchase->>'$.member_discount' AS DECIMAL(10, 2)) AS member_discount,
                   try_cast(purchase->>'$.add_supplements' AS BOOLEAN) AS add_supplements,
                   try_cast(purchase->>'$.supplement_price' AS DECIMAL(10, 2)) AS supplement_price,
                   try_cast(purchase->>'$.total_purchase' AS DECIMAL(10, 2)) AS total_purchase
            FROM parsed
        """,  # noqa: E501
        "latest_products": """
            SELECT * FROM products_table
            QUALIFY row_number() OVER (PARTITION BY product_id ORDER BY _timestamp DESC) = 1
        """,
        ENRICHED: "SELECT * FROM enriched_table",
    }
)


class Freshness:
    """The age of the newest row that a query has seen, over all its runs, in seconds."""

    def __init__(self) -> None:
        self._ages: list[float] = []

    def add(self, age_s: float) -> None:
        """Note the age at the time of an answer."""
        insort(self._ages, age_s)

    def percentile(self, percent: float) -> float | None:
        """The age that this share of the answers did not exceed; None without an answer."""
        return self._ages[ceil(len(self._ages) * percent / 100) - 1] if self._ages else None


Answer = list[dict[str, Any]]
"""The rows of an answer, by column."""


PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds before each further try to read a table."""


class Engine(Protocol):
    """What answers queries."""

    def ask(self, query: str) -> Answer:
        """The answer to a query on what is in the topics now."""


class DuckDb:
    """Asks DuckDB, which reads the Delta tables of the topics. The root is a folder."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._tables: dict[str, DeltaTable] = {}
        self._connection = duckdb.connect(config={"threads": 1})
        self._open_all()
        for name, query in DUCKDB_VIEWS.items():
            self._connection.execute(f"CREATE VIEW {name} AS {query}")

    def _open_all(self) -> None:
        for name in (PURCHASES, PRODUCTS, ENRICHED):
            self.open(name)

    def open(self, topic: str) -> int | None:
        """Read a topic as it is now, as the table `<topic>_table`, until it is opened again.

        Returns the newest micro-batch in it; None if Spark has not written to it.
        """
        table = self._current(topic)
        self._connection.register(f"{topic}_table", table.to_pyarrow_dataset())
        return table.transaction_version(f"{topic}/{table.metadata().id}")

    def _current(self, topic: str) -> DeltaTable:
        """The table of a topic as it is now. A log that changes during the read is read again.

        deltaq keeps the log of a local topic so short that delta-rs lists it in one piece. On a
        machine so busy that hundreds of commits pass between that and its reads, an entry can be
        gone nevertheless.
        """
        for pause_s in PAUSES_S:
            try:
                return self._refreshed(topic)
            except (DeltaError, OSError):
                self._tables.pop(topic, None)
                time.sleep(pause_s)
        return self._refreshed(topic)

    def _refreshed(self, topic: str) -> DeltaTable:
        if topic in self._tables:
            self._tables[topic].update_incremental()
        else:
            self._tables[topic] = DeltaTable(f"{self._root}/topics/{topic}")
        return self._tables[topic]

    def register(self, name: str, table: pa.Table) -> None:
        """Let queries read a table of this process."""
        self._connection.register(name, table)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows that a statement returns, on the topics as they were opened."""
        return self._connection.execute(statement).fetchall()

    def ask(self, query: str) -> Answer:
        """The answer to a query on what is in the topics now."""
        self._open_all()
        found = self._connection.execute(query)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class SparkSql:
    """Asks Spark, which reads the topics as `format("deltaq")`."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._views: Mapping[str, Callable[[], DataFrame]] = MappingProxyType(
            {
                PURCHASES: lambda: jobs.checked(jobs.messages(spark.read, root)).withColumnRenamed(
                    "timestamp", "sent"
                ),
                "latest_products": lambda: latest_by_key(spark, PRODUCTS, root, columns="table"),
                ENRICHED: lambda: jobs.table(spark, root, ENRICHED),
            }
        )

    def ask(self, query: str) -> Answer:
        """The answer to a query on what is in the topics now."""
        for name, load in self._views.items():
            # Loaded anew each time: Spark answers each query on a frame as it answered the first
            # one.
            if name in query:
                load().createOrReplaceTempView(name)
        return [row.asDict() for row in self._spark.sql(query).collect()]


def newest(answer: Answer) -> datetime | None:
    """When the newest row that an answer has seen was sent; None if it has seen none, or does not
    say.
    """
    times = [row["newest"] for row in answer if row.get("newest") is not None]
    # Spark gives local times without a zone, as Python counts them.
    return max((time.astimezone(UTC) for time in times), default=None)


def ask_all(engine: Engine, clock: ShopClock) -> dict[str, Any]:
    """Ask all queries once. Returns `ms`, how long each took, and `ages_s`: of the newest row that
    it saw.
    """
    took_ms: dict[str, float] = {}
    ages_s: dict[str, float] = {}
    for name, query in QUERIES.items():
        begun = time.perf_counter()
        answer = engine.ask(query)
        took_ms[name] = round((time.perf_counter() - begun) * 1000, 1)
        if (seen := newest(answer)) is not None:
            ages_s[name] = round(clock.age_s(seen), 3)
    return {"ms": took_ms, "ages_s": ages_s}
