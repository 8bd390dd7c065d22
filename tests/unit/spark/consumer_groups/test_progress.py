"""Progress events of a query, as Spark makes them: committed to a group, and measured."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    StreamingQueryProgress,
)

from deltaq import Consumer, KafkaError, Topic, TopicPartition
from deltaq.admin import AdminClient, ConsumerGroupTopicPartitions
from deltaq.spark import ConsumerGroupListener, offsets_behind
from deltaq.store import open_store
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.produced_tables import Produce
from tests.doubles.reading import eventually

QUERY = uuid.uuid4()


def topic_id(root: str, topic: str) -> str:
    return Topic(topic, bootstrap_servers=root).describe().topic_id


def offset(of: str, **next_offsets: int) -> dict[str, Any]:
    """The offset of a source that reads `orders`, by partition: `p0=5`."""
    return {
        "orders": {
            "topic_id": of,
            "next_offsets": {name[1:]: number for name, number in next_offsets.items()},
        }
    }


def progress(*ends: object, latest: object = None, name: str = "billing") -> StreamingQueryProgress:
    """A progress with a source for each of these end offsets, in Spark's own form."""
    rates = {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    sources = [
        {
            "description": "",
            "startOffset": None,
            "endOffset": end,
            "latestOffset": latest,
            "numInputRows": 1,
            **rates,
        }
        for end in ends
    ]
    body = {
        "id": str(QUERY),
        "runId": str(QUERY),
        "name": name,
        "timestamp": "",
        "batchId": 0,
        "batchDuration": 0,
    }
    sink = {"description": "", "numOutputRows": 0}
    return StreamingQueryProgress.fromJson(
        {**body, "stateOperators": [], "sources": sources, "sink": sink}
    )


def event(*ends: object, **rest: Any) -> QueryProgressEvent:
    return QueryProgressEvent(progress(*ends, **rest))


def committed(root: str, group: str = "billing") -> dict[tuple[str, int], int]:
    request = [ConsumerGroupTopicPartitions(group)]
    (future,) = (
        AdminClient({"bootstrap.servers": root}).list_consumer_group_offsets(request).values()
    )
    return {(tp.topic, tp.partition): tp.offset for tp in future.result().topic_partitions or ()}


@pytest.fixture
def listener(root: str) -> ConsumerGroupListener:
    return ConsumerGroupListener({"bootstrap.servers": root, "group.id": "billing"})


@pytest.fixture
def orders(root: str, produce: Produce) -> str:
    """The id of a topic with two partitions of ten records."""
    for partition in (0, 1):
        produce("orders", [b"x"] * 10, to=partition, partitions=2)
    return topic_id(root, "orders")


# --- committing ---


def test_lag_tools_see_how_far_the_query_has_come(
    root: str, orders: str, listener: ConsumerGroupListener
) -> None:
    listener.onQueryProgress(event(offset(orders, p0=4, p1=10)))
    assert committed(root) == {("orders", 0): 4, ("orders", 1): 10}
    (future,) = AdminClient({"bootstrap.servers": root}).consumer_group_lag(["billing"]).values()
    assert [(of.partition, of.lag) for of in future.result().partitions] == [(0, 6), (1, 0)]


def test_only_the_query_with_the_name_is_committed(
    root: str, orders: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener = ConsumerGroupListener(
        {"bootstrap.servers": root, "group.id": "reports"}, query_name="billing"
    )
    listener.onQueryProgress(event(offset(orders, p0=4), name="reports"))
    assert committed(root, "reports") == {}
    listener.onQueryProgress(event(offset(orders, p0=4)))
    assert committed(root, "reports") == {("orders", 0): 4}
    listener.onQueryStarted(QueryStartedEvent(QUERY, QUERY, None, "", set()))
    assert "set queryName('billing')" in caplog.text


def test_several_sources_of_one_topic_count_where_the_last_of_them_is(
    root: str, orders: str, listener: ConsumerGroupListener
) -> None:
    listener.onQueryProgress(event(offset(orders, p0=7, p1=2), offset(orders, p0=3, p1=8)))
    assert committed(root) == {("orders", 0): 3, ("orders", 1): 2}


@pytest.mark.parametrize(
    "other", [None, 5, {"logOffset": 3}, {"orders": {"0": 5}}, {"<startingOffsets>": {}}, "x"]
)
def test_other_sources_of_the_query_are_left_out(
    root: str, orders: str, listener: ConsumerGroupListener, other: object
) -> None:
    listener.onQueryProgress(event(other, offset(orders, p0=7)))
    assert committed(root) == {("orders", 0): 7}


def test_the_offsets_of_a_deleted_topic_are_not_those_of_its_successor(
    root: str,
    orders: str,
    listener: ConsumerGroupListener,
    produce: Produce,
    caplog: pytest.LogCaptureFixture,
) -> None:
    Topic("orders", bootstrap_servers=root).delete()
    produce("orders", [b"x"] * 10)
    listener.onQueryProgress(event(offset(orders, p0=7)))
    assert committed(root) == {}
    assert f"does not have topic='orders' id={orders}" in caplog.text
    listener.onQueryProgress(event(offset(topic_id(root, "orders"), p0=2)))
    assert committed(root) == {("orders", 0): 2}


def test_partitions_of_a_topic_that_is_gone_are_not_reported_as_committed(
    root: str, orders: str
) -> None:
    results: list[tuple[KafkaError | None, list[TopicPartition]]] = []
    conf = {
        "bootstrap.servers": root,
        "group.id": "billing",
        "on_commit": lambda *result: results.append(result),
    }
    gone = {"gone": {"topic_id": "of-another-life", "next_offsets": {"0": 3}}}
    ConsumerGroupListener(conf).onQueryProgress(event(offset(orders, p0=7), gone))
    assert results == [(None, [TopicPartition("orders", 0, 7)])]


def test_idle_progress_writes_nothing(root: str, orders: str) -> None:
    store = FaultyStore(open_store(root))
    listener = ConsumerGroupListener(
        {"bootstrap.servers": root, "group.id": "billing"}, store=store
    )
    listener.onQueryProgress(event(offset(orders, p0=7)))
    creates = store.operations["create"]
    listener.onQueryProgress(event(offset(orders, p0=7)))
    listener.onQueryIdle(QueryIdleEvent(QUERY, QUERY, ""))
    assert store.operations["create"] == creates > 0


def retry(listener: ConsumerGroupListener, of: str) -> None:
    listener.onQueryIdle(QueryIdleEvent(QUERY, QUERY, ""))


def go_on(listener: ConsumerGroupListener, of: str) -> None:
    listener.onQueryProgress(event(offset(of, p0=7)))


@pytest.mark.parametrize("next_event", [retry, go_on])
@pytest.mark.parametrize("what", ["groups/*", "topics/*"])
def test_a_store_that_does_not_answer_delays_the_commit(
    root: str, orders: str, next_event: Callable[[ConsumerGroupListener, str], None], what: str
) -> None:
    results: list[tuple[KafkaError | None, list[TopicPartition]]] = []
    store = FaultyStore(open_store(root), Rule("*", what, Fault.refused()))
    conf = {
        "bootstrap.servers": root,
        "group.id": "billing",
        "on_commit": lambda *result: results.append(result),
    }
    listener = ConsumerGroupListener(conf, store=store)
    listener.onQueryProgress(event(offset(orders, p0=7)))
    assert committed(root) == {}
    store.clear()
    next_event(listener, orders)
    assert committed(root) == {("orders", 0): 7}
    (error, _), (none, partitions) = results
    assert error is not None
    assert none is None
    assert partitions == [TopicPartition("orders", 0, 7)]


def test_living_members_of_the_group_keep_it_to_themselves(
    root: str, orders: str, listener: ConsumerGroupListener, caplog: pytest.LogCaptureFixture
) -> None:
    conf = {"bootstrap.servers": root, "group.id": "billing", "enable.auto.commit": False}
    with Consumer(conf) as consumer:
        consumer.subscribe(["orders"])
        eventually(lambda: consumer.poll(0.1) or consumer.assignment())
        listener.onQueryProgress(event(offset(orders, p0=7)))
        assert committed(root) == {}
        assert "only they commit its offsets" in caplog.text
    listener.onQueryIdle(QueryIdleEvent(QUERY, QUERY, ""))
    assert committed(root) == {("orders", 0): 7}


def test_a_configuration_without_a_group_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match=r"group\.id must be set"):
        ConsumerGroupListener({"bootstrap.servers": root})


# --- measuring ---


def test_the_metrics_have_the_names_and_values_of_sparks_kafka_source() -> None:
    (source,) = progress(
        offset("a", p0=4, p1=10, p2=0), latest=offset("a", p0=9, p1=10, p2=1)
    ).sources
    expected = {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 5,
        "avgOffsetsBehindLatest": 2.0,
    }
    assert offsets_behind(source) == expected


@pytest.mark.parametrize(
    ("end", "latest"),
    [
        (offset("a", p0=4), None),
        (5, 7),
        (offset("a", p0=4), offset("b", p0=9)),
        (offset("a", p0=4), offset("a", p1=9)),
        ({}, {}),
    ],
)
def test_what_is_not_known_is_not_measured(end: object, latest: object) -> None:
    (source,) = progress(end, latest=latest).sources
    assert offsets_behind(source) == {}


def test_the_metrics_are_logged(
    root: str, orders: str, listener: ConsumerGroupListener, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "deltaq.spark"):
        listener.onQueryProgress(
            event(offset(orders, p0=4, p1=1), latest=offset(orders, p0=10, p1=10))
        )
    expected = "minOffsetsBehindLatest=6 maxOffsetsBehindLatest=9 avgOffsetsBehindLatest=7.5"
    assert f"progress group='billing' query='billing' batch=0 {expected}" in caplog.text
