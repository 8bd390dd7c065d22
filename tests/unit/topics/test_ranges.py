"""Reading ranges of offsets from a remote store: several files at once, in order, also while they
are replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import Corrupt
from deltaq.maintenance.run import Maintenance
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.store import MemoryStore
from deltaq.store.parallel import REQUESTS_MAX
from deltaq.topics import ranges
from deltaq.topics.log import TopicLog
from deltaq.topics.ranges import TooLarge
from deltaq.topics.scan import Fetched

FILES = 40


class RemoteStore(MemoryStore):
    """A store in memory whose answers seem to take long."""

    is_remote = True

    def __init__(self) -> None:
        super().__init__("remote")
        self.fetched: list[str] = []

    def get(self, key: str, size_max: int | None = None) -> bytes:
        if key.endswith(".parquet"):
            self.fetched.append(key)
        return super().get(key, size_max)


@pytest.fixture
def store() -> RemoteStore:
    return RemoteStore()


@pytest.fixture
def topic(store: RemoteStore) -> Topic:
    """A topic of two partitions in forty files."""
    topic = Topic("t", partitions=2, config={"retention.ms": -1}, store=store).create()
    conf = {
        "bootstrap.servers": "memory://remote",
        "linger.ms": 60_000,
        "maintenance.enable": False,
    }
    with Producer(conf, store=store) as producer:
        for number in range(FILES):
            for partition in (0, 1):
                producer.produce(topic, b"%d" % number, partition=partition)
            producer.flush()
    store.fetched.clear()
    return topic


def _values(batches: Iterator[pa.RecordBatch]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {0: [], 1: []}
    for batch in batches:
        for row in batch.to_pylist():
            assert row["_offset"] == len(found[row["_partition"]])
            found[row["_partition"]].append(int(row["value"]))
    return found


EXPECTED = {0: list(range(FILES)), 1: list(range(FILES))}


def test_each_file_is_fetched_once_and_in_order(topic: Topic, store: RemoteStore) -> None:
    assert _values(topic.to_batches()) == EXPECTED
    assert len(store.fetched) == len(set(store.fetched)) == FILES


def test_no_more_files_are_requested_than_are_allowed_at_once(
    topic: Topic, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = topic.to_batches()
    next(batches)
    assert len(store.fetched) == REQUESTS_MAX
    store.fetched.clear()
    monkeypatch.setattr(ranges, "BYTES_AT_ONCE", 1)
    one_by_one = topic.to_batches()
    next(one_by_one)
    assert len(store.fetched) == 1
    assert _values(topic.to_batches()) == EXPECTED


def test_files_that_are_merged_meanwhile_are_read_in_their_new_places(
    topic: Topic, store: RemoteStore
) -> None:
    batches = topic.to_batches()
    found = _values(iter([next(batches)]))
    before = [entry.key for entry in store.list("topics/t/") if entry.key.endswith(".parquet")]
    Maintenance(store, settings=MaintenanceSettings(clean_up_grace_s=0)).round()
    for key in before:
        store.delete(key)
    for batch in batches:
        for row in batch.to_pylist():
            assert row["_offset"] == len(found[row["_partition"]])
            found[row["_partition"]].append(int(row["value"]))
    assert found == EXPECTED


def test_a_lost_file_ends_the_reading_where_it_was(topic: Topic, store: RemoteStore) -> None:
    keys = [entry.key for entry in store.list("topics/t/") if entry.key.endswith(".parquet")]
    store.delete(keys[0])
    with pytest.raises(Corrupt, match="data file is missing"):
        _values(topic.to_batches())


# --- in pieces ---


def _log(store: RemoteStore) -> TopicLog:
    log = TopicLog(store, "t", SYSTEM_CLOCK, indexed=True)
    log.load()
    return log


def _in_pieces(
    log: TopicLog, store: RemoteStore, decoded_max: int = 2**31
) -> Iterator[Fetched | TooLarge]:
    return ranges.read_in_pieces(store, log, {0: (0, FILES), 1: (0, FILES)}, decoded_max)


def _rows(parts: Iterator[Fetched | TooLarge]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        assert isinstance(part, Fetched)
        yield part.rows


def test_pieces_are_all_records_in_order(topic: Topic, store: RemoteStore) -> None:
    assert _values(_rows(_in_pieces(_log(store), store))) == EXPECTED
    assert len(store.fetched) == FILES


def test_pieces_are_found_in_their_new_places_when_files_are_merged(
    topic: Topic, store: RemoteStore
) -> None:
    parts = _in_pieces(_log(store), store)
    first = next(parts)
    before = [entry.key for entry in store.list("topics/t/") if entry.key.endswith(".parquet")]
    Maintenance(store, settings=MaintenanceSettings(clean_up_grace_s=0)).round()
    for key in before:
        store.delete(key)
    assert _values(_rows(iter([first, *parts]))) == EXPECTED


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_piece_of_a_large_file_is_a_row_group(store: RemoteStore, is_compacted: bool) -> None:
    config = {"retention.ms": -1, "cleanup.policy": "compact,delete" if is_compacted else "delete"}
    topic = Topic("t", config=config, store=store).create()
    conf = {
        "bootstrap.servers": "memory://remote",
        "linger.ms": 60_000,
        "maintenance.enable": False,
    }
    with Producer(conf, store=store) as producer:
        for number in range(FILES):
            producer.produce(topic, b"%d " % number + os.urandom(200_000), key=b"%d" % number)
            producer.flush()
    Maintenance(store, settings=MaintenanceSettings(clean_up_grace_s=0)).round()
    log = _log(store)
    sizes = [file.segment.size for file in log.index.files.values()]
    assert max(sizes) > 2**21, "there is a merged file of several row groups"
    parts = list(ranges.read_in_pieces(store, log, {0: (3, FILES - 2)}, 2**22))
    values = [row["value"] for batch in _rows(iter(parts)) for row in batch.to_pylist()]
    assert [int(value.split(b" ")[0]) for value in values] == list(range(3, FILES - 2))
    assert max(batch.nbytes for batch in _rows(iter(parts))) < 2**22


def test_row_groups_that_are_too_large_are_passed_over(store: RemoteStore) -> None:
    topic = Topic("t", store=store).create()
    conf = {
        "bootstrap.servers": "memory://remote",
        "maintenance.enable": False,
        "compression.type": "zstd",
    }
    with Producer(conf, store=store) as producer:
        for size in (1, 900_000, 1):
            producer.produce(topic, b"x" * size)
            producer.flush()
    parts = list(ranges.read_in_pieces(store, _log(store), {0: (0, 3)}, 100_000))
    assert [part.next_offset for part in parts if isinstance(part, Fetched)] == [1, 3]
    (left_out,) = [part for part in parts if isinstance(part, TooLarge)]
    assert (left_out.partition, left_out.start, left_out.end) == (0, 1, 2)
    assert left_out.bytes > 900_000
