"""Faults injected into a run: crashes, pauses, network failures."""

from __future__ import annotations

from concurrent.futures import Future

from deltaq import AdminClient, KafkaException, NewTopic
from deltaq.admin import NewPartitions
from deltaq.delta.slot_proof import HEAD_PROOF_S
from deltaq.testing.simulation.network import Faults
from deltaq.testing.simulation.world import Machine
from tests.simulation.script import TOPIC
from tests.simulation.stage import ROOT, Stage

__all__ = ["Died", "befall", "live_again", "waited"]


def befall(stage: Stage) -> None:
    """Inject a random fault into a random actor from time to time, until the faults end."""
    script = stage.script
    while not stage.is_calm:
        stage.network.faults = script.faults if stage.chance(0.7) else Faults()
        stage.director.clock.sleep(stage.between(0.1, 6))
        if not stage.on_stage:
            continue
        names = sorted(stage.on_stage)
        name = names[stage.pick(len(names))]
        victim = stage.on_stage[name].process
        what = stage.pick(4)
        if what == 0 and script.crashes:
            stage.network.count("a process was killed")
            if name in stage.at_work:
                stage.network.count("a maintainer was killed half-way")
            victim.kill()
        elif what == 1 and script.pauses:
            stage.network.count("a process stood still")
            victim.suspend(stage.between(0.1, 8))
        elif what == 2 and script.sleeps:
            stage.network.count("a process slept for long")
            victim.suspend(stage.between(HEAD_PROOF_S, 4 * HEAD_PROOF_S), machine=stage.chance(0.5))
        elif what == 3 and script.wrong_clocks:
            stage.network.count("a clock jumped")
            victim.skew_s = stage.wrong_by_s()


def live_again(stage: Stage) -> None:
    """Delete the topic and create it again, with the same number of partitions; or give it more."""
    script, machine = stage.script, stage.world.machine("administrator")
    admin = AdminClient({"bootstrap.servers": ROOT}, store=machine.store, clock=machine.clock)
    for _ in range(2):
        machine.clock.sleep(stage.between(1, 20))
        if stage.is_calm:
            return
        try:
            if script.lives:
                waited(machine, admin.delete_topics([TOPIC])[TOPIC])
                stage.network.count("a topic was deleted")
                machine.clock.sleep(stage.between(0, 3))
                waited(
                    machine, admin.create_topics([NewTopic(TOPIC, script.partitions, config=dict(script.topic))])[TOPIC]
                )
            elif script.growth:
                waited(machine, admin.create_partitions([NewPartitions(TOPIC, script.partitions + 1)])[TOPIC])
                stage.network.count("partitions were added")
        except (KafkaException, Died):
            continue  # unknown, or somebody was faster: the audit says what came of it


class Died(Exception):
    """The process that was to complete a future was killed."""


def waited(machine: Machine, future: Future[None]) -> None:
    """The result of a future, without `Future.result`, which would block simulated time. Raises Died."""
    while not (machine.process.is_killed or future.done()):
        machine.clock.sleep(0.1)
    if machine.process.is_killed:
        raise Died(machine.name)
    future.result()
