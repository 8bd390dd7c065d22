"""Read a topic as a Delta table: delta-rs, another engine, reads what a producer has written,
without a copy.
"""

from tempfile import TemporaryDirectory

import pyarrow.compute as pc
from deltalake import DeltaTable

from deltaq import Producer, Topic


def main() -> None:
    """Produce clicks, and count them by page in the table."""
    with TemporaryDirectory() as root:
        Topic("clicks", partitions=3, conf={"bootstrap.servers": root}).create()
        with Producer({"bootstrap.servers": root}) as producer:
            for number in range(1_000):
                producer.produce("clicks", f"/page/{number % 7}", key=f"user-{number % 100}")

        table = DeltaTable(f"{root}/topics/clicks").to_pyarrow_table()
        print(
            f"{table.num_rows} clicks in {len(set(table.column('_partition').to_pylist()))} "
            "partitions"
        )
        for row in pc.value_counts(table.column("value")).to_pylist():
            print(row["values"].decode(), row["counts"])


if __name__ == "__main__":
    main()
