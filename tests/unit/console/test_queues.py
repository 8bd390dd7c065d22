"""Pages and metrics of share groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from deltaq import AcknowledgeType, AdminClient, Producer, ShareConsumer, Topic
from deltaq.errors import Corrupt, UnknownTopic
from deltaq.store import open_store
from deltaq.tools import rates
from deltaq.tools.rates import RootWatch
from deltaq.topics.time_lookup import times_from
from tests.doubles.sharing import set_group
from tests.unit.console.conftest import browser, made
from tests.unit.console.test_pages import texts
from tests.unit.console.test_security import csrf

T0 = 1_700_000_000_000


@pytest.fixture
def worker(memory_root: str) -> Iterator[ShareConsumer]:
    """A worker that holds one of five messages. The first one waits, it has accepted and rejected
    the next two, and the last one was never taken.
    """
    Topic("mails", partitions=1, bootstrap_servers=memory_root).create()
    conf = {
        "bootstrap.servers": memory_root,
        "group.id": "mailers",
        "client.id": "w",
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 4,
    }
    with ShareConsumer(conf) as worker:
        worker.subscribe(["mails"])
        worker.poll(0)
        with Producer(bootstrap_servers=memory_root, maintenance_enable=False) as producer:
            for number in range(5):
                producer.produce("mails", b"%d" % number, timestamp=T0 + number)
        waits, accepted, rejected, held = worker.poll(20)
        worker.release(waits, delay=3600)
        worker.acknowledge(accepted)
        worker.acknowledge(rejected, AcknowledgeType.REJECT)
        worker.commit_sync()
        yield worker
        worker.acknowledge(held)


def test_queues_are_listed_with_their_lag_and_age(worker: ShareConsumer, memory_root: str) -> None:
    page = browser(made(memory_root)).get("/roots/0/queues")
    assert re.search(r"mailers stable 1 3 [\d,]+ days 1 1 mails", texts(page.text))


def test_a_queue_shows_the_states_of_its_messages_and_who_holds_them(
    worker: ShareConsumer, memory_root: str
) -> None:
    text = texts(browser(made(memory_root)).get("/roots/0/queues/mailers").text)
    assert re.search(r"Lag 3 messages .* Acquired 1 held .* Available 1 1 of them later", text)
    # Start, next and end offset; acquired, available, acknowledged, archived; lag.
    assert re.search(r"mails 0 0 4 5 1 1 1 1 3 [\d,]+ days", text)
    assert re.search(r"Member Messages w-\S+ 1", text)


def test_dead_letters_are_copied_back_once(
    worker: ShareConsumer, writer: TestClient, memory_root: str
) -> None:
    form = {"csrf": csrf(writer)}
    refused = writer.post("/roots/0/queues/mailers/redrive", data=form)
    assert (refused.status_code, "has no dead-letter topic" in refused.text) == (400, True)
    with AdminClient(bootstrap_servers=memory_root) as admin:
        set_group(admin, "mailers", errors_deadletterqueue_topic_name="dead")
    with ShareConsumer(bootstrap_servers=memory_root, group_id="mailers") as other:
        other.subscribe(["mails"])
        (fifth,) = other.poll(20)
        other.reject(fifth)
        other.poll(0)
    assert "Retry dead letters" in writer.get("/roots/0/queues/mailers").text
    for said in ("1 dead letter of mailers was", "0 dead letters of mailers were"):
        answer = writer.post("/roots/0/queues/mailers/redrive", data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, "/roots/0/queues/mailers")
        assert f"{said} copied back." in writer.get("/roots/0/queues/mailers").text
    topic = Topic("mails", bootstrap_servers=memory_root)
    assert topic.to_arrow()["value"].to_pylist()[5:] == [b"4"]
    assert (
        "Retry dead letters" not in browser(made(memory_root)).get("/roots/0/queues/mailers").text
    )


def test_a_queue_that_does_not_exist_is_not_found(memory_root: str) -> None:
    page = browser(made(memory_root)).get("/roots/0/queues/none")
    assert (page.status_code, "share group 'none' does not exist" in page.text) == (404, False)
    assert "share group &#39;none&#39; does not exist" in page.text


def test_without_queues_the_page_says_so(memory_root: str) -> None:
    page = browser(made(memory_root)).get("/roots/0/queues")
    assert "There are no share groups yet" in page.text


def metrics_of(client: TestClient) -> dict[str, float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        sample.name.removeprefix("deltaq_"): sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("group") == "mailers" and "root" in sample.labels
    }


def test_prometheus_gets_the_state_of_a_queue(worker: ShareConsumer, memory_root: str) -> None:
    found = metrics_of(browser(made(memory_root)))
    assert found.pop("share_group_oldest_seconds") > 86_400
    assert found == {
        "group_lag": 3,
        "group_members": 1,
        "share_group_acquired": 1,
        "share_group_available": 1,
    }


def test_a_message_of_the_future_has_no_age_below_zero(memory_root: str) -> None:
    Topic("mails", partitions=1, bootstrap_servers=memory_root).create()
    with ShareConsumer(bootstrap_servers=memory_root, group_id="mailers") as worker:
        worker.subscribe(["mails"])
        worker.poll(0)
        with Producer(bootstrap_servers=memory_root, maintenance_enable=False) as producer:
            producer.produce("mails", b"x", timestamp=4 * T0)
        assert metrics_of(browser(made(memory_root)))["share_group_oldest_seconds"] == 0


def test_a_queue_without_messages_has_no_age(memory_root: str) -> None:
    Topic("mails", partitions=1, bootstrap_servers=memory_root).create()
    with ShareConsumer(bootstrap_servers=memory_root, group_id="mailers") as worker:
        worker.subscribe(["mails"])
        worker.poll(0)
    found = metrics_of(browser(made(memory_root)))
    assert found["group_lag"] == 0
    assert "share_group_oldest_seconds" not in found


def test_the_time_of_a_record_is_read_once(
    worker: ShareConsumer, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def counted(*about: Any) -> list[int | None]:
        asked.append(about[2])
        return times_from(*about)

    monkeypatch.setattr(rates, "times_from", counted)
    watch = RootWatch(open_store(memory_root), sizes=True)
    first = watch.sample().queues
    assert first["mailers"].about.oldest_ms == T0
    assert watch.sample().queues == first
    assert asked == [[(0, 0)]]


@pytest.mark.parametrize("error", [Corrupt("damaged", path="a.parquet"), UnknownTopic("mails")])
def test_a_time_that_cannot_be_read_is_not_known(
    worker: ShareConsumer, memory_root: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*about: object) -> None:
        raise error

    monkeypatch.setattr(rates, "times_from", fails)
    (found,) = RootWatch(open_store(memory_root), sizes=True).sample().queues.values()
    assert (found.about.lag, found.about.oldest_ms) == (3, None)


def test_a_watch_without_sizes_reads_no_times(
    worker: ShareConsumer, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "times_from", pytest.fail)
    (found,) = RootWatch(open_store(memory_root)).sample().queues.values()
    assert (found.about.lag, found.about.oldest_ms) == (3, None)


def test_a_queue_whose_state_is_damaged_is_named(
    worker: ShareConsumer, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*about: object) -> None:
        raise Corrupt("the state of a partition cannot be parsed", path="groups/mailers")

    monkeypatch.setattr(rates, "share_description", damaged)
    sample = RootWatch(open_store(memory_root)).sample()
    assert (sample.queues, list(sample.errors)) == ({}, ["group mailers"])
    assert "cannot be parsed" in sample.errors["group mailers"]
