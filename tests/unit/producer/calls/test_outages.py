"""What `error_cb` of each client gets while the store does not answer, and when."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from deltaq import OFFSET_END, Consumer, KafkaError, KafkaException, Producer, Topic, TopicPartition
from deltaq.admin import AdminClient, NewTopic, OffsetSpec, TopicCollection
from deltaq.outage import ALL_DOWN_AGAIN_S, OVER_AFTER_S, TRANSPORT_AGAIN_S, OutageReports
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule

CONF: dict[str, Any] = {"bootstrap.servers": "memory://unused"}
EVER = None
END = TopicPartition("t", 0, OFFSET_END)
BOTH = ["_TRANSPORT", "_ALL_BROKERS_DOWN"]

refused = KafkaError(KafkaError._TRANSPORT, "connection refused")


def names(errors: list[KafkaError]) -> list[str]:
    return [error.name() for error in errors]


# --- how often ---


def failing(
    clock: ManualClock, reports: OutageReports, seconds: float, every_s: float
) -> list[str]:
    """What is reported of requests that fail for so long."""
    found = []
    for _ in range(round(seconds / every_s)):
        found += names(reports.due(refused))
        clock.advance(every_s)
    return found


def test_an_outage_is_reported_at_once_and_again_for_as_long_as_it_lasts():
    clock = ManualClock()
    reports = OutageReports(clock)
    assert names(reports.due(refused)) == BOTH
    assert reports.due(refused) == []
    clock.advance(TRANSPORT_AGAIN_S)
    assert names(reports.due(refused)) == BOTH[:1]
    clock.advance(OVER_AFTER_S)
    found = failing(clock, reports, 4 * ALL_DOWN_AGAIN_S, 0.125)
    assert found.count("_ALL_BROKERS_DOWN") == 4
    assert found.count("_TRANSPORT") == round(4 * ALL_DOWN_AGAIN_S / TRANSPORT_AGAIN_S)


def test_the_next_outage_is_reported_at_once():
    clock = ManualClock()
    reports = OutageReports(clock)
    assert names(reports.due(refused)) == BOTH
    clock.advance(OVER_AFTER_S)
    assert names(reports.due(refused)) == BOTH


# --- producers ---

STEPS = {
    "the lookup of the topic": Rule("get", "topics/*_delta_log/*", Fault.error_before(), EVER),
    "the upload": Rule("put", "topics/*.parquet", Fault.error_before(), EVER),
    "the commit": Rule("create", "topics/*_delta_log/*.json", Fault.error_before(), EVER),
}


@pytest.fixture
def store() -> FaultyStore:
    store = FaultyStore(MemoryStore("outage"))
    Topic("t", store=store).create()
    return store


@pytest.mark.parametrize("step", STEPS)
def test_a_producer_hears_of_an_outage_at_once_wherever_it_meets_it(store, step):
    store.add(STEPS[step])
    errors: list[KafkaError] = []
    reports: list[KafkaError | None] = []
    with Producer(CONF, store=store, error_cb=errors.append) as producer:
        producer.produce("t", b"kept", on_delivery=lambda error, _: reports.append(error))
        producer.poll(60)
        assert names(errors) == BOTH
        assert "connection refused" in errors[0].str()
        while len(errors) < 3:
            producer.poll(60)
        assert names(errors) == [*BOTH, "_TRANSPORT"], "it lasts"
        assert not reports
        store.clear()
        assert producer.flush(60) == 0
    assert reports == [None]


def test_an_exception_of_error_cb_reaches_poll_and_the_message_is_written(store):
    store.add(STEPS["the upload"])

    def fail(error: KafkaError) -> None:
        raise ValueError(error.name())

    with Producer(CONF, store=store, error_cb=fail) as producer:
        producer.produce("t", b"kept")
        with pytest.raises(ValueError, match="_TRANSPORT"):
            producer.poll(60)
        store.clear()
        assert producer.flush(60) == 0


def test_a_producer_that_does_not_poll_collects_no_reports(store):
    clock = ManualClock()
    producer = Producer(CONF, store=store, clock=clock, error_cb=lambda _: None)
    for _ in range(100):
        producer._callbacks.store_failed(refused)
        clock.advance(TRANSPORT_AGAIN_S)
    assert len(producer._callbacks.due) == 2
    producer.close()


# --- the other clients ---


def test_a_consumer_hears_of_an_outage_again_and_an_exception_reaches_poll(store):
    store.add(STEPS["the lookup of the topic"])
    errors: list[KafkaError] = []
    raised: list[str] = []

    def note(error: KafkaError) -> None:
        errors.append(error)
        if len(errors) == 3:
            raise ValueError(error.name())

    with Consumer(CONF, group_id="g", store=store, error_cb=note) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        while not raised:
            try:
                consumer.poll(0.1)
            except ValueError as error:
                raised.append(str(error))
    assert names(errors)[:3] == [*BOTH, "_TRANSPORT"]
    assert raised == ["_TRANSPORT"]


def test_an_admin_client_hears_of_an_outage_in_poll(store):
    store.add(STEPS["the lookup of the topic"])
    errors: list[KafkaError] = []
    with AdminClient(CONF, store=store, error_cb=errors.append) as admin:
        future = admin.create_topics([NewTopic("u", 1)])["u"]
        with pytest.raises(KafkaException) as raised:
            future.result(60)
        assert not errors, "only `poll` calls it"
        assert admin.poll(0) == 2
        assert admin.poll(0) == 0
    assert names(errors) == BOTH
    assert raised.value.args[0].name() == "_TIMED_OUT", (
        "as confluent-kafka 2.16 was observed to raise"
    )
    assert "connection refused" in raised.value.args[0].str()


ADMIN_CALLS: dict[str, Callable[[AdminClient], object]] = {
    "a future of each": lambda admin: admin.describe_topics(TopicCollection(["t"]))["t"].exception(
        60
    ),
    "offsets": lambda admin: next(
        iter(admin.list_offsets({END: OffsetSpec.latest()}).values())
    ).exception(60),
    "deletion of records": lambda admin: admin.delete_records([END])[END].exception(60),
    "a call that blocks": lambda admin: admin.list_topics(timeout=60),
    "a call that blocks and times out": lambda admin: admin.list_groups(timeout=60),
}


@pytest.mark.parametrize("call", ADMIN_CALLS)
def test_each_call_of_an_admin_client_reports_an_outage(store, call):
    store.add(Rule("read", "*", Fault.error_before(), EVER))
    errors: list[KafkaError] = []
    with AdminClient(CONF, store=store, error_cb=errors.append) as admin:
        with suppress(KafkaException):
            ADMIN_CALLS[call](admin)
        admin.poll(0)
    assert names(errors) == BOTH


def test_an_exception_of_error_cb_reaches_poll_of_an_admin_client(store):
    store.add(STEPS["the lookup of the topic"])

    def fail(error: KafkaError) -> None:
        raise ValueError(error.name())

    with AdminClient(CONF, store=store, error_cb=fail) as admin:
        admin.delete_topics(["t"])["t"].exception(60)
        with pytest.raises(ValueError, match="_TRANSPORT"):
            admin.poll(0)


def test_committed_of_a_store_that_does_not_answer_times_out(store):
    store.add(Rule("get", "groups/*", Fault.error_before(), EVER))
    with Consumer(CONF, group_id="g", store=store) as consumer:
        with pytest.raises(KafkaException) as raised:
            consumer.committed([TopicPartition("t", 0)], timeout=60)
        store.clear()
    assert raised.value.args[0].name() == "_TIMED_OUT"
