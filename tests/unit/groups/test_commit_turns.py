"""Members that commit offsets without rest take turns, and no other commit waits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median

import pytest

from deltaq.delta.actions import CommitInfo, Entry
from deltaq.groups.commit_turns import REST_PARAMETER, CommitTurns
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.state import GroupHead, MemberIdentity, Owner
from deltaq.names import group_folder, log_entry
from deltaq.store import LocalStore, Store
from deltaq.testing import ManualClock
from tests.doubles.groups import FOREVER, new_member
from tests.doubles.turns import LoopingMembers
from tests.simulator.world import Machine, World


def group_of(names: list[str]) -> GroupHead:
    """Each member owns the partition with its number."""
    keys = {name: ("t", number) for number, name in enumerate(names)}
    return GroupHead(
        1,
        {name: new_member(name) for name in names},
        assigned={name: frozenset({key}) for name, key in keys.items()},
        owners={key: Owner(name, 1) for name, key in keys.items()},
    )


def join_all(log: GroupLog, names: list[str]) -> None:
    log.change("JOIN", MemberIdentity(names[0], 1), lambda _: group_of(names), FOREVER)


def commit(log: GroupLog, names: list[str], number: int, offset: int) -> None:
    log.commit(
        MemberIdentity(names[number], 1), [CommittedOffset("t", "id", number, offset)], FOREVER
    )


class Members(LoopingMembers):
    """Each commits the offset of a partition of its own."""

    def prepare(self) -> None:
        join_all(GroupLog(self.machines[0].store, "g", self.machines[0].clock), self.names)

    def commits(self, machine: Machine) -> Callable[[], object]:
        log, offsets = GroupLog(machine.store, "g", machine.clock), count()
        number = self.machines.index(machine)
        return lambda: commit(log, self.names, number, next(offsets))


@pytest.mark.fault("P11")
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("members", [3, 10])
def test_no_member_that_commits_without_rest_starves(members, seed):
    with World(seed, preempt=0) as world:
        counts = Members(world, members).run()
        (alone,) = Members(World(seed, preempt=0), 1).run()
    assert min(counts) >= 0.75 * median(counts)
    assert sum(counts) >= 0.9 * alone, "together they get as many slots as one alone"


def test_members_that_stop_are_not_waited_for_again():
    with World(1, preempt=0) as world:
        counts = Members(world, 4, stops={2: 0.0, 3: 0.0}).run()
        (alone,) = Members(World(1, preempt=0), 1).run()
    assert sum(counts) >= 0.9 * alone
    assert min(counts) >= 0.75 * max(counts)


@pytest.mark.fault("P11")
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_a_member_waits_a_short_time_for_members_that_have_died_whatever_others_commit(seed):
    with World(seed, preempt=0) as world:
        members = Members(world, 4, stops={0: -3.0 + 0.11 * seed, 1: -2.63 + 0.11 * seed})
        counts = members.run()
    assert members.longest_s < 2.0 + 1.0, "the longest wait, and the commit"
    assert min(counts) >= 0.75 * max(counts)


def test_a_lone_member_reads_once_and_creates_once():
    with World(1) as world:
        machine = world.machine("m0")
        log = GroupLog(machine.store, "g", machine.clock)

        def run() -> int:
            join_all(log, ["m0"])
            commit(log, ["m0"], 0, 0)
            before = world.network.operations["m0"]
            for offset in range(1, 11):
                commit(log, ["m0"], 0, offset)
            return world.network.operations["m0"] - before

        assert world.run(run, on=machine) == 10 * 2


# --- the rule ---


def learn(turns: CommitTurns, version: int, member_id: str, rest_ms: int | None = 0) -> None:
    rest = {} if rest_ms is None else {REST_PARAMETER: str(rest_ms)}
    info = CommitInfo(
        f"txn-{version}", 0, "COMMIT OFFSETS", parameters={"member": member_id, **rest}
    )
    turns.following(None, Entry(version, info, ()), "path")


@pytest.fixture
def turns() -> CommitTurns:
    """Of member "me", whose commits take 0.1 s, after its commit of version 10."""
    turns = CommitTurns(ManualClock())
    turns.committed("me", 5, 0.1)
    learn(turns, 6, "a")
    learn(turns, 7, "b")
    learn(turns, 10, "me")
    turns.committed("me", 10, 0.1)
    return turns


def test_a_member_leaves_the_slot_to_those_that_have_committed_less_recently(turns):
    assert turns.ahead() == ("a", "b")
    learn(turns, 11, "a")
    assert turns.ahead() == ("b",)
    learn(turns, 11, "b")  # read by another client of the process, which is behind
    assert turns.ahead() == ("b",)
    learn(turns, 12, "b")
    assert turns.ahead() == ()


@pytest.mark.parametrize("rest_ms", [None, 501, 5000])
def test_a_member_that_rests_is_not_waited_for(turns, rest_ms):
    learn(turns, 11, "a", rest_ms)
    turns.committed("me", 12, 0.1)
    assert turns.ahead() == ("b",)


def test_a_member_that_does_not_use_its_slot_is_not_waited_for_until_it_commits(turns):
    turns.gave_up(["a"])
    assert turns.ahead() == ("b",)
    learn(turns, 11, "a")
    turns.committed("me", 12, 0.1)
    assert turns.ahead() == ("b", "a"), "in the order of their commits"


def test_the_wait_grows_with_the_members_ahead_and_is_bounded(turns):
    waits = [turns.leave_s(ahead) for ahead in (1, 2, 3, 50)]
    assert waits == sorted(waits)
    assert waits[0] < waits[1] < waits[2]
    assert waits[3] == 2.0


def test_the_own_slot_is_left_only_if_a_member_does_not_take_turns(turns):
    left = []
    for version in range(11, 19):
        turns.committed("me", version, 0.1)
        assert turns.extra_s(others=2) == 0.0
        left.append(turns.extra_s(others=3) > 0)
    assert 0 < sum(left) < len(left)


def test_only_commits_to_an_object_store_say_how_long_their_member_rested(tmp_path: Path):
    local: Store = LocalStore(str(tmp_path))
    with World(1) as world:
        machine = world.machine("m0")

        def run(store: Store) -> list[bytes]:
            log = GroupLog(store, "g", machine.clock)
            join_all(log, ["m0"])
            for offset in range(2):
                commit(log, ["m0"], 0, offset)
                machine.clock.sleep(7.0)
            return [
                store.get(log_entry(group_folder("g") + "_delta_log/", version))
                for version in (1, 2)
            ]

        first, second = world.run(lambda: run(machine.store), on=machine)
        assert REST_PARAMETER.encode() not in first
        assert b'"restMs":"7000"' in second
        assert not any(
            REST_PARAMETER.encode() in entry for entry in world.run(lambda: run(local), on=machine)
        )
