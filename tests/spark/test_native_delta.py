"""Spark's own Delta on a topic: it reads the same rows; whatever it tries to write is refused and changes nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaq import Producer, Topic

pytestmark = pytest.mark.spark

ROWS = 3000
PROGRAM = Path(__file__).with_name("native_delta.py")
DELTA_IN_MAVEN_CENTRAL = (
    "https://repo1.maven.org/maven2/io/delta/delta-spark_4.2_2.13/4.4.0/delta-spark_4.2_2.13-4.4.0.pom"
)
"""Not the repository's root: a mirror may refuse to list that and have the files nevertheless."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native") / "root"


@pytest.fixture(scope="module")
def topic(root: Path) -> Topic:
    """A topic with a few commits of random records, tombstones and headers among them."""
    conf = {"bootstrap.servers": str(root)}
    chance = random.Random(3)
    topic = Topic("events", partitions=4, conf=conf).create()
    with Producer(conf) as producer:
        for number in range(ROWS):
            value = None if number % 97 == 0 else chance.randbytes(chance.randrange(200))
            headers: list[tuple[str, str | bytes | None]] | None
            headers = [("h", b"1"), ("i", None)] if number % 5 == 0 else None
            producer.produce("events", value, key=b"%d" % (number % 40), timestamp=1 + number * 1000, headers=headers)
            if number % 1000 == 999:
                producer.flush()
    return topic


@pytest.fixture(scope="module")
def folder(root: Path, topic: Topic) -> Path:
    """The topic's table on disk."""
    return root / "topics" / topic.name


@pytest.fixture(scope="module")
def log_before(folder: Path) -> dict[str, bytes]:
    return log_of(folder)


@pytest.fixture(scope="module")
def found(
    folder: Path,
    log_before: dict[str, bytes],
    child_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What the program found."""
    need_the_jars()
    scratch = tmp_path_factory.mktemp("found")
    program = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), str(scratch)],
        env=child_environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert program.returncode == 0, program.stderr
    answer: dict[str, Any] = json.loads((scratch / "found.json").read_text())
    return answer


def need_the_jars() -> None:
    """Spark fetches Delta's jars from Maven Central and keeps them; without either there is nothing to test."""
    if any(Path.home().glob(".ivy2*/jars/io.delta_delta-spark_4.2_2.13-4.4.0.jar")):
        return
    try:
        urllib.request.urlopen(DELTA_IN_MAVEN_CENTRAL, timeout=10).close()
    except (urllib.error.URLError, OSError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer too, and holds the connection
        pytest.skip(reason=f"needs the jars of Delta, and {DELTA_IN_MAVEN_CENTRAL} does not answer: {error}")


def log_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "_delta_log").glob("*.json")}


def checksum(rows: Iterable[tuple[object, ...]]) -> str:
    return hashlib.sha256(repr(sorted(rows, key=repr)).encode()).hexdigest()


def expected_rows(topic: Topic) -> Iterator[tuple[object, ...]]:
    for row in topic.to_arrow().to_pylist():
        headers = None if row["_headers"] is None else [header["key"] for header in row["_headers"]]
        yield row["_partition"], round(row["_timestamp"].timestamp() * 1000), row["_key"], headers, row["value"]


def rows_of(found: list[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for row in found:
        value = None if row["value"] is None else base64.b64decode(row["value"])
        yield row["_partition"], row["_timestamp"], base64.b64decode(row["_key"]), row["_headers"], value


def test_native_delta_reads_the_same_rows_with_the_same_checksum(topic: Topic, found: dict[str, Any]) -> None:
    assert len(found["rows"]) == ROWS
    assert checksum(rows_of(found["rows"])) == checksum(expected_rows(topic))


def test_native_delta_streams_the_topic_and_knows_its_history(
    found: dict[str, Any], log_before: dict[str, bytes]
) -> None:
    assert found["stream"] == ROWS
    assert found["history"] == len(log_before)


@pytest.mark.fault("W1", "W2", "W3", "W5")
@pytest.mark.parametrize(
    "operation",
    ["append", "overwrite", "insert", "delete", "update", "merge", "optimize", "alter", "restore", "vacuum"],
)
def test_whatever_native_delta_tries_to_change_is_refused(found: dict[str, Any], operation: str) -> None:
    assert "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE" in found["refused"][operation]


@pytest.mark.fault("W4")
def test_native_delta_cannot_take_the_protection_off(found: dict[str, Any]) -> None:
    assert "DELTA_FEATURE_DROP_UNSUPPORTED_CLIENT_FEATURE" in found["refused"]["drop the feature"]


@pytest.mark.fault("W1", "W2", "W3", "W4")
def test_refused_attempts_leave_log_and_rows_as_they_were(
    topic: Topic, folder: Path, found: dict[str, Any], log_before: dict[str, bytes]
) -> None:
    assert log_of(folder) == log_before
    assert checksum(rows_of(found["rows afterwards"])) == checksum(expected_rows(topic))
