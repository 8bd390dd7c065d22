"""Events of clients reach every listener, add up, and are exported as Prometheus reads them."""

from __future__ import annotations

import math
import re
import threading
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deltaq import Consumer, Producer
from deltaq.metrics import (
    EXPIRED_UPLOADS,
    METRICS,
    MISSING_FILES,
    REQUEST_LATENCY,
    REVOCATIONS,
    ROOT_METRICS,
    Counter,
    Event,
    Metric,
    Totals,
    consumer_samples,
    listening,
    prometheus_text,
)
from deltaq.metrics.totals import Sample
from tests.doubles.hostile_names import MARKUP
from tests.doubles.reading import drain

COUNTERS = [metric.name for metric in METRICS if isinstance(metric, Counter)]


def test_a_listener_is_called_with_what_was_counted():
    events: list[Event] = []
    with listening(events.append):
        REVOCATIONS.add(topic="t", outcome="revoked")
        EXPIRED_UPLOADS.add(3, topic="t")
        REQUEST_LATENCY.observe(0.5, topic="t")
    assert events == [
        Event(REVOCATIONS, 1, {"topic": "t", "outcome": "revoked"}),
        Event(EXPIRED_UPLOADS, 3, {"topic": "t"}),
        Event(REQUEST_LATENCY, 0.5, {"topic": "t"}),
    ]


def test_a_listener_is_not_called_before_and_after_its_block():
    events: list[Event] = []
    MISSING_FILES.add(topic="t")
    with pytest.raises(KeyboardInterrupt), listening(events.append):
        raise KeyboardInterrupt
    MISSING_FILES.add(topic="t")
    assert not events


def test_listeners_are_independent_even_if_they_are_the_same_function():
    events: list[Event] = []
    with listening(events.append):
        with listening(events.append):
            MISSING_FILES.add(topic="t")
        MISSING_FILES.add(topic="t")
    assert len(events) == 3


def test_a_listener_that_fails_is_logged_and_the_others_are_called(caplog):
    def broken(_: Event) -> None:
        raise RuntimeError("no exporter")

    totals = Totals()
    with listening(broken), listening(totals):
        MISSING_FILES.add(topic="t")
    assert totals.read()[MISSING_FILES.name] == 1
    assert "no exporter" in caplog.text


def test_totals_have_every_counter_and_lose_nothing_between_threads():
    totals = Totals()
    assert totals.read() == dict.fromkeys(COUNTERS, 0)

    def count() -> None:
        for _ in range(1000):
            EXPIRED_UPLOADS.add(2, topic="t")

    threads = [threading.Thread(target=count) for _ in range(4)]
    with listening(totals):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert totals.read() == dict.fromkeys(COUNTERS, 0) | {EXPIRED_UPLOADS.name: 8000}


@pytest.mark.parametrize("metric", METRICS + ROOT_METRICS, ids=lambda metric: metric.name)
def test_names_are_those_of_prometheus(metric: Metric):
    assert re.fullmatch(r"deltaq_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.unit != "seconds" or "_seconds" in metric.name
    assert len({other.name for other in METRICS + ROOT_METRICS}) == len(METRICS + ROOT_METRICS)


# --- as text ---


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of a text as Prometheus' own parser reads them."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_counters_and_histograms_with_any_label():
    totals = Totals()
    hostile = 'a"b\\c\nd{}, é'
    with listening(totals):
        MISSING_FILES.add(2, topic=hostile)
        for seconds in (0.005, 0.02, 99.0):
            REQUEST_LATENCY.observe(seconds, topic="t")
    found = parsed(prometheus_text(totals.samples()))
    assert found[MISSING_FILES.name, frozenset({("topic", hostile)})] == 2
    name, topic = REQUEST_LATENCY.name, ("topic", "t")
    buckets = {
        end: found[f"{name}_bucket", frozenset({topic, ("le", end)})]
        for end in ("0.005", "0.025", "10", "+Inf")
    }
    assert buckets == {"0.005": 1, "0.025": 2, "10": 2, "+Inf": 3}
    assert found[f"{name}_count", frozenset({topic})] == 3
    assert found[f"{name}_sum", frozenset({topic})] == pytest.approx(99.025)


@pytest.mark.parametrize("hostile", MARKUP)
def test_prometheus_reads_one_sample_whatever_a_label_has(hostile):
    totals = Totals()
    with listening(totals):
        MISSING_FILES.add(2, topic=hostile)
    samples = [sample for sample in totals.samples() if sample.metric is MISSING_FILES]
    text = prometheus_text(samples)
    assert parsed(text) == {(MISSING_FILES.name, frozenset({("topic", hostile)})): 2}
    assert [
        line for line in text.split("\n") if not line.startswith((MISSING_FILES.name, "# "))
    ] == [""]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (2.0, "2"),
        (0.5, "0.5"),
        (1e300, "1e+300"),
    ],
)
def test_prometheus_reads_any_number_that_a_sample_can_have(value, shown):
    text = prometheus_text([Sample(MISSING_FILES, {}, value)])
    assert text.splitlines()[-1] == f"{MISSING_FILES.name} {shown}"
    (found,) = parsed(text).values()
    assert found == pytest.approx(value, nan_ok=True)


def test_the_gauges_of_consumers_of_one_group_are_combined():
    def consumer(since_poll_s, *lags):
        partitions = [SimpleNamespace(topic="t", partition=number, lag=lag) for number, lag in lags]
        health = SimpleNamespace(
            group_id="g", partitions=partitions, since_poll_s=since_poll_s, since_heartbeat_s=None
        )
        return SimpleNamespace(health=lambda: health)

    text = prometheus_text(
        consumer_samples(consumer(1.5, (0, 7)), consumer(0.5, (1, None), (2, 3)))
    )
    group = ("group", "g")
    assert parsed(text) == {
        ("deltaq_consumer_assigned_partitions", frozenset({group})): 3,
        ("deltaq_consumer_last_poll_seconds_ago", frozenset({group})): 1.5,
        ("deltaq_consumer_records_lag", frozenset({group, ("topic", "t"), ("partition", "0")})): 7,
        ("deltaq_consumer_records_lag", frozenset({group, ("topic", "t"), ("partition", "2")})): 3,
    }


def test_clients_count_the_records_that_they_write_and_read(memory_root):
    totals = Totals()
    with listening(totals):
        with Producer(bootstrap_servers=memory_root) as producer:
            for _ in range(3):
                producer.produce("t", b"12345", key=b"k", headers={"h": b"v"})
        conf = {"bootstrap.servers": memory_root, "group.id": "g", "auto.offset.reset": "earliest"}
        with Consumer(conf) as consumer:
            consumer.subscribe(["t"])
            drain(consumer, 3)
            consumer.commit(asynchronous=False)
    found, topic = parsed(prometheus_text(totals.samples())), frozenset({("topic", "t")})
    assert found["deltaq_producer_record_send_total", topic] == 3
    assert found["deltaq_producer_byte_total", topic] == 24
    assert found["deltaq_producer_request_latency_seconds_count", topic] >= 1
    assert found["deltaq_consumer_records_consumed_total", topic] == 3
    assert found["deltaq_consumer_bytes_consumed_total", topic] > 24
    assert found["deltaq_consumer_fetch_latency_seconds_count", topic] >= 1
    assert found["deltaq_consumer_commit_latency_seconds_count", frozenset({("group", "g")})] >= 1
