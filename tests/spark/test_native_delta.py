"""Spark's own Delta on a topic: it reads the same rows; whatever it tries to write is refused and
changes nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from deltaq import Producer, Topic
from tests.spark.native_spark import NativeRow, NativeSpark

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROWS = 3000
PLAIN_ROWS = 600


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("native") / "root"


@pytest.fixture(scope="module")
def topic(root: Path) -> Topic:
    """A topic with a few commits of random records, tombstones and headers among them, and commits
    of plain records, whose files deltaq encodes itself.
    """
    conf = {"bootstrap.servers": str(root)}
    chance = random.Random(3)
    topic = Topic("events", partitions=4, conf=conf).create()
    with Producer(conf) as producer:
        for number in range(ROWS):
            value = None if number % 97 == 0 else chance.randbytes(chance.randrange(200))
            headers: list[tuple[str, str | bytes | None]] | None
            headers = [("h", b"1"), ("i", None)] if number % 5 == 0 else None
            producer.produce(
                "events",
                value,
                key=b"%d" % (number % 40),
                timestamp=1 + number * 1000,
                headers=headers,
            )
            if number % 1000 == 999:
                producer.flush()
        for number in range(PLAIN_ROWS):
            key = b"%d" % number if number >= 200 else None
            producer.produce(
                "events", chance.randbytes(number % 200), key=key, timestamp=1 + number
            )
            if number % 200 == 199:
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
def refused(
    native: NativeSpark, folder: Path, log_before: dict[str, bytes]
) -> Mapping[str, str | None]:
    """What each way of writing ended with."""
    return native.attempts(folder)


def log_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "_delta_log").glob("*.json")}


def rows_of(topic: Topic) -> Iterator[NativeRow]:
    """What the topic's own reader says of it, with the offsets left out, as they are in the
    files.
    """
    for row in topic.to_arrow().to_pylist():
        headers = (
            None if row["_headers"] is None else tuple(header["key"] for header in row["_headers"])
        )
        time = round(row["_timestamp"].timestamp() * 1000)
        yield NativeRow(row["_partition"], None, time, row["_key"], row["value"], headers)


def test_the_topic_has_files_of_both_encoders(folder: Path, topic: Topic) -> None:
    assert topic.to_arrow().num_rows == ROWS + PLAIN_ROWS
    writers = Counter(
        pq.read_metadata(file).created_by.split()[0] for file in folder.glob("*.parquet")
    )
    assert writers.keys() >= {"deltaq", "parquet-cpp-arrow"}, (
        "a refused write of Spark may have left others"
    )
    assert writers["deltaq"] >= 3


def test_native_delta_reads_the_same_rows(native: NativeSpark, topic: Topic, folder: Path) -> None:
    found = native.rows(folder)
    assert len(found) == ROWS + PLAIN_ROWS
    assert sorted(found, key=repr) == sorted(rows_of(topic), key=repr)


def test_native_delta_streams_the_topic_and_knows_its_history(
    native: NativeSpark, topic: Topic, folder: Path, log_before: dict[str, bytes], tmp_path: Path
) -> None:
    native.go_on(folder, tmp_path)
    assert sorted(native.streamed(tmp_path), key=repr) == sorted(rows_of(topic), key=repr)
    assert native.history(folder) == len(log_before)


@pytest.mark.fault("W1", "W2", "W3", "W5")
@pytest.mark.parametrize(
    "operation",
    [
        "append",
        "overwrite",
        "insert",
        "delete",
        "update",
        "merge",
        "optimize",
        "alter",
        "restore",
        "vacuum",
    ],
)
def test_every_change_by_native_delta_is_refused(
    refused: Mapping[str, str], operation: str
) -> None:
    assert "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE" in refused[operation]


@pytest.mark.fault("W4")
def test_native_delta_cannot_take_the_protection_off(refused: Mapping[str, str]) -> None:
    assert "DELTA_FEATURE_DROP_UNSUPPORTED_CLIENT_FEATURE" in refused["drop the feature"]


@pytest.mark.fault("W1", "W2", "W3", "W4")
def test_refused_attempts_leave_log_and_rows_as_they_were(
    native: NativeSpark,
    topic: Topic,
    folder: Path,
    refused: Mapping[str, str],
    log_before: dict[str, bytes],
) -> None:
    assert all(refused.values())
    assert log_of(folder) == log_before
    assert sorted(native.rows(folder), key=repr) == sorted(rows_of(topic), key=repr)
