"""One run: executes the scenario of a seed and checks the result."""

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
from tests.checker.history import Operation
from tests.simulation.actors.clients import ReadingActor, SendingActor, seen
from tests.simulation.actors.injection import ProcessKilled, change_topic, inject_faults, result_of
from tests.simulation.actors.maintenance import Maintainer, finish_maintenance, instrumented
from tests.simulation.actors.members import MemberActor, take_over
from tests.simulation.audit.group import audit_group
from tests.simulation.audit.hand_over import check_hand_overs, check_once
from tests.simulation.audit.history import check_run
from tests.simulation.audit.topic import audit_log
from tests.simulation.harness import ROOT, Actor, Harness
from tests.simulation.scenario import OTHER, TOPIC, Scenario, scenario_of
from tests.simulation.sharing import audit_sharing, run_sharing
from tests.simulation.transactions import audit_transactions, run_transactions
from tests.simulation.viewing import audit_viewing, run_viewing
from tests.simulator.network import CrashPoint

__all__ = ["Verdict", "simulate"]

TIMEOUT_S = 600.0
"""Simulated seconds after the end of the faults within which the run must end: nothing may wait for
ever.
"""


@dataclass(frozen=True)
class Verdict:
    """The result of a run. `problems` is empty if every guarantee was kept."""

    scenario: Scenario
    problems: str
    happened: Counter[str]
    operations: list[Operation]
    trace: str
    seconds: float
    store_operations: Counter[str]
    store_writes: dict[str, list[tuple[int, str, str]]]


def simulate(
    seed: int, scenario: Scenario | None = None, crash: CrashPoint | None = None
) -> Verdict:
    """Execute and check the run of `seed`; `scenario` replaces its own. Raises SimulationError if
    it does not end.
    """
    harness = Harness(scenario or scenario_of(seed), seed, crash)
    with harness.world, instrumented(harness):
        if harness.scenario.processors:
            done = harness.world.run(lambda: run_transactions(harness), harness.director)
            return _verdict(harness, audit_transactions(harness, done))
        if harness.scenario.workers:
            work = harness.world.run(lambda: run_sharing(harness), harness.director)
            return _verdict(harness, audit_sharing(harness, work))
        if harness.scenario.view_runners:
            views = harness.world.run(lambda: run_viewing(harness), harness.director)
            return _verdict(harness, audit_viewing(harness, views))
        harness.world.run(lambda: _run_scenario(harness), harness.director)
        settings = harness.scenario.maintenance
        audit = audit_log(
            harness.network.disk,
            right_clocks=not harness.scenario.wrong_clocks,
            delay_s=(settings.file_delete_delay_ms or 0) / 1000,
            in_flight_s=settings.in_flight_ms / 1000,
        )
        of_group = audit_group(harness.network.disk, is_recreated=harness.scenario.recreates)
        harness.network.happened += audit.happened + of_group.happened
        # Records of a topic that was deleted need not have been read.
        problems = [
            *harness.unexpected,
            *of_group.problems,
            *check_hand_overs(harness.history.operations, of_group, audit),
            *(check_once(harness.history.operations, of_group) if harness.scenario.is_calm else ()),
            *check_run(harness.history.operations, audit, drained=not harness.scenario.recreates),
        ]
        problems += harness.world.run(lambda: _check_unknown_outcomes(harness, set(audit.places)))
        return _verdict(harness, problems)


def _verdict(harness: Harness, problems: list[str]) -> Verdict:
    return Verdict(
        harness.scenario,
        "\n".join(problems),
        harness.network.happened,
        harness.history.operations,
        harness.world.scheduler.trace,
        harness.world.scheduler.now,
        harness.network.operations,
        harness.network.writes,
    )


