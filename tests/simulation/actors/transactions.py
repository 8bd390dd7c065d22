"""Programs that consume, process and produce in transactions, as their documentation tells them to,
and a reader of what they write.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from deltaq import (
    OFFSET_BEGINNING,
    OFFSET_STORED,
    Consumer,
    Fenced,
    KafkaError,
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
from tests.simulation.audit.oracle import Place
from tests.simulation.harness import ROOT, Harness
from tests.simulation.scenario import INPUT, OUTPUTS
from tests.simulator.world import Machine

__all__ = ["Attempt", "Follower", "Processor", "Transactional", "Viewer", "transactional_conf"]

EXPLAINED = (KafkaError._MAX_POLL_EXCEEDED, KafkaError._FATAL, KafkaError._PARTITION_EOF)


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


class _Aborted(Exception):
    """The transaction has been aborted, and another one may begin."""


class _Interrupted(Exception):
    """What a program raises inside of a transaction, to abort it."""


class Processor:
    """Copies the input to both outputs, across restarts: each input record once. Its
    `transactional.id` may be that of others, too, who fence it then.
    """

    def __init__(self, harness: Harness, name: str, id_: str, done: Transactional) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._id = id_
        self._done = done
        self._is_revoked = False

    def act(self, machine: Machine) -> None:
        harness = self._harness
        while not harness.faults_ended:
            conf = group_conf(harness) | {"client.id": machine.name, "enable.auto.commit": False}
            with (
                Consumer(conf, store=machine.store, clock=machine.clock) as consumer,
                suppress(Fenced),
            ):
                self.subscribe(consumer)
                self._live(machine, consumer, machine.clock.monotonic() + harness.between(5, 60))
        self.is_done = True

    def subscribe(self, consumer: Consumer) -> None:
        """Read the input, and note when partitions are taken away inside a transaction."""
        consumer.subscribe([INPUT], on_revoke=self._revoked, on_lost=self._revoked)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._is_revoked = True

    def _live(self, machine: Machine, consumer: Consumer, until: float) -> None:
        while not self._harness.faults_ended and machine.clock.monotonic() < until:
            self._produce(machine, consumer, until)

    def _produce(self, machine: Machine, consumer: Consumer, until: float) -> None:
        """The life of a producer."""
        harness = self._harness
        conf = transactional_conf(harness, self._id) | {"client.id": machine.name}
        with Producer(conf, store=machine.store, clock=machine.clock) as producer:
            try:
                self._repeat(machine, producer.init_transactions)
                while not harness.faults_ended and machine.clock.monotonic() < until:
                    self.try_step(machine, producer, consumer)
                    machine.clock.sleep(harness.between(0, harness.scenario.rest_s))
            except KafkaException as error:
                if not error.error.fatal():
                    raise
                harness.network.count("a producer was fenced")
                _rewind(consumer)
                machine.clock.sleep(harness.between(0, 10))

    def try_step(self, machine: Machine, producer: Producer, consumer: Consumer) -> None:
        """A transaction with the next messages, if there are some; it may be aborted."""
        with suppress(_Aborted):
            self._step(machine, producer, consumer)

    def _step(self, machine: Machine, producer: Producer, consumer: Consumer) -> None:
        harness = self._harness
        self._is_revoked = False
        messages = self._consume(consumer)
        if not messages:
            return
        attempt = Attempt(len(self._done.attempts))
        self._done.attempts.append(attempt)
        if harness.chance(0.5):
            self._in_block(machine, producer, consumer, messages, attempt)
        else:
            self._by_calls(machine, producer, consumer, messages, attempt)

    def _consume(self, consumer: Consumer) -> list[Message]:
        harness = self._harness
        messages = consumer.consume(1 + harness.pick(4), harness.between(0, 1))
        for message in messages:
            error = message.error()
            if error is not None and error.code() not in EXPLAINED:
                harness.report_unexpected(f"{self.name} got an error: {error}")
        return [message for message in messages if message.error() is None]

    # --- the two ways to write a transaction ---

    def _in_block(
        self,
        machine: Machine,
        producer: Producer,
        consumer: Consumer,
        messages: list[Message],
        attempt: Attempt,
    ) -> None:
        try:
            with producer.transaction(consumer=consumer):
                self._copy(machine, producer, messages, attempt)
                if self._harness.chance(0.15):
                    raise _Interrupted
        except _Interrupted:
            self._end(attempt, "aborted")
            raise _Aborted from None
        except KafkaException as error:
            if error.error.retriable():
                self._commit(machine, producer, consumer, attempt)
                return
            self._end(attempt, "refused")
            if error.error.txn_requires_abort():
                self._harness.network.count("a transaction had to be aborted")
                raise _Aborted from None
            raise
        self._end(attempt, "committed")

    def _by_calls(
        self,
        machine: Machine,
        producer: Producer,
        consumer: Consumer,
        messages: list[Message],
        attempt: Attempt,
    ) -> None:
        harness = self._harness
        producer.begin_transaction()
        self._copy(machine, producer, messages, attempt)
        if harness.chance(0.2):
            more = self._consume(consumer)
            self._copy(machine, producer, more, attempt)
            messages = messages + more
        # What was read of a partition before it was revoked is read by its next owner, too.
        if self._is_revoked or harness.chance(0.15):
            self._abort(machine, producer, consumer, attempt)
            raise _Aborted
        places = {(message.topic(), message.partition()): message.offset() for message in messages}
        positions = [
            TopicPartition(topic or "", partition or 0, (offset or 0) + 1)
            for (topic, partition), offset in places.items()
        ]
        parts = [positions[:1], positions] if harness.chance(0.2) else [positions]
        for part in parts:
            self._requiring_abort(
                machine,
                producer,
                consumer,
                attempt,
                lambda timeout_s, part=part: producer.send_offsets_to_transaction(  # type: ignore[misc]
                    part, consumer.consumer_group_metadata(), timeout_s
                ),
            )
        # Meanwhile others may need the outcome.
        if harness.chance(0.4):
            machine.clock.sleep(harness.between(0, 12))
        self._commit(machine, producer, consumer, attempt)

    def _copy(
        self, machine: Machine, producer: Producer, messages: list[Message], attempt: Attempt
    ) -> None:
        harness = self._harness
        for message in messages:
            value = f"{(message.value() or b'').decode()}|{attempt.number}"
            attempt.values.append(value)
            for topic in OUTPUTS:
                producer.produce(topic, value)
            if harness.chance(0.1):
                machine.clock.sleep(harness.between(0, 3))
        if harness.chance(0.2):
            producer.flush(harness.between(0, 2))

    # --- calls ---

    def _commit(
        self, machine: Machine, producer: Producer, consumer: Consumer, attempt: Attempt
    ) -> None:
        self._requiring_abort(machine, producer, consumer, attempt, producer.commit_transaction)
        self._end(attempt, "committed")

    def _requiring_abort(
        self,
        machine: Machine,
        producer: Producer,
        consumer: Consumer,
        attempt: Attempt,
        call: Callable[[float], None],
    ) -> None:
        """Repeat a call until its outcome is known, and abort if it requires that."""
        try:
            self._repeat(machine, call)
        except KafkaException as error:
            self._end(attempt, "refused")
            if not error.error.txn_requires_abort():
                raise
            self._harness.network.count("a transaction had to be aborted")
            self._abort(machine, producer, consumer, attempt)
            raise _Aborted from None

    def _abort(
        self, machine: Machine, producer: Producer, consumer: Consumer, attempt: Attempt
    ) -> None:
        self._repeat(machine, producer.abort_transaction)
        self._end(attempt, "aborted")
        _rewind(consumer)

    def _repeat(self, machine: Machine, call: Callable[[float], None]) -> None:
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

    def _end(self, attempt: Attempt, outcome: str) -> None:
        attempt.outcome = attempt.outcome or outcome
        attempt.ended = attempt.ended or self._harness.world.scheduler.now


def _rewind(consumer: Consumer) -> None:
    """Continue at the committed offsets."""
    for held in consumer.assignment():
        consumer.seek(TopicPartition(held.topic, held.partition, OFFSET_STORED))


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
    }
