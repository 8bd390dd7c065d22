"""What Spark's own Delta makes of a topic, as a program: its jars must be there when the JVM starts.

Prints a JSON object: {"rows": [...], "stream": count, "history": count, "refused": {operation: text of the error}}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import base64, col, unix_millis

from deltaq.spark import spark_session


def rows(spark: SparkSession, table: str) -> list[dict[str, object]]:
    """All rows; bytes as Base64, times as epoch milliseconds."""
    frame = spark.read.format("delta").load(table)
    columns = [
        col("_partition"),
        unix_millis("_timestamp").alias("_timestamp"),
        base64("_key").alias("_key"),
        col("_headers.key").alias("_headers"),
        base64("value").alias("value"),
    ]
    return [row.asDict() for row in frame.select(columns).collect()]


def streamed(spark: SparkSession, table: str, checkpoint: str) -> int:
    """How many rows a stream of the table has."""
    query = (
        spark.readStream.format("delta")
        .load(table)
        .writeStream.format("memory")
        .queryName("streamed")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table("streamed").count()


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


def attempts(operations: dict[str, Callable[[], object]]) -> dict[str, str | None]:
    """The error that each operation ends with; None if it had none."""
    answers: dict[str, str | None] = {}
    for name, operation in operations.items():
        try:
            operation()
        except (PySparkException, Py4JJavaError) as error:
            answers[name] = str(error)[:2000]
        else:
            answers[name] = None
    return answers


def main(table: str, scratch: str) -> None:
    """Read the table, try to change it, and tell."""
    spark = spark_session("native delta", native_delta=True, conf={"spark.log.level": "OFF"})
    found = {
        "rows": rows(spark, table),
        "stream": streamed(spark, table, f"{scratch}/checkpoint"),
        "history": spark.sql(f"DESCRIBE HISTORY delta.`{table}`").count(),
        "refused": attempts(writes(spark, table)),
        "rows afterwards": rows(spark, table),
    }
    Path(scratch, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