def _run_scenario(harness: Harness) -> None:
    """Run all actors to their end, finish maintenance, and read the whole topic."""
    scenario, clock = harness.scenario, harness.director.clock
    if not scenario.auto_create:
        _create_topic(harness)
    if scenario.resubscribes:
        with AdminClient(
            {"bootstrap.servers": ROOT}, store=harness.director.store, clock=clock
        ) as admin:
            result_of(harness.director, admin.create_topics([NewTopic(OTHER, 2)])[OTHER])
    senders: list[Actor] = [
        SendingActor(harness, f"sender-{number}", scenario.group_commit(number))
        for number in range(scenario.producers)
    ]
    others: list[Actor] = [
        ReadingActor(harness, f"reader-{number}") for number in range(scenario.readers)
    ]
    others += [
        MemberActor(harness, f"member-{number}", f"instance-{number % 3}")
        for number in range(scenario.members)
    ]
    others += [
        Maintainer(harness, f"maintainer-{number}") for number in range(scenario.maintainers)
    ]
    sending = [clock.start_thread(harness.keep_alive(actor), actor.name) for actor in senders]
    following = [clock.start_thread(harness.keep_alive(actor), actor.name) for actor in others]
    injecting = clock.start_thread(lambda: inject_faults(harness), "faults")
    changing = clock.start_thread(lambda: change_topic(harness), "topic changes")
    for thread in sending:
        thread.join()
    harness.end_faults()
    for thread in [*following, injecting, changing]:
        thread.join()
    if scenario.maintainers:
        finish_maintenance(harness)
    if scenario.members:
        take_over(harness)
    _read_to_end(harness)


def _create_topic(harness: Harness) -> None:
    """Create the topic; if this process is killed meanwhile, the first sender does."""
    scenario, machine = harness.scenario, harness.world.machine("creator")
    admin = AdminClient({"bootstrap.servers": ROOT}, store=machine.store, clock=machine.clock)
    try:
        result_of(
            machine,
            admin.create_topics(
                [NewTopic(TOPIC, scenario.partitions, config=dict(scenario.topic))]
            )[TOPIC],
        )
        if scenario.orphan:
            name = names.data_file_name(machine.clock.unique_id())
            machine.store.put(names.topic_folder(TOPIC) + name, b"never committed")
    except ProcessKilled:
        harness.may_be_missing = True


def _read_to_end(harness: Harness) -> None:
    """A new consumer reads every partition to its end."""
    machine = harness.world.machine("last reader")
    conf = {
        "bootstrap.servers": ROOT,
        "group.id": "last",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    with Consumer(
        conf | {"auto.offset.reset": "earliest"}, store=machine.store, clock=machine.clock
    ) as consumer:
        metadata = consumer.list_topics(TOPIC).topics[TOPIC]
        partitions = [
            TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in metadata.partitions
        ]
        harness.history.assign(machine.name, {(TOPIC, tp.partition): 0 for tp in partitions})
        consumer.assign(partitions)
        ends: set[int] = set()
        deadline = machine.clock.monotonic() + TIMEOUT_S
        while len(ends) < len(partitions):
            polling = harness.history.poll(machine.name)
            message = consumer.poll(1.0)
            polling.ok([seen(message)] if message is not None and message.error() is None else [])
            if message is not None and message.error() == KafkaError._PARTITION_EOF:
                ends.add(message.partition() or 0)
            if machine.clock.monotonic() > deadline:
                harness.report_unexpected("the topic could not be read to its end")
                return


def _check_unknown_outcomes(harness: Harness, stored: set[str]) -> list[str]:
    """Check that unknown outcomes can be resolved and agree with the log."""
    machine, problems = harness.world.machine("resolver"), []
    for value, is_in_log in harness.resolved:
        if is_in_log != (value in stored):
            problems.append(
                f"{value!r} was resolved as {is_in_log} during the run, and the log says otherwise"
            )
    with Producer(
        {"bootstrap.servers": ROOT}, store=machine.store, clock=machine.clock
    ) as producer:
        for value, token in harness.tokens:
            try:
                is_in_log = producer.resolve(TOPIC, token)
            except KafkaException as error:
                if int(token.partition(":")[0]) >= _log_start(harness):
                    problems.append(f"{value!r} could not be resolved: {error}")
            else:
                harness.network.count("an unknown outcome was resolved")
                if is_in_log != (value in stored):
                    problems.append(
                        f"{value!r} was resolved as {is_in_log}, and the log says otherwise"
                    )
    return problems


def _log_start(harness: Harness) -> int:
    """The lowest version that clean-up has left in the topic's log."""
    markers = harness.network.disk.list(names.log_start_folder(names.topic_folder(TOPIC)))
    return max((names.log_start_version(marker.key) or 0 for marker in markers), default=0)
