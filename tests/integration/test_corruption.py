"""Damage on disk is reported with file and version, no record is skipped or made up, and a repair
ends the error.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltaq import (
    Consumer,
    Corrupt,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.store import MemoryStore
from tests.doubles.reading import next_message

COMMITS = 5
# The version that is damaged; version 0 creates the topic, so it holds offset 2 of both partitions.
VICTIM = 3


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A topic of two partitions, one record each per commit."""
    written, copied = tmp_path / "written", tmp_path / "copied"
    Topic("t", partitions=2, conf={"bootstrap.servers": str(written)}).create()
    with Producer({"bootstrap.servers": str(written), "linger.ms": 10_000}) as producer:
        for number in range(COMMITS):
            for partition in range(2):
                producer.produce("t", f"{partition}:{number}" + "x" * 200, partition=partition)
            assert producer.flush(20) == 0
    # What this process still knows of the root that it wrote it does not know of the copy: it has
    # to read it.
    shutil.copytree(written, copied)
    return copied


def entry(root: Path, version: int = VICTIM) -> Path:
    return root / "topics" / "t" / "_delta_log" / f"{version:020}.json"


def data_file(root: Path, version: int = VICTIM) -> Path:
    actions = [json.loads(line) for line in entry(root, version).read_text().splitlines()]
    (add,) = [action["add"] for action in actions if "add" in action]
    return root / "topics" / "t" / str(add["path"])


@pytest.fixture
def reader(root: Path) -> Iterator[Consumer]:
    conf = {"bootstrap.servers": str(root), "group.id": "g", "auto.offset.reset": "earliest"}
    with Consumer(conf | {"enable.auto.commit": True}) as consumer:
        yield consumer


def read_until_error(consumer: Consumer) -> tuple[list[str], Message]:
    values = []
    while (message := next_message(consumer)).error() is None:
        values.append(message.value().decode().rstrip("x"))
    return values, message


def flipped(at: Callable[[bytes], int]) -> Callable[[bytes], bytes]:
    def flip(content: bytes) -> bytes:
        position = at(content)
        return content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]

    return flip


DATA_DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "a flipped bit in a page": flipped(lambda content: content.index(b"1:2x") + 50),
    "a flipped bit in a page header": flipped(lambda content: 10),
    "a flipped bit in the footer": flipped(lambda content: len(content) - 40),
    "a flipped bit in the magic number": flipped(lambda content: len(content) - 1),
    "a truncated file": lambda content: content[: len(content) // 2],
    "one byte missing": lambda content: content[:-1],
    "one byte more": lambda content: content + b"\0",
    "an empty file": lambda content: b"",
    "another file's content": lambda content: b"PAR1 is how Parquet files begin",
    "a missing file": lambda content: None,
}

LOG_DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "empty": lambda content: b"",
    "only white space": lambda content: b"\n \n",
    "cut in the middle of a line": lambda content: content[: len(content) * 2 // 3],
    "cut at the last line": lambda content: content[: content.rindex(b"\n", 0, -1) + 1],
    "cut after the first line": lambda content: content[: content.index(b"\n") + 1],
    "without its last line break": lambda content: content[:-1],
    "a flipped bit in an offset": flipped(lambda content: content.index(b"deltaq.batches") + 20),
    "a flipped bit in the checksum": flipped(lambda content: content.index(b"crc32") + 8),
    "a flipped bit in the path": flipped(lambda content: content.index(b'"path":"') + 12),
    "not json": lambda content: b"not json\n",
    "of another writer": lambda content: b'{"commitInfo":{"operation":"WRITE"}}\n',
    "a gap": lambda content: None,
}


def damage(path: Path, how: Callable[[bytes], bytes | None]) -> bytes:
    content = path.read_bytes()
    damaged = how(content)
    assert damaged != content
    if damaged is None:
        path.unlink()
    else:
        path.write_bytes(damaged)
    return content


# --- data files ---


