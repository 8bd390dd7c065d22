"""Workers of a share group are killed and stopped at random, on local disk and on a MinIO that
dies.

`DELTAQ_CRASH_SEED` and `DELTAQ_CRASH_ROUNDS` are as in the soak of groups.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.share_faults import ShareRun, run_share_group
from tests.crash.test_group_soak import new_seed, rounds
from tests.servers.minio import MinioServer

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
]


def check_that_locks_ended(run: ShareRun) -> None:
    """A run in which no worker has lost a record proves nothing."""
    assert min(run.faults["kill"], run.faults["stop"]) > 0, run
    assert run.happened["a record was delivered again"] > 0, run
    assert run.happened["a dead letter was written"] > 0, run
    assert run.work.confirmed


def test_workers_killed_and_stopped_on_local_disk_lose_and_hold_nothing_twice(
    local_root: str, tmp_path: Path
) -> None:
    count = rounds(200)
    check_that_locks_ended(run_share_group(local_root, tmp_path, new_seed(count), count))


@pytest.mark.s3_server
def test_workers_killed_and_stopped_on_a_server_that_dies_lose_and_hold_nothing_twice(
    own_server: MinioServer, tmp_path: Path
) -> None:
    def kill_server() -> None:
        own_server.kill()
        own_server.restart()

    count = rounds(50)
    root = f"s3://{own_server.bucket}/root"
    run = run_share_group(root, tmp_path, new_seed(count), count, kill_server)
    check_that_locks_ended(run)
