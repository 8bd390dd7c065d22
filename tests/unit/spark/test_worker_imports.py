"""What the processes load that Spark starts for a query: each one only what it runs, and collects
no garbage in it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.children import with_pandas

SPARK = """
import sys
import pyspark.sql.worker.plan_data_source_read, pyspark.sql.worker.write_into_data_source
import pyspark.sql.streaming.python_streaming_source_runner, pyspark.sql.worker.python_streaming_sink_runner
from pyspark.sql.types import BinaryType, StructField, StructType
before = set(sys.modules)
from pyspark_deltaq import DefaultSource
"""  # noqa: E501
READ = "source = DefaultSource({'path': './unused', 'subscribe': 't'})"
WRITE = "source = DefaultSource({'path': './unused', 'topic': 't'})"
COLUMNS = "StructType([StructField('value', BinaryType())])"

CLIENTS = {
    f"deltaq.{name}" for name in ("admin", "consumer", "maintenance", "producer.producer", "topic")
}
HEAVY = {"deltalake", "delta", "duckdb", "minio", "obstore", "pydantic", "pyspark.sql.connect"}
ONLY_OF_DRIVERS = {
    f"deltaq.spark.{name}"
    for name in ("interpreter", "latest", "native", "progress", "session", "upsert")
}
SOURCE, SINK = "deltaq.spark.source", "deltaq.spark.sink"
RECORDS = {"deltaq.delta", "deltaq.parquet", "deltaq.store", "deltaq.topics", SOURCE, SINK}
"""What only a process needs that reads or writes records."""


def loaded_by(program: str) -> set[str]:
    """The modules that a process of Spark loads on top of Spark's own."""
    source = f"{SPARK}{program}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=True,
        env=with_pandas(),
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("program", "loads", "loads_not"),
    [
        ("", "deltaq.spark.data_source", {"deltaq.config", "pandas", "pyarrow.parquet", *RECORDS}),
        (
            f"{READ}; source.schema()",
            "deltaq.spark.kafka_columns",
            {"pandas", "pyarrow.parquet", *RECORDS},
        ),
        (f"{READ}; source.reader(source.schema())", SOURCE, {SINK, "pandas"}),
        (f"{READ}; source.streamReader(source.schema())", SOURCE, {SINK, "pandas"}),
        (f"{WRITE}; source.writer({COLUMNS}, False)", SINK, {SOURCE}),
        (f"{WRITE}; source.streamWriter({COLUMNS}, False)", SINK, {SOURCE}),
    ],
)
def test_a_process_of_spark_loads_only_what_it_runs(
    program: str, loads: str, loads_not: set[str]
) -> None:
    loaded = loaded_by(program)
    assert loads in loaded
    assert loaded & (CLIENTS | HEAVY | ONLY_OF_DRIVERS | loads_not) == set()


def test_the_processes_that_name_the_columns_of_kafka_need_no_arrow() -> None:
    program = f"""
import pyspark.sql.worker.create_data_source, sys
from pyspark_deltaq import DefaultSource
{READ}
source.schema()
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert {"pyarrow", "numpy"} & set(done.stdout.split()) == set()


@pytest.mark.parametrize(
    ("main", "loaded", "frozen"),
    [
        ("pyspark.daemon", "", True),
        (None, "import pyspark.daemon", True),
        ("a.program", "", False),
        (None, "", False),
    ],
)
def test_only_a_worker_keeps_what_it_has_loaded_out_of_its_collections(
    main: str | None, loaded: str, frozen: bool
) -> None:
    program = f"""
{loaded}
import __main__, gc, importlib.machinery
from deltaq.spark.worker_memory import freeze_loaded
__main__.__spec__ = {main!r} and importlib.machinery.ModuleSpec({main!r}, None)
{WRITE}; source.writer({COLUMNS}, False)
print(gc.get_freeze_count() > 10_000)
"""
    source = f"{SPARK}{program}"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{frozen}\n"
