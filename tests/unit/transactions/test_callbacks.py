"""Delivery callbacks that run inside the calls of transactions: what they raise, and what they may
call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deltaq import KafkaError, KafkaException, Producer, Topic
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule

EVER = None
DECISION = "transactions/*_delta_log/*"


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore("test"))


@pytest.fixture
def producer(store: FaultyStore) -> Iterator[Producer]:
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 30_000}
    made = Producer(conf, transactional_id="t", store=store)
    made.init_transactions()
    yield made
    store.clear()
    made.close()


def raises(*_: Any) -> None:
    raise LookupError("of the program")


def values(store: FaultyStore, topic: str = "a") -> list[bytes]:
    column = Topic(topic, store=store.inner).to_arrow()["value"]
    return [bytes(value) for value in column.to_pylist()]


def code(call: Any, *arguments: Any) -> int:
    with pytest.raises(KafkaException) as raised:
        call(*arguments)
    return raised.value.error.code()


def test_what_a_callback_raises_is_raised_after_the_commit(store, producer):
    producer.begin_transaction()
    for value in (b"1", b"2"):
        producer.produce("a", value, on_delivery=raises)
    with pytest.raises(LookupError):
        producer.commit_transaction()
    assert values(store) == [b"1", b"2"]
    producer.begin_transaction()
    producer.commit_transaction()


def test_what_a_callback_raises_is_raised_after_the_abort(store, producer):
    producer.begin_transaction()
    producer.produce("a", b"1", on_delivery=raises)
    with pytest.raises(LookupError):
        producer.abort_transaction()
    producer.begin_transaction()
    producer.commit_transaction()
    assert values(store) == []


def test_what_a_callback_raises_before_a_time_out_is_raised_after_the_commit(store, producer):
    producer.begin_transaction()
    producer.produce("a", b"1", on_delivery=raises)
    store.add(Rule("create", DECISION, Fault.error_before(), EVER))
    assert code(producer.commit_transaction, 0.3) == KafkaError._TIMED_OUT
    store.clear()
    with pytest.raises(LookupError):
        producer.commit_transaction()
    assert values(store) == [b"1"]


def test_what_a_callback_raises_while_a_transaction_is_aborted_by_the_close_is_raised_after_it(
    store, producer
):
    producer.begin_transaction()
    producer.produce("a", b"1", on_delivery=raises)
    with pytest.raises(LookupError):
        producer.close()
    with pytest.raises(RuntimeError):
        producer.begin_transaction()
    assert values(store) == []


def test_a_callback_cannot_change_the_transaction_that_is_committed(store, producer):
    codes: list[int] = []

    def calls(*_: Any) -> None:
        codes.extend(
            (
                code(producer.init_transactions),
                code(producer.begin_transaction),
                code(producer.commit_transaction),
                code(producer.produce, "a", b"more"),
            )
        )

    producer.begin_transaction()
    producer.produce("a", b"1", on_delivery=calls)
    producer.commit_transaction()
    conflict, repeated, state = (
        KafkaError._CONFLICT,
        KafkaError._PREV_IN_PROGRESS,
        KafkaError._STATE,
    )
    assert codes == [conflict, conflict, repeated, state]
    assert values(store) == [b"1"]


def test_what_a_callback_produces_during_an_abort_is_in_no_transaction(store, producer):
    codes: list[int] = []
    producer.begin_transaction()
    producer.produce(
        "a", b"1", on_delivery=lambda *_: codes.append(code(producer.produce, "a", b"more"))
    )
    producer.abort_transaction()
    assert codes == [KafkaError._STATE]
    with producer.transaction():
        producer.produce("a", b"2")
    assert values(store) == [b"2"]
