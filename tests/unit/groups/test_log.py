"""The log of a group: each change is one entry, and says what it was made for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltaq import Fenced, GroupInUse, KafkaError
from deltaq.delta.actions import CommitInfo, DomainMetadata
from deltaq.delta.log import DeltaLog, Draft
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.rebalance import released
from deltaq.groups.state import NO_MEMBER, GroupHead, MemberIdentity
from deltaq.names import group_folder, member_key
from deltaq.serde.json_text import strict_json
from deltaq.store import MemoryStore, Store
from deltaq.testing import ManualClock
from tests.doubles.groups import FOREVER, RANGE, commit, join, leave, new_member, partition_counts


def offset(number: int, partition: int = 0) -> CommittedOffset:
    return CommittedOffset("t", "id", partition, number)


def committed(log: GroupLog, partition: int = 0) -> int | None:
    (found,) = log.committed([("t", "id", partition)])
    return None if found is None else found.offset


def entry(store: Store, version: int) -> list[Any]:
    """The actions of an entry, as JSON."""
    lines = store.get(f"{group_folder('g')}_delta_log/{version:020}.json").splitlines()
    return [strict_json(line.decode()) for line in lines]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("test")


@pytest.fixture
def log(store: MemoryStore) -> GroupLog:
    return GroupLog(store, "g", ManualClock())


@pytest.mark.parametrize("first", ["a join", "an outside commit"])
def test_the_first_entry_makes_a_table_that_only_deltaq_may_write(store, log, first):
    if first == "a join":
        join(log, "a")
    else:
        log.commit(None, [offset(5)], FOREVER)
    (protocol,) = [action["protocol"] for action in entry(store, 0) if "protocol" in action]
    assert (protocol["minReaderVersion"], protocol["minWriterVersion"]) == (1, 7)
    assert "deltaq" in protocol["writerFeatures"]
    (metadata,) = [action["metaData"] for action in entry(store, 0) if "metaData" in action]
    assert metadata["name"] == "g"
    assert log.head().generation == (first == "a join")


def test_each_join_and_leave_is_one_entry_and_a_generation(log):
    assert [log.state().version, log.head().generation] == [-1, 0]
    for version, is_join in enumerate([True, True, False, False]):
        member_id = "ab"[version % 2]
        head = join(log, member_id) if is_join else leave(log, member_id)
        assert head == log.head()
        assert [log.state().version, head.generation] == [version, version + 1]
    assert log.head() == GroupHead(4)


@pytest.mark.fault("R2")
def test_two_members_that_join_at_once_are_both_members(store):
    first, second = GroupLog(store, "g"), GroupLog(store, "g")
    first.head()
    second.head()
    join(first, "a")
    assert set(join(second, "b").members) == {"a", "b"}


def test_a_change_that_leaves_nothing_to_do_writes_no_entry(log):
    join(log, "a")
    head = log.change("LEAVE", MemberIdentity("a", 1), lambda head: None, FOREVER)
    assert head == log.head()
    assert log.state().version == 0


def test_an_entry_names_the_member_that_wrote_it_and_its_generation(store, log):
    join(log, "a")
    commit(log, "a", offset(5))
    info = next(action["commitInfo"] for action in entry(store, 1) if "commitInfo" in action)
    assert info["operation"] == "COMMIT OFFSETS"
    assert info["operationParameters"] == {"member": "a", "generation": "1"}


def test_a_release_has_the_final_offsets_in_the_same_entry(log):
    two = partition_counts(t=2)
    join(log, "a", known=two)
    join(log, "b", known=two)
    version = log.state().version

    def plan(head: GroupHead) -> GroupHead:
        return released(head, "a", [("t", 1)], RANGE)

    head = log.change("RELEASE", MemberIdentity("a", 1), plan, FOREVER, [offset(3), offset(4, 1)])
    assert log.state().version == version + 1
    assert head.owned("b") == {("t", 1)}
    assert (committed(log, 0), committed(log, 1)) == (3, 4)
    with pytest.raises(Fenced):
        log.change("RELEASE", MemberIdentity("a", 1), plan, FOREVER, [offset(9, 1)])
    assert committed(log, 1) == 4


def test_final_offsets_are_committed_although_nothing_is_left_to_release(log):
    """Another entry has assigned the partitions to their owner again, just before the release."""
    join(log, "a")
    log.change("RELEASE", MemberIdentity("a", 1), lambda head: None, FOREVER, [offset(7)])
    assert committed(log) == 7


def test_only_members_commit_and_outsiders_only_to_a_group_without_any(log):
    log.commit(None, [offset(5)], FOREVER)
    join(log, "a", known=partition_counts(t=2))
    commit(log, "a", offset(7), offset(1, 1))
    for identity in (None, NO_MEMBER, MemberIdentity("b", 1)):
        with pytest.raises(Fenced) as caught:
            log.commit(identity, [offset(9)], FOREVER)
        assert caught.value.args[0] == KafkaError.UNKNOWN_MEMBER_ID
    assert (committed(log, 0), committed(log, 1)) == (7, 1)


@pytest.mark.fault("R3")
def test_a_refused_commit_changes_nothing_not_even_for_partitions_that_it_may_commit(log):
    join(log, "a", known=partition_counts(t=2))
    join(log, "b", known=partition_counts(t=2))
    log.change("RELEASE", NO_MEMBER, lambda head: released(head, "a", [("t", 1)], RANGE), FOREVER)
    version = log.state().version
    with pytest.raises(Fenced) as caught:
        log.commit(MemberIdentity("a", 2), [offset(3), offset(4, 1)], FOREVER)
    assert caught.value.args[0] == KafkaError.ILLEGAL_GENERATION
    assert (committed(log, 0), committed(log, 1), log.state().version) == (None, None, version)


@pytest.mark.fault("R2", "R3")
def test_a_commit_that_lost_a_race_is_judged_by_the_entry_that_won(store):
    """The loser has read the log before its partition was given away."""

    class Late(MemoryStore):
        is_late = True

        def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
            if self.is_late and b"COMMIT OFFSETS" in bytes(data):
                self.is_late = False
                leave(GroupLog(self, "g"), "a")
                join(GroupLog(self, "g"), "b")
            super().create(key, data, after)

    late = Late("late")
    log = GroupLog(late, "g")
    join(log, "a")
    with pytest.raises(Fenced):
        log.commit(MemberIdentity("a", 1), [offset(9)], FOREVER)
    assert committed(GroupLog(late, "g")) is None
    assert set(GroupLog(late, "g").head().members) == {"b"}


def test_a_group_of_format_1_is_joined_and_its_member_is_dropped(store):
    log = GroupLog(store, "g")
    log.commit(None, [offset(5)], FOREVER)
    member = {"topics": ["t"], "client": "old", "host": "h", "session": 45_000}
    old = DomainMetadata(
        "deltaq", json.dumps({"format": 1, "generation": 6, "members": {"old": member}})
    )
    delta = DeltaLog(store, group_folder("g"))
    delta.load()
    delta.commit(
        lambda state: Draft(CommitInfo("x", 0, "JOIN", "", "", is_blind_append=False), [old]),
        FOREVER,
    )
    log = GroupLog(store, "g")
    assert set(log.head().members) == {"old"}
    with pytest.raises(Fenced):
        log.commit(None, [offset(6)], FOREVER)
    head = join(log, "new")
    assert (set(head.members), head.generation, head.format) == ({"new"}, 7, 2)
    assert head.owned("new") == {("t", 0)}
    assert committed(log) == 5
    with pytest.raises(Fenced):
        log.commit(MemberIdentity("old", 6), [offset(9)], FOREVER)


def test_nothing_is_deleted_of_a_group_that_has_a_member(log):
    join(log, "a")
    commit(log, "a", offset(5))
    with pytest.raises(GroupInUse, match="consumer 'killed' on host 'host'"):
        log.forget_offsets(None, FOREVER)
    assert committed(log) == 5
    log.forget_offsets(None, FOREVER, dead=["a"])
    assert log.head() == GroupHead(2)
    assert log.state().txns == {}
    with pytest.raises(Fenced):
        log.commit(MemberIdentity("a", 1), [offset(9)], FOREVER)


def test_an_outside_commit_removes_dead_members_in_the_same_entry():
    clock = ManualClock()
    log = GroupLog(MemoryStore("test", clock), "g", clock)
    join(log, "a", new_member(session_timeout_ms=10_000))
    commit(log, "a", offset(7))
    with pytest.raises(Fenced):
        log.commit(None, [offset(9)], FOREVER)
    clock.advance(10)
    version = log.state().version
    log.commit(None, [offset(9)], FOREVER)
    assert (log.state().version, log.head(), committed(log)) == (version + 1, GroupHead(2), 9)
    with pytest.raises(Fenced, match="removed from group 'g'"):
        log.commit(MemberIdentity("a", 1), [offset(8)], FOREVER)
    join(log, "b")
    with pytest.raises(Fenced, match="assign"):
        log.commit(None, [offset(10)], FOREVER)


def test_the_heartbeat_objects_of_dead_members_are_removed_in_one_order(store, log, monkeypatch):
    """A set of ids has another order in each process: the seed of a simulation would not give the
    same run again.
    """
    removed: list[str] = []
    monkeypatch.setattr(store, "delete", removed.append)
    log.clear_away(frozenset("abcdefgh"))
    assert removed == [member_key("g", member_id) for member_id in "abcdefgh"]
