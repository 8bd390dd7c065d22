"""A topic as a table: of each key the newest record, as key compaction would leave it in the
end.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql.functions import col, row_number

from deltaq.errors import InvalidConfig
from deltaq.names import check_topic
from deltaq.spark.columns import OF_TABLE, is_of_table, quoted
from deltaq.spark.native import read_topic

_RANK = "__rank"
_WHICH_RECORDS = ("subscribe", "assign", "starting", "ending")
"""How the options begin that choose records."""


def latest_by_key(
    spark: SparkSession, topic: str, path: str | None = None, **options: object
) -> DataFrame:
    """The newest record of each key of a topic, for joins; without keys whose newest record is a
    tombstone.

    `path`, `options`, the columns and the moment are those of `read_topic`; options that choose
    records are refused. Compaction may lag behind as far as it likes. Records without a key are
    left out.

    Of the records of a key in one partition, the one with the highest offset is the newest. A key
    is in several partitions if their number was raised, or if producers choose partitions. Of the
    newest ones there, the one with the highest timestamp counts, and of equal timestamps the one in
    the highest partition. Raises InvalidConfig, KafkaException.
    """
    for name in options:
        if name.lower().startswith(_WHICH_RECORDS):
            raise InvalidConfig(
                f"{name} chooses records, not the newest of each key: omit it, or use read_topic",
                key=name,
            )
    rows = read_topic(spark, check_topic(topic), path, **options)
    of_table = is_of_table(rows.schema)
    names = ("key", "partition", "offset", "timestamp")
    key, partition, offset, timestamp = (OF_TABLE[name] for name in names) if of_table else names
    values = [name for name in rows.columns if not name.startswith("_")] if of_table else ["value"]

    # A row number lets Spark keep one row of each key before it exchanges them, and read only the
    # columns it needs.
    keyed = rows.where(col(key).isNotNull())
    of_partitions = _first(keyed, (key, partition), (col(offset).desc(),))
    newest = _first(of_partitions, (key,), (col(timestamp).desc(), col(partition).desc()))
    return newest.where(reduce(Column.__or__, (col(quoted(name)).isNotNull() for name in values)))


def _first(rows: DataFrame, by: tuple[str, ...], order: tuple[Column, ...]) -> DataFrame:
    """The first row of each group."""
    rank = row_number().over(Window.partitionBy(*by).orderBy(*order))
    return rows.withColumn(_RANK, rank).where(col(_RANK) == 1).drop(_RANK)
