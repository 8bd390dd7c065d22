"""Which writers wait for a group commit: no sole or rare writer, and of many all but one."""

from __future__ import annotations

import pytest

from deltaq.producer.group_commit import LEADER_COMMITS, GroupCommitPolicy

COMMIT_S = 0.01


def contended(files: int = 8, interval_s: float = 0.04) -> GroupCommitPolicy:
    """A policy after a second of contention in which each commit has this many files."""
    policy = GroupCommitPolicy()
    policy.committed(COMMIT_S)
    for number in range(25):
        policy.observe(number * interval_s, 1, files, contended=True)
    return policy


def test_a_sole_writer_neither_waits_nor_shares():
    policy = GroupCommitPolicy()
    for number in range(50):
        policy.observe(number * 0.02, 1, 1, contended=False)
        policy.committed(COMMIT_S)
        assert not policy.is_contended(number * 0.02)
        assert policy.leader_timeout_s(number * 0.02, 0.5, 0, is_ours=True) == 0


def test_below_the_log_utilisation_each_writer_commits_for_itself():
    policy = contended(files=1, interval_s=0.1)
    assert not policy.is_contended(2.4)
    assert policy.leader_timeout_s(2.4, 0.5, 0, is_ours=False) == 0


def test_under_contention_all_writers_but_the_last_committer_wait():
    policy = contended()
    policy.committed(COMMIT_S)
    assert policy.leader_timeout_s(1.0, 0.5, 0, is_ours=True) == 0
    assert policy.leader_timeout_s(1.0, 0.5, 0, is_ours=False) > 0.04, (
        "the leader needs about one interval"
    )


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_each_lost_race_spreads_the_leader_timeouts(lost):
    policy = contended()
    spread = [policy.leader_timeout_s(1.0, chance, lost, is_ours=False) for chance in (0.0, 0.99)]
    wider = [
        policy.leader_timeout_s(1.0, chance, lost + 1, is_ours=False) for chance in (0.0, 0.99)
    ]
    assert spread[0] == wider[0]
    assert wider[1] - wider[0] == pytest.approx(2 * (spread[1] - spread[0]))


def test_the_group_commit_leader_changes():
    policy = contended()
    policy.peer_committed(1.0)
    waits = []
    for _ in range(LEADER_COMMITS + 1):
        policy.committed(COMMIT_S)
        waits.append(policy.leader_timeout_s(1.0, 0.5, 0, is_ours=True) > 0)
    assert waits.index(True) == LEADER_COMMITS - 1
    assert sum(waits) == 1


def test_contention_ends_some_time_after_its_last_sign():
    policy = contended()
    assert policy.is_contended(1.0)
    assert 1.5 < policy.contended_left_s(1.0) < 2.0
    assert not policy.is_contended(3.0)
    assert policy.contended_left_s(3.0) == 0


def test_two_lost_races_in_a_row_show_a_busy_log_until_a_commit_succeeds():
    policy = contended(files=1, interval_s=0.1)
    policy.lost_race(1.0, again=False)
    assert not policy.is_busy, "a first one may only show how long this writer was idle"
    policy.lost_race(1.0, again=True)
    assert policy.is_contended(1.0)
    policy.committed(COMMIT_S)
    assert not policy.is_busy


def test_only_a_sole_writer_of_a_busy_log_looks_for_peers_once_in_a_while():
    busy, idle = GroupCommitPolicy(), GroupCommitPolicy()
    for policy, interval_s in [(busy, 0.02), (idle, 1.0)]:
        for number in range(50):
            policy.observe(number * interval_s, 1, 1, contended=False)
            policy.committed(COMMIT_S)
    looks = [busy.looks_for_peers(10 + tenth / 10) for tenth in range(30)]
    assert not looks[0]
    assert sum(looks) == 2
    assert not any(idle.looks_for_peers(60.0 + second) for second in range(30))
    busy.peer_committed(20.0)
    assert not busy.looks_for_peers(20.5), "it lists them with each commit"


def test_an_outage_does_not_raise_the_estimated_commit_time():
    policy = contended(files=1, interval_s=0.1)
    policy.committed(60.0)
    policy.committed(COMMIT_S)
    assert not policy.is_busy
