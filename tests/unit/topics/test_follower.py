"""One follower per topic and process: what its readers share, and what they do not have to wait
for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import Any

import pytest

from deltaq import Consumer, Corrupt, Producer, TopicPartition, Unavailable
from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import InvalidConfig, UnknownTopic
from deltaq.names import log_entry, topic_log
from deltaq.store import MemoryStore, Store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.topics import follower
from deltaq.topics.follower import RECENT_S, Polled, TopicReader, topic_reader
from deltaq.topics.log import TopicLog
from tests.doubles.reading import eventually
from tests.doubles.written_topic import RowToWrite, WrittenTopic
from tests.simulator.world import World

LOG = topic_log("t")
INTERVAL_S = 0.2  # the longest between two polls of a simulated store


class CountedStore:
    """A store that counts the requests for objects of topics."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.requests: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def counted(*arguments: Any, **keywords: Any) -> Any:
            if arguments and str(arguments[0]).startswith("topics/"):
                self.requests[name] += 1
            return found(*arguments, **keywords)

        return counted


def requests_of_an_idle_minute(consumers: int) -> Counter[str]:
    """What a process with a producer and consumers of one topic requests of it in a minute without
    records.
    """
    conf = {"bootstrap.servers": "s3://unused/"}
    with World(seed=1, preempt=0.0) as world:
        world.network.latency_s, world.network.signals = 0.0, False
        machine = world.machine("m")
        store: Any = CountedStore(machine.store)

        def run() -> Counter[str]:
            clock = machine.clock
            with Producer(
                {**conf, "maintenance.enable": False}, store=store, clock=clock
            ) as producer:
                producer.produce("t", b"first", partition=0)
                producer.flush(10)
                readers = []
                for number in range(consumers):
                    config = {**conf, "group.id": f"g{number}", "auto.offset.reset": "earliest"}
                    reader = Consumer(
                        {**config, "maintenance.enable": False}, store=store, clock=clock
                    )
                    reader.assign([TopicPartition("t", 0)])
                    clock.sleep(0.07)  # they do not poll at the same moments by themselves
                    readers.append(reader)
                for reader in readers:
                    message = reader.poll(10)
                    assert message is not None
                    assert message.value() == b"first"
                clock.sleep(150)
                store.requests.clear()
                clock.sleep(60)
                found = Counter(store.requests)
                for reader in readers:
                    reader.close()
                return found

        return world.run(run, machine)


@pytest.mark.parametrize("consumers", [1, 3])
def test_consumers_of_a_quiet_topic_in_one_process_request_as_much_as_one(consumers):
    """Where an answer takes no time: one read of the next slot per interval, and one listing that
    looks for a gap.
    """
    assert requests_of_an_idle_minute(consumers) == {"get_impatient": 60 / INTERVAL_S, "list": 1}


@pytest.fixture
def topic() -> WrittenTopic:
    return WrittenTopic(MemoryStore("test"), ManualClock(auto_advance=True))


def two_readers(topic: WrittenTopic, store: Store | None = None) -> tuple[TopicReader, TopicReader]:
    first, second = (topic_reader(store or topic.store, "t", topic.clock) for _ in range(2))
    first.open()
    second.open()
    return first, second


def test_readers_of_one_process_hold_the_same_index(topic):
    topic.append(RowToWrite(b"a"))
    first, second = two_readers(topic)
    assert first.index is second.index
    assert topic_reader(topic.store, "u", topic.clock).index is not first.index
    other_process = FaultyStore(topic.store)
    assert topic_reader(other_process, "t", topic.clock).view is not first.view


def test_a_follower_ends_with_its_last_reader(topic):
    topic.append(RowToWrite(b"a"))
    reader = topic_reader(topic.store, "t", topic.clock)
    reader.open()
    del reader
    assert topic_reader(topic.store, "t", topic.clock).version == -1


