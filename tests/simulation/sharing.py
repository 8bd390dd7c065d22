"""A run of a share group: workers take the records of a topic and decide each, among faults. Some
copy them to another topic, and decide them by the same transaction.
"""

from __future__ import annotations

from deltaq import AdminClient, NewTopic, Producer
from deltaq.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from tests.simulation.actors.copying_workers import CopyingWorker
from tests.simulation.actors.injection import change_topic, inject_faults, result_of
from tests.simulation.actors.maintenance import Maintainer, finish_maintenance
from tests.simulation.actors.redriving import Operator, redrive_all
from tests.simulation.actors.transactional import transactional_conf
from tests.simulation.actors.workers import SharedWork, WorkerActor, drain
from tests.simulation.audit.redrives import check_redrives, copied_letters
from tests.simulation.audit.shares import (
    DEAD_LETTERS,
    ShareAudit,
    audit_share_group,
    copies,
    dead_letters,
)
from tests.simulation.audit.topic import Audit, audit_log
from tests.simulation.audit.transactions import audit_ids, check_publications, publications
from tests.simulation.harness import ROOT, Actor, Harness
from tests.simulation.scenario import COPIES, TOPIC

__all__ = ["audit_sharing", "run_sharing"]

GROUP = "shared"

RUN_S = 90.0
"""Longest time in simulated seconds for which faults are injected."""


def run_sharing(harness: Harness) -> SharedWork:
    """Run all workers to their end. Then one more gets what is left."""
    scenario, clock = harness.scenario, harness.director.clock
    _prepare(harness)
    work = SharedWork()
    actors: list[Actor] = [
        *(
            CopyingWorker(harness, f"worker-{number}", f"id-{number}", work)
            if number < scenario.copiers
            else WorkerActor(harness, f"worker-{number}", work)
            for number in range(scenario.workers)
        ),
        *(Maintainer(harness, f"maintainer-{number}") for number in range(scenario.maintainers)),
        *(
            Operator(harness, f"operator-{number}", GROUP)
            for number in range(2 if scenario.dead_letters else 0)
        ),
    ]
    threads = [clock.start_thread(harness.keep_alive(actor), actor.name) for actor in actors]
    threads.append(clock.start_thread(lambda: inject_faults(harness), "faults"))
    threads.append(clock.start_thread(lambda: change_topic(harness), "topic changes"))
    _fill(harness)
    clock.sleep(harness.between(0, RUN_S / 3))
    harness.end_faults()
    for thread in threads:
        thread.join()
    drain(harness, work)
    if scenario.dead_letters:
        work.last_redrive = redrive_all(harness, GROUP)
        drain(harness, work)
    _take_ids(harness)
    if scenario.maintainers:
        finish_maintenance(harness)
    return work


def audit_sharing(harness: Harness, work: SharedWork) -> list[str]:
    """What is wrong with what the workers have seen, and with the group's log."""
    disk, scenario = harness.network.disk, harness.scenario
    topic = _topic_audit(harness, TOPIC)
    audit = audit_share_group(disk, GROUP, scenario.lock_s, scenario.deliveries_max)
    alive = "" if topic.is_deleted else topic.topic_id
    written = (place for places in topic.places.values() for place in places)
    expected = {place for place in written if place.topic_id == alive}
    audit.compare(work, expected, alive)
    if scenario.dead_letters:
        letters = list(dead_letters(disk))
        audit.compare_dead_letters(work, letters)
        copied = copied_letters(disk)
        audit.happened["a dead letter was copied back"] += len(copied)
        audit.problems += check_redrives(
            topic.places, letters, copied, work.last_redrive, may_drop=scenario.recreates
        )
    of_copies = _audit_copies(harness, audit, work) if scenario.copiers else []
    harness.network.happened += audit.happened + topic.happened
    return [*harness.unexpected, *topic.problems, *audit.problems, *of_copies]


def _topic_audit(harness: Harness, topic: str) -> Audit:
    settings = harness.scenario.maintenance
    return audit_log(
        harness.network.disk,
        topic=topic,
        right_clocks=not harness.scenario.wrong_clocks,
        delay_s=(settings.file_delete_delay_ms or 0) / 1000,
        in_flight_s=settings.in_flight_ms / 1000,
    )


def _audit_copies(harness: Harness, audit: ShareAudit, work: SharedWork) -> list[str]:
    """What is wrong with the transactions that have acknowledged messages and copied them, beside
    the problems that the audit of the group notes.
    """
    disk = harness.network.disk
    output = {COPIES: _topic_audit(harness, COPIES)}
    ids = audit_ids(disk)
    decided = {of.key: of.landed for each in ids.values() for of in each.decided}
    audit.compare_transactions(work, decided, copies(disk))
    for each in ids.values():
        harness.network.happened += each.happened
    return [
        *output[COPIES].problems,
        *(problem for each in ids.values() for problem in each.problems),
        *check_publications(ids, publications(disk, output), output),
    ]


def _take_ids(harness: Harness) -> None:
    """Take the ids of all workers, which publishes what is decided."""
    machine = harness.world.machine("last-producer")
    for number in range(min(harness.scenario.copiers, harness.scenario.workers)):
        conf = transactional_conf(harness, f"id-{number}")
        with Producer(conf, store=machine.store, clock=machine.clock) as producer:
            producer.init_transactions()


def _prepare(harness: Harness) -> None:
    """Create the topic, and have the group read it from its beginning."""
    scenario, director = harness.scenario, harness.director
    settings = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": str(round(scenario.lock_s * 1000)),
        "share.delivery.count.limit": str(scenario.deliveries_max),
        "share.partition.max.record.locks": str(scenario.locks_max),
        "errors.deadletterqueue.topic.name": DEAD_LETTERS if scenario.dead_letters else "",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    group = ConfigResource("group", GROUP, incremental_configs=entries)
    with AdminClient(
        {"bootstrap.servers": ROOT}, store=director.store, clock=director.clock
    ) as admin:
        topic = NewTopic(TOPIC, scenario.partitions, config=dict(scenario.topic))
        result_of(director, admin.create_topics([topic])[TOPIC])
        if scenario.copiers:
            # Kept as the first one: an audit of the copies needs all of them.
            output = NewTopic(COPIES, 1, config=dict(scenario.topic))
            result_of(director, admin.create_topics([output])[COPIES])
        result_of(director, admin.incremental_alter_configs([group])[group])


def _fill(harness: Harness) -> None:
    """Write the messages, a few at a time."""
    scenario, director = harness.scenario, harness.director
    conf = {"bootstrap.servers": ROOT, "linger.ms": 0, "auto.create.topics.enable": False}
    with Producer(conf, store=director.store, clock=director.clock) as producer:
        left = scenario.messages
        while left:
            for _ in range(min(left, 1 + harness.pick(8))):
                left -= 1
                producer.produce(
                    TOPIC,
                    f"message:{left}",
                    partition=harness.pick(scenario.partitions),
                    deliver_at=director.clock.time_ms() / 1000 + harness.between(0, 20)
                    if scenario.delays and harness.chance(0.3)
                    else None,
                )
            producer.flush()
            director.clock.sleep(harness.between(0, scenario.rest_s))