@pytest.mark.fault("B2", "B3")
@pytest.mark.parametrize("kind", DATA_DAMAGE)
def test_a_damaged_data_file_stops_the_consumer_at_the_damage(root, reader, kind):
    path = data_file(root)
    content = damage(path, DATA_DAMAGE[kind])
    reader.assign([TopicPartition("t", 0, 0)])
    values, message = read_until_error(reader)
    assert values == ["0:0", "0:1"]
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._BAD_MSG
    assert path.name in error.str()
    assert f"version {VICTIM}" in error.str()
    assert (message.topic(), message.partition()) == ("t", 0)
    assert reader.position([TopicPartition("t", 0)])[0].offset == 2
    assert reader.poll(0.1) is None, "nothing is skipped"

    path.write_bytes(content)
    reader.seek(TopicPartition("t", 0, 2))
    assert [next_message(reader).value().decode().rstrip("x") for _ in range(3)] == [
        "0:2",
        "0:3",
        "0:4",
    ]


@pytest.mark.fault("B2")
def test_a_damaged_file_stops_only_partitions_that_have_records_in_it(root, reader):
    with Producer(bootstrap_servers=str(root)) as producer:
        producer.produce("t", "0:5", partition=0)
        producer.flush(20)
        producer.produce("t", "1:5", partition=1)
    damage(data_file(root, COMMITS + 1), DATA_DAMAGE["a truncated file"])
    reader.assign([TopicPartition("t", 0, 5), TopicPartition("t", 1, 5)])
    first, second = next_message(reader), next_message(reader)
    by_partition = {message.partition(): message for message in (first, second)}
    assert by_partition[0].error() == KafkaError._BAD_MSG
    assert by_partition[1].value() == b"1:5"


@pytest.mark.fault("B2")
def test_nothing_past_the_damage_is_committed(root, reader):
    path = data_file(root)
    content = damage(path, DATA_DAMAGE["a flipped bit in a page"])
    reader.subscribe(["t"])
    values, first = read_until_error(reader)
    more, second = read_until_error(reader)
    assert sorted(values + more) == ["0:0", "0:1", "1:0", "1:1"]
    assert {first.partition(), second.partition()} == {0, 1}
    reader.close()
    path.write_bytes(content)
    conf = {"bootstrap.servers": str(root), "group.id": "g"}
    with Consumer(conf) as after:
        after.subscribe(["t"])
        found = sorted(next_message(after).value().decode().rstrip("x") for _ in range(6))
    assert found == ["0:2", "0:3", "0:4", "1:2", "1:3", "1:4"]


@pytest.mark.fault("B2", "B3")
@pytest.mark.parametrize("kind", DATA_DAMAGE)
def test_a_damaged_data_file_is_refused_by_the_table(root, kind):
    path = data_file(root)
    damage(path, DATA_DAMAGE[kind])
    topic = Topic("t", conf={"bootstrap.servers": str(root)})
    with pytest.raises(Corrupt) as caught:
        topic.to_arrow()
    assert path.name in caught.value.path
    assert caught.value.version == VICTIM
    assert topic.to_arrow(end=2).num_rows == 4
    assert topic.to_arrow(start=3).num_rows == 4, (
        "what lies beyond can still be had, by asking for it"
    )


@pytest.mark.fault("B4")
def test_damage_in_transit_is_read_again(root):
    path = data_file(root)
    content = path.read_bytes()
    conf = {"bootstrap.servers": str(root), "group.id": "g", "auto.offset.reset": "earliest"}
    with Consumer(conf) as consumer:
        store = consumer._store
        real_get = store.get
        damaged: list[bool] = []

        def get(key: str, size_max: int | None = None) -> bytes:
            data = real_get(key, size_max)
            if key.endswith(path.name) and not damaged:
                damaged.append(True)
                return data[:-1]
            return data

        store.get = get  # type: ignore[method-assign]  # one answer is damaged
        try:
            consumer.assign([TopicPartition("t", 0, 0)])
            assert [next_message(consumer).offset() for _ in range(COMMITS)] == [0, 1, 2, 3, 4]
        finally:
            del store.get  # the class's own again
    assert damaged
    assert path.read_bytes() == content


class DamagingStore(MemoryStore):
    """Cuts the last byte off what is read of keys with an ending, a number of times, and counts the
    readings.
    """

    ending, times, readings = "none", 0, 0

    def get(self, key: str, size_max: int | None = None) -> bytes:
        data = super().get(key, size_max)
        if not key.endswith(self.ending):
            return data
        self.readings += 1
        return data[:-1] if self.readings <= self.times else data


