"""What all programs with a transactional producer share: their lives, and calls that are repeated
until their outcome is known, as the documentation tells them to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from deltaq import (
    OFFSET_STORED,
    Consumer,
    Fenced,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from tests.simulation.harness import ROOT, Harness
from tests.simulator.world import Machine

__all__ = ["PIECE_BYTES", "Aborted", "TransactionalProgram", "transactional_conf"]

EXPLAINED = (KafkaError._MAX_POLL_EXCEEDED, KafkaError._FATAL, KafkaError._PARTITION_EOF)


PIECE_BYTES = 1_000
"""Messages above this are written in pieces."""


class Aborted(Exception):
    """The transaction has been aborted, and another one may begin."""


class TransactionalProgram(ABC):
    """A consumer and a transactional producer, across restarts. Its `transactional.id` may be that
    of others, too, who fence it then.
    """

    def __init__(self, harness: Harness, name: str, id_: str) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._id = id_

    @abstractmethod
    def conf(self) -> dict[str, Any]:
        """The configuration of the consumer."""

    @abstractmethod
    def start(self, consumer: Consumer) -> None:
        """Have a new consumer read its topics."""

    @abstractmethod
    def step(self, machine: Machine, producer: Producer, consumer: Consumer) -> None:
        """One transaction. Raises Aborted."""

    @abstractmethod
    def note_end(self, outcome: str) -> None:
        """The open transaction, if there is one, is `committed` or `aborted`. Or a call of it was
        `refused`, so that it is not committed, and never will be.
        """

    def rewind(self, consumer: Consumer) -> None:
        """Continue at the committed offsets."""
        for held in consumer.assignment():
            consumer.seek(TopicPartition(held.topic, held.partition, OFFSET_STORED))

    # --- lives ---

    def act(self, machine: Machine) -> None:
        harness = self._harness
        while not self.is_over():
            conf = self.conf() | {"client.id": machine.name, "enable.auto.commit": False}
            with (
                Consumer(conf, store=machine.store, clock=machine.clock) as consumer,
                suppress(Fenced),
            ):
                self.start(consumer)
                until = machine.clock.monotonic() + harness.between(5, 60)
                while not self.is_over() and machine.clock.monotonic() < until:
                    self._produce(machine, consumer, until)
        self.is_done = True

    def is_over(self) -> bool:
        """Whether no more transactions are to begin."""
        return self._harness.faults_ended

    def _produce(self, machine: Machine, consumer: Consumer, until: float) -> None:
        """The life of a producer."""
        harness = self._harness
        conf = transactional_conf(harness, self._id) | {"client.id": machine.name}
        with Producer(conf, store=machine.store, clock=machine.clock) as producer:
            try:
                self.repeat(machine, producer.init_transactions)
                while not self.is_over() and machine.clock.monotonic() < until:
                    self.try_step(machine, producer, consumer)
                    machine.clock.sleep(harness.between(0, harness.scenario.rest_s))
            except KafkaException as error:
                if not error.error.fatal():
                    raise
                harness.network.count("a producer was fenced")
                self.note_end("refused")
                self.rewind(consumer)
                machine.clock.sleep(harness.between(0, 10))

    def try_step(self, machine: Machine, producer: Producer, consumer: Consumer) -> None:
        """One transaction; it may be aborted."""
        with suppress(Aborted):
            self.step(machine, producer, consumer)

    # --- calls ---

    def consume(self, consumer: Consumer, count: int, timeout_s: float) -> list[Message]:
        """The next messages and events, of which each is explained by some fault."""
        messages = consumer.consume(count, timeout_s)
        for message in messages:
            error = message.error()
            if error is not None and error.code() not in EXPLAINED:
                self._harness.report_unexpected(f"{self.name} got an error: {error}")
        return messages

    def commit(self, machine: Machine, producer: Producer, consumer: Consumer) -> None:
        """Commit. Raises Aborted if it is refused."""
        self.requiring_abort(machine, producer, consumer, producer.commit_transaction)
        self.note_end("committed")

    def abort(self, machine: Machine, producer: Producer, consumer: Consumer) -> None:
        """Abort, and read again what the transaction has read."""
        self.repeat(machine, producer.abort_transaction)
        self.note_end("aborted")
        self.rewind(consumer)

    def send_offsets(
        self,
        machine: Machine,
        producer: Producer,
        consumer: Consumer,
        positions: list[TopicPartition],
    ) -> None:
        """Commit the positions with the transaction. Raises Aborted if that is refused."""
        self.requiring_abort(
            machine,
            producer,
            consumer,
            lambda timeout_s: producer.send_offsets_to_transaction(
                positions, consumer.consumer_group_metadata(), timeout_s
            ),
        )

    def requiring_abort(
        self,
        machine: Machine,
        producer: Producer,
        consumer: Consumer,
        call: Callable[[float], None],
    ) -> None:
        """Repeat a call until its outcome is known, and abort if it requires that. Raises
        Aborted.
        """
        try:
            self.repeat(machine, call)
        except KafkaException as error:
            self.note_end("refused")
            if not error.error.txn_requires_abort():
                raise
            self._harness.network.count("a transaction had to be aborted")
            self.abort(machine, producer, consumer)
            raise Aborted from None

    def repeat(self, machine: Machine, call: Callable[[float], None]) -> None:
        """Repeat a call until its outcome is known."""
        harness = self._harness
        while True:
            try:
                call(harness.between(0.1, 5))
            except KafkaException as error:
                if not error.error.retriable():
                    if not (error.error.fatal() or error.error.txn_requires_abort()):
                        harness.report_unexpected(f"{self.name} got an error: {error}")
                    raise
                harness.network.count("a call about a transaction was repeated")
                machine.clock.sleep(harness.between(0, 2))
            else:
                return


def transactional_conf(harness: Harness, id_: str) -> dict[str, str | int]:
    """The configuration of a producer with this `transactional.id`."""
    scenario = harness.scenario
    return {
        "bootstrap.servers": ROOT,
        "transactional.id": id_,
        "transaction.timeout.ms": scenario.timeout_ms,
        "linger.ms": scenario.linger_ms,
        "message.timeout.ms": scenario.timeout_ms,
        "batch.num.messages": scenario.batch_messages,
        "large.message.enabled": scenario.large_messages,
        "message.max.bytes": PIECE_BYTES if scenario.large_messages else 1_000_000,
    }
