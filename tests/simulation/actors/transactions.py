"""Programs that consume, process and produce in transactions, as their documentation tells them to,
and a reader of what they write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from deltaq import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
    Unavailable,
    UnknownTopic,
    cut,
)
from deltaq.message import FetchedMessage
from tests.simulation.actors.members import group_conf
from tests.simulation.actors.transactional import Aborted, TransactionalProgram
from tests.simulation.audit.oracle import Place
from tests.simulation.harness import ROOT, Harness
from tests.simulation.scenario import INPUT, OUTPUTS
from tests.simulator.world import Machine

__all__ = ["Attempt", "Follower", "Processor", "Transactional", "Viewer"]


@dataclass
class Attempt:
    """A transaction as its program sees it. `values` are those that it has produced to each output
    topic, unlike those of any other attempt. `outcome` is empty while the program does not know,
    and `ended` when it learnt.
    """

    number: int
    values: list[str] = field(default_factory=list)
    outcome: str = ""
    ended: float = 0.0


@dataclass
class Transactional:
    """What the programs of a run have done and seen. `cuts`: by topic and partition the offsets
    that split no transaction.
    """

    attempts: list[Attempt] = field(default_factory=list)
    followed: list[tuple[str, Place, str]] = field(default_factory=list)
    cuts: list[dict[str, dict[int, int]]] = field(default_factory=list)

    def follow(self, messages: list[Message]) -> None:
        """Note what a reader got from an output topic."""
        for message in messages:
            if message.error() is None:
                assert isinstance(message, FetchedMessage)
                partition, offset, value = message.partition(), message.offset(), message.value()
                place = Place(message.topic_id or "", partition or 0, offset or 0)
                self.followed.append((message.topic() or "", place, (value or b"").decode()))


class _Interrupted(Exception):
    """What a program raises inside of a transaction, to abort it."""


class Processor(TransactionalProgram):
    """Copies the input to both outputs: each input record once."""

    def __init__(self, harness: Harness, name: str, id_: str, done: Transactional) -> None:
        super().__init__(harness, name, id_)
        self._done = done
        self._attempt = Attempt(-1)
        self._is_revoked = False

    def conf(self) -> dict[str, Any]:
        return group_conf(self._harness)

    def start(self, consumer: Consumer) -> None:
        """Read the input, and note when partitions are taken away inside a transaction."""
        consumer.subscribe([INPUT], on_revoke=self._revoked, on_lost=self._revoked)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._is_revoked = True

    def step(self, machine: Machine, producer: Producer, consumer: Consumer) -> None:
        """Copy the next messages, if there are some."""
        harness = self._harness
        self._is_revoked = False
        messages = self._next(consumer)
        if not messages:
            return
        self._attempt = Attempt(len(self._done.attempts))
        self._done.attempts.append(self._attempt)
        if harness.chance(0.5):
            self._in_block(machine, producer, consumer, messages)
        else:
            self._by_calls(machine, producer, consumer, messages)

    def note_end(self, outcome: str) -> None:
        self._attempt.outcome = self._attempt.outcome or outcome
        self._attempt.ended = self._attempt.ended or self._harness.world.scheduler.now

    def _next(self, consumer: Consumer) -> list[Message]:
        harness = self._harness
        messages = self.consume(consumer, 1 + harness.pick(4), harness.between(0, 1))
        return [message for message in messages if message.error() is None]

    # --- the two ways to write a transaction ---

    def _in_block(
        self, machine: Machine, producer: Producer, consumer: Consumer, messages: list[Message]
    ) -> None:
        try:
            with producer.transaction(consumer=consumer):
                self._copy(machine, producer, messages)
                if self._harness.chance(0.15):
                    raise _Interrupted
        except _Interrupted:
            self.note_end("aborted")
            raise Aborted from None
        except KafkaException as error:
            if error.error.retriable():
                self.commit(machine, producer, consumer)
                return
            self.note_end("refused")
            if error.error.txn_requires_abort():
                self._harness.network.count("a transaction had to be aborted")
                raise Aborted from None
            raise
        self.note_end("committed")

    def _by_calls(
        self, machine: Machine, producer: Producer, consumer: Consumer, messages: list[Message]
    ) -> None:
        harness = self._harness
        producer.begin_transaction()
        self._copy(machine, producer, messages)
        if harness.chance(0.2):
            more = self._next(consumer)
            self._copy(machine, producer, more)
            messages = messages + more
        # What was read of a partition before it was revoked is read by its next owner, too.
        if self._is_revoked or harness.chance(0.15):
            self.abort(machine, producer, consumer)
            raise Aborted
        places = {(message.topic(), message.partition()): message.offset() for message in messages}
        positions = [
            TopicPartition(topic or "", partition or 0, (offset or 0) + 1)
            for (topic, partition), offset in places.items()
        ]
        parts = [positions[:1], positions] if harness.chance(0.2) else [positions]
        for part in parts:
            self.send_offsets(machine, producer, consumer, part)
        # Meanwhile others may need the outcome.
        if harness.chance(0.4):
            machine.clock.sleep(harness.between(0, 12))
        self.commit(machine, producer, consumer)

    def _copy(self, machine: Machine, producer: Producer, messages: list[Message]) -> None:
        harness = self._harness
        number = self._attempt.number
        values = [f"{(message.value() or b'').decode()}|{number}" for message in messages]
        if values and harness.scenario.arrow_outputs and harness.chance(0.5):
            self._attempt.values += values
            for topic in OUTPUTS:
                producer.produce_arrow(topic, pa.table({"value": values}))
            values = []
        for value in values:
            self._attempt.values.append(value)
            for topic in OUTPUTS:
                producer.produce(topic, value)
            if harness.chance(0.1):
                machine.clock.sleep(harness.between(0, 3))
        if harness.chance(0.2):
            producer.flush(harness.between(0, 2))


class Follower:
    """Reads one output topic from its beginning, while it is written."""

    def __init__(self, harness: Harness, name: str, topic: str, done: Transactional) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._topic = topic
        self._done = done

    def act(self, machine: Machine) -> None:
        conf = {"bootstrap.servers": ROOT, "group.id": self.name, "enable.auto.commit": False}
        with Consumer(conf, store=machine.store, clock=machine.clock) as consumer:
            consumer.assign(
                [
                    TopicPartition(self._topic, number, OFFSET_BEGINNING)
                    for number in range(self._harness.scenario.partitions)
                ]
            )
            while not self._harness.faults_ended:
                self._done.follow(consumer.consume(10, 1.0))
                machine.clock.sleep(self._harness.between(0, 0.5))
        self.is_done = True


class Viewer:
    """Asks for offsets of both output topics that split no transaction."""

    def __init__(self, harness: Harness, name: str, done: Transactional) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._done = done

    def act(self, machine: Machine) -> None:
        while not self._harness.faults_ended:
            try:
                found = cut(OUTPUTS, store=machine.store, clock=machine.clock, timeout=10.0)
            except (Unavailable, UnknownTopic):
                self._harness.network.count("a cut was not found")
            else:
                self._done.cuts.append(found)
            machine.clock.sleep(self._harness.between(0, 8))
        self.is_done = True
