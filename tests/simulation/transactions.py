"""A run of transactional programs: some copy the records of a topic to two others, each once, and
some make random transactions, whose history is checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from deltaq import (
    OFFSET_BEGINNING,
    AdminClient,
    Consumer,
    KafkaError,
    KafkaException,
    NewTopic,
    Producer,
    TopicPartition,
)
from tests.checker import check_history, report
from tests.checker.history import Operation
from tests.simulation.actors.injection import ProcessKilled, inject_faults, result_of
from tests.simulation.actors.maintenance import Maintainer, finish_maintenance
from tests.simulation.actors.members import MAX_POLL_S, group_conf
from tests.simulation.actors.random_transactions import RandomProgram, read_random_topics
from tests.simulation.actors.transactional import transactional_conf
from tests.simulation.actors.transactions import Follower, Processor, Transactional, Viewer
from tests.simulation.audit.group import MOVE_S, audit_group
from tests.simulation.audit.topic import audit_log
from tests.simulation.audit.transactions import (
    audit_ids,
    check_attempts,
    check_copies,
    check_cuts,
    check_offsets,
    check_publications,
    events,
    publications,
    recreated_topics,
)
from tests.simulation.harness import ROOT, Actor, Harness
from tests.simulation.scenario import (
    GROUP,
    INPUT,
    OUTPUTS,
    RANDOM_GROUP,
    RANDOM_PARTITIONS,
    RANDOM_TOPICS,
)

__all__ = ["audit_transactions", "check_random_programs", "run_transactions"]

RUN_S = 90.0
"""Longest time in simulated seconds for which faults are injected."""

LAST_S = 120.0
"""Simulated seconds within which the rest of the input is processed after the faults."""


def run_transactions(harness: Harness) -> Transactional:
    """Run all programs to their end. Then take all ids, process the rest of the input, and read the
    output.
    """
    scenario, clock = harness.scenario, harness.director.clock
    for topic in (INPUT, *OUTPUTS):
        _create(harness, topic, scenario.partitions)
    for topic in _random_topics(harness):
        _create(harness, topic, RANDOM_PARTITIONS)
    with Producer(
        {"bootstrap.servers": ROOT}, store=harness.director.store, clock=clock
    ) as producer:
        for value in input_values(harness):
            producer.produce(INPUT, value, partition=harness.pick(scenario.partitions))
    done = Transactional()
    processors: list[Actor] = [
        Processor(harness, f"processor-{number}", f"id-{number % scenario.transactional_ids}", done)
        for number in range(scenario.processors)
    ]
    random_ids = _random_ids(harness)
    others: list[Actor] = [
        *(RandomProgram(harness, f"random-{n}", id_) for n, id_ in enumerate(random_ids)),
        Viewer(harness, "viewer", done),
        *(Follower(harness, f"follower-{topic}", topic, done) for topic in OUTPUTS),
        *(Maintainer(harness, f"maintainer-{number}") for number in range(scenario.maintainers)),
    ]
    threads = [
        clock.start_thread(harness.keep_alive(actor), actor.name) for actor in processors + others
    ]
    threads.append(clock.start_thread(lambda: inject_faults(harness), "faults"))
    if scenario.recreates:
        threads.append(clock.start_thread(lambda: _recreate(harness), "topic changes"))
    until = clock.monotonic() + harness.between(RUN_S / 3, RUN_S)
    while clock.monotonic() < until and not _is_copied(harness, done):
        clock.sleep(1.0)
    harness.end_faults()
    for thread in threads:
        thread.join()
    _finish(harness, done)
    if scenario.maintainers:
        finish_maintenance(harness)
    for topic in OUTPUTS:
        _read_to_end(harness, topic, done)
    if random_ids:
        read_random_topics(harness, sorted({*random_ids}), LAST_S)
    return done


def input_values(harness: Harness) -> list[str]:
    """The values of the input."""
    return [str(number) for number in range(harness.scenario.messages)]


def audit_transactions(harness: Harness, done: Transactional) -> list[str]:
    """What is wrong with what the programs have written and seen."""
    disk, scenario = harness.network.disk, harness.scenario
    topics = {
        topic: audit_log(
            disk,
            topic=topic,
            right_clocks=not scenario.wrong_clocks,
            delay_s=(scenario.maintenance.file_delete_delay_ms or 0) / 1000,
            in_flight_s=scenario.maintenance.in_flight_ms / 1000,
        )
        for topic in (*OUTPUTS, *_random_topics(harness))
    }
    outputs = {topic: topics[topic] for topic in OUTPUTS}
    ids, published, recreated = audit_ids(disk), publications(disk, topics), recreated_topics(disk)
    # A program does not poll while it repeats calls.
    move_s = MAX_POLL_S + MOVE_S
    groups = [audit_group(disk, group, move_s=move_s) for group in (GROUP, RANDOM_GROUP)]
    for happened in (
        *(audit.happened for audit in topics.values()),
        *(audit.happened for audit in ids.values()),
        *(group.happened for group in groups),
        events(ids, published, done),
    ):
        harness.network.happened += happened
    return [
        *harness.unexpected,
        *(problem for audit in ids.values() for problem in audit.problems),
        *(problem for audit in topics.values() for problem in audit.problems),
        *(problem for group in groups for problem in group.problems),
        *check_publications(ids, published, topics),
        *(problem for group in groups for problem in check_offsets(ids, group)),
        *check_attempts(done, outputs, recreated),
        *(() if recreated else check_cuts(done.cuts, outputs)),
        *check_copies(input_values(harness), outputs, recreated),
        *check_random_programs(harness.history.operations, gaps=scenario.large_messages),
    ]


def check_random_programs(operations: list[Operation], *, gaps: bool = False) -> list[str]:
    """The anomalies in the history of the programs of random transactions. `gaps`: of a message in
    pieces, readers see the last offset only.
    """
    anomalies = check_history(operations, drained=True, gaps=gaps, isolated_writes=True)
    return [report(anomalies)] if anomalies else []


def _random_topics(harness: Harness) -> Sequence[str]:
    return RANDOM_TOPICS if harness.scenario.random_programs else ()


def _random_ids(harness: Harness) -> list[str]:
    """The `transactional.id` of each program of random transactions; at times two share one."""
    count = harness.scenario.random_programs
    is_shared = count > 1 and harness.chance(0.3)
    return [f"random-{0 if is_shared and number == 1 else number}" for number in range(count)]


def _create(harness: Harness, topic: str, partitions: int) -> None:
    machine = harness.world.machine(f"creator of {topic} at {harness.world.scheduler.now}")
    config = dict(harness.scenario.topic)
    with AdminClient(
        {"bootstrap.servers": ROOT}, store=machine.store, clock=machine.clock
    ) as admin:
        plan = NewTopic(topic, partitions, config=config)
        result_of(machine, admin.create_topics([plan])[topic])


def _recreate(harness: Harness) -> None:
    """Delete an output topic and create it again."""
    machine, topic = harness.world.machine("administrator"), OUTPUTS[1]
    machine.clock.sleep(harness.between(1, RUN_S / 2))
    if harness.faults_ended:
        return
    with AdminClient(
        {"bootstrap.servers": ROOT}, store=machine.store, clock=machine.clock
    ) as admin:
        try:
            result_of(machine, admin.delete_topics([topic])[topic])
            harness.network.count("a topic was deleted")
        except (KafkaException, ProcessKilled):
            return  # the outcome is unknown: the audit checks the log
    try:
        _create(harness, topic, harness.scenario.partitions)
    except (KafkaException, ProcessKilled):
        return


def _is_copied(harness: Harness, done: Transactional) -> bool:
    """Whether programs know that all of the input was copied."""
    copied = {
        value.partition("|")[0]
        for attempt in done.attempts
        if attempt.outcome == "committed"
        for value in attempt.values
    }
    return len(copied) == harness.scenario.messages


def _finish(harness: Harness, done: Transactional) -> None:
    """Take all ids, which publishes what is decided, and process the rest of the input."""
    machine = harness.world.machine("last-processor")
    for number in range(harness.scenario.transactional_ids):
        conf = transactional_conf(harness, f"id-{number}")
        with Producer(conf, store=machine.store, clock=machine.clock) as producer:
            producer.init_transactions()
    last = Processor(harness, "last", "last", done)
    conf = group_conf(harness) | {"client.id": machine.name, "enable.auto.commit": False}
    partitions = [TopicPartition(INPUT, number) for number in range(harness.scenario.partitions)]
    with (
        Consumer(conf, store=machine.store, clock=machine.clock) as consumer,
        Producer(
            transactional_conf(harness, "last"), store=machine.store, clock=machine.clock
        ) as producer,
    ):
        producer.init_transactions()
        last.start(consumer)
        deadline = machine.clock.monotonic() + LAST_S
        left = -1
        while left or len(consumer.assignment()) < len(partitions):
            last.try_step(machine, producer, consumer)
            ends = [consumer.get_watermark_offsets(tp)[1] for tp in partitions]
            committed = [max(0, tp.offset) for tp in consumer.committed(partitions)]
            left = sum(ends) - sum(committed)
            if machine.clock.monotonic() > deadline:
                harness.report_unexpected(f"{left} records of {INPUT} could not be processed")
                return


def _read_to_end(harness: Harness, topic: str, done: Transactional) -> None:
    """A new consumer reads every partition to its end."""
    machine = harness.world.machine(f"last reader of {topic}")
    conf = {
        "bootstrap.servers": ROOT,
        "group.id": "last",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    with Consumer(conf, store=machine.store, clock=machine.clock) as consumer:
        numbers = consumer.list_topics(topic).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in numbers])
        ends: set[int] = set()
        deadline = machine.clock.monotonic() + LAST_S
        while len(ends) < len(numbers):
            message = consumer.poll(1.0)
            done.follow([] if message is None else [message])
            if message is not None and message.error() == KafkaError._PARTITION_EOF:
                ends.add(message.partition() or 0)
            if machine.clock.monotonic() > deadline:
                harness.report_unexpected(f"{topic} could not be read to its end")
                return
