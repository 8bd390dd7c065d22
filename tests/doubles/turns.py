"""Members of a group that commit without rest, each on a machine of its own."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from tests.simulator.world import Machine, World

__all__ = ["LoopingMembers"]

WARM_UP_S = 10.0
MEASURED_S = 20.0


class LoopingMembers(ABC):
    """Members that commit again as soon as their commit has ended, on an object store. Those in
    `stops` end early: so many seconds after `WARM_UP_S`.
    """

    def __init__(
        self, world: World, count: int, stops: Mapping[int, float] = MappingProxyType({})
    ) -> None:
        self.world = world
        self.names = [f"m{number}" for number in range(count)]
        self.machines = [world.machine(name) for name in self.names]
        self.stops = stops
        self.counts: Counter[int] = Counter()
        self.longest_s = 0.0  # commit of a member that does not stop
        chance = random.Random(world.seed)
        world.network.signals = False
        world.network.delay_s = lambda: chance.lognormvariate(-3.5, 0.25)  # type: ignore[method-assign] # 30 ms one way

    @abstractmethod
    def prepare(self) -> None:
        """Make the group."""

    @abstractmethod
    def commits(self, machine: Machine) -> Callable[[], object]:
        """What the member on this machine calls again and again."""

    def run(self) -> list[int]:
        """The commits of each member while all others commit, after `WARM_UP_S`."""
        self.world.run(self._all)
        return [
            self.counts[number] for number in range(len(self.names)) if number not in self.stops
        ]

    def _all(self) -> None:
        self.prepare()
        begun_at = self.world.scheduler.now
        threads = [
            machine.clock.start_thread(partial(self._loop, number, machine, begun_at), "loop")
            for number, machine in enumerate(self.machines)
        ]
        for thread in threads:
            thread.join()

    def _loop(self, number: int, machine: Machine, begun_at: float) -> None:
        commit = self.commits(machine)
        counts_from = begun_at + WARM_UP_S
        ends_at = counts_from + self.stops.get(number, MEASURED_S)
        while (now := machine.clock.monotonic()) < ends_at:
            commit()
            if number not in self.stops:
                self.longest_s = max(self.longest_s, machine.clock.monotonic() - now)
            self.counts[number] += now >= counts_from
