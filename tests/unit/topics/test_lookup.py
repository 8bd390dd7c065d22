"""Queries about topics: what they do not wait for."""

from __future__ import annotations

import contextlib
import threading

from deltaq import KafkaException
from deltaq.clock import SYSTEM_CLOCK
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.lookup import TopicLookup
from tests.doubles.reading import eventually
from tests.doubles.written_topic import WrittenTopic


def test_a_query_of_one_topic_does_not_block_a_query_of_another():
    written = WrittenTopic(MemoryStore("test"), ManualClock())
    store = FaultyStore(written.store, Rule("get", "topics/slow/*", Fault.hang(), times=1))
    lookup = TopicLookup(store, SYSTEM_CLOCK)

    def ask() -> None:
        with contextlib.suppress(KafkaException):
            lookup.head("slow")

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        eventually(lambda: store.blocked == 1)
        assert lookup.head("t").next_offsets == (0,)
    finally:
        store.release()
        asking.join(20)
