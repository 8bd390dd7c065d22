"""Who waits for whom: nobody who writes alone or seldom, and of many all but one."""

from __future__ import annotations

import pytest

from deltaq.producer.group_commit import LEADER_COMMITS, GroupCommitPolicy

COMMIT_S = 0.01


def crowded(files: int = 8, interval_s: float = 0.04) -> GroupCommitPolicy:
    """After a second in a crowd whose commits have so many files each."""
    policy = GroupCommitPolicy()
    policy.committed(COMMIT_S)
    for number in range(25):
        policy.learned(number * interval_s, 1, files, contended=True)
    return policy


def test_who_writes_alone_waits_for_nobody_and_offers_nothing():
    policy = GroupCommitPolicy()
    for number in range(50):
        policy.learned(number * 0.02, 1, 1, contended=False)
        policy.committed(COMMIT_S)
        assert not policy.is_contended(number * 0.02)
        assert policy.leader_timeout_s(number * 0.02, 0.5, 0, is_ours=True) == 0


def test_where_files_come_seldom_everybody_commits_for_himself():
    policy = crowded(files=1, interval_s=0.1)
    assert not policy.is_contended(2.4)
    assert policy.leader_timeout_s(2.4, 0.5, 0, is_ours=False) == 0


def test_in_a_crowd_all_wait_but_the_one_that_has_just_committed():
    policy = crowded()
    policy.committed(COMMIT_S)
    assert policy.leader_timeout_s(1.0, 0.5, 0, is_ours=True) == 0
    assert policy.leader_timeout_s(1.0, 0.5, 0, is_ours=False) > 0.04, (
        "whoever commits for all needs about one interval"
    )


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_each_lost_race_spreads_those_that_lose_patience(lost):
    policy = crowded()
    spread = [policy.leader_timeout_s(1.0, chance, lost, is_ours=False) for chance in (0.0, 0.99)]
    wider = [policy.leader_timeout_s(1.0, chance, lost + 1, is_ours=False) for chance in (0.0, 0.99)]
    assert spread[0] == wider[0]
    assert wider[1] - wider[0] == pytest.approx(2 * (spread[1] - spread[0]))


def test_nobody_commits_for_all_for_ever():
    policy = crowded()
    policy.peer_committed(1.0)
    waits = []
    for _ in range(LEADER_COMMITS + 1):
        policy.committed(COMMIT_S)
        waits.append(policy.leader_timeout_s(1.0, 0.5, 0, is_ours=True) > 0)
    assert waits.index(True) == LEADER_COMMITS - 1
    assert sum(waits) == 1


def test_company_ends_a_while_after_its_last_sign():
    policy = crowded()
    assert policy.is_contended(1.0)
    assert 1.5 < policy.contended_left_s(1.0) < 2.0
    assert not policy.is_contended(3.0)
    assert policy.contended_left_s(3.0) == 0


def test_an_outage_does_not_make_commits_seem_dear():
    policy = crowded(files=1, interval_s=0.1)
    policy.committed(60.0)
    policy.committed(COMMIT_S)
    assert not policy.is_busy
