"""Producers and consumers are killed at random moments: each acknowledged record is stored once and
in order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.harness import Findings, Harness
from tests.crash.member_faults import CRASHES, NO_CRASHES, run_group
from tests.depth import depth


def killed(root: str, folder: Path) -> Findings:
    """Two writers and a reader, each killed several times."""
    with Harness(root, folder, seed=1) as harness:
        writers = [harness.writer("w1"), harness.writer("w2")]
        reader = harness.reader("r1")
        for victim in (*writers, reader, *depth([], [*writers, reader]), *writers):
            harness.kill(victim)
        harness.resolve()
        return harness.judge()


@pytest.mark.long
@pytest.mark.fault("P1", "P3")
def test_killed_writers_and_reader_lose_double_and_skip_nothing(local_root, tmp_path):
    findings = killed(local_root, tmp_path)
    assert findings.sends["ok"] > 0
    assert findings.commits["ok"] > 0
    assert findings.kills, "no kill found anything on its way"


@pytest.mark.long
@pytest.mark.s3_server
@pytest.mark.fault("P1", "P3")
def test_killed_writers_and_reader_on_a_server_lose_double_and_skip_nothing(
    s3_server_root, tmp_path
):
    findings = killed(s3_server_root, tmp_path)
    assert findings.sends["ok"] > 0
    assert findings.commits["ok"] > 0
    assert findings.kills, "no kill found anything on its way"


def killed_during_group_commit(root: str, folder: Path) -> Findings:
    """Writers with group commit and one without, which are killed several times, and stopped for
    longer than their timeouts while others may commit their files.
    """
    with Harness(root, folder, seed=4) as harness:
        says = {"w1": "true", "w2": "true", "w3": "true", "w4": "false"}
        times = {"w1": 1_000, "w2": 1_000, "w3": 20_000, "w4": 20_000}
        writers = [
            harness.writer(name, **{"deltaq.group.commit": word, "message.timeout.ms": times[name]})
            for name, word in says.items()
        ]
        for victim in (*writers, *depth([], writers)):
            harness.kill(victim)
        for sleeper in writers[: depth(1, 2)]:
            harness.pause(sleeper, 1.5)
        harness.resolve()
        return harness.judge()


@pytest.mark.fault("P1", "P3")
def test_killed_group_commit_writers_lose_double_and_misplace_nothing(local_root, tmp_path):
    findings = killed_during_group_commit(local_root, tmp_path)
    assert findings.sends["ok"] > 0
    assert findings.committed_by_peers > 0
    assert findings.kills, "no kill found anything on its way"


@pytest.mark.long
@pytest.mark.s3_server
@pytest.mark.fault("P1", "P3")
def test_killed_group_commit_writers_on_a_server_lose_double_and_misplace_nothing(
    s3_server_root, tmp_path
):
    findings = killed_during_group_commit(s3_server_root, tmp_path)
    assert findings.sends["ok"] > 0
    assert findings.committed_by_peers > 0
    assert findings.kills, "no kill found anything on its way"


@pytest.mark.long
@pytest.mark.fault("C2", "C3")
def test_writers_and_readers_paused_past_their_timeouts_lose_double_and_skip_nothing(
    local_root, tmp_path
):
    with Harness(local_root, tmp_path, seed=2) as harness:
        writers = [harness.writer(name, **{"message.timeout.ms": 1000}) for name in ("w1", "w2")]
        for name in ("r1", "r2"):
            harness.reader(name)
        for writer in writers:
            harness.pause(writer, 1.5)
        harness.pause(harness.active_reader(), 2.0)
        harness.resolve()
        findings = harness.judge()
    assert findings.sends["ok"] > 0
    assert findings.commits["ok"] > 0


@pytest.mark.s3_server
def test_a_killed_and_restarted_server_loses_nothing_and_all_clients_go_on(own_server, tmp_path):
    with Harness(f"s3://{own_server.bucket}/root", tmp_path, seed=3) as harness:
        writers = [harness.writer(name) for name in ("w1", "w2")]
        reader = harness.reader("r1")
        for _ in range(3):
            for actor in (*writers, reader):
                harness.wait(actor.gets_on, f"progress of {actor.name}")
            harness.moment()
            own_server.kill()
            harness.moment()
            own_server.restart()
        harness.resolve()
        findings = harness.judge()
    assert findings.sends["ok"] > 0
    assert findings.commits["ok"] > 0


@pytest.mark.fault("C3", "R1", "R4")
@pytest.mark.parametrize("strategy", depth(["cooperative-sticky"], ["range", "cooperative-sticky"]))
def test_members_killed_stopped_and_closed_in_a_few_rounds_lose_and_skip_nothing(
    local_root, tmp_path, strategy
):
    run = run_group(local_root, tmp_path, 7, depth(3, 6), CRASHES, strategy)
    assert run.findings.commits["ok"] > 0


@pytest.mark.long
@pytest.mark.fault("R7")
def test_members_that_join_and_leave_in_a_few_rounds_read_each_record_once(local_root, tmp_path):
    run = run_group(local_root, tmp_path, 7, depth(3, 6), NO_CRASHES, "cooperative-sticky")
    assert set(run.deliveries.values()) == {1}
