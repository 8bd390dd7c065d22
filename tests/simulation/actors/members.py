"""Members of the run's group: they join, leave, crash and return, and commit what they have
read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from deltaq import Consumer, Fenced, KafkaError, KafkaException, TopicPartition, names
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.state import MemberIdentity
from tests.checker.history import Invocation
from tests.simulation.actors.clients import end, poll_and_record
from tests.simulation.harness import ROOT, Harness
from tests.simulation.scenario import GROUP, OTHER, TOPIC
from tests.simulator.world import Machine

__all__ = ["MemberActor", "take_over"]

SESSION_S = 6.0
HEARTBEAT_S = 1.0
MAX_POLL_S = 20.0
OWN_S = SESSION_S + HEARTBEAT_S + 1
"""Simulated seconds within which a new member owns all partitions, also those of members that died
just before it joined. The requests come on top: one for each entry of the logs of group and topic,
and a few more.
"""

READ_S = 30.0
"""Simulated seconds within which it has then read them."""


class MemberActor:
    """Reads as a member of a group, and commits what it has read."""

    def __init__(self, harness: Harness, name: str, instance: str) -> None:
        self.name = name
        self.instance = instance
        self.is_done = False
        self._harness = harness
        self._committing: list[Invocation] = []
        self._read: dict[tuple[str, int], int] = {}  # read, not committed: what is to be committed
        self._read_as: MemberIdentity | None = None  # in which generation
        self._late: dict[tuple[str, int], int] = {}  # the same of partitions that it gave up
        self._late_as: MemberIdentity | None = None
        self._partitions: set[int] = set()
        self._topics = [TOPIC]

    def act(self, machine: Machine) -> None:
        while not self._harness.faults_ended:
            try:
                self._read_as_member(machine)
            except Fenced:
                self._harness.network.count("a member was fenced")
                self._harness.history.unassign(machine.name)
        self.is_done = True

    def _read_as_member(self, machine: Machine) -> None:
        harness = self._harness
        is_manual = not harness.scenario.auto_commit
        conf = group_conf(harness) | {"client.id": machine.name, "on_commit": self._committed}
        if harness.scenario.static:
            conf["group.instance.id"] = self.instance
        with Consumer(conf, store=machine.store, clock=machine.clock) as consumer:
            if is_manual:
                harness.history.subscribe(machine.name, GROUP)
            self._read, self._late, self._partitions = {}, {}, set()
            self._committing = []  # a killed consumer gets no reports of its commits
            callbacks = (
                {"on_revoke": self._revoked(machine), "on_lost": self._lost(machine)}
                if is_manual
                else {}
            )
            callbacks["on_assign"] = self._assigned(machine)
            self._topics = [TOPIC if harness.chance(0.7) else f"^{TOPIC}$"]
            consumer.subscribe(self._topics, **callbacks)
            until = machine.clock.monotonic() + harness.between(1, 60)
            while not harness.faults_ended and machine.clock.monotonic() < until:
                records, _ = poll_and_record(harness, machine, consumer)
                for record in records if is_manual else ():
                    # Positions in a topic that was deleted since are void.
                    self._read = {
                        place: to for place, to in self._read.items() if place[0] == record.topic
                    }
                    self._read[record.topic, record.partition] = record.offset + 1
                    self._read_as = _identity(consumer)
                    if len(records) > 1 and harness.chance(0.1):
                        self._commit_later(machine, consumer, dict(self._read))
                if self._read and harness.chance(0.3):
                    read, self._read = self._read, {}
                    self._commit(machine, consumer, read)
                self._commit_late(machine, consumer)
                if harness.scenario.resubscribes and harness.chance(0.1):
                    self._resubscribe(consumer, callbacks)
                machine.clock.sleep(harness.between(0, 0.5))

    def _resubscribe(self, consumer: Consumer, callbacks: dict[str, Any]) -> None:
        choices = [TOPIC], [f"^{TOPIC}$"], [TOPIC, OTHER], [OTHER]
        self._topics = choices[self._harness.pick(len(choices))]
        if self._topics == [OTHER]:
            # As in Kafka, while no member subscribes to the topic each may commit what it likes.
            self._late = {}
        consumer.subscribe(self._topics, **callbacks)

    def _assigned(self, machine: Machine) -> Any:
        def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            places = _places(partitions)
            # The history checker learns of commits by calls only; `check_hand_overs` learns of all
            # from the log.
            group = None if self._harness.scenario.auto_commit else GROUP
            self._harness.history.assign(machine.name, places, group=group)
            self._partitions |= {number for _, number in places}
            if self._harness.scenario.strategy == "cooperative-sticky":
                consumer.incremental_assign(partitions)
            else:
                consumer.assign(partitions)

        return on_assign

    def _revoked(self, machine: Machine) -> Any:
        def on_revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            numbers = {number for _, number in _places(partitions)}
            read = {place: to for place, to in self._read.items() if place[1] in numbers}
            try:
                if read and self._harness.chance(0.7):
                    self._commit(machine, consumer, read)
            finally:
                self._give_up(machine, partitions)

        return on_revoke

    def _lost(self, machine: Machine) -> Any:
        def on_lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._harness.network.count("partitions were lost")
            self._give_up(machine, partitions)

        return on_lost

    def _give_up(self, machine: Machine, partitions: list[TopicPartition]) -> None:
        places = _places(partitions)
        # For the history none would stand for all: this can happen when only another topic is left
        # out.
        if places:
            self._harness.history.unassign(machine.name, places)
        numbers = {number for _, number in places}
        self._partitions -= numbers
        late = {place: to for place, to in self._read.items() if place[1] in numbers}
        if late and self._topics != [OTHER]:
            self._late, self._late_as = late, self._read_as
        self._read = {place: to for place, to in self._read.items() if place[1] not in numbers}

    def _commit_late(self, machine: Machine, consumer: Consumer) -> None:
        """Commit what was read of partitions that were given up, as a worker does that finishes
        late: through the consumer, or in the generation in which it was read, as a transaction
        does.
        """
        if not self._late or not self._harness.chance(0.1):
            return
        late, self._late = self._late, {}
        if self._late_as is not None and self._harness.chance(0.7):
            self._commit_as(machine, self._late_as, late)
        elif not self._partitions & {partition for _, partition in late}:
            self._commit(machine, consumer, late)

    def _commit_as(
        self, machine: Machine, identity: MemberIdentity, read: Mapping[tuple[str, int], int]
    ) -> None:
        committing = self._harness.history.commit(machine.name, GROUP, read)
        offsets = [
            CommittedOffset(TOPIC, topic.rpartition("#")[2], number, to)
            for (topic, number), to in read.items()
        ]
        try:
            GroupLog(machine.store, GROUP, machine.clock).commit(
                identity, offsets, machine.clock.monotonic() + SESSION_S
            )
        except KafkaException as error:
            end(committing, error)
        else:
            committing.ok()

    def _commit(
        self, machine: Machine, consumer: Consumer, read: Mapping[tuple[str, int], int]
    ) -> None:
        if self._harness.chance(0.5):
            self._commit_later(machine, consumer, read)
            return
        committing = self._begin(machine, read)
        try:
            consumer.commit(offsets=_positions(read), asynchronous=False)
        except KafkaException as error:
            end(committing, error)
            if isinstance(error, Fenced):
                raise
        else:
            committing.ok()

    def _commit_later(
        self, machine: Machine, consumer: Consumer, read: Mapping[tuple[str, int], int]
    ) -> None:
        self._committing.append(self._begin(machine, read))
        consumer.commit(offsets=_positions(read), asynchronous=True)

    def _begin(self, machine: Machine, read: Mapping[tuple[str, int], int]) -> Invocation:
        # As in Kafka, commits of one owner in the wrong order move the committed offset back.
        self._late = {place: to for place, to in self._late.items() if place not in read}
        return self._harness.history.commit(machine.name, GROUP, read)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        # Callbacks come in the order of the calls, also for synchronous commits.
        if error is None and self._committing:
            self._committing.pop(0).ok()
        elif self._committing:
            self._committing.pop(0).info(error)


def _places(partitions: list[TopicPartition]) -> list[tuple[str, int]]:
    """Those of the partitions that have messages."""
    return [(tp.topic, tp.partition) for tp in partitions if tp.topic == TOPIC]


def _positions(read: Mapping[tuple[str, int], int]) -> list[TopicPartition]:
    return [
        TopicPartition(TOPIC, partition, following) for (_, partition), following in read.items()
    ]


def _identity(consumer: Consumer) -> MemberIdentity:
    """The member and the generation that `consumer_group_metadata` names."""
    (generation,) = struct.unpack_from(
        "<i", metadata := consumer.consumer_group_metadata(), len("CGMDv2:")
    )
    member = metadata[len("CGMDv2:") + 4 :].split(b"\0")[1].decode()
    return MemberIdentity(member, generation)


def group_conf(harness: Harness) -> dict[str, Any]:
    """The configuration of a member of the run's group."""
    return {
        "bootstrap.servers": ROOT,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": harness.scenario.auto_commit,
        "auto.commit.interval.ms": 3_000,
        "session.timeout.ms": int(SESSION_S * 1000),
        "heartbeat.interval.ms": int(HEARTBEAT_S * 1000),
        "max.poll.interval.ms": int(MAX_POLL_S * 1000),
        "partition.assignment.strategy": harness.scenario.strategy,
        "topic.metadata.refresh.interval.ms": 5_000,
    }


