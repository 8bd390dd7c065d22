"""Programs that make random transactions of sends and polls, as Jepsen's tests of Kafka do. They
record all that they do and see for the history checker.
"""

from __future__ import annotations

from typing import Any

from deltaq import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from tests.checker.history import Invocation, Partition
from tests.simulation.actors.members import group_conf
from tests.simulation.actors.transactional import (
    PIECE_BYTES,
    Aborted,
    TransactionalProgram,
    transactional_conf,
)
from tests.simulation.harness import Harness
from tests.simulation.scenario import RANDOM_GROUP, RANDOM_PARTITIONS, RANDOM_TOPICS
from tests.simulator.world import Machine

__all__ = ["RandomProgram", "read_random_topics"]

OPERATIONS_MAX = 4
"""Sends and polls in a transaction."""

TRANSACTIONS_MAX = 14
"""Transactions that a program begins."""

ABORT = 1 / 32
"""The probability of an abort at each step."""

PARTITIONS = [(topic, number) for topic in RANDOM_TOPICS for number in range(RANDOM_PARTITIONS)]


class RandomProgram(TransactionalProgram):
    """Sends to random partitions, and polls the same topics, in random transactions.

    Each of its consumers either reads all partitions, and keeps its positions itself, or is a
    member of a group, whose offsets the transactions commit. For the history it is one process
    across its restarts.
    """

    def __init__(self, harness: Harness, name: str, id_: str) -> None:
        super().__init__(harness, name, id_)
        self._history = harness.history
        self._begun = 0
        self._sent = 0
        self._is_member = False
        self._kept: dict[Partition, int] = {}  # the positions of a consumer without a group
        # Of the open transaction:
        self._is_open = False
        self._is_revoked = False
        self._read: dict[Partition, int] = {}  # positions after what it has read
        self._calls: list[Invocation] = []  # without an answer

    def conf(self) -> dict[str, Any]:
        group = RANDOM_GROUP if self._harness.chance(0.5) else f"only-{self.name}"
        self._is_member = group == RANDOM_GROUP
        return _reading(self._harness) | {"group.id": group}

    def is_over(self) -> bool:
        return super().is_over() or self._begun >= TRANSACTIONS_MAX

    def start(self, consumer: Consumer) -> None:
        self._history.crash(self.name)
        self._is_open, self._calls = False, []
        if self._is_member:
            self._history.subscribe(self.name, RANDOM_GROUP)
            callbacks = {"on_revoke": self._revoked, "on_lost": self._revoked}
            consumer.subscribe([*RANDOM_TOPICS], on_assign=self._assigned, **callbacks)
            return
        if self._harness.chance(0.5):
            self._kept = {}
        positions = {place: self._kept.get(place, 0) for place in PARTITIONS}
        self._history.assign(self.name, positions)
        consumer.assign([TopicPartition(*place, offset) for place, offset in positions.items()])

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = [(tp.topic, tp.partition) for tp in partitions]
        self._history.assign(self.name, places, group=RANDOM_GROUP)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._is_revoked = True
        if places := [(tp.topic, tp.partition) for tp in partitions]:
            self._history.unassign(self.name, places)

    def rewind(self, consumer: Consumer) -> None:
        if self._is_member:
            super().rewind(consumer)
            return
        for place in self._read:
            consumer.seek(TopicPartition(*place, self._kept.get(place, 0)))

    # --- a transaction ---

    def step(self, machine: Machine, producer: Producer, consumer: Consumer) -> None:
        harness = self._harness
        self._begun += 1
        self._is_open, self._is_revoked, self._read, self._calls = True, False, {}, []
        self._history.begin_transaction(self.name)
        producer.begin_transaction()
        for _ in range(1 + harness.pick(OPERATIONS_MAX)):
            self._abort_at_times(machine, producer, consumer)
            if harness.chance(0.5):
                self._send(producer)
            else:
                self._poll(consumer)
        # What was read of a partition before it was revoked is read by its next owner, too.
        if self._is_revoked:
            self.abort(machine, producer, consumer)
            raise Aborted
        self._abort_at_times(machine, producer, consumer)
        if self._is_member and self._read:
            self._calls.append(self._history.commit(self.name, RANDOM_GROUP, self._read))
            positions = [TopicPartition(*place, offset) for place, offset in self._read.items()]
            self.send_offsets(machine, producer, consumer, positions)
            self._calls.pop().ok()
            self._abort_at_times(machine, producer, consumer)
        self._calls.append(self._history.commit_transaction(self.name))
        self.commit(machine, producer, consumer)

    def _abort_at_times(self, machine: Machine, producer: Producer, consumer: Consumer) -> None:
        if self._harness.chance(ABORT):
            self.abort(machine, producer, consumer)
            raise Aborted

    def note_end(self, outcome: str) -> None:
        if not self._is_open:
            return
        self._is_open = False
        is_committed = outcome == "committed"
        for call in self._calls:
            if is_committed:
                call.ok()
            else:
                call.fail(outcome)
        if is_committed:
            self._kept |= {} if self._is_member else self._read
        else:
            self._history.abort_transaction(self.name).ok()

    def _send(self, producer: Producer) -> None:
        topic, number = PARTITIONS[self._harness.pick(len(PARTITIONS))]
        value = f"{self.name}:{self._sent}"
        self._sent += 1
        sending = self._history.send(self.name, topic, value, number)

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                sending.ok(partition=message.partition())
            else:
                sending.info(error)  # the end of the transaction tells

        if self._harness.scenario.large_messages and self._harness.chance(0.3):
            value += f" {'x' * 2 * PIECE_BYTES}"
            self._harness.network.count("a message was sent in pieces")
        producer.produce(topic, value, partition=number, on_delivery=delivered)
        if self._harness.chance(0.2):
            producer.flush(self._harness.between(0, 2))

    def _poll(self, consumer: Consumer) -> None:
        harness = self._harness
        polling = self._history.poll(self.name)
        ends = self._ends(consumer) if harness.chance(0.2) else {}
        messages = self.consume(consumer, 1 + harness.pick(10), harness.between(0, 1))
        reached = {_place(message): message.offset() or 0 for message in messages}
        records = [message for message in messages if message.error() is None]
        read = {_place(message): (message.offset() or 0) + 1 for message in records}
        self._read |= read
        # The fetch thread may have found the end of a partition before this poll began.
        tails = [place for place, end in ends.items() if (reached | read).get(place, -1) >= end]
        harness.network.happened["a poll reached the tail"] += bool(tails)
        polling.ok([_seen(message) for message in records], at_tail=tails)

    def _ends(self, consumer: Consumer) -> dict[Partition, int]:
        """The ends of the partitions of one topic; none if the store does not answer."""
        topic = RANDOM_TOPICS[self._harness.pick(len(RANDOM_TOPICS))]
        places = [place for place in PARTITIONS if place[0] == topic]
        try:
            return {
                place: consumer.get_watermark_offsets(TopicPartition(*place), 1.0)[1]
                for place in places
            }
        except KafkaException:
            return {}


