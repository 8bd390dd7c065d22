"""A simulated world: one store, and processes that start and end."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from deltaq.clock import Clock
from tests.simulator.disk import Disk
from tests.simulator.network import CrashPoint, Network, SimulatedStore
from tests.simulator.scheduler import Process, Scheduler

__all__ = ["Machine", "World"]

T = TypeVar("T")


class Machine:
    """A simulated process with its clock and its store, from which clients are created."""

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
    """A simulation with a seed. Use it as a context manager: remaining processes are killed at the
    end.
    """

    def __init__(
        self, seed: int, *, preempt: float = 0.05, crash: CrashPoint | None = None
    ) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed, preempt)
        self._outside = Process(self.scheduler, "outside")
        # Only one thread runs at a time, so the objects need no simulated lock.
        disk = Disk("simulated", self._outside.clock)
        self.network = Network(self.scheduler, disk, crash=crash)

    def machine(self, name: str) -> Machine:
        """Create a process. Its name, which reports use, must be unique."""
        return Machine(self.network, name)

    def run(
        self, target: Callable[[], T], on: Machine | None = None, time_max_s: float = 86_400.0
    ) -> T:
        """Run `target` in process `on` until it returns, while all other threads run too."""
        return self.scheduler.run(self._outside if on is None else on.process, target, time_max_s)

    def __enter__(self) -> World:
        # Garbage collection would run finalizers at times that do not depend on the seed.
        self._collected = gc.isenabled()
        gc.disable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.scheduler.close()
        if self._collected:
            gc.enable()
