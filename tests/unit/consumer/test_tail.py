"""Following a log: how many entries are asked for at a time, and gaps in a quiet log."""

from __future__ import annotations

import pytest

from deltaq import OFFSET_END, Corrupt
from deltaq.clock import SYSTEM_CLOCK
from deltaq.consumer.offset_reset import FetchPosition
from deltaq.consumer.tail import TopicTail
from deltaq.consumer.topic_fetcher import TopicFetcher
from deltaq.names import log_entry, topic_log
from deltaq.store.parallel import REQUESTS_MAX
from deltaq.topics.follower import topic_reader
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import TopicDefinition, definition_of
from deltaq.topics.state import TopicChange
from tests.doubles.fetching import (
    FarStore,
    Fetching,
    NotedLog,
    a_store,
    fill,
    reader_of,
    topic_fetcher,
)


def looks_until_the_end(fetcher: TopicFetcher, log: NotedLog) -> list[list[int]]:
    """What each turn asks for, until one sees the end of the log."""
    turns: list[list[int]] = []
    while not turns or fetcher.tail._full_reads:
        log.asked = []
        fetcher.tail.ask_anew()
        fetcher.tail._read_entries(fetcher._needs_end)
        turns.append(log.asked)
    return turns


@pytest.mark.parametrize(
    ("settings", "offset", "turns"),
    [
        ({}, 0, [[[1], [1]], [[1], [1], [1], [2]], [[1], [1], [1], [2], [4], [8], [8, 8]], [[8]]]),
        ({"report_end": True}, 0, [[[1, 1]], [[1, 1, 2]], [[3, 1, 2, 4, 8, 8, 8]], [[8]]]),
        ({}, OFFSET_END, [[[1, 1]], [[1, 1, 2]], [[3, 1, 2, 4, 8, 8, 8]], [[8]]]),
        ({}, 1000, [[[1, 1]], [[1, 1, 2]], [[3, 1, 2, 4, 8, 8, 8]], [[8]]]),
    ],
    ids=["records", "ends", "a position at the end", "a position beyond what is known"],
)
def test_a_far_store_delivers_records_before_it_is_polled_unless_the_end_is_needed(
    settings, offset, turns
):
    store = FarStore(a_store())
    fill(store, 1)
    log = NotedLog(store, "t", indexed=True)
    log.load()
    with Fetching(store, **settings) as fetching:
        fetcher = topic_fetcher(fetching, log, FetchPosition(offset, 1))
        for grown, looks in zip((1, 3, 30, 0), turns, strict=True):
            fill(store, grown)
            before = log.version
            assert looks_until_the_end(fetcher, log) == looks
            assert log.version == before + grown


@pytest.mark.parametrize("far", [True, False])
def test_a_far_store_is_asked_for_as_many_entries_as_came_last_time(far):
    store = FarStore(a_store()) if far else a_store()
    fill(store, 1)
    log = NotedLog(store, "t", indexed=True)
    log.load()
    following = TopicTail(reader_of(log), store, SYSTEM_CLOCK)
    looks = []
    for grown in (3, 3, 3, 0, 1, 20):
        fill(store, grown)
        log.asked, before = [], log.version
        following.ask_anew()
        following._read_entries(lambda: True)
        assert log.version == before + grown
        looks.append(log.asked)
    if far:
        assert looks == [
            [1, 1, 2],
            [3, 1],
            [3, 1],
            [3],
            [1, 1],
            [1, 1, 2, 4, REQUESTS_MAX, REQUESTS_MAX],
        ]
    else:
        assert looks == [[1] * (grown + 1) for grown in (3, 3, 3, 0, 1, 20)]


def test_appends_keep_the_definition_of_a_topic_and_every_other_change_replaces_it():
    store = a_store()
    fill(store, 1)
    tail = TopicTail(topic_reader(store, "t"), store, SYSTEM_CLOCK)
    writer = TopicLog(store, "t")
    deadline = SYSTEM_CLOCK.monotonic() + 60.0
    changes = (
        lambda: fill(store, 1),
        lambda: writer.change(
            lambda head, _: TopicChange(head.partitions, {"deltaq.retention.ms": "7000"}), deadline
        ),
        lambda: writer.change(lambda _head, _: TopicChange(3, {}), deadline),
        lambda: writer.delete(deadline),
        lambda: fill(store, 1),
    )
    seen: list[TopicDefinition | None] = []
    for change in (lambda: None, *changes):
        change()
        tail.ask_anew()
        assert tail.advance(lambda: True) or not seen
        tail.publish()
        written = TopicLog(store, "t")
        exists = written.load()
        assert (tail.live is not None) == exists
        seen.append(tail.live.definition if tail.live is not None else None)
        assert seen[-1] == (definition_of(written) if exists else None)
        writer.catch_up()
    first, appended, with_settings, grown, deleted, created_again = seen
    assert first is not None
    assert appended is first, "it is not parsed for each append"
    assert with_settings is not None
    assert with_settings.settings.retention_ms == 7000
    assert grown is not None
    assert grown.partitions == 3
    assert deleted is None
    assert created_again is not None
    assert created_again.topic_id != first.topic_id


@pytest.mark.fault("B1")
def test_a_gap_in_the_log_of_a_quiet_topic_is_found():
    store = a_store()
    fill(store, 2)
    with Fetching(store) as fetching:
        fetching.assign(0)
        fetching.records(2)
        head = log_entry(topic_log("t"), 2)
        store.put(log_entry(topic_log("t"), 5), store.get(head))
        error = fetching.error()
        assert isinstance(error.error, Corrupt)
        assert error.error.version == 3
        assert "later ones exist" in str(error.error)
