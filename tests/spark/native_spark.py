"""Spark's own Delta: what it reads of a topic's table, and how it tries to write to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, unix_millis

__all__ = ["NativeRow", "NativeSpark"]


class NativeRow(NamedTuple):
    """A row as Spark sees it. `offset` is None where the file leaves it out; `headers` are their
    keys.
    """

    partition: int
    offset: int | None
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[str, ...] | None


class NativeSpark:
    """`format("delta")` and SQL on topics, in a session with Delta's jars."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def rows(self, table: str | Path, *, anew: bool = True) -> list[NativeRow]:
        """All rows of a table. `anew`: without the cached table state of an earlier read."""
        if anew:
            jvm = self._spark.sparkContext._jvm
            assert jvm is not None
            jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        return list(_rows(self._read(table)))

    def go_on(self, table: str | Path, scratch: Path) -> None:
        """Let the stream of a table that keeps what it has in the folder `scratch` take what is
        new.
        """
        stream = (
            self._spark.readStream.format("delta").option("ignoreDeletes", "true").load(str(table))
        )
        started = stream.writeStream.format("parquet").option(
            "checkpointLocation", f"{scratch}/checkpoint"
        )
        started.trigger(availableNow=True).start(f"{scratch}/rows").awaitTermination()

    def streamed(self, scratch: Path) -> list[NativeRow]:
        """All that this stream has taken."""
        return list(_rows(self._spark.read.parquet(f"{scratch}/rows")))

    def history(self, table: Path) -> int:
        """How many versions of a table Spark knows of."""
        return self._spark.sql(f"DESCRIBE HISTORY delta.`{table}`").count()

    def keys(self, table: str | Path, condition: str) -> list[bytes]:
        """The keys of the rows that meet an SQL condition; Spark skips files by the statistics in
        the log.
        """
        return [
            bytes(row["_key"])
            for row in self._read(table).where(condition).select("_key").collect()
        ]

    def values(self, table: str | Path, expressions: list[str]) -> list[str]:
        """What aggregates of the whole table are, in Spark's words. Some it takes from the
        statistics alone.
        """
        (row,) = self._spark.sql(f"SELECT {', '.join(expressions)} FROM delta.`{table}`").collect()
        return [str(value) for value in row]

    def attempts(self, table: Path) -> dict[str, str | None]:
        """The error that each way of writing to a table ends with; None if it had none."""
        answers: dict[str, str | None] = {}
        for name, operation in self._writes(table).items():
            try:
                operation()
            except (PySparkException, Py4JJavaError) as error:
                answers[name] = str(error)[:2000]
            else:
                answers[name] = None
        return answers

    def _writes(self, table: Path) -> dict[str, Callable[[], object]]:
        frame = self._read(table).limit(1)
        name = f"delta.`{table}`"

        def sql(statement: str) -> Callable[[], object]:
            return lambda: self._spark.sql(statement).collect()

        return {
            "append": lambda: frame.write.format("delta").mode("append").save(str(table)),
            "overwrite": lambda: frame.write.format("delta").mode("overwrite").save(str(table)),
            "insert": sql(f"INSERT INTO {name} SELECT * FROM {name} LIMIT 1"),
            "delete": sql(f"DELETE FROM {name} WHERE _partition = 0"),
            "update": sql(f"UPDATE {name} SET _partition = 7"),
            "merge": sql(
                f"MERGE INTO {name} t USING {name} s ON t._timestamp = s._timestamp AND "
                "t._partition = s._partition WHEN MATCHED THEN DELETE"
            ),
            "optimize": sql(f"OPTIMIZE {name}"),
            "alter": sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.appendOnly' = 'true')"),
            "restore": sql(f"RESTORE TABLE {name} TO VERSION AS OF 1"),
            "vacuum": sql(f"VACUUM {name}"),
            "drop the feature": sql(f"ALTER TABLE {name} DROP FEATURE deltaq"),
        }

    def _read(self, table: str | Path) -> DataFrame:
        return self._spark.read.format("delta").load(str(table))


def _rows(frame: DataFrame) -> Iterator[NativeRow]:
    columns = (
        col("_partition"),
        col("_offset"),
        unix_millis("_timestamp"),
        col("_key"),
        col("value"),
    )
    for partition, offset, timestamp_ms, key, value, headers in frame.select(
        *columns, col("_headers.key")
    ).collect():
        yield NativeRow(
            partition,
            offset,
            timestamp_ms,
            _bytes(key),
            _bytes(value),
            None if headers is None else tuple(headers),
        )


def _bytes(cell: bytearray | None) -> bytes | None:
    return None if cell is None else bytes(cell)
