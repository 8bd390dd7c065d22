"""State shared by the actors of a run, and their restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from deltaq.maintenance.clock_check import CLOCK_TOLERANCE_S
from deltaq.testing.history import History
from deltaq.testing.simulation.network import CrashPoint, Faults
from deltaq.testing.simulation.world import Machine, World
from tests.simulation.script import Script

__all__ = ["ROOT", "Actor", "Stage"]

ROOT = "memory://simulated"


class Actor(Protocol):
    """An actor of the run. `act` is started again, on a new machine, whenever its machine was killed."""

    name: str
    is_done: bool

    def act(self, machine: Machine) -> None: ...


class Stage:
    """A world with a script, a history, and a director: a machine without faults."""

    def __init__(self, script: Script, seed: int, crash: CrashPoint | None = None) -> None:
        self.script = script
        self.world = World(seed, preempt=script.preempt, crash=crash)
        self.network = self.world.network
        self.network.latency_s = script.latency_s
        self.network.signals = script.signals
        self.network.remote = script.remote
        self.director = self.world.machine("director")
        self.history = History(self.director.clock)
        self.on_stage: dict[str, Machine] = {}  # by actor, those that are alive
        self.at_work: set[str] = set()  # maintainers, by actor, in the middle of a round
        self.may_be_missing = script.auto_create or script.lives  # the topic, at times
        self.is_calm = False  # the faults are over: what has not come by now never comes
        self.tokens: list[tuple[str, str]] = []  # (value, token) of sends whose outcome is unknown
        self.resolved: list[tuple[str, bool]] = []  # (value, whether it is in the log) of those that were settled
        self.surprises: list[str] = []  # what no client should have been told

    def chance(self, probability: float) -> bool:
        return self.network.chance(probability)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.world.scheduler.random.random()

    def pick(self, number: int) -> int:
        """A random number below `number`."""
        return int(self.world.scheduler.random.random() * number)

    def wrong_by_s(self) -> float:
        """How wrong a clock is: every other one by so little that maintenance goes by it all the same."""
        most_s = CLOCK_TOLERANCE_S - 1 if self.chance(0.5) else 3600
        return self.between(-most_s, most_s)

    def surprise(self, what: str) -> None:
        """Note what should not have happened; the play fails at its end."""
        self.surprises.append(f"{self.world.scheduler.now:.6f} {what}")

    def keep_alive(self, actor: Actor, rest_s: float = 3.0) -> Callable[[], None]:
        """The director's part for one actor: a new machine whenever the last one was killed."""

        def tend() -> None:
            number = 0
            while not actor.is_done:
                machine = self.world.machine(f"{actor.name}.{number}")
                if self.script.wrong_clocks:
                    machine.process.skew_s = self.wrong_by_s()
                self.on_stage[actor.name] = machine
                machine.clock.start_thread(lambda on=machine: actor.act(on), "application").join()  # type: ignore[misc]
                del self.on_stage[actor.name]
                self.history.crash(machine.name)
                number += 1
                self.director.clock.sleep(self.between(0, rest_s))

        return tend

    def calm(self) -> None:
        """The faults end."""
        self.is_calm = True
        self.network.faults = Faults()
