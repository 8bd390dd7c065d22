"""What share consumers count, and what `stats_cb` gets."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from deltaq import metrics
from deltaq.metrics import Event
from tests.doubles.sharing import ACCEPT, LOCK_S, REJECT, RELEASE, ShareWorld


@pytest.fixture
def counted() -> Iterator[Counter[tuple[str, ...]]]:
    found: Counter[tuple[str, ...]] = Counter()

    def count(event: Event) -> None:
        if event.metric in (
            metrics.SHARE_ACKNOWLEDGEMENTS,
            metrics.SHARE_LOCKS_ENDED,
            metrics.RECORDS_CONSUMED,
        ):
            found[event.metric.name, *event.labels.values()] += int(event.amount)

    with metrics.listening(count):
        yield found


def test_what_is_decided_is_counted_by_its_type(counted: Counter[tuple[str, ...]]) -> None:
    shared = ShareWorld()
    shared.fill(4)
    with shared.consumer(explicit=True) as consumer:
        messages = consumer.poll(0)
        for message, decided in zip(messages, (ACCEPT, ACCEPT, RELEASE, REJECT), strict=True):
            consumer.acknowledge(message, decided)
        consumer.commit_sync()
    name = metrics.SHARE_ACKNOWLEDGEMENTS.name
    assert counted == {
        (metrics.RECORDS_CONSUMED.name, "t"): 4,
        (name, "g", "accept"): 2,
        (name, "g", "release"): 1,
        (name, "g", "reject"): 1,
    }


def test_what_comes_too_late_is_counted_as_refused(counted: Counter[tuple[str, ...]]) -> None:
    shared = ShareWorld()
    shared.fill(3)
    with shared.consumer() as slow, shared.consumer(max_poll_records=2) as other:
        first, *_ = slow.poll(0)
        other.poll(0)  # sees the lock, which ends so long after
        slow.renew(first)
        shared.clock.advance(LOCK_S)
        assert len(other.poll(0)) == 2
        slow.commit_sync()
    refused = {key[2]: records for key, records in counted.items() if len(key) == 3}
    assert refused == {"renew": 1, "refused": 2, "accept": 1}
    assert counted[metrics.SHARE_LOCKS_ENDED.name, "g"] == 1


def test_statistics_come_once_in_each_interval() -> None:
    shared = ShareWorld(partitions=2)
    shared.fill(3, partition=1)
    found: list[dict[str, Any]] = []
    settings: dict[str, Any] = {
        "statistics_interval_ms": 1000,
        "stats_cb": lambda text: found.append(json.loads(text)),
    }
    with shared.consumer(client_id="w", **settings) as consumer:
        for _ in range(8):
            consumer.poll(0)
            shared.clock.advance(0.5)
    assert len(found) == 3
    first = found[0]
    assert (first["client_id"], first["type"], first["rxmsgs"]) == ("w", "consumer", 3)
    assert first["topics"] == {
        "t": {"topic": "t", "partitions": {"1": {"partition": 1, "rxmsgs": 3}}}
    }
    assert first["acknowledgements"] == {"accept": 3}
    assert [round(each["age"] / 1e6) for each in found] == [1, 2, 3]


def test_an_interval_of_zero_is_never() -> None:
    shared = ShareWorld()
    found: list[str] = []
    with shared.consumer(statistics_interval_ms=0, stats_cb=found.append) as consumer:
        shared.clock.advance(5)
        consumer.poll(0)
    assert found == []


def test_messages_come_again_that_a_failing_callback_has_kept_back() -> None:
    shared = ShareWorld()

    def fails(_: str) -> None:
        raise OSError("full")

    with shared.consumer(statistics_interval_ms=1000, stats_cb=fails) as consumer:
        shared.fill(1)
        shared.clock.advance(1)
        with pytest.raises(OSError, match="full"):
            consumer.poll(0)
        assert [message.delivery_count() for message in consumer.poll(0)] == [1]