def take_over(harness: Harness) -> None:
    """After all faults, a new member owns all partitions in time, and reads from the committed
    offsets to the end.
    """
    machine = harness.world.machine("member-last")
    conf = group_conf(harness) | {
        "client.id": machine.name,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    with Consumer(conf, store=machine.store, clock=machine.clock) as consumer:
        group = None if harness.scenario.auto_commit else GROUP
        if group is not None:
            harness.history.subscribe(machine.name, GROUP)
        partitions = set(consumer.list_topics(TOPIC).topics[TOPIC].partitions)
        owned: set[int] = set()
        ends: set[int] = set()

        def on_assign(consumer: Consumer, assigned: list[TopicPartition]) -> None:
            harness.history.assign(
                machine.name, [(tp.topic, tp.partition) for tp in assigned], group=group
            )
            owned.update(tp.partition for tp in assigned)

        def on_revoke(consumer: Consumer, revoked: list[TopicPartition]) -> None:
            harness.history.unassign(machine.name, [(tp.topic, tp.partition) for tp in revoked])
            numbers = {tp.partition for tp in revoked}
            owned.difference_update(numbers)
            ends.difference_update(numbers)

        consumer.subscribe([TOPIC], on_assign=on_assign, on_revoke=on_revoke)
        logs = names.group_folder(GROUP) + names.LOG_FOLDER, names.topic_log(TOPIC)
        requests = 50 + sum(len(harness.network.disk.list_some(log)) for log in logs)
        # An entry of the topic is looked up in the log archive, too.
        if not harness.scenario.remote:
            requests += len(harness.network.disk.list_some(names.topic_log(TOPIC)))
        # A heartbeat of a member that died may land that late, and shows it as living until then.
        faults = harness.scenario.faults
        late_s = faults.late_s if faults.late else 0.0
        allowed_s = OWN_S + late_s + requests * 2 * harness.scenario.latency_s
        deadline = machine.clock.monotonic() + allowed_s
        while owned != partitions:
            if machine.clock.monotonic() > deadline:
                harness.report_unexpected(
                    f"a new member owns only {sorted(owned)} of {len(partitions)} partitions"
                )
                return
            poll_and_record(harness, machine, consumer, ends.add)
        deadline = machine.clock.monotonic() + READ_S
        while ends != partitions:
            if machine.clock.monotonic() > deadline:
                harness.report_unexpected(f"a new member has read only {sorted(ends)} to the end")
                return
            poll_and_record(harness, machine, consumer, ends.add)