def read_random_topics(harness: Harness, ids: list[str], limit_s: float) -> None:
    """After all programs: take their ids, which publishes what is decided. Then a new member of the
    group reads from the committed offsets, and another consumer reads all, each to the ends.
    """
    machine, history = harness.world.machine("last random reader"), harness.history
    for id_ in ids:
        conf = transactional_conf(harness, id_)
        with Producer(conf, store=machine.store, clock=machine.clock) as producer:
            producer.init_transactions()
    conf = _reading(harness) | {"group.id": RANDOM_GROUP, "enable.auto.commit": False}

    def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        history.assign(
            machine.name, [(tp.topic, tp.partition) for tp in partitions], group=RANDOM_GROUP
        )

    with Consumer(conf, store=machine.store, clock=machine.clock) as consumer:
        consumer.subscribe([*RANDOM_TOPICS], on_assign=assigned)
        _read_to_ends(harness, machine, consumer, limit_s)
        asking = history.committed(machine.name, RANDOM_GROUP)
        committed = consumer.committed([TopicPartition(*place) for place in PARTITIONS])
        asking.ok(
            positions={
                (tp.topic, tp.partition): tp.offset if tp.offset >= 0 else None for tp in committed
            }
        )
    history.crash(machine.name)
    with Consumer(conf, store=machine.store, clock=machine.clock) as consumer:
        history.assign(machine.name, dict.fromkeys(PARTITIONS, 0))
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in PARTITIONS])
        _read_to_ends(harness, machine, consumer, limit_s)


def _read_to_ends(harness: Harness, machine: Machine, consumer: Consumer, limit_s: float) -> None:
    """Read until the ends of all partitions are reported, while nothing is written."""
    ends = set[Partition]()
    deadline = machine.clock.monotonic() + limit_s
    while ends != {*PARTITIONS}:
        polling = harness.history.poll(machine.name)
        messages = consumer.consume(100, 1.0)
        tails = {_place(message) for message in messages if message.error() is not None}
        records = [message for message in messages if message.error() is None]
        polling.ok([_seen(message) for message in records], at_tail=sorted(tails))
        ends |= tails
        if machine.clock.monotonic() > deadline:
            harness.report_unexpected(f"only the ends of {sorted(ends)} were reached")
            return


def _reading(harness: Harness) -> dict[str, Any]:
    """The configuration of a consumer, but for its group."""
    is_joining = harness.scenario.large_messages
    more = {"enable.partition.eof": True, "large.message.enabled": is_joining}
    return group_conf(harness) | more


def _place(message: Message) -> Partition:
    return message.topic() or "", message.partition() or 0


def _seen(message: Message) -> tuple[str, int, int, str]:
    value = (message.value() or b"").decode().partition(" ")[0]
    return *_place(message), message.offset() or 0, value
