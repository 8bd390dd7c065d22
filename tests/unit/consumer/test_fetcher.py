"""The fetch thread: records in order, epochs, topics that come and go, and its end."""

from __future__ import annotations

import threading
import uuid
from typing import Any

from deltaq import Corrupt, Topic, UnknownTopic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.consumer.fetch_buffer import CompletedFetch
from deltaq.consumer.fetcher import PollTimer
from deltaq.names import log_entry, topic_log
from deltaq.store import MemoryStore, PollInterval
from deltaq.store.watch import SignalWatch
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from tests.doubles.fetching import Fetching, a_store, fill
from tests.doubles.reading import TIMEOUT_S, eventually


def test_records_of_each_partition_come_in_order():
    store = a_store()
    fill(store, 20, rows=3, partitions=3)
    with Fetching(store) as fetching:
        fetching.assign(0, 10, 60)
        assert fetching.records(110) == {0: list(range(60)), 1: list(range(10, 60))}
        fill(store, 1, partitions=1)


def test_polls_grow_rare_only_after_a_pause_longer_than_a_producers_linger():
    waits, clock = [], ManualClock()

    class SteadyStore(FaultyStore):
        poll_interval = PollInterval(busy_s=0.005, idle_s=0.1, steady_s=0.012)

    class Waiting:
        def wait(self, timeout_s):
            waits.append(round(timeout_s, 6))
            clock.advance(timeout_s)
            return False

    watch: Any = Waiting()
    timer = PollTimer(SteadyStore(a_store()), watch, 1.0, clock)
    for found in (True, False, False, False, False, False, True, False):
        timer.wait(found)
    assert waits == [0.005, 0.005, 0.005, 0.005, 0.0075, 0.005]


def test_records_fetched_for_an_earlier_position_are_marked():
    store = a_store()
    fill(store, 3)
    with Fetching(store) as fetching:
        fetching.assign(0)
        first = fetching.next()
        epoch = fetching.fetcher.seek("t", 0, 2)
        assert isinstance(first, CompletedFetch)
        assert first.epoch < epoch
        while (item := fetching.next()).epoch != epoch:
            pass
        assert item.fetched.first_offset == 2


def test_topics_no_longer_followed_are_ignored():
    store = a_store()
    fill(store, 2)
    with Fetching(store) as fetching:
        fetching.assign(0)
        fetching.records(2)
        fetching.fetcher.follow([])
        fetching.fetcher.pause("t", 0, True)
        fetching.fetcher.seek("t", 0, 1)
        fetching.fetcher.drop("t", 0)
        assert fetching.fetcher.seen("t") is None
        assert counts(fetching) == {}


def counts(fetching: Fetching) -> dict[str, int | None]:
    return {
        topic: None if size is None else size.partitions
        for topic, size in fetching.fetcher.partition_counts().items()
    }


def test_changes_are_counted_when_topics_come_grow_and_go():
    store = a_store()
    with Fetching(store) as fetching:
        error = fetching.error()
        assert isinstance(error.error, UnknownTopic)
        assert counts(fetching) == {"t": 0}, "does not exist"
        before = fetching.fetcher.changes
        topic = Topic("t", partitions=2, store=store).create()
        eventually(lambda: counts(fetching) == {"t": 2})
        assert fetching.fetcher.changes > before
        before = fetching.fetcher.changes
        topic.delete()
        eventually(lambda: counts(fetching) == {"t": 0})
        assert fetching.fetcher.changes > before


def test_the_number_of_partitions_is_unknown_until_the_topic_was_read():
    store = FaultyStore(a_store(), Rule("*", "topics/t/*", Fault.slow(), times=None))
    with Fetching(store) as fetching:
        eventually(lambda: store.blocked)
        assert counts(fetching) == {"t": None}
        store.clear()
        store.release()
        eventually(lambda: counts(fetching) == {"t": 0})


def test_a_topic_that_cannot_be_read_counts_as_missing():
    """A group must not wait for it: the consumer reports the damage, and its other topics are
    read.
    """
    store = a_store()
    Topic("t", partitions=2, store=store).create()
    store.put(log_entry(topic_log("t"), 0), b"{")
    with Fetching(store) as fetching:
        assert isinstance(fetching.error().error, Corrupt)
        assert counts(fetching) == {"t": 0}


def test_closing_ends_the_thread_even_while_the_budget_is_used_up():
    store = a_store()
    fill(store, 5, size=1000)
    fetching = Fetching(store, bytes_max=1)
    fetching.assign(0)
    eventually(lambda: fetching.fetcher.queue.room <= 0)
    done = threading.Thread(target=fetching.fetcher.close)
    done.start()
    done.join(TIMEOUT_S)
    assert not done.is_alive()


def test_an_abandoned_fetcher_ends_by_itself_and_releases_its_watch():
    watches: list[CountedWatch] = []

    class CountedWatch(SignalWatch):
        closed = 0

        def __init__(self) -> None:
            super().__init__(SYSTEM_CLOCK)
            watches.append(self)

        def close(self) -> None:
            self.closed += 1
            super().close()

    class Watched(MemoryStore):
        def watch(self) -> SignalWatch:
            return CountedWatch()

    Fetching(Watched(uuid.uuid4().hex)).fetcher.abandon()
    eventually(lambda: [watch.closed for watch in watches] == [1])
