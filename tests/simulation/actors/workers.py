"""Members of a share group: they take messages, decide each at random, crash and return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deltaq import (
    AcknowledgeType,
    KafkaException,
    Message,
    OutcomeUnknown,
    ShareConsumer,
    TopicPartition,
    Unavailable,
)
from deltaq.clock import Clock
from deltaq.errors import KafkaError
from deltaq.message import SharedMessage
from deltaq.topics.delivery_time import deliver_at_ms
from tests.simulation.audit.oracle import Place
from tests.simulation.harness import ROOT, Harness
from tests.simulation.scenario import TOPIC
from tests.simulator.world import Machine

__all__ = [
    "ACCEPT",
    "REJECT",
    "RELEASE",
    "Delivered",
    "RecordDecision",
    "SharedWork",
    "WorkerActor",
    "drain",
    "is_explained",
    "place_of",
    "share_conf",
]

ACCEPT, RELEASE, REJECT, RENEW = (int(kind) for kind in AcknowledgeType)

LAST_S = 240.0
"""Simulated seconds within which the last worker gets all that is left."""


AHEAD_S = 5_000.0
"""Seconds by which the clock of the last worker is ahead, more than any other one and the longest
delay after a failed transaction: what was released until later is due.
"""


@dataclass(frozen=True)
class Delivered:
    """A message that a worker got, in its delivery of the number `deliveries`, at the simulated
    time `at`.
    """

    worker: str
    place: Place
    deliveries: int
    at: float


@dataclass(frozen=True)
class RecordDecision:
    """What a worker has decided of a delivery: before it was sent, or after it was confirmed at the
    simulated time `at`.
    """

    worker: str
    place: Place
    deliveries: int
    kind: int
    at: float


@dataclass
class SharedWork:
    """What the workers have seen, decided, and heard of their decisions; and the simulated time at
    which the last redrive of dead letters began. `copying` are workers that accept messages in
    transactions only.
    """

    delivered: list[Delivered] = field(default_factory=list)
    decided: list[RecordDecision] = field(default_factory=list)
    confirmed: list[RecordDecision] = field(default_factory=list)
    refused: list[RecordDecision] = field(default_factory=list)
    last_redrive: float = 0.0
    copying: set[str] = field(default_factory=set)


class WorkerActor:
    """One member of the group, across restarts."""

    def __init__(self, harness: Harness, name: str, work: SharedWork) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._work = work

    def act(self, machine: Machine) -> None:
        harness = self._harness
        while not harness.faults_ended:
            try:
                self._live(machine, harness.between(1, 40))
            except KafkaException as error:
                if not is_explained(error):
                    harness.report_unexpected(f"{machine.name} got {error}")
            machine.clock.sleep(harness.between(0, 1))
        self.is_done = True

    def _live(self, machine: Machine, seconds: float) -> None:
        harness = self._harness
        is_explicit = harness.chance(0.6)
        conf = share_conf(harness) | {
            "client.id": machine.name,
            "share.acknowledgement.mode": "explicit" if is_explicit else "implicit",
            "max.poll.records": 1 + harness.pick(6),
        }
        until = machine.clock.monotonic() + seconds
        consumer = ShareConsumer(conf, store=machine.store, clock=machine.clock)
        try:
            handling = Handling(
                harness, machine.name, machine.clock, self._work, consumer, is_explicit
            )
            consumer.subscribe([TOPIC])
            while not harness.faults_ended and machine.clock.monotonic() < until:
                handling.round(harness.between(0, 1))
                machine.clock.sleep(harness.between(0, 1 if harness.chance(0.9) else 8))
        finally:
            consumer.close()


@dataclass
class Handling:
    """The work of one share consumer, and what it notes of it."""

    harness: Harness
    worker: str
    clock: Clock
    work: SharedWork
    consumer: ShareConsumer
    is_explicit: bool
    decides: bool = True
    # In implicit mode, what the next call accepts.
    _returned: Sequence[tuple[Place, int]] = ()
    # By partition and offset: a topic that was created again has the same ones.
    _open: dict[tuple[int, int], list[RecordDecision]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.consumer.set_acknowledgement_commit_callback(self._heard)

    def round(self, timeout: float) -> int:
        """Poll once, and decide what was returned. Returns the number of messages."""
        self._accept_returned()
        begun_ms = self.clock.time_ms()
        messages = self.consumer.poll(timeout)
        records = [message for message in messages if isinstance(message, SharedMessage)]
        for record in records:
            self._check_time(record, begun_ms)
            self.work.delivered.append(
                Delivered(self.worker, place_of(record), record.delivery_count() or 0, self._now())
            )
        if self.is_explicit:
            for record in records:
                self._decide(record)
        else:
            self._returned = [
                (place_of(record), record.delivery_count() or 0) for record in records
            ]
        if self.harness.chance(0.5):
            self._accept_returned()
            self.consumer.commit_sync(self.harness.between(0.5, 10))
        return len(records)

    def _check_time(self, record: SharedMessage, begun_ms: int) -> None:
        """No message comes before its time, by the clock of its worker, which may jump back."""
        at_ms = deliver_at_ms(record.headers())
        if at_ms > max(begun_ms, self.clock.time_ms()):
            self.harness.report_unexpected(f"{place_of(record)} came before its time, {at_ms}")
        if at_ms:
            self.harness.network.count("a message was delivered after its time")

    def _accept_returned(self) -> None:
        """In implicit mode the next call accepts all."""
        for place, deliveries in self._returned:
            self._note(RecordDecision(self.worker, place, deliveries, ACCEPT, self._now()))
        self._returned = ()

    def _decide(self, record: SharedMessage) -> None:
        harness = self.harness
        kind = ACCEPT if not self.decides or harness.chance(0.6) else RELEASE
        if kind == RELEASE and harness.chance(0.6 if harness.scenario.dead_letters else 0.2):
            kind = REJECT
        if harness.chance(0.1):
            self.consumer.acknowledge(record, AcknowledgeType(RELEASE))  # thinks better of it
        self._note(
            RecordDecision(
                self.worker, place_of(record), record.delivery_count() or 0, kind, self._now()
            )
        )
        self.consumer.acknowledge(record, AcknowledgeType(kind))

    def _note(self, decision: RecordDecision) -> None:
        self.work.decided.append(decision)
        place = decision.place.partition, decision.place.offset
        self._open.setdefault(place, []).append(decision)

    def _heard(self, offsets: dict[TopicPartition, set[int]], error: KafkaException | None) -> None:
        heard = self.work.confirmed if error is None else self.work.refused
        for partition, of_partition in offsets.items():
            for offset in sorted(of_partition):
                decision = self._open[partition.partition, offset].pop(0)
                heard.append(replace(decision, at=self._now()))
                if error is not None:
                    self.harness.network.count("a late acknowledgement was refused")

    def _now(self) -> float:
        return self.harness.world.scheduler.now


def share_conf(harness: Harness) -> dict[str, Any]:
    """The configuration that all workers have."""
    return {
        "bootstrap.servers": ROOT,
        "group.id": "shared",
        "maintenance.enable": harness.scenario.background_maintenance,
    }


def drain(harness: Harness, work: SharedWork) -> None:
    """After the faults: one worker gets and accepts all that is left."""
    machine = harness.world.machine("last-worker")
    if harness.scenario.copiers:
        machine.process.skew_s = AHEAD_S
    conf = share_conf(harness) | {
        "client.id": machine.name,
        "share.acknowledgement.mode": "explicit",
        # Few: where all requests are slow, the lock of many would be over before they are read.
        "max.poll.records": 4,
    }
    deadline = machine.clock.monotonic() + LAST_S
    with ShareConsumer(conf, store=machine.store, clock=machine.clock) as consumer:
        handling = Handling(
            harness, machine.name, machine.clock, work, consumer, is_explicit=True, decides=False
        )
        consumer.subscribe([TOPIC])
        idle_since, rounds = machine.clock.monotonic(), 0
        # A poll may have lost what it took because its reads took longer than the lock.
        while (
            rounds < 5 or machine.clock.monotonic() - idle_since < 2 * harness.scenario.lock_s + 2
        ):
            rounds += 1
            if handling.round(1.0):
                idle_since, rounds = machine.clock.monotonic(), 0
            consumer.commit_sync()
            if machine.clock.monotonic() > deadline:
                harness.report_unexpected("the last worker did not come to an end")
                return


def place_of(record: Message) -> Place:
    """Where a message is."""
    assert isinstance(record, SharedMessage)
    return Place(record.topic_id or "", record.partition() or 0, record.offset() or 0)


def is_explained(error: KafkaException) -> bool:
    """Whether an injected fault explains an error of `close`, or of a store that was damaged."""
    return isinstance(error, Unavailable | OutcomeUnknown) or error.error == KafkaError._TRANSPORT
