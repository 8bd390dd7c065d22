"""The main example: what it computes, and that a pipeline which is killed loses nothing and doubles
nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltaq import Topic
from examples.timezone_etl.layout import CLOCKS, DATE_FORMAT, UNIFIED
from examples.timezone_etl.pipeline import unify
from tests.doubles.produced_tables import Produce

MESSAGES = 50_000
START = datetime(2024, 2, 5, 15, 1, 52, 884_548, UTC)
DEADLINE_S = 300  # a minute on a machine of its own, several beside other tests on a slow one
TOO_LATE = "Python worker failed to connect back"
DEMO = Path(__file__).resolve().parents[2] / "examples/timezone_etl/demo.py"


def readings(zone: ZoneInfo, numbers: range) -> list[bytes]:
    """Messages of a clock, one each 7.001 ms, so that every fraction of a millisecond occurs."""
    dates = (
        (START + number * timedelta(microseconds=7001)).astimezone(zone).strftime(DATE_FORMAT)
        for number in numbers
    )
    return [
        json.dumps({"date": date, "message": str(number)}).encode()
        for date, number in zip(dates, numbers, strict=True)
    ]


def unified(root: str) -> list[tuple[float, str]]:
    table = Topic(UNIFIED, bootstrap_servers=root).to_arrow()
    return sorted(zip(table["timestamp"].to_pylist(), table["message"].to_pylist(), strict=True))


def expected(numbers: range) -> list[tuple[float, str]]:
    epoch_us = round(START.timestamp() * 1_000_000)
    return sorted(((epoch_us + number * 7001) / 1000, str(number)) for number in numbers)


def count(root: str) -> int:
    topic = Topic(UNIFIED, bootstrap_servers=root)
    return (
        sum(partition.next_offset for partition in topic.describe().partitions)
        if topic.exists()
        else 0
    )


@contextmanager
def pipeline(
    root: str, checkpoint: Path, log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The pipeline, with its JVM and workers in a process group that is killed without warning at
    the end.
    """
    command = [
        sys.executable,
        "-m",
        "examples.timezone_etl.pipeline",
        "--root",
        root,
        "--checkpoint",
        str(checkpoint),
    ]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, "--max-offsets", str(MESSAGES // 10)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_until(
    reached: Callable[[], bool], root: str, folder: Path, environment: dict[str, str]
) -> None:
    """Run the pipeline until that is so, and kill it.

    Spark gives each new Python worker ten seconds, whatever else the machine does. A pipeline that
    ends because one came too late is started again, as a supervisor would do.
    """
    log = folder / "pipeline.log"
    until = time.monotonic() + DEADLINE_S
    while not reached():
        with pipeline(root, folder / "checkpoint", log, environment) as process:
            while process.poll() is None and not reached():
                assert time.monotonic() < until, log.read_text()
                time.sleep(0.25)  # each look opens the topic
        said = log.read_text()
        log.unlink()
        assert reached() or TOO_LATE in said, said


@pytest.mark.spark
@pytest.mark.timeout(DEADLINE_S)
def test_both_clocks_are_merged_with_microseconds_kept(
    spark: SparkSession, root: str, produce: Produce, tmp_path: Path
) -> None:
    chance = random.Random(0)
    split = chance.randrange(1, 999)
    for numbers, (topic, zone) in zip(
        (range(split), range(split, 1000)), CLOCKS.items(), strict=True
    ):
        produce(topic, readings(zone, numbers))
    query = unify(spark, root, str(tmp_path / "checkpoint"), 1000, available_now=True)
    query.awaitTermination()
    assert unified(root) == expected(range(1000))
    schema = Topic(UNIFIED, bootstrap_servers=root).describe().schema
    assert schema is not None
    assert schema.arrow.remove_metadata() == pa.schema(
        [("timestamp", pa.float64()), ("message", pa.string())]
    )


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(2 * DEADLINE_S + 60)
def test_a_pipeline_killed_in_the_middle_yields_each_message_exactly_once(
    root: str, produce: Produce, tmp_path: Path, child_environment: dict[str, str]
) -> None:
    half = MESSAGES // 2

    def write(numbers: range) -> None:
        for first, (topic, zone) in zip((0, half), CLOCKS.items(), strict=True):
            produce(topic, readings(zone, range(first + numbers.start, first + numbers.stop)))

    write(range(half // 2))
    starts = iter(range(half // 2, half, half // 10))
    seen = 0

    def reached(messages: int) -> bool:
        """Whether the pipeline has come so far. After each micro-batch, more is written while the
        pipeline runs.
        """
        nonlocal seen
        before, seen = seen, count(root)
        for start in itertools.islice(starts, int(seen > before)):
            write(range(start, start + half // 10))
        return seen >= messages

    run_until(lambda: reached(MESSAGES // 3), root, tmp_path, child_environment)
    assert MESSAGES // 3 <= count(root) < MESSAGES
    run_until(lambda: reached(MESSAGES), root, tmp_path, child_environment)
    assert unified(root) == expected(range(MESSAGES))


@pytest.mark.spark
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize(
    "place",
    [None, pytest.param("s3_server_root", marks=pytest.mark.s3_server)],
    ids=["in a folder", "on an S3 server"],
)
@pytest.mark.long
def test_concurrent_programs_end_with_the_same_file(
    place: str | None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    child_environment: dict[str, str],
) -> None:
    root = [] if place is None else ["--root", request.getfixturevalue(place)]
    demo = subprocess.run(
        [sys.executable, str(DEMO), "--messages", "5", "--interval", "0", *root],
        cwd=tmp_path,
        env={**child_environment, **os.environ, "PYTHONPATH": child_environment["PYTHONPATH"]},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "results | waiting for timezone_unified" in demo.stdout
    header, *rows = (tmp_path / "results.csv").read_text().splitlines()
    assert header == "timestamp,message,partition,offset"
    assert sorted(row.split(",")[1] for row in rows) == ["0", "1", "2", "3", "4"]
    assert [row.split(",")[3] for row in rows] == ["0", "1", "2", "3", "4"]
    assert demo.stdout.endswith((tmp_path / "results.csv").read_text())
