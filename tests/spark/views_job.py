"""Two views in Spark over a root on an object store, as a program: Spark, DuckDB and Spark again
publish a tick each.

Its input is JSON: `conf` of the session, and `root`. The last line of its output is JSON: by tick
the total of all balances, and how many views differ from their SQL.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa

from deltaq import Producer, Topic
from deltaq.spark import run_views, spark_session
from deltaq.views import Views

TRANSFERS = pa.schema([("source", pa.int64()), ("target", pa.int64()), ("amount", pa.int64())])
ACCOUNTS = 7


def bank(root: str) -> Views:
    views = Views("bank", root)
    both = (
        "select target as account, amount from transfers "
        "union all select source, -amount from transfers"
    )
    views.view("balance", f"select account, sum(amount) as b from ({both}) group by account")
    views.view("total", "select sum(b) as total from balance")
    return views


def transfer(root: str, rows: range) -> None:
    with Producer({"bootstrap.servers": root}) as producer:
        for row in rows:
            value = {"source": row % ACCOUNTS, "target": row * 3 % ACCOUNTS, "amount": row}
            producer.produce("transfers", value)


def main(given: dict[str, Any]) -> None:
    root, found = given["root"], []
    Topic("transfers", TRANSFERS, bootstrap_servers=root).create()
    spark = spark_session("views", conf=given["conf"])
    for number, engine in enumerate(("spark", "duckdb", "spark")):
        transfer(root, range(100 * number, 100 * number + 100))
        views = bank(root)
        if engine == "spark":
            run_views(spark, views, until="now")
        else:
            views.run(until="now")
        (total,) = views.read()["total"].to_arrow()["total"].to_pylist()
        found.append((int(total), len(views.check())))
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.load(sys.stdin))
