"""Damage on disk: an error that names the file and the version, and not one record skipped or made up."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from deltaq import Consumer, Corrupt, KafkaError, Producer, Topic, TopicPartition

COMMITS = 5
PER_COMMIT = 50


@pytest.fixture
def root(tmp_path) -> str:
    """A topic of one partition in five commits; record n says n."""
    root = str(tmp_path / "root")
    with Producer({"bootstrap.servers": root}) as producer:
        for number in range(COMMITS * PER_COMMIT):
            producer.produce("events", b"%d" % number)
            if number % PER_COMMIT == PER_COMMIT - 1:
                producer.flush()
    return root


def data_file_of(root: str, version: int) -> Path:
    """The data file that a version added, as another reader of the log finds it."""
    entry = Path(root, f"topics/events/_delta_log/{version:020d}.json").read_text()
    (path,) = [line["add"]["path"] for line in map(json.loads, entry.splitlines()) if "add" in line]
    return Path(root, "topics/events", path)


def read_until_error(consumer: Consumer) -> tuple[list[bytes], KafkaError]:
    values: list[bytes] = []
    for _ in range(COMMITS * PER_COMMIT + 1):
        message = consumer.poll(20)
        assert message is not None, "neither a record nor an error came"
        if (error := message.error()) is not None:
            return values, error
        values.append(message.value())
    raise AssertionError("the damage was not noticed")


def flip(data: bytes) -> bytes:
    middle = len(data) // 3
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


DAMAGES = {
    "a flipped bit in a page": flip,
    "a truncated file": lambda data: data[:-20],
    "a file cut in half": lambda data: data[: len(data) // 2],
    "an empty file": lambda data: b"",
    "a missing file": None,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_data_file_stops_the_partition_with_an_error_that_names_it_and_nothing_is_skipped(damage, root):
    path = data_file_of(root, 3)
    sound = path.read_bytes()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(sound))
    with Consumer({"bootstrap.servers": root, "group.id": uuid.uuid4().hex}) as consumer:
        consumer.assign([TopicPartition("events", 0, 0)])
        values, error = read_until_error(consumer)
        assert values == [b"%d" % number for number in range(2 * PER_COMMIT)]
        assert error == KafkaError._BAD_MSG
        assert path.name in error.str()
        assert "version 3" in error.str()
        (position,) = consumer.position([TopicPartition("events", 0)])
        assert position.offset == 2 * PER_COMMIT
        # Mended, it goes on where it stopped.
        path.write_bytes(sound)
        consumer.seek(TopicPartition("events", 0, position.offset))
        rest = consumer.consume(3 * PER_COMMIT, 20)
        assert [message.value() for message in rest] == [
            b"%d" % number for number in range(2 * PER_COMMIT, COMMITS * PER_COMMIT)
        ]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_data_file_makes_the_table_an_error_too(damage, root):
    path = data_file_of(root, 3)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    topic = Topic("events", conf={"bootstrap.servers": root})
    with pytest.raises(Corrupt) as caught:
        topic.to_arrow()
    assert caught.value.path is not None
    assert caught.value.path.endswith(path.name)
    assert caught.value.version == 3
    assert topic.to_arrow(end=2 * PER_COMMIT).num_rows == 2 * PER_COMMIT


LOG_DAMAGES = {
    "an empty entry": lambda data: b"",
    "an entry cut in a line": lambda data: data[: len(data) - 40],
    "an entry cut between lines": lambda data: data[: data.index(b"\n") + 1],
    "a changed digit": lambda data: data.replace(b'"rows\\":50', b'"rows\\":51'),
    "a missing entry": None,
}


@pytest.mark.parametrize("damage", LOG_DAMAGES.values(), ids=LOG_DAMAGES.keys())
def test_a_damaged_log_entry_stops_readers_and_writers_with_an_error_that_names_it(damage, root):
    path = Path(root, f"topics/events/_delta_log/{3:020d}.json")
    sound = path.read_bytes()
    if damage is None:
        path.unlink()
    else:
        assert damage(sound) != sound
        path.write_bytes(damage(sound))
    with Consumer({"bootstrap.servers": root, "group.id": uuid.uuid4().hex}) as consumer:
        consumer.assign([TopicPartition("events", 0, 0)])
        values, error = read_until_error(consumer)
        assert values == [b"%d" % number for number in range(len(values))]
        assert len(values) in (0, 2 * PER_COMMIT)
        assert error == KafkaError._BAD_MSG
        assert path.name in error.str()
        assert "version 3" in error.str()
    with pytest.raises(Corrupt, match=path.name):
        Topic("events", conf={"bootstrap.servers": root}).to_arrow()
    before = sorted(entry.name for entry in path.parent.iterdir())
    with Producer({"bootstrap.servers": root}) as producer, pytest.raises(Corrupt, match=path.name):
        producer.produce("events", b"one more")
    assert sorted(entry.name for entry in path.parent.iterdir()) == before, "nothing was written into a damaged log"
