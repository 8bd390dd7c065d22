"""An exception of a signal handler at any place of the producer's calls: no callback is lost, none
runs twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest

from deltaq import Producer
from deltaq.producer.sender import Sender
from deltaq.store import MemoryStore
from tests.doubles.interrupts import Interrupted, InterruptedCall, interrupted
from tests.doubles.reading import eventually


class Scenario:
    """A producer, its messages, and how often the callback of each has begun and ended."""

    def __init__(self) -> None:
        conf = {
            "bootstrap.servers": "memory://unused",
            "linger.ms": 60_000,
            "batch.num.messages": 3,
        }
        self.producer = Producer(conf, store=MemoryStore("test"), maintenance_enable=False)
        self.sent: list[bytes] = []
        self.begun: Counter[bytes] = Counter()
        self.ended: Counter[bytes] = Counter()
        self.produce(1)
        assert self.producer.flush(20) == 0

    def produce(self, messages: int) -> None:
        for _ in range(messages):
            self.sent.append(f"{len(self.sent)}".encode())
            self.producer.produce("t", self.sent[-1], on_delivery=self.tell)

    def tell(self, error: Any, message: Any) -> None:
        value = self.sent[int(message._records._records.values[message._row])]
        self.begun[value] += 1
        assert error is None
        self.ended[value] += 1

    def check(self, outcome: InterruptedCall, excused: Callable[[InterruptedCall], bool]) -> None:
        """After a flush every message was told once, but for one, if the interruption excuses
        that.
        """
        self.produce(1)
        assert self.producer.flush(20) == 0, outcome.place
        assert len(self.producer) == 0
        missing = [value for value in self.sent if self.begun[value] != 1]
        assert len(missing) <= excused(outcome), (outcome, missing, self.begun)
        assert not any(self.begun[value] > 1 for value in self.sent), (outcome, self.begun)
        self.sent.clear()
        self.begun.clear()


def callback_was_entered(outcome: InterruptedCall) -> bool:
    """Whether the call of a callback was interrupted before its first step: it counts as called."""
    return outcome.place.endswith(" in tell")


def interrupt_everywhere(
    prepare: Callable[[Scenario], object],
    call: Callable[[Scenario], object],
    error: type[BaseException] | BaseException = Interrupted,
    excused: Callable[[InterruptedCall], bool] = callback_was_entered,
) -> set[str]:
    """Interrupt the call at every place; the places."""
    scenario, places = Scenario(), set()
    for point in count():
        prepare(scenario)
        outcome = interrupted(partial(call, scenario), point, error)
        scenario.check(outcome, excused)
        if not outcome.reached:
            assert outcome.raised is None
            break
        assert outcome.raised is error or type(outcome.raised) is error, outcome
        places.add(outcome.place)
    scenario.producer.close()
    return places


def produce_a_batch(scenario: Scenario) -> None:
    scenario.produce(3)


def have_callbacks_due(scenario: Scenario) -> None:
    scenario.produce(3)
    eventually(lambda: len(scenario.producer._callbacks.due) == 1)


@pytest.mark.fault("P14")
@pytest.mark.parametrize(
    "error", [Interrupted, TimeoutError("the handler's own")], ids=["interrupt", "alarm"]
)
def test_an_interrupted_poll_loses_no_callback_and_runs_none_twice(error):
    assert interrupt_everywhere(
        have_callbacks_due, lambda scenario: scenario.producer.poll(0), error
    )


@pytest.mark.slow
@pytest.mark.fault("P14")
@pytest.mark.parametrize(
    "prepare", [have_callbacks_due, lambda scenario: scenario.produce(2)], ids=["due", "waiting"]
)
def test_an_interrupted_flush_loses_no_callback_and_leaves_no_lock_taken(prepare):
    assert interrupt_everywhere(prepare, lambda scenario: scenario.producer.flush())


@pytest.mark.fault("P14")
def test_a_poll_that_is_interrupted_while_it_waits_leaves_no_lock_taken():
    assert interrupt_everywhere(
        lambda scenario: None, lambda scenario: scenario.producer.poll(0.001)
    )


@pytest.mark.fault("P14")
def test_an_interrupted_produce_queues_its_message_once_or_not_at_all():
    assert interrupt_everywhere(
        lambda scenario: None, produce_a_batch, excused=lambda outcome: outcome.reached
    )


@pytest.mark.slow
@pytest.mark.fault("P14")
def test_an_interrupted_first_produce_leaves_the_topic_and_its_threads_usable():
    modules = (
        "deltaq.producer",
        "deltaq.producer.sender_topic",
        "deltaq.producer.sender",
        "deltaq.shared_threads",
        "contextlib",
    )
    outcomes: list[
        InterruptedCall
    ] = []  # kept, since what is on the stack of an exception must not matter
    while not outcomes or outcomes[-1].reached:
        delivered: list[bytes] = []
        conf = {
            "bootstrap.servers": "memory://unused",
            "linger.ms": 0,
            "on_delivery": partial(note, delivered),
        }
        producer = Producer(conf, store=MemoryStore("test"), maintenance_enable=False)
        outcomes.append(
            interrupted(partial(producer.produce, "t", b"a"), len(outcomes), modules=modules)
        )
        producer.produce("t", b"b")
        assert producer.flush(20) == 0, outcomes[-1].place
        assert delivered in ([b"b"], [b"a", b"b"])
        writer = producer._handles["t"].sender
        producer.close()
        eventually(partial(has_ended, writer))
    assert {type(outcome.raised) for outcome in outcomes[:-1]} == {Interrupted}


def note(delivered: list[bytes], error: Any, message: Any) -> None:
    delivered.append(message.value())


def has_ended(writer: Sender) -> bool:
    return writer not in writer._threads.users
