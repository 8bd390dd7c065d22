"""The driver of a streaming query with state is killed: the windows that it writes are those of
plain Python, once.

A kill "after a commit" falls between the commit of the topic and Spark's own note of the
micro-batch. `make crash` runs the long test; `DELTAQ_CRASH_SEED` repeats the choices of a run, and
`DELTAQ_CRASH_KILLS` says how many kills of each kind.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.crash.query_faults import GAP, Kill, run_query

pytestmark = pytest.mark.spark

KILLS = int(os.environ.get("DELTAQ_CRASH_KILLS", "20"))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.fault("P3")
def test_a_query_killed_between_the_two_commits_writes_each_window_once(
    local_root: str, tmp_path: Path, spark: SparkSession
) -> None:
    findings = run_query(
        local_root, tmp_path, 1, ["after a commit"], rows=8_000, offsets_max=1_000, spark=spark
    )
    assert findings.kills == {GAP: 1}
    assert findings.maintenance["files merged"] > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.fault("P3")
def test_a_query_killed_many_times_on_a_million_records_writes_each_window_once(
    local_root: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("DELTAQ_CRASH_SEED", random.randrange(10**6)))
    print(f"\nDELTAQ_CRASH_SEED={seed} DELTAQ_CRASH_KILLS={KILLS}", flush=True)
    begun = time.monotonic()
    kills: list[Kill] = ["after a commit", "at random"] * KILLS
    findings = run_query(local_root, tmp_path, seed, kills, rows=1_000_000, offsets_max=6_000)
    print(f"[{time.monotonic() - begun:5.0f} s] {findings}", flush=True)
    assert findings.kills[GAP] >= KILLS
    assert findings.maintenance["log objects deleted"] > 0
