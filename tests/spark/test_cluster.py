"""Spark with a root on an object store: a standalone cluster that doubles nothing and shows no
secret, and views whose state Spark keeps there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from deltaq import Topic
from deltaq.store import open_store
from tests.servers.local_server import HOST
from tests.servers.spark import SparkMaster, SparkWorker
from tests.spark.cluster_job import COPY, TOTALS
from tests.spark.maven_central import need_jar

pytestmark = [pytest.mark.spark, pytest.mark.s3_server, pytest.mark.long, pytest.mark.timeout(400)]

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/spark-cluster.md"
ROWS = 20_000
DEADLINE_S = 300  # half a minute on a machine of its own
KILLED = "exitStatus 137"
"""What a worker notes of an executor that SIGKILL has ended."""


@dataclass
class Cluster:
    """A master with two workers of one core each."""

    master: SparkMaster
    workers: tuple[SparkWorker, ...]

    def said(self) -> str:
        """All that its processes have said, executors included."""
        executors = [path for worker in self.workers for path in worker.data.glob("app-*/*/std*")]
        assert executors
        return "".join(
            [
                self.master.said(),
                *(w.said() for w in self.workers),
                *(p.read_text() for p in executors),
            ]
        )


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        master = stack.enter_context(SparkMaster())
        yield Cluster(master, tuple(stack.enter_context(SparkWorker(master)) for _ in range(2)))


def jars_of_the_guide() -> dict[str, str]:
    """The settings of the guide with which Spark fetches Hadoop's S3 client."""
    blocks = (part.partition("```")[0] for part in GUIDE.read_text().split("```properties\n")[1:])
    (block,) = (block for block in blocks if "spark.jars.packages" in block)
    lines = (line.partition("  ") for line in block.splitlines())
    return {name: value.strip() for name, _, value in lines}


def object_store_conf() -> dict[str, str]:
    """The settings with which Spark uses the object store of the tests."""
    need_jar(
        "org.apache.hadoop",
        "hadoop-aws",
        jars_of_the_guide()["spark.jars.packages"].split(",")[0].split(":")[2],
    )
    hadoop = {
        "endpoint": os.environ["AWS_ENDPOINT_URL"],
        "endpoint.region": os.environ["AWS_REGION"],
        "path.style.access": "true",
        "access.key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }
    return jars_of_the_guide() | {
        f"spark.hadoop.fs.s3a.{name}": value for name, value in hadoop.items()
    }


def conf_of(cluster: Cluster, events: Path) -> dict[str, str]:
    """A small application on the cluster, with the checkpoint's file system and a log of all its
    events and plans.
    """
    return {
        "spark.master": cluster.master.url,
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        **object_store_conf(),
    }


@pytest.mark.fault("P3", "K5")
def test_a_cluster_streams_each_row_once_though_an_executor_is_killed_and_shows_no_secret(
    cluster: Cluster, s3_server_root: str, child_environment: dict[str, str], tmp_path: Path
) -> None:
    marker, events = tmp_path / "killed", tmp_path / "events"
    events.mkdir()
    bucket_and_prefix = s3_server_root.removeprefix("s3://")
    keys = {"access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    names = {"endpoint": "AWS_ENDPOINT_URL", "region": "AWS_REGION", **keys}
    job = {
        "conf": conf_of(cluster, events),
        "root": s3_server_root,
        "options": {f"store.{name}": os.environ[variable] for name, variable in names.items()},
        "checkpoint": f"s3a://{bucket_and_prefix}/checkpoints",
        "marker": str(marker),
        "rows": ROWS,
    }
    # Only what the job is given reaches the store.
    environment = {
        name: value for name, value in child_environment.items() if not name.startswith("AWS_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.cluster_job"],
        input=json.dumps(job),
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    numbers = range(ROWS)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer == {"read": [ROWS, sum(numbers)], "micro-batches": [[ROWS // 4] * 4, [ROWS]]}

    copied = Topic(COPY, bootstrap_servers=s3_server_root).to_arrow()["value"].to_pylist()
    assert Counter(copied) == Counter(b"%d" % number for number in numbers)
    totals = Topic(TOTALS, bootstrap_servers=s3_server_root).to_arrow()["value"].to_pylist()
    assert [json.loads(total) for total in totals] == [
        {"count(1)": ROWS, "sum(value)": sum(numbers)}
    ]
    noted = {entry.key for entry in open_store(s3_server_root).list("checkpoints/")}
    assert {f"checkpoints/{COPY}/commits/3", f"checkpoints/{TOTALS}/commits/0"} <= noted
    assert any("/state/" in key for key in noted)

    said = done.stdout + done.stderr + cluster.said()
    assert marker.exists()
    assert KILLED in said
    logged = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart" in logged
    for variable in keys.values():
        assert os.environ[variable] not in said + logged, f"{variable} is shown"


def test_views_over_a_root_on_an_object_store_are_those_of_spark_and_duckdb(
    s3_server_root: str, child_environment: dict[str, str]
) -> None:
    local = {
        "spark.master": "local[2]",
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.sql.shuffle.partitions": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.views_job"],
        input=json.dumps({"conf": local | object_store_conf(), "root": s3_server_root}),
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[0, 0]] * 3