@pytest.mark.fault("B4")
@pytest.mark.parametrize("ending", [".parquet", f"{1:020d}.json"], ids=["data file", "log entry"])
@pytest.mark.parametrize("times", [1, 2])
def test_damage_in_transit_is_fetched_once_more_and_then_reported(ending, times):
    store = DamagingStore("damaging")
    with Producer(bootstrap_servers="memory://damaging", store=store) as producer:
        producer.produce("t", "v")
    store.ending, store.times = ending, times
    topic = Topic("t", store=store)
    if times == 1:
        assert topic.to_arrow()["value"].to_pylist() == [b"v"]
    else:
        with pytest.raises(Corrupt, match=r"\.parquet|1\.json"):
            topic.to_arrow()
    assert store.readings == 2


# --- log entries ---


@pytest.mark.fault("B1")
@pytest.mark.parametrize("kind", LOG_DAMAGE)
def test_a_damaged_log_entry_is_reported_with_its_version(root, reader, kind):
    path = entry(root)
    content = damage(path, LOG_DAMAGE[kind])
    reader.assign([TopicPartition("t", 0, 0)])
    message = next_message(reader)
    error = message.error()
    assert error is not None, "the log is checked before anything is handed out"
    assert error.code() in (KafkaError._BAD_MSG, KafkaError.UNSUPPORTED_VERSION)
    assert path.name in error.str()
    assert str(VICTIM) in error.str()
    assert reader.position([TopicPartition("t", 0)])[0].offset < 0
    path.write_bytes(content)
    found: list[int | None] = []
    while len(found) < COMMITS:
        message = next_message(reader)
        if message.error() is None:  # the error is repeated until the repair
            found.append(message.offset())
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.fault("B1")
@pytest.mark.parametrize("kind", [kind for kind in LOG_DAMAGE if kind != "a gap"])
def test_a_log_entry_that_is_damaged_while_it_is_followed_stops_the_consumer(
    root, reader, kind, tmp_path
):
    contents = {}
    for version in range(VICTIM, COMMITS + 1):
        contents[version] = entry(root, version).read_bytes()
        entry(root, version).unlink()
    reader.assign([TopicPartition("t", 0, 0)])
    assert [next_message(reader).offset() for _ in range(2)] == [0, 1]
    entry(root).write_bytes(LOG_DAMAGE[kind](contents[VICTIM]) or b"")
    message = next_message(reader)
    error = message.error()
    assert error is not None
    assert entry(root).name in error.str()
    assert reader.position([TopicPartition("t", 0)])[0].offset == 2
    for version, content in contents.items():
        entry(root, version).write_bytes(content)
    found: list[int | None] = []
    while len(found) < 3:
        message = next_message(reader)
        if message.error() is None:
            found.append(message.offset())
    assert found == [2, 3, 4]


@pytest.mark.fault("B1")
@pytest.mark.parametrize("kind", LOG_DAMAGE)
def test_a_damaged_log_entry_is_refused_by_the_table_and_by_the_producer(root, kind):
    content = damage(entry(root), LOG_DAMAGE[kind])
    with pytest.raises(KafkaException, match=entry(root).stem.lstrip("0")) as caught:
        Topic("t", conf={"bootstrap.servers": str(root)}).to_arrow()
    assert caught.value.args[0].code() in (KafkaError._BAD_MSG, KafkaError.UNSUPPORTED_VERSION)
    before = sorted(path.name for path in entry(root).parent.iterdir())
    with Producer(bootstrap_servers=str(root)) as producer:
        with pytest.raises(KafkaException):
            producer.produce("t", "v")
        assert sorted(path.name for path in entry(root).parent.iterdir()) == before
        entry(root).write_bytes(content)
        producer.produce("t", "v", partition=0)
        assert producer.flush(20) == 0
    assert Topic("t", conf={"bootstrap.servers": str(root)}).describe().next_offsets == {
        0: COMMITS + 1,
        1: COMMITS,
    }
