"""The harness of a run: state shared by its actors, random choices, and restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from deltaq.maintenance.clock_check import CLOCK_TOLERANCE_S
from tests.checker.history import History
from tests.simulation.scenario import Scenario
from tests.simulator.network import CrashPoint, Faults
from tests.simulator.world import Machine, World

__all__ = ["ROOT", "Actor", "Harness"]

ROOT = "memory://simulated"


class Actor(Protocol):
    """An actor of the run. `act` is started again, on a new machine, whenever its machine was
    killed.
    """

    name: str
    is_done: bool

    def act(self, machine: Machine) -> None: ...


class Harness:
    """A world with a scenario, a history, and a director: a machine without faults."""

    def __init__(self, scenario: Scenario, seed: int, crash: CrashPoint | None = None) -> None:
        self.scenario = scenario
        self.world = World(seed, preempt=scenario.preempt, crash=crash)
        self.network = self.world.network
        self.network.latency_s = scenario.latency_s
        self.network.signals = scenario.signals
        self.network.remote = scenario.remote
        self.director = self.world.machine("director")
        self.history = History(self.director.clock)
        self.running: dict[str, Machine] = {}  # by actor, those that are alive
        self.in_round: set[str] = set()  # maintainers, by actor, in the middle of a round
        self.may_be_missing = scenario.auto_create or scenario.recreates  # the topic, at times
        self.faults_ended = False  # results that have not arrived by now never will
        self.tokens: list[tuple[str, str]] = []  # (value, token) of sends whose outcome is unknown
        # (value, whether it is in the log) of resolved outcomes.
        self.resolved: list[tuple[str, bool]] = []
        self.unexpected: list[str] = []  # what no client should have reported

    def chance(self, probability: float) -> bool:
        return self.network.chance(probability)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.world.scheduler.random.random()

    def pick(self, number: int) -> int:
        """A random number below `number`."""
        return int(self.world.scheduler.random.random() * number)

    def clock_error_s(self) -> float:
        """A random clock error in seconds; every other one is small enough for maintenance to trust
        the clock.
        """
        most_s = CLOCK_TOLERANCE_S - 1 if self.chance(0.5) else 3600
        return self.between(-most_s, most_s)

    def report_unexpected(self, what: str) -> None:
        """Record an observation that no fault explains; it fails the run."""
        self.unexpected.append(f"{self.world.scheduler.now:.6f} {what}")

    def keep_alive(self, actor: Actor, rest_s: float = 3.0) -> Callable[[], None]:
        """A thread of the director that runs one actor, on a new machine whenever the last one was
        killed.
        """

        def restart() -> None:
            number = 0
            while not actor.is_done:
                machine = self.world.machine(f"{actor.name}.{number}")
                if self.scenario.wrong_clocks:
                    machine.process.skew_s = self.clock_error_s()
                self.running[actor.name] = machine
                machine.clock.start_thread(lambda on=machine: actor.act(on), "application").join()  # type: ignore[misc]
                del self.running[actor.name]
                self.history.crash(machine.name)
                number += 1
                self.director.clock.sleep(self.between(0, rest_s))

        return restart

    def end_faults(self) -> None:
        """Stop injecting faults."""
        self.faults_ended = True
        self.network.faults = Faults()
