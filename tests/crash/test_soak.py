"""A hundred kills: the same as in the small tests, for as long as it takes.

`make crash` runs them on local disk and on MinIO. They print their seed and where they are;
`DELTAQ_CRASH_SEED` repeats the choices of a run, though not its moments, and `DELTAQ_CRASH_KILLS`
says how many kills.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.harness import Findings, Harness
from tests.servers.minio import MinioServer

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
]

KILLS = int(os.environ.get("DELTAQ_CRASH_KILLS", "100"))
MESSAGE_TIMEOUT_MS = 5000
REPORT_EVERY = 10


def soak(
    root: str, folder: Path, faults: dict[str, int], kill_server: Callable[[Harness], None] | None
) -> Findings:
    """`KILLS` kills of writers, readers and the server, and pauses between them; `faults` are the
    weights.
    """
    seed = int(os.environ.get("DELTAQ_CRASH_SEED", random.randrange(10**6)))
    print(f"\nDELTAQ_CRASH_SEED={seed} DELTAQ_CRASH_KILLS={KILLS}", flush=True)
    begun = time.monotonic()
    done: Counter[str] = Counter()
    with Harness(root, folder, seed) as harness:
        for name in ("w1", "w2", "w3"):
            harness.writer(name, **{"message.timeout.ms": MESSAGE_TIMEOUT_MS})
        for name in ("r1", "r2"):
            harness.reader(name)
        while (
            kills := sum(count for fault, count in done.items() if fault.startswith("kill"))
        ) < KILLS:
            (fault,) = harness.chance.choices(list(faults), list(faults.values()))
            done[fault] += 1
            if fault == "kill writer":
                harness.kill(harness.chance.choice(harness.writers))
            elif fault == "kill reader":
                harness.kill(harness.active_reader())
            elif fault == "stop writer":
                harness.pause(harness.chance.choice(harness.writers), MESSAGE_TIMEOUT_MS / 1000)
            elif fault == "stop reader":
                harness.pause(harness.active_reader(), 1.5)
            elif kill_server is not None:
                kill_server(harness)
            if (kills + 1) % REPORT_EVERY == 0 and fault.startswith("kill"):
                print(f"[{time.monotonic() - begun:5.0f} s] {dict(done)}", flush=True)
        harness.resolve()
        findings = harness.judge()
    print(f"[{time.monotonic() - begun:5.0f} s] {findings}", flush=True)
    return findings


def check_that_faults_hit(findings: Findings) -> None:
    """Without kills that hit records between upload and acknowledgement, a run proves nothing."""
    assert findings.kills["between upload and commit"] > 0
    assert findings.kills["between commit and acknowledgement"] > 0
    assert findings.commits["ok"] > 0


@pytest.mark.fault("P1", "P3", "C2", "C3")
def test_a_hundred_kills_on_local_disk_lose_double_and_skip_nothing(local_root, tmp_path):
    faults = {"kill writer": 6, "kill reader": 3, "stop writer": 1, "stop reader": 1}
    check_that_faults_hit(soak(local_root, tmp_path, faults, None))


@pytest.mark.s3_server
@pytest.mark.fault("P1", "P3", "C2", "C3")
def test_a_hundred_kills_on_and_of_a_server_lose_double_and_skip_nothing(own_server, tmp_path):
    server: MinioServer = own_server

    def kill_server(harness: Harness) -> None:
        for actor in harness.writers:
            harness.wait(actor.gets_on, f"progress of {actor.name}")
        harness.moment()
        server.kill()
        harness.moment()
        server.restart()

    faults = {
        "kill writer": 5,
        "kill reader": 3,
        "kill server": 2,
        "stop writer": 1,
        "stop reader": 1,
    }
    check_that_faults_hit(soak(f"s3://{server.bucket}/root", tmp_path, faults, kill_server))
