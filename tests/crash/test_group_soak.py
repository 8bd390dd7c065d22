"""Members of a group are killed, stopped, started and closed at random while records are written.

`make crash` runs them on local disk and on MinIO. `DELTAQ_CRASH_SEED` repeats the choices of a run,
though not its moments, and `DELTAQ_CRASH_ROUNDS` says how many faults are injected.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.harness import Harness
from tests.crash.member_faults import CRASHES, NO_CRASHES, GroupRun, run_group
from tests.servers.minio import MinioServer

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
]

STRATEGIES = pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])


def rounds(default: int) -> int:
    return int(os.environ.get("DELTAQ_CRASH_ROUNDS", default))


def new_seed(count: int) -> int:
    seed = int(os.environ.get("DELTAQ_CRASH_SEED", random.randrange(10**6)))
    print(f"\nDELTAQ_CRASH_SEED={seed} DELTAQ_CRASH_ROUNDS={count}", flush=True)
    return seed


def check_that_faults_hit(run: GroupRun) -> None:
    """A run whose faults have not cost any member its partitions proves nothing."""
    assert run.faults["kill"] + run.faults["stop"] > 0, run
    assert run.findings.commits["ok"] > 0
    assert run.unowned_s


@STRATEGIES
@pytest.mark.fault("C3", "R1", "R4")
def test_members_killed_stopped_and_closed_on_local_disk_lose_and_skip_nothing(
    local_root, tmp_path, strategy
):
    count = rounds(200)
    run = run_group(local_root, tmp_path, new_seed(count), count, CRASHES, strategy)
    check_that_faults_hit(run)


@pytest.mark.fault("R7")
@STRATEGIES
def test_members_that_join_and_leave_on_local_disk_read_each_record_once(
    local_root, tmp_path, strategy
):
    count = rounds(200)
    run = run_group(local_root, tmp_path, new_seed(count), count, NO_CRASHES, strategy)
    assert set(run.deliveries.values()) == {1}


@STRATEGIES
@pytest.mark.s3_server
@pytest.mark.fault("C3", "R1", "R4")
def test_members_killed_stopped_and_closed_on_a_server_that_dies_lose_and_skip_nothing(
    own_server, tmp_path, strategy
):
    server: MinioServer = own_server

    def kill_server(harness: Harness) -> None:
        server.kill()
        harness.moment()
        server.restart()

    count = rounds(50)
    faults = CRASHES | {"kill server": 2}
    root = f"s3://{server.bucket}/root"
    run = run_group(root, tmp_path, new_seed(count), count, faults, strategy, kill_server)
    check_that_faults_hit(run)


@STRATEGIES
@pytest.mark.s3_server
def test_members_that_join_and_leave_on_a_server_read_each_record_once(
    s3_server_root: str, tmp_path: Path, strategy
):
    count = rounds(50)
    run = run_group(s3_server_root, tmp_path, new_seed(count), count, NO_CRASHES, strategy)
    assert set(run.deliveries.values()) == {1}
