"""Transactions whose callbacks, logs and topics misbehave in the middle of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from deltaq import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.aio import AIOProducer
from deltaq.clock import SYSTEM_CLOCK
from deltaq.names import log_entry, transaction_folder
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule
from deltaq.transactions.resolution import resolve_files
from tests.doubles.reading import drain, eventually
from tests.unit.transactions.test_client import DECISION, Clients, copy_all, filled, refused


@pytest.fixture
def clients() -> Iterator[Clients]:
    made = Clients(FaultyStore(MemoryStore("test")))
    yield made
    made.store.clear()
    for client in made.made:
        client.close()


def fails(error: KafkaError | None, message: Message) -> None:
    raise ZeroDivisionError


def fails_if_dropped(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        raise KafkaException(error)


# --- callbacks ---


@pytest.mark.parametrize("call", ["abort_transaction", "close"])
def test_a_commit_decides_nothing_after_a_callback_has_ended_the_transaction(
    clients: Clients, call: str
):
    producer = clients.ready()
    Topic("a", store=clients.store).create()
    producer.begin_transaction()
    producer.produce("a", b"1", on_delivery=lambda *_: getattr(producer, call)())
    assert refused(producer.commit_transaction).code() == KafkaError._STATE
    assert not clients.values("a")
    assert not clients.staged()


def commits(producer: Producer, callback: Any) -> None:
    with producer.transaction():
        producer.produce("a", b"lost", on_delivery=callback)


def test_a_block_aborts_when_a_callback_raises_during_its_commit(clients: Clients):
    producer = clients.ready(linger_ms=30_000)
    with pytest.raises(ZeroDivisionError):
        commits(producer, fails)
    commits(producer, None)
    assert len(clients.values("a")) == 1


def test_an_abort_is_complete_though_a_callback_raises(clients: Clients):
    filled(clients, 2)
    producer, consumer = clients.ready(linger_ms=30_000), clients.consumer()
    consumer.subscribe(["in"])
    assert drain(consumer, 1)

    def fails_inside() -> None:
        with producer.transaction(consumer=consumer):
            producer.produce("a", b"lost", on_delivery=fails_if_dropped)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_inside()
    assert [message.value() for message in drain(consumer, 1)] == [b"0"]
    commits(producer, None)
    assert len(clients.values("a")) == 1


def test_close_raises_what_a_callback_raised_after_the_close(clients: Clients):
    producer = clients.ready(linger_ms=30_000)
    producer.begin_transaction()
    producer.produce("a", b"lost", on_delivery=fails_if_dropped)
    with pytest.raises(KafkaException):
        producer.close()
    with pytest.raises(RuntimeError):
        producer.begin_transaction()


# --- the rest ---


def is_left_with(consumer: Consumer, partitions: int) -> bool:
    consumer.poll(0.01)
    return len(consumer.assignment()) == partitions


@pytest.mark.parametrize("is_inside", [True, False])
def test_a_transaction_with_messages_of_a_revoked_partition_is_aborted(
    clients: Clients, is_inside: bool
):
    """Their offsets cannot be sent any more, and the partition's next owner reads them again."""
    Topic("in", partitions=2, store=clients.store).create()
    source = clients.producer(None)
    for partition in (0, 1):
        source.produce("in", b"%d" % partition, partition=partition)
    source.flush(10)
    producer = clients.ready()
    first, second = (clients.consumer(enable_auto_commit=False) for _ in range(2))
    first.subscribe(["in"])
    taken = drain(first, 2)

    def loses_partitions() -> None:
        second.subscribe(["in"])
        eventually(partial(is_left_with, first, 1))

    def processes() -> None:
        if not is_inside:
            loses_partitions()
        with producer.transaction(consumer=first):
            for message in taken:
                producer.produce("out", message.value())
            if is_inside:
                loses_partitions()

    assert refused(processes).txn_requires_abort()
    copy_all(clients, producer, first, 1)
    copy_all(clients, producer, second, 1)
    assert sorted(clients.values("out")) == [b"0", b"1"]


