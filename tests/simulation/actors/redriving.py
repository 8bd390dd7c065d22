"""Operators, who copy dead letters back while workers are at work."""

from __future__ import annotations

from contextlib import suppress

from deltaq import Corrupt, KafkaException, UnknownTopic
from deltaq.tools.redrive import Redrive
from tests.simulation.actors.workers import is_explained
from tests.simulation.harness import Harness
from tests.simulator.world import Machine

__all__ = ["Operator", "redrive_all"]


class Operator:
    """Copies all dead letters of a group back from time to time."""

    def __init__(self, harness: Harness, name: str, group: str) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness
        self._group = group
        self._is_at_work = False

    def act(self, machine: Machine) -> None:
        harness = self._harness
        if self._is_at_work:
            harness.network.count("a redrive was killed")
        while not harness.faults_ended:
            machine.clock.sleep(harness.between(0.2, 4))
            self._is_at_work = True
            try:
                Redrive(machine.store, self._group, machine.clock).run()
            except (UnknownTopic, Corrupt):
                pass  # there is no dead letter yet, or a flipped bit was read
            except KafkaException as error:
                if not is_explained(error):
                    harness.report_unexpected(f"{machine.name} got {error}")
            self._is_at_work = False
        self.is_done = True


def redrive_all(harness: Harness, group: str) -> float:
    """After the faults: one redrive copies all that is left. Returns when it began."""
    machine, began = harness.world.machine("last operator"), harness.world.scheduler.now
    with suppress(UnknownTopic):
        Redrive(machine.store, group, machine.clock).run()
    return began
