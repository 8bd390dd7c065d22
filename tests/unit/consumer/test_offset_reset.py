"""Where a partition is read from: stored offsets, the ends of the log, and offsets that are not in
it.
"""

from __future__ import annotations

import threading

import pytest

from deltaq import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    OffsetOutOfRange,
    Topic,
)
from deltaq.consumer import tail
from deltaq.consumer.fetch_buffer import PartitionEnd
from deltaq.consumer.offset_reset import FetchPosition
from deltaq.message import OFFSET_TAIL_BASE
from deltaq.names import log_entry, topic_log
from deltaq.testing import FaultyStore
from deltaq.topics.log import TopicLog
from tests.doubles.fetching import FarStore, Fetching, a_store, fill, topic_fetcher


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("wanted", [OFFSET_END, OFFSET_TAIL_BASE - 5, OFFSET_STORED])
def test_a_position_at_the_end_waits_until_the_end_of_a_log_that_is_far_ahead_was_seen(
    wanted, far, monkeypatch
):
    monkeypatch.setattr(tail, "ENTRIES_AT_ONCE", 4)
    store = FarStore(a_store()) if far else a_store()
    fill(store, 1)
    log = TopicLog(store, "t", indexed=True)
    log.load()
    with Fetching(store, reset="latest") as fetching:
        fetcher = topic_fetcher(fetching, log, FetchPosition(wanted, 1, paused=True))
        fill(store, 20)
        rounds = 0
        while fetcher.positions[0].offset < 0:
            fetcher.tail.ask_anew()
            fetcher.advance()
            rounds += 1
        assert rounds > 1, "it was seen in one look: nothing is tested"
        end = log.live_head.next_offsets[0]
        assert end == 21
        assert fetcher.positions[0].offset == (end - 5 if wanted == OFFSET_TAIL_BASE - 5 else end)


def test_committed_offsets_are_looked_up_for_all_partitions_at_once():
    store = a_store()
    fill(store, 4, partitions=3)
    with Fetching(store, stored={0: 3, 2: 1}) as fetching:
        fetching.assign(OFFSET_INVALID, OFFSET_INVALID, OFFSET_INVALID)
        assert fetching.records(1 + 4 + 3) == {0: [3], 1: [0, 1, 2, 3], 2: [1, 2, 3]}
        assert fetching.asked == [[0, 1, 2]]


def test_records_removed_by_retention_are_reported():
    store = a_store()
    fill(store, 4)
    for reset, expected in (("earliest", "reset"), ("error", "told")):
        with Fetching(store, reset=reset) as fetching:
            fetching.assign(99)
            if expected == "reset":
                assert fetching.records(4) == {0: [0, 1, 2, 3]}
            else:
                error = fetching.error()
                assert error.error.args[0] == KafkaError._AUTO_OFFSET_RESET
                assert error.offset == 99
                reason = str(
                    OffsetOutOfRange(topic="t", partition=0, requested=99, earliest=0, latest=4)
                    .args[0]
                    .str()
                )
                assert error.error.args[0].str() == reason


@pytest.mark.parametrize(
    ("reset", "expected"),
    [("earliest", [0, 1, 2]), ("latest", [0, 1, 2])],
    ids=["earliest", "latest"],
)
def test_a_topic_that_came_later_has_only_new_records(reset, expected):
    store = a_store()
    with Fetching(store, reset=reset) as fetching:
        fetching.assign(OFFSET_INVALID)
        fetching.error()
        fill(store, 3)
        assert fetching.records(3) == {0: expected}


def test_a_committed_offset_of_a_topic_that_was_created_again_is_looked_up_in_the_new_one():
    """The thread is just about to see the end of the old topic when the partition is assigned."""
    fill(a := a_store(), 1)
    with Fetching(store := FaultyStore(a), stored={0: 2}) as fetching:
        fetching.assign(OFFSET_BEGINNING)
        assert fetching.records(1) == {0: [0]}
        get, assigned = store.get, threading.Event()

        def slow_get(key: str, size_max: int | None = None) -> bytes:
            if key == log_entry(topic_log("t"), 2) and not assigned.is_set():
                Topic("t", store=a).delete()
                fill(a, 4)
                fetching.assign(OFFSET_STORED)
                assigned.set()
            return get(key, size_max)

        store.get = slow_get  # type: ignore[method-assign]  # the moment that matters
        assert fetching.records(2) == {0: [2, 3]}
        assert assigned.is_set()


def test_latest_and_logical_offsets():
    store = a_store()
    fill(store, 5)
    for offset, expected in (
        (OFFSET_END, []),
        (OFFSET_BEGINNING, [0, 1, 2, 3, 4]),
        (-2003, [2, 3, 4]),
    ):
        with Fetching(store, reset="latest", report_end=True) as fetching:
            fetching.assign(offset)
            if expected:
                assert fetching.records(len(expected)) == {0: expected}
            assert isinstance(fetching.next(), PartitionEnd)
