"""A reader of old records need not know the end of the log, and reports no end that may be a
gap.
"""

from __future__ import annotations

import uuid
from threading import Event
from typing import Any

import pytest

from deltaq import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    Corrupt,
    KafkaError,
    Message,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.clock import SYSTEM_CLOCK
from deltaq.consumer.topic_fetcher import TopicFetcher
from deltaq.errors import UnknownTopic
from deltaq.message import OFFSET_TAIL_BASE
from deltaq.names import log_entry, topic_log
from deltaq.store import MemoryStore
from deltaq.topics import follower
from deltaq.topics.lookup import TopicLookup
from tests.doubles.reading import TIMEOUT_S, eventually, next_message

COMMITS = 6
FUTURE_MS = 10**12


@pytest.fixture(autouse=True)
def quiet_topics_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are now and then: what is tested here must not need that."""
    monkeypatch.setattr(follower, "GAP_CHECK_S", (1e9, 1e9))


class ListedStore(MemoryStore):
    """Counts how often the log of topic `t` was listed."""

    listings = 0

    def list(self, prefix, start_after=""):
        self.listings += prefix == topic_log("t")
        return super().list(prefix, start_after)


def a_topic(lost: int | None = None) -> ListedStore:
    """A topic of one partition, whose record n has offset n, time n and value n and is in entry n +
    1; one is lost.
    """
    store = ListedStore(uuid.uuid4().hex)
    Topic("t", partitions=1, config={"retention.ms": -1}, store=store).create()
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0, "maintenance.enable": False}
    with Producer(conf, store=store) as producer:
        for number in range(COMMITS):
            producer.produce("t", str(number), timestamp=number + 1, partition=0)
            assert producer.flush(TIMEOUT_S) == 0
    if lost is not None:
        store.delete(log_entry(topic_log("t"), lost + 1))
    store.listings = 0
    return store


def a_consumer(store: ListedStore, **config: Any) -> Consumer:
    conf = {
        "bootstrap.servers": "memory://unused",
        "group.id": "g",
        "enable.partition.eof": True,
        **config,
    }
    return Consumer(conf, store=store)


def at_time(consumer: Consumer, number: int) -> list[TopicPartition]:
    return consumer.offsets_for_times([TopicPartition("t", 0, number + 1)])


def code(message: Message) -> int | None:
    error = message.error()
    return None if error is None else error.code()


def until_error(consumer: Consumer) -> tuple[list[bytes], int | None]:
    """The values of the messages that come before the first event, and the code of that."""
    found: list[bytes] = []
    while code(message := next_message(consumer)) is None:
        found.append(message.value())
    return found, code(message)


def test_an_old_record_is_found_without_listing_the_log():
    lookup = TopicLookup(store := a_topic(), SYSTEM_CLOCK)
    assert lookup.offsets_for_times("t", [(0, 1), (0, 4), (0, OFFSET_BEGINNING)]) == [0, 3, 0]
    assert store.listings == 0


@pytest.mark.parametrize("position", [FUTURE_MS, OFFSET_END])
def test_a_missing_record_is_reported_only_after_the_log_was_listed(position):
    lookup = TopicLookup(store := a_topic(), SYSTEM_CLOCK)
    end = OFFSET_END if position == FUTURE_MS else COMMITS
    assert lookup.offsets_for_times("t", [(0, position)]) == [end]
    assert store.listings == 1
    assert lookup.offsets_for_times("t", [(0, position)]) == [end]
    assert store.listings == 1


@pytest.mark.fault("B1")
def test_records_before_a_gap_are_found_and_a_gap_is_never_taken_for_the_end():
    lookup = TopicLookup(a_topic(lost=3), SYSTEM_CLOCK)
    assert lookup.offsets_for_times("t", [(0, 3)]) == [2]
    for asked in ([(0, 4)], [(0, 3), (0, FUTURE_MS)], [(0, OFFSET_END)], [(7, 1)]):
        with pytest.raises(Corrupt, match="later ones exist"):
            lookup.offsets_for_times("t", asked)
    with pytest.raises(Corrupt, match="later ones exist"):
        lookup.head("t")


def test_an_unknown_partition_is_reported_only_after_the_log_was_listed():
    lookup = TopicLookup(store := a_topic(), SYSTEM_CLOCK)
    (answer,) = lookup.offsets_for_times("t", [(7, 1)])
    assert isinstance(answer, UnknownTopic)
    assert store.listings == 1


@pytest.mark.fault("B1")
@pytest.mark.parametrize("tells_ends", [True, False])
def test_a_consumer_from_an_old_time_stops_at_a_gap_without_an_eof(tells_ends):
    store = a_topic(lost=3)
    with a_consumer(store, **{"enable.partition.eof": tells_ends}) as consumer:
        consumer.assign(at_time(consumer, 1))
        found, error = until_error(consumer)
    assert found == [b"1", b"2"]
    assert error == KafkaError._BAD_MSG


@pytest.mark.fault("B1")
@pytest.mark.parametrize("position", [OFFSET_END, OFFSET_TAIL_BASE - 1, COMMITS, COMMITS + 5])
def test_a_position_that_depends_on_the_end_is_no_position_at_a_gap(position):
    with a_consumer(a_topic(lost=3)) as consumer:
        consumer.assign(at_time(consumer, 2))
        assert next_message(consumer).value() == b"2"
        consumer.seek(TopicPartition("t", 0, position))
        found, error = until_error(consumer)
    assert found == []
    assert error == KafkaError._BAD_MSG


@pytest.mark.parametrize("position", [OFFSET_END, COMMITS])
def test_a_position_set_during_a_log_read_waits_for_the_end(monkeypatch, position):
    is_end_awaited, looks, is_back = TopicFetcher._is_end_awaited, [0], Event()

    def late(self, live):
        looks[0] += 1
        return is_back.is_set() and is_end_awaited(self, live)

    store, key = a_topic(), log_entry(topic_log("t"), 4)
    hidden = store.get(key)
    store.delete(key)
    with a_consumer(store) as consumer:
        monkeypatch.setattr(TopicFetcher, "_is_end_awaited", late)
        consumer.assign(at_time(consumer, 2))
        assert next_message(consumer).value() == b"2"
        consumer.seek(TopicPartition("t", 0, position))
        seen = looks[0]
        eventually(lambda: looks[0] > seen + 2, "two looks behind the seek")
        store.put(key, hidden)
        is_back.set()
        end = next_message(consumer)
    assert (code(end), end.offset()) == (KafkaError._PARTITION_EOF, COMMITS)


def test_a_consumer_from_an_old_time_lists_the_log_once_at_its_end():
    store = a_topic()
    with a_consumer(store) as consumer:
        consumer.assign(at_time(consumer, 4))
        assert [next_message(consumer).value() for _ in range(2)] == [b"4", b"5"]
        assert code(next_message(consumer)) == KafkaError._PARTITION_EOF
    assert store.listings == 1


def test_later_records_are_read_from_a_log_with_unknown_end():
    store = a_topic()
    with (
        a_consumer(store, **{"enable.partition.eof": False}) as consumer,
        Producer({"bootstrap.servers": "memory://unused"}, store=store) as producer,
    ):
        consumer.assign(at_time(consumer, 0))
        for number in range(COMMITS, COMMITS + 3):
            producer.produce("t", str(number), partition=0)
            assert producer.flush(TIMEOUT_S) == 0
        messages = [next_message(consumer) for _ in range(COMMITS + 3)]
    assert [message.value() for message in messages] == [
        b"%d" % number for number in range(COMMITS + 3)
    ]
