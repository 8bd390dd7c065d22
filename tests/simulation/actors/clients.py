"""The actors of a run: clients as a service would use them, which record all they did and saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from deltaq import (
    OFFSET_BEGINNING,
    Consumer,
    Fenced,
    KafkaError,
    KafkaException,
    Message,
    OutcomeUnknown,
    Producer,
    TopicPartition,
    Unavailable,
)
from deltaq.message import FetchedMessage
from tests.checker.history import Invocation
from tests.simulation.audit.history import topic_with_id
from tests.simulation.audit.oracle import VALUE_HEADER
from tests.simulation.harness import ROOT, Harness
from tests.simulation.scenario import TOPIC
from tests.simulator.world import Machine

__all__ = ["ReadingActor", "Seen", "SendingActor", "end", "poll_and_record", "seen", "token_in"]

GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION)


def token_in(error: KafkaError) -> str | None:
    """The token of an outcome that is unknown; None where the outcome is known."""
    _, mark, rest = error.str().rpartition("(token ")
    return rest.rstrip(")") if mark else None


class SendingActor:
    """Produces its messages one after another, across restarts after kills; never sends a message
    twice.
    """

    def __init__(self, harness: Harness, name: str, group_commit: str) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._group_commit = group_commit
        self._sent = 0

    def act(self, machine: Machine) -> None:
        harness, scenario = self._harness, self._harness.scenario
        conf = {
            "bootstrap.servers": ROOT,
            "linger.ms": scenario.linger_ms,
            "message.timeout.ms": scenario.timeout_ms,
            "num.partitions": scenario.partitions,
            "client.id": self.name,
            "batch.num.messages": scenario.batch_messages,
            "deltaq.group.commit": self._group_commit,
        }
        with Producer(conf, store=machine.store, clock=machine.clock) as producer:
            while self._sent < scenario.messages:
                for _ in range(min(1 + harness.pick(5), scenario.messages - self._sent)):
                    self._send(producer, machine)
                producer.poll(0)
                self._resolve(producer)
                if harness.chance(0.1):
                    producer.flush(5.0)
                machine.clock.sleep(harness.between(0, scenario.rest_s))
        self.is_done = True

    def _resolve(self, producer: Producer) -> None:
        """Occasionally, query the outcome of one of its messages at once."""
        harness = self._harness
        mine = [known for known in harness.tokens if known[0].startswith(f"{self.name}:")]
        if mine and harness.chance(0.3):
            value, token = mine[harness.pick(len(mine))]
            try:
                harness.resolved.append((value, producer.resolve(TOPIC, token, 5.0)))
            except KafkaException:
                harness.network.count("an unknown outcome stayed unknown")

    def _send(self, producer: Producer, machine: Machine) -> None:
        harness = self._harness
        value = f"{self.name}:{self._sent}"
        self._sent += 1
        partition = harness.pick(harness.scenario.partitions) if harness.chance(0.7) else -1
        sending = harness.history.send(
            machine.name, TOPIC, value, None if partition < 0 else partition
        )

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                sending.ok(partition=message.partition(), offset=message.offset())
            elif (token := token_in(error)) is not None:
                harness.tokens.append((value, token))
                sending.info(error)
            else:
                sending.fail(error)

        is_compacted = harness.scenario.is_compacted
        key = f"key {harness.pick(4)}" if is_compacted or harness.chance(0.5) else None
        is_tombstone = is_compacted and harness.chance(0.2)
        try:
            producer.produce(
                TOPIC,
                None if is_tombstone else value,
                key=key,
                partition=partition,
                on_delivery=delivered,
                headers={VALUE_HEADER: value} if is_tombstone else None,
            )
        except KafkaException as error:
            sending.fail(error)


class ReadingActor:
    """Reads all partitions from their beginning, and occasionally seeks back."""

    def __init__(self, harness: Harness, name: str) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._next: dict[tuple[str, int], int] = {}  # by topic id and partition: the next offset

    def act(self, machine: Machine) -> None:
        harness = self._harness
        conf = {
            "bootstrap.servers": ROOT,
            "group.id": self.name,
            "enable.auto.commit": False,
            "auto.offset.reset": harness.scenario.reset,
        }
        with Consumer(conf, store=machine.store, clock=machine.clock) as consumer:
            mine = [
                TopicPartition(TOPIC, number, OFFSET_BEGINNING)
                for number in range(harness.scenario.partitions)
            ]
            harness.history.assign(machine.name, {(TOPIC, tp.partition): 0 for tp in mine})
            consumer.assign(mine)
            reached: dict[int, int] = {}
            self._next = {}
            while not harness.faults_ended:
                records, lost = poll_and_record(harness, machine, consumer)
                reached |= {record.partition: record.offset for record in records}
                self._follow(machine, records)
                for partition in lost:
                    self._go(machine, consumer, partition, OFFSET_BEGINNING)
                if reached and harness.chance(0.05):
                    partition = sorted(reached)[harness.pick(len(reached))]
                    self._go(machine, consumer, partition, harness.pick(reached[partition] + 1))
                if harness.chance(0.05):
                    self._pause(machine, consumer, mine)
                machine.clock.sleep(harness.between(0, 0.3))
        self.is_done = True

    def _follow(self, machine: Machine, records: list[Seen]) -> None:
        """Check that offsets are consecutive, unless key compaction removed some."""
        harness = self._harness
        for record in records:
            place = record.topic, record.partition
            expected = self._next.get(place, record.offset)
            if record.offset > expected and not harness.scenario.is_compacted:
                harness.network.count("retention moved a reader")
                if harness.scenario.reset == "error":
                    harness.report_unexpected(
                        f"{machine.name} was moved from {expected} to {record} without an error"
                    )
            self._next[place] = record.offset + 1

    def _go(self, machine: Machine, consumer: Consumer, partition: int, offset: int) -> None:
        consumer.seek(TopicPartition(TOPIC, partition, offset))
        is_anywhere = offset == OFFSET_BEGINNING or self._harness.scenario.recreates
        self._harness.history.seek(
            machine.name, {(TOPIC, partition): None if is_anywhere else offset}
        )
        for place in [place for place in self._next if place[1] == partition]:
            del self._next[place]
            if not is_anywhere:
                self._next[place] = offset

    def _pause(self, machine: Machine, consumer: Consumer, mine: list[TopicPartition]) -> None:
        some = [mine[self._harness.pick(len(mine))]]
        consumer.pause(some)
        machine.clock.sleep(self._harness.between(0, 1))
        consumer.resume(some)


def end(invocation: Invocation, error: KafkaException) -> None:
    """End a failed operation: as `fail` if the client guarantees that it did not happen, otherwise
    as `info`.
    """
    if isinstance(error, Fenced | Unavailable) and not isinstance(error, OutcomeUnknown):
        invocation.fail(error)
    else:
        invocation.info(error)


class Seen(NamedTuple):
    """A record as a consumer handed it out."""

    topic: str
    partition: int
    offset: int
    value: str


def seen(message: Message) -> Seen:
    """A message that is a record, so that it has all of them."""
    partition, offset = message.partition(), message.offset()
    assert isinstance(message, FetchedMessage)
    assert partition is not None
    assert offset is not None
    value = message.value()
    if value is None:
        value = dict(message.headers() or ())[VALUE_HEADER]
    return Seen(topic_with_id(message.topic_id), partition, offset, value.decode())


def poll_and_record(
    harness: Harness,
    machine: Machine,
    consumer: Consumer,
    at_end: Callable[[int], object] = lambda partition: None,
) -> tuple[list[Seen], list[int]]:
    """Poll, record the result, and report every error that no fault explains. `at_end` gets
    partitions at their end.

    Also the partitions in which the next record is gone, if the consumer reports that as an error.
    """
    polling = harness.history.poll(machine.name)
    count = harness.pick(20)
    timeout_s = harness.between(0, 1)
    try:
        if count:
            messages = consumer.consume(count, timeout_s)
        else:
            one = consumer.poll(timeout_s)
            messages = [] if one is None else [one]
    except KafkaException:
        polling.ok()
        raise
    events = [error for message in messages if (error := message.error()) is not None]
    lost = [message.partition() or 0 for message in messages if _is_out_of_range(message)]
    for error in events:
        if error.code() == KafkaError._PARTITION_EOF:
            continue
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            harness.network.count("a reader got an offset out of range")
        elif error.code() in (KafkaError._MAX_POLL_EXCEEDED, KafkaError._FATAL):
            harness.network.count(f"a member got {error.name()}")
        elif error.code() not in GONE or not harness.may_be_missing:
            harness.report_unexpected(f"{machine.name} got an error: {error}")
    records = [seen(message) for message in messages if message.error() is None]
    polling.ok(records)
    for message in messages:
        if (error := message.error()) is not None and error.code() == KafkaError._PARTITION_EOF:
            at_end(message.partition() or 0)
    return records, lost


def _is_out_of_range(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET
