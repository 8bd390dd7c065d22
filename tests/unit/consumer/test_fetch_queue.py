"""The queue of fetched items: its budget of bytes, and errors that last."""

from __future__ import annotations

import time

from deltaq import Corrupt, UnknownTopic
from deltaq.testing import FaultyStore
from tests.doubles.fetching import Fetching, a_store, fill
from tests.doubles.reading import eventually


def test_fetched_records_stay_within_the_budget():
    store = FaultyStore(a_store())
    fill(store, 40, size=10_000)
    with Fetching(store, bytes_max=50_000) as fetching:
        fetching.assign(0)
        eventually(lambda: fetching.fetcher.queue.room <= 0)
        reads = store.operations["get"]
        for _ in range(20):
            time.sleep(0.001)
        assert fetching.fetcher.queue.room >= -11_000
        assert store.operations["get"] <= reads + 1
        assert fetching.records(40) == {0: list(range(40))}


def test_a_lasting_error_is_reported_again_only_after_the_last_was_taken():
    damage, refusal = Corrupt("checksum", path="p", version=1), UnknownTopic("t")
    with Fetching(a_store()) as fetching:
        broken = fetching.fetcher
        missing = fetching.next()
        assert (missing.topic, missing.partition, missing.error.error.code()) == (
            "t",
            -1,
            refusal.error.code(),
        )
        for topic in ("t", "t", "u", "t"):
            broken._topic_fetcher(topic, None)._failed(damage)
        broken._topic_fetcher("t", None)._failed(refusal)
        items = [fetching.next() for _ in range(3)]
        assert [(item.topic, item.error) for item in items] == [
            ("t", damage),
            ("u", damage),
            ("t", refusal),
        ]
        assert broken.queue.first(0) is None
        broken._topic_fetcher("t", None)._failed(damage)
        assert fetching.next().error is damage
