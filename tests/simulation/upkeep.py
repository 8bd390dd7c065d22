"""Maintenance services in a run, as many as the script says, and the counts of their effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from deltaq import KafkaException, metrics
from deltaq.delta.slot_proof import CLEAN_UP_GRACE_S
from deltaq.maintenance import background, groups
from deltaq.maintenance.run import FAILURES, Maintenance
from deltaq.producer import group_commit
from deltaq.testing.simulation.network import Faults
from deltaq.testing.simulation.world import Machine
from tests.simulation.stage import Stage

__all__ = ["Maintainer", "put_in_order", "witnessed"]


class Maintainer:
    """Maintains the root, round after round."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.is_done = False
        self._stage = stage

    def act(self, machine: Machine) -> None:
        stage = self._stage
        maintenance = _maintenance(stage, machine, is_strict=stage.script.faults == Faults())
        while not stage.is_calm:
            stage.at_work.add(self.name)
            try:
                maintenance()
            except KafkaException as error:
                if stage.script.faults == Faults():
                    stage.surprise(f"{machine.name} gave up: {error}")
            finally:
                stage.at_work.discard(self.name)
            machine.clock.sleep(stage.between(0.5, stage.script.maintenance_rest_s))
        self.is_done = True


def put_in_order(stage: Stage) -> None:
    """After the faults: the next maintenance completes all unfinished work without a failure."""
    machine = stage.world.machine("last maintainer")
    maintenance = _maintenance(stage, machine, is_strict=True)
    for _ in range(2):
        maintenance()
        machine.clock.sleep(CLEAN_UP_GRACE_S + 1)


def _maintenance(stage: Stage, machine: Machine, *, is_strict: bool) -> Callable[[], None]:
    """A round of maintenance. A strict one has no fault that could explain a failure."""
    told: list[str] = []
    maintenance = Maintenance(machine.store, machine.clock, stage.script.upkeep, tell=told.append)

    def work() -> None:
        told.clear()
        done = maintenance.round()
        # It says so where it finds its clock wrong, and that is no fault of deltaq's.
        is_late = any("the clock of this machine" in line for line in told)
        if is_late:
            stage.network.count("a maintainer found its clock wrong")
        if done[FAILURES] > (is_late and stage.script.wrong_clocks) and is_strict:
            stage.surprise(f"{machine.name} failed: {'; '.join(told)}")

    return work


_HAPPENED = {
    metrics.PIPELINED_BATCHES: "an offer was made behind another",
    metrics.UNKNOWN_OUTCOMES: "an offer had an unknown outcome",
    metrics.EXPIRED_UPLOADS: "uploads were void",
    metrics.MISSING_FILES: "a file was gone that a reader was in",
    metrics.STALE_REWRITES: "a rewrite was given up since the files were gone",
}
_REVOKED = {"revoked": "an offer was withdrawn", "committed": "an offer that had failed was in the log"}


@contextmanager
def witnessed(stage: Stage) -> Iterator[None]:
    """Count the events of the clients in the run, and give group commit and their maintenance small limits."""

    def count(event: metrics.Event) -> None:
        if stage.world.scheduler.current() is not None:  # otherwise a client of another test has caused it
            what = _REVOKED[event.labels["outcome"]] if event.counter is metrics.REVOCATIONS else None
            stage.network.count(what or _HAPPENED[event.counter])

    with ExitStack() as patches, metrics.listening(count):

        def put(target: Any, name: str, value: object) -> None:
            patches.enter_context(patch.object(target, name, value))

        if stage.script.company:
            put(group_commit, "CONTENTION_S", 600.0)
            put(group_commit, "LOAD_MIN", 0.0)
            put(group_commit, "INTERVAL_MAX_S", 1.0)
            put(group_commit, "TIMEOUT_INTERVALS", 0.2)
        if stage.script.caretaking:
            for module, name in ((background, "BackgroundTopicMaintenance"), (groups, "BackgroundGroupMaintenance")):
                put(module, name, partial(getattr(module, name), settings=stage.script.upkeep))
        yield