def test_a_snapshot_stays_as_it_is_while_its_follower_goes_on(topic):
    topic.append(RowToWrite(b"a"))
    first, second = two_readers(topic)
    before = first.view
    files = dict(before.index.files)
    topic.append(RowToWrite(b"b"))
    topic.maintain(merge_files=2)
    assert second.catch_up()
    assert second.view is not before
    assert (first.view, dict(first.index.files)) == (before, files)
    assert second.index.files == topic.fresh_log().index.files


def test_the_end_that_another_reader_found_counts_only_since_the_wait_began(topic):
    topic.append(RowToWrite(b"a"))
    store = CountedStore(topic.store)
    first, second = two_readers(topic, store)
    began = second.polls
    assert first.poll(first.polls) is Polled.END
    store.requests.clear()
    assert second.poll(began) is Polled.END
    assert not store.requests
    assert second.poll(second.polls) is Polled.END
    assert store.requests == {"get_impatient": 2}, "the next entry, in the log and in its archive"


def test_entries_that_another_reader_found_are_taken_over_without_a_request(topic):
    topic.append(RowToWrite(b"a"))
    store = CountedStore(topic.store)
    first, second = two_readers(topic, store)
    topic.append(RowToWrite(b"b"))
    assert first.poll(first.polls) is Polled.FULL
    store.requests.clear()
    assert second.poll(second.polls) is Polled.SHARED
    assert (second.version, not store.requests) == (first.version, True)


def test_a_reader_takes_over_what_was_read_while_a_request_of_another_hangs(topic):
    topic.append(RowToWrite(b"a"))
    faulty = FaultyStore(topic.store)
    first, _, late = (topic_reader(faulty, "t", SYSTEM_CLOCK) for _ in range(3))
    first.open()
    topic.append(RowToWrite(b"b"))
    first.poll(first.polls)
    faulty.add(Rule("get", f"{LOG}*", Fault.hang(), times=1))

    def poll() -> None:
        with contextlib.suppress(Unavailable):
            first.poll(first.polls)

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        eventually(lambda: faulty.blocked == 1)
        assert late.version == -1
        assert late.poll(late.polls) is Polled.SHARED
        assert late.version == first.version
    finally:
        faulty.release()
        polling.join(20)


def test_a_commit_that_hangs_keeps_no_reader_of_the_process_from_reading(topic):
    topic.append(RowToWrite(b"a"))
    faulty = FaultyStore(topic.store)
    reader, writer = topic_reader(faulty, "t", SYSTEM_CLOCK), TopicLog(faulty, "t", SYSTEM_CLOCK)
    reader.open()
    segment = topic.upload(RowToWrite(b"late"))
    writer.load()
    faulty.add(Rule("create", f"{LOG}*", Fault.hang(), times=1))
    topic_id = writer.live_head.topic_id
    writing = threading.Thread(
        target=lambda: writer.append(lambda: [segment], topic_id, SYSTEM_CLOCK.monotonic() + 20)
    )
    writing.start()
    try:
        eventually(lambda: faulty.blocked == 1)
        before = reader.version
        topic.append(RowToWrite(b"of another process"))
        assert reader.catch_up()
        assert reader.version == before + 1
    finally:
        faulty.release()
        writing.join(20)


def test_what_was_read_before_an_error_is_published_and_nothing_else(topic):
    topic.append(RowToWrite(b"a"))
    faulty = FaultyStore(topic.store)
    first, second = two_readers(topic, faulty)
    before = first.version
    topic.append(RowToWrite(b"b"))
    topic.append(RowToWrite(b"c"))
    faulty.add(Rule("get", log_entry(LOG, before + 2), Fault.error_before(), times=1))
    with pytest.raises(Unavailable):
        first.catch_up()
    assert second.poll(second.polls) is Polled.SHARED
    assert second.version == before + 1
    assert second.catch_up()
    assert second.version == before + 2


