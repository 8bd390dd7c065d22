"""Producers and consumers are killed at random moments: each acknowledged record is stored once and in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.scene import Findings, Scene


def killed(root: str, folder: Path) -> Findings:
    """Two writers and a reader, each killed several times."""
    with Scene(root, folder, seed=1) as scene:
        writers = [scene.writer("w1"), scene.writer("w2")]
        reader = scene.reader("r1")
        for victim in (*writers, reader, *writers, reader, *writers):
            scene.kill(victim)
        scene.resolve()
        return scene.judge()


@pytest.mark.fault("P1", "P3")
def test_writers_and_a_reader_that_are_killed_lose_double_and_skip_nothing(local_root, tmp_path):
    findings = killed(local_root, tmp_path)
    assert findings.sends["ok"] > 0
    assert findings.commits["ok"] > 0
    assert findings.kills, "no kill found anything on its way"


@pytest.mark.s3_server
@pytest.mark.fault("P1", "P3")
def test_on_a_server_too_writers_and_a_reader_that_are_killed_lose_double_and_skip_nothing(s3_server_root, tmp_path):
    findings = killed(s3_server_root, tmp_path)
    assert findings.sends["ok"] > 0
    assert findings.commits["ok"] > 0
    assert findings.kills, "no kill found anything on its way"


def killed_in_a_crowd(root: str, folder: Path) -> Findings:
    """Writers with group commit and one without, which are killed several times, and stopped for longer than their
    timeouts while others may commit their files."""
    with Scene(root, folder, seed=4) as scene:
        says = {"w1": "true", "w2": "true", "w3": "true", "w4": "false"}
        times = {"w1": 1_000, "w2": 1_000, "w3": 20_000, "w4": 20_000}
        writers = [
            scene.writer(name, **{"deltaq.group.commit": word, "message.timeout.ms": times[name]})
            for name, word in says.items()
        ]
        for victim in (*writers, *writers):
            scene.kill(victim)
        for sleeper in writers[:2]:
            scene.pause(sleeper, 1.5)
        scene.resolve()
        return scene.judge()


@pytest.mark.fault("P1", "P3")
def test_writers_that_commit_for_each_other_and_are_killed_lose_double_and_misplace_nothing(local_root, tmp_path):
    findings = killed_in_a_crowd(local_root, tmp_path)
    assert findings.sends["ok"] > 0
    assert findings.taken_along > 0
    assert findings.kills, "no kill found anything on its way"


@pytest.mark.s3_server
@pytest.mark.fault("P1", "P3")
def test_on_a_server_too_writers_that_commit_for_each_other_may_be_killed(s3_server_root, tmp_path):
    findings = killed_in_a_crowd(s3_server_root, tmp_path)
    assert findings.sends["ok"] > 0
    assert findings.taken_along > 0
    assert findings.kills, "no kill found anything on its way"


@pytest.mark.fault("C2", "C3")
def test_writers_and_readers_that_stand_still_past_their_timeouts_lose_double_and_skip_nothing(local_root, tmp_path):
    with Scene(local_root, tmp_path, seed=2) as scene:
        writers = [scene.writer(name, **{"message.timeout.ms": 1000}) for name in ("w1", "w2")]
        for name in ("r1", "r2"):
            scene.reader(name)
        for writer in writers:
            scene.pause(writer, 1.5)
        scene.pause(scene.active_reader(), 2.0)
        scene.resolve()
        findings = scene.judge()
    assert findings.sends["ok"] > 0
    assert findings.commits["ok"] > 0


@pytest.mark.s3_server
def test_a_server_that_is_killed_and_restarted_takes_nothing_with_it_and_everybody_goes_on(own_server, tmp_path):
    with Scene(f"s3://{own_server.bucket}/root", tmp_path, seed=3) as scene:
        writers = [scene.writer(name) for name in ("w1", "w2")]
        reader = scene.reader("r1")
        for _ in range(3):
            for actor in (*writers, reader):
                scene.wait(actor.gets_on, f"progress of {actor.name}")
            scene.moment()
            own_server.kill()
            scene.moment()
            own_server.restart()
        scene.resolve()
        findings = scene.judge()
    assert findings.sends["ok"] > 0
    assert findings.commits["ok"] > 0
