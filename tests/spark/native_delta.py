"""Spark's own Delta, as a program: its jars must be there when the JVM starts.

Takes one JSON object a line, {"do": operation, and its arguments}, and answers each with a line: `ANSWER` and JSON.
`tests.spark.native_spark` is its other side.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import base64, col, unix_millis

from deltaq.spark import spark_session
from examples.spark import history as history_program

ANSWER = "answer: "
"""Before each answer: Spark prints as well, when it fetches its jars."""

CONF = {
    "spark.log.level": "OFF",
    # To compile a plan takes longer than to interpret it on these few rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def rows(spark: SparkSession, table: str, *, anew: bool = True) -> list[list[object]]:
    """All rows of a table as [partition, offset, epoch milliseconds, key, value, keys of the headers], bytes as Base64.
    `anew`: without the cached table state of an earlier read."""
    if anew:
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return cells(spark.read.format("delta").load(table))


def cells(frame: DataFrame) -> list[list[object]]:
    columns = col("_partition"), col("_offset"), unix_millis("_timestamp"), base64("_key"), base64("value")
    return [list(row) for row in frame.select(*columns, col("_headers.key")).collect()]


def go_on(spark: SparkSession, table: str, scratch: str) -> None:
    """Let the stream of a table, which is kept as files in a folder, take what is new."""
    stream = spark.readStream.format("delta").option("ignoreDeletes", "true").load(table)
    started = stream.writeStream.format("parquet").option("checkpointLocation", f"{scratch}/checkpoint")
    started.trigger(availableNow=True).start(f"{scratch}/rows").awaitTermination()


def streamed(spark: SparkSession, scratch: str) -> list[list[object]]:
    """All that the stream has taken so far."""
    return cells(spark.read.parquet(f"{scratch}/rows"))


def history(spark: SparkSession, table: str) -> int:
    """How many versions Spark knows of."""
    return spark.sql(f"DESCRIBE HISTORY delta.`{table}`").count()


def history_example(spark: SparkSession, folder: str) -> str:
    """What the example `history.py` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        history_program.main(spark, folder)
    return printed.getvalue()


def keys(spark: SparkSession, table: str, conditions: list[str]) -> list[list[str]]:
    """For each SQL condition the keys of the rows that meet it, as Base64.

    Each is a query of its own, which skips files by the statistics in the log.
    """
    frame = spark.read.format("delta").load(table)
    return [[row[0] for row in frame.where(each).select(base64("_key")).collect()] for each in conditions]


def values(spark: SparkSession, table: str, expressions: list[str]) -> list[str]:
    """What aggregates of the whole table are, in Spark's words. Spark takes some of them from the statistics alone."""
    (row,) = spark.sql(f"SELECT {', '.join(expressions)} FROM delta.`{table}`").collect()
    return [str(value) for value in row]


def writes(spark: SparkSession, table: str) -> dict[str, Callable[[], object]]:
    """Every way in which Spark could change the table."""
    frame = spark.read.format("delta").load(table).limit(1)
    name = f"delta.`{table}`"

    def sql(statement: str) -> Callable[[], object]:
        return lambda: spark.sql(statement).collect()

    return {
        "append": lambda: frame.write.format("delta").mode("append").save(table),
        "overwrite": lambda: frame.write.format("delta").mode("overwrite").save(table),
        "insert": sql(f"INSERT INTO {name} SELECT * FROM {name} LIMIT 1"),
        "delete": sql(f"DELETE FROM {name} WHERE _partition = 0"),
        "update": sql(f"UPDATE {name} SET _partition = 7"),
        "merge": sql(
            f"MERGE INTO {name} t USING {name} s ON t._timestamp = s._timestamp AND t._partition = s._partition "
            "WHEN MATCHED THEN DELETE"
        ),
        "optimize": sql(f"OPTIMIZE {name}"),
        "alter": sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.appendOnly' = 'true')"),
        "restore": sql(f"RESTORE TABLE {name} TO VERSION AS OF 1"),
        "vacuum": sql(f"VACUUM {name}"),
        "drop the feature": sql(f"ALTER TABLE {name} DROP FEATURE deltaq"),
    }


def attempts(spark: SparkSession, table: str) -> dict[str, str | None]:
    """The error that each way of writing ends with; None if it had none."""
    answers: dict[str, str | None] = {}
    for name, operation in writes(spark, table).items():
        try:
            operation()
        except (PySparkException, Py4JJavaError) as error:
            answers[name] = str(error)[:2000]
        else:
            answers[name] = None
    return answers


OPERATIONS: dict[str, Callable[..., object]] = {
    operation.__name__: operation
    for operation in (rows, go_on, streamed, history, history_example, keys, values, attempts)
}


def main() -> None:
    """Do whatever is asked for."""
    spark = spark_session("native delta", native_delta=True, quick_start=True, conf=CONF)
    for line in sys.stdin:
        asked = json.loads(line)
        print(ANSWER + json.dumps(OPERATIONS[asked.pop("do")](spark, **asked)), flush=True)


if __name__ == "__main__":
    main()
