"""Tasks in a process that has only the packages of the dependency group `executor`, besides Spark's
own.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

from deltaq import Topic
from deltaq.spark.data_source import DeltaqDataSource
from tests.doubles.produced_tables import Produce

PROJECT = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())
EXECUTOR = PROJECT["dependency-groups"]["executor"]

PROGRAM = """
import importlib.abc, pickle, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
reader, partitions, writer = pickle.load(sys.stdin.buffer)
rows = [batch for partition in partitions for batch in reader.read(partition)]
message = writer.write(iter([batch.select(["key", "value"]) for batch in rows]))
sys.stdout.buffer.write(pickle.dumps(message))
"""


def distribution(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0]


def modules_that_executors_lack() -> set[str]:
    """The modules of all that deltaq needs, may need, or that those need, but for the group's and
    Spark's.
    """
    extras = PROJECT["project"]["optional-dependencies"].values()
    optional = {distribution(of) for extra in extras for of in extra} | {"numpy"}
    wanted = (
        {distribution(of) for of in PROJECT["project"]["dependencies"]}
        | optional
        | {"pydantic_core"}
    )
    present = {distribution(of) for of in EXECUTOR} | {"pyspark"}
    of_distribution = {"delta-spark": "delta"}
    return {of_distribution.get(name, name.replace("-", "_")) for name in wanted - present}


def test_the_group_has_the_bounds_of_the_package() -> None:
    assert set(EXECUTOR) < set(PROJECT["project"]["dependencies"])


@pytest.mark.slow
def test_tasks_run_with_the_packages_of_the_group_alone(root: str, produce: Produce) -> None:
    produce("orders", [b"1", b"2", b"3"])
    lacking = modules_that_executors_lack()
    assert {"pydantic", "pandas", "delta", "minio"} <= lacking
    source = DeltaqDataSource({"path": root, "subscribe": "orders"})
    reader = source.reader(source.schema())
    columns = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
    writer = DeltaqDataSource({"path": root, "topic": "copy"}).writer(columns, overwrite=False)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(sorted(lacking))],
        input=cloudpickle.dumps((reader, reader.partitions(), writer)),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    writer.commit([cloudpickle.loads(done.stdout)])
    assert Topic("copy", bootstrap_servers=root).to_arrow()["value"].to_pylist() == [
        b"1",
        b"2",
        b"3",
    ]
