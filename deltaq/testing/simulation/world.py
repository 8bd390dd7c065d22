"""The stage of a simulation: one store, and processes that come and go."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from deltaq.clock import Clock
from deltaq.testing.simulation.disk import Disk
from deltaq.testing.simulation.network import CrashPoint, Network, SimulatedStore
from deltaq.testing.simulation.scheduler import Process, Scheduler

__all__ = ["Machine", "World"]

T = TypeVar("T")


class Machine:
    """A process on the stage, with its clock and its way to the store: what a client is made with."""

    def __init__(self, network: Network, name: str) -> None:
        self.process = Process(network.scheduler, name)
        self.store = SimulatedStore(network, self.process)

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def clock(self) -> Clock:
        return self.process.clock


class World:
    """A simulation of `seed`. Use it as a context manager: what is left at the end is killed."""

    def __init__(self, seed: int, *, preempt: float = 0.05, crash: CrashPoint | None = None) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed, preempt)
        self._outside = Process(self.scheduler, "outside")
        # Only one thread runs at a time, so the objects themselves need no lock of the simulation.
        disk = Disk("simulated", self._outside.clock)
        self.network = Network(self.scheduler, disk, crash=crash)

    def machine(self, name: str) -> Machine:
        """A new process. The name is for reports and must be new too."""
        return Machine(self.network, name)

    def run(self, target: Callable[[], T], on: Machine | None = None, time_max_s: float = 86_400.0) -> T:
        """Run `target` in a process until it returns, with everything else that is going on meanwhile."""
        return self.scheduler.run(self._outside if on is None else on.process, target, time_max_s)

    def __enter__(self) -> World:
        # A finalizer that runs at a time of its own would be the one thing that no seed decides.
        self._collected = gc.isenabled()
        gc.disable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.scheduler.close()
        if self._collected:
            gc.enable()
