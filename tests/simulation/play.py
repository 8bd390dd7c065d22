"""One run: executes the script of a seed and checks the result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from deltaq import (
    OFFSET_BEGINNING,
    AdminClient,
    Consumer,
    KafkaError,
    KafkaException,
    NewTopic,
    Producer,
    TopicPartition,
    names,
)
from deltaq.testing.history import Operation
from deltaq.testing.simulation.network import CrashPoint
from tests.simulation.actors import Member, Reader, Sender, seen
from tests.simulation.audit import audited
from tests.simulation.chaos import Died, befall, live_again, waited
from tests.simulation.judgement import judged
from tests.simulation.script import TOPIC, Script, script_of
from tests.simulation.stage import ROOT, Actor, Stage
from tests.simulation.upkeep import Maintainer, put_in_order, witnessed

__all__ = ["Verdict", "play"]

TIMEOUT_S = 600.0
"""Simulated seconds after the end of the faults within which the run must end: nothing may wait for ever."""


@dataclass(frozen=True)
class Verdict:
    """The result of a run. `problems` is empty if every guarantee was kept."""

    script: Script
    problems: str
    happened: Counter[str]
    operations: list[Operation]
    trace: str
    seconds: float
    store_operations: Counter[str]
    store_writes: dict[str, list[tuple[int, str, str]]]


def play(seed: int, script: Script | None = None, crash: CrashPoint | None = None) -> Verdict:
    """Execute and check the run of `seed`; `script` replaces its own. Raises SimulationError if it does not end."""
    stage = Stage(script or script_of(seed), seed, crash)
    with stage.world, witnessed(stage):
        stage.world.run(lambda: _direct(stage), stage.director)
        upkeep = stage.script.upkeep
        audit = audited(
            stage.network.disk,
            right_clocks=not stage.script.wrong_clocks,
            delay_s=(upkeep.file_delete_delay_ms or 0) / 1000,
            in_flight_s=upkeep.in_flight_ms / 1000,
        )
        stage.network.happened += audit.happened
        # What ended with an earlier life of the topic need not have been read by anybody.
        problems = [*stage.surprises, *judged(stage.history.operations, audit, drained=not stage.script.lives)]
        problems += stage.world.run(lambda: _settled(stage, set(audit.places)))
        return Verdict(
            stage.script,
            "\n".join(problems),
            stage.network.happened,
            stage.history.operations,
            stage.world.scheduler.trace,
            stage.world.scheduler.now,
            stage.network.operations,
            stage.network.writes,
        )


def _direct(stage: Stage) -> None:
    """From the first message to the last look."""
    script, clock = stage.script, stage.director.clock
    if not script.auto_create:
        _found(stage)
    senders: list[Actor] = [
        Sender(stage, f"sender-{number}", script.group_commit(number)) for number in range(script.producers)
    ]
    others: list[Actor] = [Reader(stage, f"reader-{number}") for number in range(script.readers)]
    others += [Member(stage, f"member-{number}") for number in range(script.members)]
    others += [Maintainer(stage, f"maintainer-{number}") for number in range(script.maintainers)]
    sending = [clock.start_thread(stage.keep_alive(actor), actor.name) for actor in senders]
    following = [clock.start_thread(stage.keep_alive(actor), actor.name) for actor in others]
    chaos = clock.start_thread(lambda: befall(stage), "chaos")
    living = clock.start_thread(lambda: live_again(stage), "lives")
    for thread in sending:
        thread.join()
    stage.calm()
    for thread in [*following, chaos, living]:
        thread.join()
    if script.maintainers:
        put_in_order(stage)
    _drain(stage)


def _found(stage: Stage) -> None:
    """Create the topic; if this process is killed meanwhile, the first sender does."""
    script, machine = stage.script, stage.world.machine("founder")
    admin = AdminClient({"bootstrap.servers": ROOT}, store=machine.store, clock=machine.clock)
    try:
        waited(machine, admin.create_topics([NewTopic(TOPIC, script.partitions, config=dict(script.topic))])[TOPIC])
        if script.orphan:
            name = names.data_file_name(machine.clock.unique_id())
            machine.store.put(names.topic_folder(TOPIC) + name, b"never committed")
    except Died:
        stage.may_be_missing = True


def _drain(stage: Stage) -> None:
    """A new consumer reads everything, until it has seen what the watermarks promise."""
    machine = stage.world.machine("last reader")
    conf = {"bootstrap.servers": ROOT, "group.id": "last", "enable.auto.commit": False, "enable.partition.eof": True}
    with Consumer(conf | {"auto.offset.reset": "earliest"}, store=machine.store, clock=machine.clock) as consumer:
        metadata = consumer.list_topics(TOPIC).topics[TOPIC]
        partitions = [TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in metadata.partitions]
        stage.history.assign(machine.name, {(TOPIC, tp.partition): 0 for tp in partitions})
        consumer.assign(partitions)
        ends: set[int] = set()
        deadline = machine.clock.monotonic() + TIMEOUT_S
        while len(ends) < len(partitions):
            polling = stage.history.poll(machine.name)
            message = consumer.poll(1.0)
            polling.ok([seen(message)] if message is not None and message.error() is None else [])
            if message is not None and message.error() == KafkaError._PARTITION_EOF:
                ends.add(message.partition() or 0)
            if machine.clock.monotonic() > deadline:
                stage.surprise("the topic could not be read to its end")
                return


def _settled(stage: Stage, stored: set[str]) -> list[str]:
    """Check that unknown outcomes can be resolved and agree with the log."""
    machine, problems = stage.world.machine("settler"), []
    for value, stands in stage.resolved:
        if stands != (value in stored):
            problems.append(f"{value!r} was settled as {stands} long ago, and the log says otherwise")
    with Producer({"bootstrap.servers": ROOT}, store=machine.store, clock=machine.clock) as producer:
        for value, token in stage.tokens:
            try:
                stands = producer.resolve(TOPIC, token)
            except KafkaException as error:
                if int(token.partition(":")[0]) >= _log_start(stage):
                    problems.append(f"{value!r} could not be settled: {error}")
            else:
                stage.network.count("an unknown outcome was settled")
                if stands != (value in stored):
                    problems.append(f"{value!r} was settled as {stands}, and the log says otherwise")
    return problems


def _log_start(stage: Stage) -> int:
    """The lowest version that clean-up has left in the topic's log."""
    markers = stage.network.disk.list(names.log_start_folder(names.topic_folder(TOPIC)))
    return max((names.log_start_version(marker.key) or 0 for marker in markers), default=0)
