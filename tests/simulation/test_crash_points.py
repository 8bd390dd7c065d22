"""A process is killed before and after each of its store operations, one run for each operation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fnmatch import fnmatch
from functools import cache

import pytest

from deltaq.maintenance.settings import MaintenanceSettings
from tests.depth import depth
from tests.simulation.run import simulate
from tests.simulation.scenario import Scenario
from tests.simulator.network import CrashPoint, Faults

QUIET = Scenario(
    producers=1,
    readers=1,
    members=1,
    partitions=2,
    messages=6,
    rest_s=1.0,
    linger_ms=5,
    timeout_ms=60_000,
    latency_s=0.005,
    signals=False,
    remote=True,
    preempt=0.0,
    faults=Faults(),
    crashes=False,
    pauses=False,
    sleeps=False,
    wrong_clocks=False,
    grows=False,
    recreates=False,
    auto_create=False,
)
SEED = 11
WRITERS = ["creator", "sender-0.0", "member-0.0"]
READER = "reader-0.0"


@cache
def operations(victim: str) -> int:
    """The number of store operations of the victim in a run without a crash."""
    verdict = simulate(SEED, QUIET)
    assert not verdict.problems
    return verdict.store_operations[victim]


@pytest.mark.fault("P1", "P2", "P3", "P4", "R1", "R4")
@pytest.mark.parametrize(
    ("victim", "after"),
    # A reader writes nothing, so what it leaves behind is the same before and after each of its
    # reads.
    [*((victim, after) for victim in WRITERS for after in (False, True)), (READER, True)],
)
def test_a_crash_at_any_store_operation_loses_and_doubles_nothing(victim, after):
    assert operations(victim) > 5
    for number in range(1 + after, operations(victim) + 1, depth(3, 1)):
        verdict = simulate(SEED, QUIET, CrashPoint(victim, number, after))
        where = f"{victim} crashed {'after' if after else 'before'} its store operation {number}"
        assert verdict.happened[f"crashed {'after' if after else 'before'} an operation"] == 1, (
            where
        )
        assert not verdict.problems, f"{where}\n{verdict.problems}"


SHARED = replace(QUIET, members=2, readers=0)
REMOVAL = ("a dead member was removed", "a dead member lost its partitions")


@pytest.mark.fault("R1", "R4")
@pytest.mark.parametrize("victim", ["member-0.0", "member-1.0"])
def test_the_group_replaces_a_member_that_crashed_after_any_of_its_writes(victim):
    """The other member goes on, and the victim joins again. Between two writes the store stays as
    it is, so these are all the states that it can leave behind as it joins, gets partitions,
    commits, releases and leaves.
    """
    undisturbed = simulate(SEED, SHARED)
    assert not undisturbed.problems
    assert undisturbed.happened["a partition was released"]
    happened: Counter[str] = Counter()
    for number, operation, key in undisturbed.store_writes[victim][:: depth(2, 1)]:
        verdict = simulate(SEED, SHARED, CrashPoint(victim, number, after=True))
        where = f"{victim} crashed after its store operation {number}, {operation} {key}"
        assert verdict.happened["crashed after an operation"] == 1, where
        assert not verdict.problems, f"{where}\n{verdict.problems}"
        happened += verdict.happened
    assert all(happened[event] for event in REMOVAL), "some had joined, and owned partitions"


COPYING = replace(
    QUIET, readers=0, members=0, processors=2, transactional_ids=2, messages=8, rest_s=0.5
)


@pytest.mark.fault("T1", "T6")
@pytest.mark.timeout(300)
def test_a_crash_after_any_write_of_a_transaction_loses_and_doubles_nothing():
    """Between two writes the store stays as it is, so these are all the states that a program can
    leave behind. Afterwards its successor has its id, or the other program its partitions.
    """
    undisturbed = simulate(SEED, COPYING)
    assert not undisturbed.problems
    writes = undisturbed.store_writes["processor-0.0"]
    for step in ("put topics/a/staged/*", "create transactions/*", "create topics/b/*"):
        assert any(fnmatch(f"{operation} {key}", step) for _, operation, key in writes), step
    for number, operation, key in writes[:: depth(6, 1)]:
        verdict = simulate(SEED, COPYING, CrashPoint("processor-0.0", number, after=True))
        where = f"crashed after its store operation {number}, {operation} {key}"
        assert verdict.happened["crashed after an operation"] == 1, where
        assert not verdict.problems, f"{where}\n{verdict.problems}"


ACKNOWLEDGING = replace(
    QUIET, readers=0, members=0, workers=2, copiers=1, messages=8, rest_s=0.5, lock_s=2.0
)


@pytest.mark.fault("T1")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_write_of_a_worker_accepts_and_copies_a_message_or_neither(after):
    """These are all the states that a worker can leave behind which acknowledges messages in
    transactions. The other worker ends its transaction when the lock is over, or its successor.
    """
    undisturbed = simulate(SEED, ACKNOWLEDGING)
    assert not undisturbed.problems
    assert undisturbed.happened["a message was accepted by a transaction"]
    writes = undisturbed.store_writes["worker-0.0"]
    for step in (
        "put topics/copies/staged/*",
        "create transactions/*",
        "create topics/copies/*",
        "create groups/shared/*",
    ):
        assert any(fnmatch(f"{operation} {key}", step) for _, operation, key in writes), step
    happened: Counter[str] = Counter()
    decisions = [write for write in writes if write[2].startswith("transactions/")]
    for number, operation, key in sorted({*decisions, *writes[:: depth(3, 1)]}):
        verdict = simulate(SEED, ACKNOWLEDGING, CrashPoint("worker-0.0", number, after))
        where = f"crashed {'after' if after else 'before'} {number}, {operation} {key}"
        crashed = f"crashed {'after' if after else 'before'} an operation"
        assert verdict.happened[crashed] == 1, where
        assert not verdict.problems, f"{where}\n{verdict.problems}"
        happened += verdict.happened
    assert happened["a transaction's acknowledgements were given back"]


MAINTAINED = replace(
    QUIET,
    members=0,
    messages=30,
    rest_s=40.0,
    maintainers=1,
    maintenance_rest_s=60.0,
    reset="error",
    orphan=True,
    topic={
        "segment.bytes": "1048576",
        "cleanup.policy": "compact,delete",
        "retention.bytes": "1200",
        "delete.retention.ms": "0",
    },
    maintenance=MaintenanceSettings(
        checkpoint_interval=4,
        keep_entries_min=2,
        keep_entries_max=3,
        keep_checkpoints=1,
        merge_files=2,
        file_delete_delay_ms=10_000,
        scan_interval_ms=5_000,
        in_flight_ms=5_000,
        clean_up_interval_s=5.0,
    ),
)
STEPS = (
    "put topics/t/????????????????????????????????.parquet",
    "create topics/t/_delta_log/*.json",
    "create topics/t/_delta_log/*.checkpoint.parquet",
    "put topics/t/_delta_log/_last_checkpoint",
    "create topics/t/_deltaq/log_start/*",
    "delete topics/t/_delta_log/*.json",
    "delete topics/t/_delta_log/*.checkpoint.parquet",
    "create topics/t/_deltaq/unreferenced/*",
    "delete topics/t/????????????????????????????????.parquet",
    "delete topics/t/_deltaq/unreferenced/*",
)
"""Everything that maintenance of a topic writes."""
OUTCOMES = (
    "files were merged",
    "records were superseded",
    "a tombstone was dropped",
    "records expired",
    "a file was removed",
    "an orphan was removed",
    "a log entry was cleaned up",
)


@cache
def maintenance(maintainers: int, seed: int) -> tuple[int, dict[int, str]]:
    """The first seed, from this one on, whose victim does every step of maintenance; and the steps
    of its operations that write, by number.
    """
    for tried in range(seed, seed + 20):
        verdict = simulate(tried, replace(MAINTAINED, maintainers=maintainers))
        assert not verdict.problems
        writes = verdict.store_writes.get("maintainer-0.0", [])
        steps = {number: _step(f"{operation} {key}") for number, operation, key in writes}
        if set(STEPS) <= set(steps.values()) and all(verdict.happened[event] for event in OUTCOMES):
            return tried, steps
    raise AssertionError("no run has every step")


def _step(operation: str) -> str:
    """The step of maintenance, or the operation if it is part of none."""
    return next((step for step in STEPS if fnmatch(operation, step)), operation)


def crash_points(writes: dict[int, str], *, of_each_step: bool) -> list[int]:
    """All writes; or of each step the first and the last one."""
    if not of_each_step:
        return list(writes)
    first = {step: number for number, step in reversed(writes.items())}
    last = {step: number for number, step in writes.items()}
    return sorted({*first.values(), *last.values()})


@pytest.mark.timeout(600)
@pytest.mark.fault("M1", "M6", "P2")
@pytest.mark.parametrize(
    ("maintainers", "first_seed", "after", "share"),
    [
        (1, 1, False, slice(0, None, 2)),
        (1, 1, False, slice(1, None, 2)),
        (2, 39, True, slice(None)),
    ],
    ids=["alone, before, even", "alone, before, odd", "two at once, after"],
)
def test_another_maintainer_goes_on_wherever_one_crashed(maintainers, first_seed, after, share):
    """Between two writes of one process the store stays as it is, so these are all the states it
    can leave behind: it crashed behind one write, or before the next one. Beside another
    maintainer, each step is tried twice.
    """
    seed, writes = maintenance(maintainers, first_seed)
    for number in crash_points(writes, of_each_step=maintainers > 1)[share][:: depth(5, 1)]:
        verdict = simulate(
            seed,
            replace(MAINTAINED, maintainers=maintainers),
            CrashPoint("maintainer-0.0", number, after),
        )
        where = f"crashed {'after' if after else 'before'} its store operation {number}"
        assert verdict.happened[f"crashed {'after' if after else 'before'} an operation"] == 1, (
            where
        )
        assert not verdict.problems, f"{where}\n{verdict.problems}"
