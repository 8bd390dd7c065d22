"""Faults injected into a run: crashes, pauses, network failures."""

from __future__ import annotations

from concurrent.futures import Future

from deltaq import AdminClient, KafkaException, NewTopic
from deltaq.admin import NewPartitions
from deltaq.delta.slot_proof import HEAD_PROOF_S
from tests.simulation.harness import ROOT, Harness
from tests.simulation.scenario import TOPIC
from tests.simulator.network import Faults
from tests.simulator.world import Machine

__all__ = ["ProcessKilled", "change_topic", "inject_faults", "result_of"]


def inject_faults(harness: Harness) -> None:
    """Inject a random fault into a random actor from time to time, until the faults end."""
    scenario = harness.scenario
    while not harness.faults_ended:
        harness.network.faults = scenario.faults if harness.chance(0.7) else Faults()
        harness.director.clock.sleep(harness.between(0.1, 6))
        if not harness.running:
            continue
        names = sorted(harness.running)
        name = names[harness.pick(len(names))]
        victim = harness.running[name].process
        what = harness.pick(4)
        if what == 0 and scenario.crashes:
            harness.network.count("a process was killed")
            if name in harness.in_round:
                harness.network.count("a maintainer was killed in a round")
            victim.kill()
        elif what == 1 and scenario.pauses:
            harness.network.count("a process was suspended")
            victim.suspend(harness.between(0.1, 8))
        elif what == 2 and scenario.sleeps:
            harness.network.count("a process was suspended for long")
            victim.suspend(
                harness.between(HEAD_PROOF_S, 4 * HEAD_PROOF_S), machine=harness.chance(0.5)
            )
        elif what == 3 and scenario.wrong_clocks:
            harness.network.count("a clock jumped")
            victim.skew_s = harness.clock_error_s()


def change_topic(harness: Harness) -> None:
    """Delete the topic and create it again with the same number of partitions, or add
    partitions.
    """
    scenario, machine = harness.scenario, harness.world.machine("administrator")
    admin = AdminClient({"bootstrap.servers": ROOT}, store=machine.store, clock=machine.clock)
    for _ in range(2):
        machine.clock.sleep(harness.between(1, 20))
        if harness.faults_ended:
            return
        try:
            if scenario.recreates:
                result_of(machine, admin.delete_topics([TOPIC])[TOPIC])
                harness.network.count("a topic was deleted")
                machine.clock.sleep(harness.between(0, 3))
                result_of(
                    machine,
                    admin.create_topics(
                        [NewTopic(TOPIC, scenario.partitions, config=dict(scenario.topic))]
                    )[TOPIC],
                )
            elif scenario.grows:
                result_of(
                    machine,
                    admin.create_partitions([NewPartitions(TOPIC, scenario.partitions + 1)])[TOPIC],
                )
                harness.network.count("partitions were added")
        except (KafkaException, ProcessKilled):
            # The outcome is unknown, or another process was faster: the audit checks the log.
            continue


class ProcessKilled(Exception):
    """The process that would have completed a future was killed."""


def result_of(machine: Machine, future: Future[None]) -> None:
    """The result of a future, without `Future.result`, which would block simulated time. Raises
    ProcessKilled.
    """
    while not (machine.process.is_killed or future.done()):
        machine.clock.sleep(0.1)
    if machine.process.is_killed:
        raise ProcessKilled(machine.name)
    future.result()