def test_a_load_that_failed_half_way_leaves_the_last_snapshot_to_all(topic):
    topic.append(RowToWrite(b"a"))
    faulty = FaultyStore(topic.store)
    first, second = two_readers(topic, faulty)
    before = first.view
    faulty.add(Rule("get", log_entry(LOG, 1), Fault.error_before(), times=1))
    with pytest.raises(Unavailable):
        first.load()
    assert topic_reader(faulty, "t", topic.clock).view is before
    topic.append(RowToWrite(b"b"))
    assert second.catch_up()
    assert second.index.files == topic.fresh_log().index.files


def test_a_topic_that_is_created_again_is_read_by_all(topic):
    topic.append(RowToWrite(b"a"))
    first, second = two_readers(topic)
    old = first.live_head.topic_id
    topic.log.delete(topic.clock.monotonic() + 60)
    assert not first.catch_up()
    with pytest.raises(UnknownTopic):
        _ = first.live_head
    topic.log.create(
        2, topic.log.delta_log.state.metadata.schema_string, {}, topic.clock.monotonic() + 60
    )
    assert second.catch_up()
    assert (second.live_head.topic_id != old, second.live_head.next_offsets) == (True, (0, 0))
    assert dict(second.index.files) == {}


def test_a_reader_loads_the_log_unless_the_process_has_read_it_just_now():
    topic = WrittenTopic(MemoryStore("test"), clock := ManualClock())
    store = CountedStore(topic.store)
    first = topic_reader(store, "t", clock)
    first.open()
    topic.append(RowToWrite(b"a"))
    for seconds, loads in ((RECENT_S, False), (0.001, True)):
        clock.advance(seconds)
        store.requests.clear()
        topic_reader(store, "t", clock).open()
        # Otherwise one look at the newest entry, which shows that the log is still the same.
        assert (dict(store.requests) != {"get_range": 1}) is loads


def test_a_new_reader_reads_a_log_that_replaced_the_one_read_just_now():
    store, clock = MemoryStore("test"), ManualClock(auto_advance=True)
    before = WrittenTopic(store, clock)
    before.append(RowToWrite(b"gone"))
    before.append(RowToWrite(b"gone too"))
    earlier = topic_reader(store, "t", clock)
    earlier.open()
    for entry in list(store.list("")):
        store.delete(entry.key)
    WrittenTopic(store, clock).append(RowToWrite(b"new"))
    later = topic_reader(store, "t", clock)
    later.open()
    assert later.live_head.topic_id != earlier.live_head.topic_id
    assert (earlier.version, later.version) == (2, 1)


def test_a_quiet_log_is_listed_once_for_all_readers_and_a_gap_is_reported(topic):
    topic.append(RowToWrite(b"a"))
    store = CountedStore(topic.store)
    first, second = two_readers(topic, store)
    topic.append(RowToWrite(b"lost"))
    topic.append(RowToWrite(b"c"))
    topic.store.delete(log_entry(LOG, first.version + 1))
    topic.clock.advance(1.0)
    for reader in (first, second):
        assert reader.poll(reader.polls) is Polled.END
        with pytest.raises(Corrupt, match="later ones exist"):
            reader.check_quiet()
    topic.store.put(log_entry(LOG, first.version + 1), b"{}")
    with pytest.raises(Corrupt):
        first.check_quiet()


def test_a_forked_process_begins_with_followers_of_its_own(topic):
    topic.append(RowToWrite(b"a"))
    reader = topic_reader(topic.store, "t", topic.clock)
    reader.open()
    follower._forget_followers()
    assert topic_reader(topic.store, "t", topic.clock).version == -1
    assert reader.catch_up()


def test_a_topic_of_another_case_is_refused_each_time_and_never_taken_over(topic):
    """As on a store that folds case, where `T` opens the folder of `t`."""
    topic.append(RowToWrite(b"a"))
    store = topic.store
    reader = topic_reader(store, "T", topic.clock)
    reader.open()
    for entry in list(store.list("topics/t/")):
        store.put("topics/T/" + entry.key.removeprefix("topics/t/"), store.get(entry.key))
    for look in (reader.load, lambda: reader.poll(reader.polls), reader.open):
        with pytest.raises(InvalidConfig, match="differs only in case"):
            look()
        assert reader.version == -1
