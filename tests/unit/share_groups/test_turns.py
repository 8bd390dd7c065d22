"""Workers that exchange without rest take turns at the log of their group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from deltaq.delta import log as delta_log
from deltaq.share_groups.exchange import Exchange, LogRange, PartitionId
from deltaq.share_groups.log import ShareLog
from deltaq.share_groups.state import Acknowledgement
from deltaq.store import LocalStore
from deltaq.testing import ManualClock
from tests.doubles.groups import FOREVER
from tests.doubles.sharing import ACCEPT
from tests.doubles.turns import LoopingMembers
from tests.simulator.world import Machine, World

KEY = PartitionId("t", "id", 0)


class Workers(LoopingMembers):
    """Each takes two records, and accepts them with its next exchange."""

    def prepare(self) -> None:
        """The first exchange makes the group."""

    def commits(self, machine: Machine) -> Callable[[], object]:
        log = ShareLog(machine.store, "g", machine.clock)
        decided: list[Acknowledgement] = []

        def exchange() -> None:
            wanted = Exchange(
                machine.name, {KEY: decided}, {KEY: LogRange(0, 1_000_000, 0)}, records_max=2
            )
            found = log.exchange(wanted, FOREVER).taken[KEY]
            decided[:] = [Acknowledgement(of.first, of.end, of.deliveries, ACCEPT) for of in found]

        return exchange


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("members", [3, 10])
def test_no_worker_that_exchanges_without_rest_starves(members: int, seed: int) -> None:
    with World(seed, preempt=0) as world:
        counts = Workers(world, members).run()
        (alone,) = Workers(World(seed, preempt=0), 1).run()
    assert min(counts) >= 0.75 * median(counts)
    assert sum(counts) >= 1.1 * alone, "one reads its entry while another one writes the next"


@pytest.mark.parametrize(
    ("processes", "expected"), [(2, [False] * 9 + [True, False, False]), (1, [False] * 12)]
)
def test_on_a_local_disk_only_a_process_that_is_far_behind_is_waited_for(
    tmp_path: Path, processes: int, expected: list[bool]
) -> None:
    clock = ManualClock(auto_advance=True)
    stores = [LocalStore(str(tmp_path)) for _ in range(processes)]
    log, other = (ShareLog(store, "g", clock) for store in (stores[0], stores[-1]))

    def waits(log: ShareLog, owner: str) -> bool:
        begun_at = clock.monotonic()
        log_ranges = {KEY: LogRange(0, 1_000_000, 0)}
        log.exchange(Exchange(owner, log_ranges=log_ranges, records_max=1), FOREVER)
        return clock.monotonic() > begun_at

    for _ in range(2):
        waits(log, "one")
        waits(other, "two")
    # The other one is behind by four rounds of two entries, and then known not to want more.
    assert [waits(log, "one") for _ in range(12)] == expected


def test_a_worker_that_has_lost_races_tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with World(1, preempt=0) as world:
        monkeypatch.setattr(delta_log, "race_pause_s", lambda *_: pytest.fail("it has paused"))
        assert Workers(world, 3).run()
