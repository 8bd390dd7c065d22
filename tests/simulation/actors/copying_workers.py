"""Members of a share group that copy messages to another topic, and acknowledge them by the same
transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from deltaq import AcknowledgeType, KafkaException, Producer, ShareConsumer
from deltaq.message import SharedMessage
from tests.simulation.actors.transactional import transactional_conf
from tests.simulation.actors.workers import (
    ACCEPT,
    REJECT,
    RELEASE,
    Delivered,
    RecordDecision,
    SharedWork,
    is_explained,
    place_of,
    share_conf,
)
from tests.simulation.audit.oracle import Place
from tests.simulation.harness import Harness
from tests.simulation.scenario import COPIES, TOPIC
from tests.simulator.world import Machine

__all__ = ["CopyingWorker", "copied"]


class _Interrupted(Exception):
    """What a worker raises inside of a transaction, to abort it."""


class _Ended(Exception):
    """The transaction is aborted, or the producer is fenced: the worker begins anew."""


class CopyingWorker:
    """One member of the group, with a `transactional.id`, across restarts."""

    def __init__(self, harness: Harness, name: str, id_: str, work: SharedWork) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._id = id_
        self._work = work

    def act(self, machine: Machine) -> None:
        harness = self._harness
        self._work.copying.add(machine.name)
        while not harness.faults_ended:
            try:
                self._live(machine, harness.between(5, 40))
            except KafkaException as error:
                if not (is_explained(error) or error.error.fatal()):
                    harness.report_unexpected(f"{machine.name} got {error}")
            machine.clock.sleep(harness.between(0, 1))
        self.is_done = True

    def _live(self, machine: Machine, seconds: float) -> None:
        harness = self._harness
        is_explicit = harness.chance(0.5)
        conf = share_conf(harness) | {
            "client.id": machine.name,
            "share.acknowledgement.mode": "explicit" if is_explicit else "implicit",
            "max.poll.records": 1 + harness.pick(6),
        }
        until = machine.clock.monotonic() + seconds
        own = transactional_conf(harness, self._id) | {"client.id": machine.name}
        consumer = ShareConsumer(conf, store=machine.store, clock=machine.clock)
        try:
            with Producer(own, store=machine.store, clock=machine.clock) as producer:
                self._repeat(machine, producer.init_transactions)
                consumer.subscribe([TOPIC])
                while not harness.faults_ended and machine.clock.monotonic() < until:
                    self._step(machine, producer, consumer, is_explicit=is_explicit)
                    machine.clock.sleep(harness.between(0, 1))
        finally:
            consumer.close()

    def _step(
        self, machine: Machine, producer: Producer, consumer: ShareConsumer, *, is_explicit: bool
    ) -> None:
        """One transaction, if there are messages."""
        messages = consumer.poll(self._harness.between(0, 1))
        records = [message for message in messages if isinstance(message, SharedMessage)]
        for record in records:
            about = place_of(record), record.delivery_count() or 0
            self._work.delivered.append(Delivered(machine.name, *about, self._now()))
        if not records:
            return
        decisions = [self._decision(machine, each, is_explicit=is_explicit) for each in records]
        if is_explicit:
            for record, decision in zip(records, decisions, strict=True):
                consumer.acknowledge(record, AcknowledgeType(decision.kind))
        self._work.decided += decisions
        write = self._in_block if self._harness.chance(0.5) else self._by_calls
        try:
            write(machine, producer, consumer, decisions)
        except _Ended:
            self._harness.network.count("a transaction with acknowledgements was aborted")
            return
        self._harness.network.count("a transaction has acknowledged messages")
        self._work.confirmed += [replace(each, at=self._now()) for each in decisions]

    def _decision(
        self, machine: Machine, record: SharedMessage, *, is_explicit: bool
    ) -> RecordDecision:
        kind = ACCEPT
        if is_explicit and self._harness.chance(0.3):
            kind = REJECT if self._harness.chance(0.3) else RELEASE
        deliveries = record.delivery_count() or 0
        return RecordDecision(machine.name, place_of(record), deliveries, kind, self._now())

    # --- the two ways to write a transaction; each raises _Ended if it is aborted ---

    def _in_block(
        self,
        machine: Machine,
        producer: Producer,
        consumer: ShareConsumer,
        decisions: list[RecordDecision],
    ) -> None:
        try:
            with producer.transaction(consumer=consumer):
                self._copy(machine, producer, decisions)
                if self._harness.chance(0.15):
                    raise _Interrupted
        except _Interrupted:
            raise _Ended from None
        except KafkaException as error:
            if not error.error.txn_requires_abort():
                raise
            raise _Ended from None

    def _by_calls(
        self,
        machine: Machine,
        producer: Producer,
        consumer: ShareConsumer,
        decisions: list[RecordDecision],
    ) -> None:
        harness = self._harness
        acknowledgements = consumer.acknowledgements_for_transaction()
        metadata = consumer.share_group_metadata()
        producer.begin_transaction()
        self._copy(machine, producer, decisions)
        try:
            self._repeat(
                machine,
                lambda timeout_s: producer.send_share_acknowledgements_to_transaction(
                    acknowledgements, metadata, timeout_s
                ),
            )
            # Meanwhile the lock may end, and others need the outcome.
            if harness.chance(0.4):
                machine.clock.sleep(harness.between(0, 1.5 * harness.scenario.lock_s))
            if harness.chance(0.15):
                self._repeat(machine, producer.abort_transaction)
                raise _Ended
            self._repeat(machine, producer.commit_transaction)
        except KafkaException as error:
            if not error.error.txn_requires_abort():
                raise
            self._repeat(machine, producer.abort_transaction)
            raise _Ended from None

    def _copy(self, machine: Machine, producer: Producer, decisions: list[RecordDecision]) -> None:
        for each in decisions:
            if each.kind == ACCEPT:
                producer.produce(COPIES, copied(each.place, each.deliveries))
            if self._harness.chance(0.1):
                machine.clock.sleep(self._harness.between(0, 2))

    def _repeat(self, machine: Machine, call: Callable[[float], None]) -> None:
        """Repeat a call until its outcome is known."""
        harness = self._harness
        while True:
            try:
                call(harness.between(0.1, 5))
            except KafkaException as error:
                if not error.error.retriable():
                    raise
                machine.clock.sleep(harness.between(0, 2))
            else:
                return

    def _now(self) -> float:
        return self._harness.world.scheduler.now


def copied(place: Place, deliveries: int) -> str:
    """What is written for a message that is accepted in its delivery of this number."""
    return f"{place.topic_id}|{place.partition}|{place.offset}|{deliveries}"
