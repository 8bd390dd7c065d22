"""A run of a group of views: runners publish its ticks among faults, and readers look at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from deltaq import KafkaException, Producer, Topic
from deltaq.views import following, holding, reading, state
from deltaq.views.runner import GroupRunner
from deltaq.views.ticks import Tick, ticks_from
from tests.simulation.actors.injection import change_topic, inject_faults
from tests.simulation.actors.maintenance import Maintainer, finish_maintenance
from tests.simulation.actors.view_runners import (
    GROUP,
    FollowingActor,
    RunnerActor,
    SeenViews,
    ViewReadingActor,
    look,
    views_on,
)
from tests.simulation.audit.views import InputRecord, Place, WrittenInputs, audit_views
from tests.simulation.harness import ROOT, Actor, Harness
from tests.simulation.scenario import OTHER, TOPIC

__all__ = ["Viewing", "audit_viewing", "run_viewing"]

TRANSFERS = pa.schema([("source", pa.int64()), ("target", pa.int64()), ("amount", pa.int64())])
OWNERS = pa.schema([("account", pa.int64()), ("owner", pa.string())])
COLUMNS = {TOPIC: TRANSFERS, OTHER: OWNERS}
"""The inputs. The newest owner of each account counts."""

ACCOUNTS = 4

HISTORY = 6
"""Ticks for which holds keep what readers need."""


@dataclass
class Viewing:
    """What was written and seen in a run, and the ticks that were published."""

    inputs: WrittenInputs = field(default_factory=WrittenInputs)
    seen: SeenViews = field(default_factory=SeenViews)
    differences: list[str] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)


def run_viewing(harness: Harness) -> Viewing:
    """Run all actors to their end. Then one more runner publishes what is left."""
    scenario, clock, done = harness.scenario, harness.director.clock, Viewing()
    with _small(harness):
        _prepare(harness)
        actors: list[Actor] = [
            *(RunnerActor(harness, f"runner-{n}") for n in range(scenario.view_runners)),
            *(Maintainer(harness, f"maintainer-{n}") for n in range(scenario.maintainers)),
            *(ViewReadingActor(harness, f"reader-{n}", done.seen) for n in range(scenario.readers)),
        ]
        view = "credits" if harness.chance(0.5) else "listed"
        following = FollowingActor(harness, "follower", view, done.seen)
        threads = [clock.start_thread(harness.keep_alive(actor), actor.name) for actor in actors]
        threads.append(clock.start_thread(lambda: inject_faults(harness), "faults"))
        threads.append(clock.start_thread(lambda: change_topic(harness), "topic changes"))
        follower = clock.start_thread(harness.keep_alive(following), following.name)
        _write(harness, done.inputs)
        harness.end_faults()
        for thread in threads:
            thread.join()
        try:
            _finish(harness, done)
        except KafkaException as error:
            harness.report_unexpected(f"the last runner got {error}")
            return done
        follower.join()
        if scenario.maintainers:
            finish_maintenance(harness)
    return done


def audit_viewing(harness: Harness, done: Viewing) -> list[str]:
    """What is wrong with what was seen, and with the ticks."""
    return [
        *harness.unexpected,
        *done.differences,
        *audit_views(done.inputs, done.seen, done.ticks),
    ]


@contextmanager
def _small(harness: Harness) -> Iterator[None]:
    """State is sealed after a few rows, so that checkpoints have runs; few ticks are kept."""
    resumed = GroupRunner._resumed

    def counted(self: GroupRunner, cut: Any) -> Any:
        found = resumed(self, cut)
        if found is not None:
            harness.network.count("a runner went on from a checkpoint")
        return found

    with ExitStack() as open_:
        for module in (following, holding, reading):
            open_.enter_context(patch.object(module, "HISTORY", HISTORY))
        for name, value in (("SEAL_ROWS", 2), ("RUNS", 2), ("PART_ROWS", 2), ("MERGE_ROWS", 3)):
            open_.enter_context(patch.object(state, name, value))
        open_.enter_context(patch.object(GroupRunner, "_resumed", counted))
        yield


def _prepare(harness: Harness) -> None:
    """Create the inputs, before there are faults."""
    scenario, director = harness.scenario, harness.director
    for topic, columns in COLUMNS.items():
        Topic(
            topic,
            columns,
            partitions=scenario.partitions,
            config=scenario.topic if topic == OTHER else {"retention.ms": "-1"},
            store=director.store,
            clock=director.clock,
        ).create()


class _Writer:
    """Writes the inputs, a few records at a time, some of them in transactions. It meets no faults,
    so that it knows what there is.
    """

    def __init__(self, harness: Harness, inputs: WrittenInputs) -> None:
        self._harness = harness
        self._inputs = inputs
        self._machine = harness.world.machine("writer")
        harness.network.spared.add(self._machine.name)
        self._producers = [self._producer({}), self._producer({"transactional.id": "writer"})]
        self._producers[1].init_transactions()

    def _producer(self, conf: dict[str, Any]) -> Producer:
        given = {"bootstrap.servers": ROOT, "linger.ms": 0} | conf
        return Producer(given, store=self._machine.store, clock=self._machine.clock)

    def close(self) -> None:
        """Close the producers."""
        for producer in self._producers:
            producer.close()

    def write(self, records: list[tuple[str, int, InputRecord]]) -> None:
        """Write these records, each with its topic and partition (-1: that of its key): alone, or
        in a transaction, which may be aborted.
        """
        if self._harness.chance(0.5):
            self.write_alone(records)
        else:
            self._write_in_transaction(records)

    def write_alone(self, records: list[tuple[str, int, InputRecord]]) -> None:
        """Write these records outside of a transaction."""
        plain, _ = self._producers
        self._produce(plain, records)
        plain.flush()
        self._read(len(records))

    def _write_in_transaction(self, records: list[tuple[str, int, InputRecord]]) -> None:
        _, transactional = self._producers
        transactional.begin_transaction()
        self._produce(transactional, records)
        if self._harness.chance(0.2):
            transactional.abort_transaction()
            self._harness.network.count("a transaction had to be aborted")
            return
        transactional.commit_transaction()
        self._inputs.transactions.append(self._read(len(records)))

    def _produce(self, producer: Producer, records: list[tuple[str, int, InputRecord]]) -> None:
        for topic, partition, record in records:
            producer.produce(topic, record.row, record.key, partition=partition)

    def _read(self, count: int) -> frozenset[Place]:
        """The places of what was written since the last time, of which there are so many."""
        known, found = self._inputs.records, dict[Place, InputRecord]()
        for topic, columns in COLUMNS.items():
            handle = Topic(topic, store=self._machine.store, clock=self._machine.clock)
            starts = {
                partition: max(
                    (at + 1 for of, p, at in known if (of, p) == (topic, partition)), default=0
                )
                for partition in handle.describe().next_offsets
            }
            for row in handle.to_arrow(start=starts).to_pylist():
                values = {name: row[name] for name in columns.names}
                is_there = any(value is not None for value in values.values())
                place = topic, row["_partition"], row["_offset"]
                found[place] = InputRecord(row["_key"], values if is_there else None)
        assert len(found) == count, f"{found} are not {count} records"
        known |= found
        return frozenset(found)


def _write(harness: Harness, inputs: WrittenInputs) -> None:
    """Write all records but the last ones."""
    scenario, clock = harness.scenario, harness.director.clock
    writer, left = _Writer(harness, inputs), scenario.messages
    try:
        while left > 0:
            records = [_drawn(harness) for _ in range(1 + harness.pick(6))]
            writer.write(records)
            left -= len(records)
            clock.sleep(harness.between(0, scenario.rest_s))
    finally:
        writer.close()


def _drawn(harness: Harness) -> tuple[str, int, InputRecord]:
    """A transfer, or a new owner or none of an account."""
    account, partitions = harness.pick(ACCOUNTS), harness.scenario.partitions
    if harness.chance(0.6):
        row = {"source": account, "target": harness.pick(ACCOUNTS), "amount": harness.pick(9)}
        return TOPIC, harness.pick(partitions), InputRecord(None, row)
    row_of = None if harness.chance(0.3) else {"account": account, "owner": "abc"[harness.pick(3)]}
    partition = -1 if harness.chance(0.8) else harness.pick(partitions)
    return OTHER, partition, InputRecord(b"%d" % account, row_of)


def _finish(harness: Harness, done: Viewing) -> None:
    """Write records that change each view; one more runner publishes the last tick, and all views
    equal their SQL.
    """
    writer, machine = _Writer(harness, done.inputs), harness.world.machine("last runner")
    try:
        # What is aborted changes no view, and the follower would wait for ever.
        writer.write_alone(
            [
                (OTHER, -1, InputRecord(b"0", {"account": 0, "owner": "last"})),
                (TOPIC, 0, InputRecord(None, {"source": 0, "target": 0, "amount": 1})),
            ]
        )
    finally:
        writer.close()
    views = views_on(machine)
    views.run(until="now")
    look(views, done.seen)
    done.differences += [str(found) for found in views.check()]
    done.ticks += ticks_from(machine.store, GROUP, machine.clock, 1)
    harness.network.happened["a tick was published"] += len(done.ticks)
