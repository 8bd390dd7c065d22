"""The history of a topic by SQL: Spark's own Delta reads its versions, and the table as it was at
each of them.
"""

from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from deltaq import Producer, Topic
from deltaq.spark import spark_session


def main(spark: SparkSession, folder: str) -> None:
    """Write messages in three commits, and print what each version has. The session needs
    `native_delta`.
    """
    root = f"{folder}/events"
    Topic("visits", bootstrap_servers=root).create()
    with Producer({"bootstrap.servers": root}) as producer:
        for day in ("monday", "tuesday", "wednesday"):
            for number in range(3):
                producer.produce("visits", f"{day} {number}")
            producer.flush()

    table = f"delta.`{root}/topics/visits`"
    for row in spark.sql(f"DESCRIBE HISTORY {table}").orderBy("version").collect():
        known = spark.sql(
            f"SELECT count(*), max(cast(value AS string)) FROM {table} VERSION AS OF {row.version}"  # noqa: S608
        )
        count, latest = known.collect()[0]
        print(f"version {row.version}: {row.operation}, {count} visits, the latest is {latest}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(spark_session("history", native_delta=True), folder)
