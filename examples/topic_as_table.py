"""Read a topic as a Delta table: delta-rs, another engine, reads what a producer has written,
without a copy.
"""

from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from deltaq import Producer, Topic


def main() -> None:
    """Produce clicks, and count them by page in the table."""
    with TemporaryDirectory() as root:
        Topic("clicks", partitions=3, conf={"bootstrap.servers": root}).create()
        with Producer({"bootstrap.servers": root}) as producer:
            for number in range(1_000):
                producer.produce("clicks", f"/page/{number % 7}", key=f"user-{number % 100}")

        clicks = QueryBuilder().register("clicks", DeltaTable(f"{root}/topics/clicks"))
        whole = "SELECT count(*) AS clicks, count(DISTINCT _partition) AS partitions FROM clicks"
        for row in pa.table(clicks.execute(whole)).to_pylist():
            print(f"{row['clicks']} clicks in {row['partitions']} partitions")
        by_page = "SELECT value, count(*) AS clicks FROM clicks GROUP BY value ORDER BY value"
        for row in pa.table(clicks.execute(by_page)).to_pylist():
            print(row["value"].decode(), row["clicks"])


if __name__ == "__main__":
    main()