@pytest.mark.fault("T2")
def test_messages_of_a_block_that_could_not_begin_are_read_again(clients: Clients):
    """The producer learned in the abort before that it was fenced."""
    filled(clients, 3)
    producer, consumer = clients.ready(), clients.consumer()
    consumer.subscribe(["in"])
    assert drain(consumer, 1)

    def begins() -> None:
        with producer.transaction(consumer=consumer):
            raise AssertionError("it has begun")

    clients.ready()
    producer.begin_transaction()
    assert refused(producer.abort_transaction).fatal()
    assert refused(begins).fatal()
    copy_all(clients, clients.ready(), consumer, 3)
    assert clients.values("out") == [b"0", b"1", b"2"]


def test_a_block_within_a_block_leaves_the_messages_to_the_outer_one(clients: Clients):
    filled(clients, 1)
    producer, consumer = clients.ready(), clients.consumer()
    consumer.subscribe(["in"])
    (message,) = drain(consumer, 1)

    def begins() -> None:
        with producer.transaction(consumer=consumer):
            raise AssertionError("it has begun")

    with producer.transaction(consumer=consumer):
        producer.produce("out", message.value())
        assert refused(begins).code() == KafkaError._STATE
    assert clients.values("out") == [b"0"]
    assert consumer.committed([TopicPartition("in", 0)])[0].offset == 1


def test_a_block_keeps_its_producer(clients: Clients):
    producer = Producer(
        {"bootstrap.servers": "memory://unused"},
        transactional_id="t",
        store=clients.store,
        linger_ms=30_000,
    )
    producer.init_transactions()
    with producer.transaction():
        producer.produce("a", b"1")
        del producer
        gc.collect()
    assert clients.values("a") == [b"1"]


def test_a_transaction_of_a_damaged_log_can_be_aborted(clients: Clients):
    producer = clients.ready()
    producer.begin_transaction()
    producer.produce("a", b"1")
    producer.flush(10)
    clients.store.inner.put(log_entry(transaction_folder("t") + "_delta_log/", 1), b"damage")
    assert refused(producer.commit_transaction).txn_requires_abort()
    producer.abort_transaction()
    assert clients.staged() == []


def test_a_damaged_log_keeps_only_the_files_of_its_own_transactions(clients: Clients):
    for name in ("damaged", "good"):
        producer = clients.ready(name)
        producer.begin_transaction()
        producer.produce("a", b"1")
        producer.flush(10)
    inner = clients.store.inner
    inner.put(log_entry(transaction_folder("damaged") + "_delta_log/", 0), b"damage")
    paths = [key.removeprefix("topics/a/") for key in clients.staged()]
    kept = resolve_files(inner, paths, 1e9, SYSTEM_CLOCK, SYSTEM_CLOCK.monotonic() + 10)
    assert kept == {path for path in paths if "/damaged/" in path}
    assert len(kept) == 1


@pytest.mark.parametrize("is_published", [True, False])
def test_files_of_an_ended_transaction_do_not_end_the_next_one(
    clients: Clients, is_published: bool
):
    """Of a Spark query they do, but this is a producer with such an id. Merged files are such, and
    those that a killed producer has left.
    """
    producer, inner = clients.ready("spark-etl"), clients.store.inner
    producer.begin_transaction()
    producer.produce("a", b"1")
    producer.flush(10)
    if is_published:
        producer.commit_transaction()
    else:
        producer = clients.ready("spark-etl")
    paths = [key.removeprefix("topics/a/") for key in clients.staged()]
    with producer.transaction():
        producer.produce("a", b"2")
        assert not resolve_files(inner, paths, 1e9, SYSTEM_CLOCK, SYSTEM_CLOCK.monotonic() + 10)
    assert clients.values("a") == [b"1", b"2"][not is_published :]


def test_a_block_waits_for_the_end_of_a_cancelled_one(clients: Clients):
    async def main() -> None:
        conf = {"bootstrap.servers": "memory://unused", "transactional.id": "t"}
        async with AIOProducer(conf, store=clients.store) as producer:
            await producer.init_transactions()

            async def writes(value: bytes) -> None:
                async with producer.transaction():
                    _ = await producer.produce_future("a", value)

            clients.store.add(Rule("create", DECISION, Fault.slow(0.5), 1))
            cancelled = asyncio.create_task(writes(b"1"))
            await asyncio.sleep(0.25)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await writes(b"2")

    asyncio.run(main())
    assert clients.values("a") == [b"1", b"2"]
