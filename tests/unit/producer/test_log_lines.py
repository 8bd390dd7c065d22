"""The log lines of clients: one line for each step of a normal run, and a true account of messages
that were not written.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from deltaq import Consumer, Producer, Topic, __version__
from deltaq.admin import AdminClient
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.reading import drain

DATA = "topics/*.parquet"
ENTRY = "topics/*_delta_log/*"
EVER = None


def make(store: Any, **config: Any) -> Producer:
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0, "client.id": "app-7", **config}
    return Producer(conf, store=store, maintenance_enable=False)


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


@pytest.fixture(autouse=True)
def _at_info(nothing_left: None, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="deltaq")


def test_a_normal_run_logs_one_line_for_each_step(caplog):
    store = MemoryStore("shop")
    with make(store) as producer:
        producer.produce("orders", "v", on_delivery=lambda *report: None)
    conf = {"bootstrap.servers": "memory://unused", "group.id": "billing", "client.id": "app-8"}
    with Consumer(
        conf, store=store, maintenance_enable=False, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["orders"])
        assert len(drain(consumer, 1)) == 1
    AdminClient({"bootstrap.servers": "memory://unused", "client.id": "app-9"}, store=store)
    member = next(line for line in lines(caplog) if line.startswith("joined")).split("'")[3]
    assert lines(caplog) == [
        f"producer started client.id='app-7' root='memory://shop' version={__version__}",
        "topic created topic='orders' partitions=1",
        "producer closed client.id='app-7' root='memory://shop'",
        (
            "consumer started client.id='app-8' group='billing' root='memory://shop' "
            f"version={__version__}"
        ),
        f"joined group='billing' member='{member}' generation=1",
        f"partitions assigned group='billing' member='{member}' partitions={{'orders': [0]}}",
        "consumer closed client.id='app-8' group='billing'",
        f"admin client started client.id='app-9' root='memory://shop' version={__version__}",
    ]


def test_a_topic_that_is_there_already_is_not_logged_as_created(caplog):
    store = MemoryStore("shop")
    for _ in range(2):
        Topic("orders", partitions=3, store=store).create(exist_ok=True)
    assert lines(caplog) == ["topic created topic='orders' partitions=3"]


@pytest.mark.parametrize("kind", [Producer, AdminClient, Consumer])
def test_no_secret_shows_in_the_lines_of_a_client(kind, caplog, monkeypatch):
    secrets = ["plantedkeyid", "plantedsecret", "plantedtoken", "planteduser", "plantedpassword"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    conf = {
        "bootstrap.servers": "s3://bucket/prefix",
        "store.endpoint": "http://127.0.0.1:1",
        "store.access_key_id": "plantedkeyid",
        "store.secret_access_key": "plantedsecret",
        "store.session_token": "plantedtoken",
        "sasl.username": "planteduser",
        "sasl.password": "plantedpassword",
    }
    client = kind({**conf, "group.id": "g"} if kind is Consumer else conf)
    if kind is not AdminClient:
        client.close()
    assert "s3://bucket/prefix" in caplog.text
    assert not [secret for secret in secrets if secret in caplog.text]


def test_messages_that_were_not_written_are_logged_in_one_line_for_a_batch(caplog):
    store = FaultyStore(MemoryStore("test"))
    with make(store, **{"linger.ms": 60_000}) as producer:
        producer.produce("t", "first")
        producer.flush()
        store.add(Rule("put", DATA, Fault.refused(), EVER))
        caplog.clear()
        for number in range(50):
            producer.produce(
                "t", f"{number}", on_delivery=(lambda *report: None) if number < 10 else None
            )
        assert producer.flush(20) == 0
        (line,) = lines(caplog, logging.WARNING)
        assert line.startswith("not written: 40 messages without a delivery callback, topic='t': ")
        store.clear()


def test_an_unknown_outcome_is_logged_with_the_call_that_resolves_it(caplog):
    store = FaultyStore(MemoryStore("test"))
    with make(store, **{"message.timeout.ms": 1000}) as producer:
        producer.produce("t", "first")
        producer.flush()
        store.add(Rule("create", ENTRY, Fault.late_apply(), EVER))
        caplog.clear()
        producer.produce("t", "unknown")
        assert producer.flush(20) == 0
        (line,) = lines(caplog, logging.WARNING)
        assert line.startswith(
            "outcome unknown: 1 messages without a delivery callback, topic='t'; "
            "Producer.resolve('t', "
        )
        assert "lost" not in line
        store.clear()
        token = line.split("'")[5]
        assert producer.resolve("t", token) is False


def test_purged_messages_log_no_warning(caplog):
    with make(MemoryStore("test"), **{"linger.ms": 60_000}) as producer:
        producer.produce("t", "purged")
        producer.purge()
        assert producer.flush(20) == 0
    assert lines(caplog, logging.WARNING) == []


def test_each_member_logs_its_join_and_what_it_gets(caplog):
    store = MemoryStore("test")
    Topic("t", partitions=2, store=store).create()
    conf = {
        "bootstrap.servers": "memory://unused",
        "group.id": "g",
        "partition.assignment.strategy": "range",
    }

    def consumer(client: str) -> Consumer:
        return Consumer({**conf, "client.id": client}, store=store, maintenance_enable=False)

    with consumer("one") as one, consumer("two") as two:
        for member in (one, two):
            member.subscribe(["t"])
            while not member.assignment():
                one.poll(0.01)
                two.poll(0.01)
        logged = [
            line.split("-")[0] + line.split("'")[-1]
            for line in lines(caplog)
            if line.startswith("joined")
        ]
        assigned = [
            line.split(" partitions=")[1]
            for line in lines(caplog)
            if line.startswith("partitions assigned")
        ]
    assert logged == [
        "joined group='g' member='one generation=1",
        "joined group='g' member='two generation=2",
    ]
    assert assigned == ["{'t': [0, 1]}", "{'t': [0]}", "{'t': [1]}"]
