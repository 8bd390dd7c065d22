"""Fetching one topic: ends of partitions, files that are gone, and a store that does not answer."""

from __future__ import annotations

import pytest

from deltaq import Corrupt, Topic, Unavailable
from deltaq.consumer.fetch_buffer import PartitionEnd, StoreOutage
from deltaq.consumer.offset_reset import FetchPosition
from deltaq.parquet import segment_file
from deltaq.testing import Effect, Fault, FaultyStore, Rule
from deltaq.topics.log import TopicLog
from tests.doubles.compaction import compact
from tests.doubles.fetching import FarStore, Fetching, a_store, fill, topic_fetcher
from tests.doubles.reading import eventually


def test_an_end_is_reported_only_when_it_was_seen():
    store = FarStore(a_store())
    fill(store, 1)
    log = TopicLog(store, "t", indexed=True)
    log.load()
    ends_reported = []
    with Fetching(store, report_end=True) as fetching:
        fetcher = topic_fetcher(fetching, log, FetchPosition(1, 1))
        assert fetcher.tail.live is not None
        for is_read in (False, True):
            if is_read:
                fetcher.tail._read_entries(lambda: True)
            fetcher._fetch(fetcher.tail.live)
            ends_reported.append(fetcher.positions[0].reported_end)
    assert ends_reported == [-1, 1]


@pytest.mark.parametrize("large", [False, True])
def test_a_file_that_was_compacted_away_is_found_in_the_newest_snapshot(large, monkeypatch):
    monkeypatch.setattr(segment_file, "WHOLE_FILE_BYTES", 0 if large else 2**20)
    store = a_store()
    fill(store, 10)
    with Fetching(store, bytes_max=1, read_bytes_max=1 if large else 2**20) as fetching:
        fetching.assign(0)
        first = fetching.records(1)
        compact(store, "t")
        rest = fetching.records(9)
        assert first[0] + rest[0] == list(range(10))


@pytest.mark.fault("B3")
def test_a_lost_file_stops_the_partition_without_a_busy_loop():
    store = FaultyStore(a_store())
    fill(store, 3)
    data = [entry.key for entry in store.list("topics/t/") if entry.key.endswith(".parquet")]
    with Fetching(store) as fetching:
        fetching.assign(0)
        fetching.records(3)
        paths = [batch.path for batch in fetching.fetcher._topics["t"].tail.log.index.batches(0)]
    lost = f"topics/t/{paths[1]}"
    assert lost in data
    content = store.inner.get(lost)
    store.inner.delete(lost)
    with Fetching(store) as fetching:
        fetching.assign(0)
        assert fetching.records(1) == {0: [0]}
        error = fetching.error()
        assert isinstance(error.error, Corrupt)
        assert (error.error.path, error.error.version) == (lost, 2)
        assert "missing" in str(error.error)
        tried = store.operations["get"]
        assert fetching.fetcher.queue.first(0.2) is None
        assert store.operations["get"] < tried + 60, "only the tail is followed"
        store.inner.put(lost, content)
        fetching.fetcher.seek("t", 0, 1)
        assert fetching.records(2) == {0: [1, 2]}


def test_records_that_key_compaction_removed_leave_gaps():
    store = a_store()
    fill(store, 5, rows=2)
    compact(store, "t", keep=lambda partition, offset: offset % 3 == 0)
    with Fetching(store, report_end=True) as fetching:
        fetching.assign(1)
        assert fetching.records(3) == {0: [3, 6, 9]}
        end = fetching.next()
        assert isinstance(end, PartitionEnd)
        assert end.offset == 10


def test_a_store_outage_is_reported_once_until_it_ends():
    store = FaultyStore(a_store())
    fill(store, 1)
    with Fetching(store) as fetching:
        fetching.assign(0)
        fetching.records(1)
        for _ in range(2):
            store.effects.clear()
            store.add(Rule("get", "*", Fault.error_before(), 3))
            item = fetching.next()
            assert isinstance(item, StoreOutage)
            assert item.error.args[0].retriable()
            eventually(lambda: store.effects[Effect.ERROR_BEFORE] == 3)
            eventually(lambda: fetching.fetcher._topics["t"]._failures == 0)


def test_the_group_learns_that_a_topic_was_deleted_which_could_not_be_read_before():
    store = FaultyStore(a_store())
    fill(store, 1)
    store.add(Rule("get", "*", Fault.refused(), 1))
    with Fetching(store) as fetching:
        assert isinstance(fetching.error().error, Unavailable)
        eventually(lambda: fetching.fetcher.seen("t") is not None)
        before = fetching.fetcher.partition_counts()["t"]
        Topic("t", store=store).delete()
        eventually(lambda: fetching.fetcher.seen("t") is None)
        after = fetching.fetcher.partition_counts()["t"]
        assert before is not None
        assert after is not None
        assert (after.partitions, after.is_newer(before)) == (0, True)
