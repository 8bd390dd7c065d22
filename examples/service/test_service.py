"""Tests of the service in memory. The fixtures `deltaq_*` come with deltaq."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from deltaq import Message, Producer, Topic
from deltaq.testing import Fault, FaultyStore, Rule
from examples.service.billing import Invoice, Rejected, bill
from examples.service.endpoints import Endpoints
from examples.service.service import INVOICES, ORDERS, REJECTED, NotWritten, Service, Settings, main

TIMEOUT_S = 30.0


def until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def order(root: str, *values: bytes) -> None:
    """Write orders, over all partitions."""
    with Producer({"bootstrap.servers": root}) as producer:
        for number, value in enumerate(values):
            producer.produce(ORDERS, value, partition=number % 4)


def valid(quantity: int, cents: int = 150, customer: str = "ada") -> bytes:
    """An order of some cups of tea."""
    return json.dumps(
        {"customer": customer, "item": "tea", "quantity": quantity, "cents": cents}
    ).encode()


@pytest.fixture
def written(
    deltaq_root: str, deltaq_messages: Callable[[str | Topic], list[Message]]
) -> Callable[[Topic], list[Any]]:
    """`written(topic)`: the messages of a topic, none if it does not exist."""

    def read(topic: Topic) -> list[Any]:
        exists = Topic(topic.name, bootstrap_servers=deltaq_root).exists()
        return deltaq_messages(topic) if exists else []

    return read


@contextmanager
def running(*services: Service) -> Iterator[list[Future[None]]]:
    """Run services in threads, and stop them at the end of the block."""
    with ThreadPoolExecutor() as threads:
        futures = [threads.submit(service.run) for service in services]
        try:
            yield futures
        finally:
            for service in services:
                service.stop()
    for future in futures:
        future.result()


def get(endpoints: Endpoints, path: str) -> tuple[int, str]:
    """Status and text of an answer."""
    try:
        with urlopen(endpoints.url + path, timeout=TIMEOUT_S) as answer:  # noqa: S310 - our own server
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_an_invoice_has_the_sum_and_a_number_that_is_the_same_at_each_attempt() -> None:
    assert (
        bill(valid(3), "0-7")
        == bill(valid(3), "0-7")
        == Invoice(number="0-7", customer="ada", cents=450)
    )


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "^value: Invalid JSON"),
        (b"{", "^value: Invalid JSON"),
        (b"{}", "customer: "),
        (valid(0), "quantity: "),
    ],
)
def test_an_invalid_order_is_rejected_with_the_reason(value: bytes | None, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        bill(value, "0-0")


def test_orders_become_invoices_and_invalid_ones_are_set_aside(
    deltaq_root: str, written: Callable[[Topic], list[Any]]
) -> None:
    order(deltaq_root, valid(1), b"no order", valid(2))
    service = Service(Settings(deltaq_root, poll_s=0.05))
    with running(service):
        until(lambda: len(written(INVOICES)) == 2)
        until(lambda: len(written(REJECTED)) == 1)
    assert sorted(message.value().cents for message in written(INVOICES)) == [150, 300]
    (rejected,) = written(REJECTED)
    assert rejected.value() == b"no order"
    assert dict(rejected.headers())["order"] == b"1-0"
    assert service.counts == {"invoices": 2, "rejected": 1, "repeated": 0}


@pytest.mark.parametrize(
    "extreme",
    [
        pytest.param(b"x" * 1_000_000, id="no JSON, as large as a message may be"),
        pytest.param(valid(10**12, 10**12), id="a sum above 64 bits"),
        pytest.param(
            valid(1, customer="a" * 900_000),
            id="a name that fits into an order but not into an invoice",
        ),
    ],
)
def test_no_order_stops_those_behind_it(
    extreme: bytes, deltaq_root: str, written: Callable[[Topic], list[Any]]
) -> None:
    order(deltaq_root, extreme)
    order(deltaq_root, valid(1))  # in the same partition
    with running(Service(Settings(deltaq_root, poll_s=0.05))) as (run,):
        until(lambda: run.done() or written(INVOICES))
    assert [message.value() for message in written(REJECTED)] == [extreme]
    assert [message.value().number for message in written(INVOICES)] == ["0-1"]


def test_instances_share_the_work_and_a_stopped_one_hands_it_over(
    deltaq_root: str, written: Callable[[Topic], list[Any]]
) -> None:
    settings = Settings(deltaq_root, poll_s=0.05)
    order(deltaq_root, valid(1))
    first, second = Service(settings), Service(settings)
    with running(first):
        with running(second):
            until(lambda: all(len(service.health().partitions) == 2 for service in (first, second)))
            order(deltaq_root, *[valid(2)] * 40)
            until(lambda: len(written(INVOICES)) == 41)
            assert first.counts["invoices"] >= 20
            assert second.counts["invoices"] >= 20
        until(lambda: len(first.health().partitions) == 4)
        order(deltaq_root, *[valid(3)] * 40)
        until(lambda: len(written(INVOICES)) == 81)
    numbers = [message.value().number for message in written(INVOICES)]
    assert len(set(numbers)) == len(numbers) == 81


def test_orders_whose_invoices_cannot_be_written_are_billed_by_the_next_instance(
    deltaq_root: str, deltaq_faults: FaultyStore, written: Callable[[Topic], list[Any]]
) -> None:
    order(deltaq_root, valid(1), valid(2))
    deltaq_faults.add(Rule("put", "topics/invoices/*.parquet", Fault.no_space()))
    with (
        pytest.raises(NotWritten),
        running(Service(Settings(deltaq_root, poll_s=0.05))) as (future,),
    ):
        until(future.done)
    assert written(INVOICES) == []
    with running(Service(Settings(deltaq_root, poll_s=0.05))):
        until(lambda: len(written(INVOICES)) == 2)
    assert sorted(message.value().number for message in written(INVOICES)) == ["0-0", "1-0"]


def test_probes_and_metrics_follow_the_life_of_an_instance(deltaq_root: str) -> None:
    service = Service(Settings(deltaq_root, port=0, poll_s=0.05))
    with Endpoints(service) as endpoints:
        assert get(endpoints, "/live") == (200, "ok\n")
        assert get(endpoints, "/ready") == (503, "no\n")
        order(deltaq_root, valid(1), b"no order")
        with running(service):
            until(lambda: get(endpoints, "/ready")[0] == 200)
            until(lambda: "service_rejected_total 1\n" in get(endpoints, "/metrics")[1])
            until(
                lambda: (
                    'deltaq_consumer_records_lag{group="billing",topic="orders",partition="0"} 0\n'
                    in get(endpoints, "/metrics")[1]
                )
            )
            text = get(endpoints, "/metrics")[1]
            assert "service_invoices_total 1\n" in text
            assert 'deltaq_group_joins_total{group="billing"} 1\n' in text
            assert json.loads(get(endpoints, "/health")[1])["membership"] == "stable"
            service.stop()
            assert get(endpoints, "/ready")[0] == 503
        assert json.loads(get(endpoints, "/health")[1])["membership"] == "closed"
        assert get(endpoints, "/other")[0] == 404


def test_an_instance_that_polls_no_more_is_not_alive(deltaq_root: str) -> None:
    service = Service(Settings(deltaq_root, poll_s=0.05, silent_s=0.0))
    with running(service):
        until(lambda: not service.is_alive())


def test_sigterm_lets_an_instance_finish_and_leave(
    deltaq_root: str, written: Callable[[Topic], list[Any]]
) -> None:
    order(deltaq_root, valid(1))

    def terminate() -> None:
        until(lambda: len(written(INVOICES)) == 1)
        os.kill(os.getpid(), signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    thread = threading.Thread(target=terminate)
    thread.start()
    try:
        main({"ROOT": deltaq_root, "PORT": "0"})
    finally:
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    order(deltaq_root, valid(2))
    with running(Service(Settings(deltaq_root, poll_s=0.05))):
        until(lambda: len(written(INVOICES)) == 2)
    assert sorted(message.value().cents for message in written(INVOICES)) == [150, 300]
