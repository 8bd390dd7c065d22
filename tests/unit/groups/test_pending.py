"""Offsets in heartbeats: what a leader reads, and what it may commit on behalf of other members."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.groups.fencing import Claim
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.pending import PendingOffsets, heartbeat_content, parse_pending
from deltaq.groups.rebalance import released
from deltaq.store import MemoryStore
from tests.doubles.groups import FOREVER, RANGE, commit, join, leave

LEADER = Claim("leader", 2)


def offset(number: int, partition: int = 1, note: str | None = None) -> CommittedOffset:
    return CommittedOffset("t", "id", partition, number, note)


class RacingStore(MemoryStore):
    """Lets another client be faster: calls `first` once, before the next create of a log entry."""

    first: Callable[[], object] | None = None

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        if self.first is not None and "_delta_log" in key:
            first, self.first = self.first, None
            first()
        super().create(key, data, after)


class Group:
    """Topic `t` with two partitions; member `leader` owns partition 0, `other` partition 1."""

    def __init__(self) -> None:
        self.store = RacingStore("test")
        self.log = GroupLog(self.store, "g")
        join(self.log, "leader", partitions={"t": 2})
        join(self.log, "other", partitions={"t": 2})
        self.log.change("RELEASE", LEADER, lambda head: released(head, "leader", [("t", 1)], RANGE), FOREVER)
        assert [self.log.head().owners["t", partition].member_id for partition in (0, 1)] == ["leader", "other"]
        self.version = self.log.state().version

    def lead(self, *pending: PendingOffsets) -> None:
        self.log.commit_pending(LEADER, pending, FOREVER)

    @property
    def entries(self) -> int:
        return GroupLog(self.store, "g").state().version

    def committed(self, partition: int = 1) -> int | None:
        (found,) = GroupLog(self.store, "g").committed([("t", "id", partition)])
        return None if found is None else found.offset


@pytest.fixture
def group() -> Group:
    return Group()


def pending(group: Group, *offsets: CommittedOffset, generation: int | None = None, after: int | None = None):
    known = group.log.head().generation if generation is None else generation
    return PendingOffsets("other", known, group.version if after is None else after, offsets or (offset(100),))


# --- the content of a heartbeat ---


@given(
    beat=st.integers(0, 10**9),
    generation=st.integers(-1, 2**40),
    after=st.integers(-1, 2**40),
    offsets=st.lists(
        st.builds(offset, st.integers(0, 2**62), st.integers(0, 999), st.none() | st.text()),
        max_size=5,
        unique_by=lambda of: of.partition,
    ),
)
def test_pending_offsets_survive_the_way_through_a_heartbeat(beat, generation, after, offsets):
    shown = PendingOffsets("other", generation, after, tuple(offsets))
    content = heartbeat_content(beat, shown)
    assert content != heartbeat_content(beat + 1, shown), "each heartbeat differs from the one before"
    assert parse_pending(content, {"other", "third"}) == [shown]
    assert parse_pending(content, {"third"}) == [], "an object speaks for the members that share it"


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"17",
        b"17 ",
        b"17 {",
        b"17 \xff",
        b"17 []",
        b'17 {"other":7}',
        b'17 {"other":{}}',
        b'17 {"other":{"generation":1,"after":1,"offsets":[]}}',
        b'17 {"other":{"generation":1,"after":1,"offsets":{"t/id":[1,null]}}}',
        b'17 {"other":{"generation":1,"after":1,"offsets":{"t/id/x":[1,null]}}}',
        b'17 {"other":{"generation":1,"after":1,"offsets":{"t/id/1":[1]}}}',
        b'17 {"other":{"generation":1,"after":1,"offsets":{"t/id/1":[1,2]}}}',
        b'17 {"other":{"generation":1,"after":1,"offsets":{"t/id/1":[1.5,null]}}}',
        b'17 {"other":{"generation":1,"after":1,"offsets":{"t/id/1":["1",null]}}}',
        b'17 {"other":{"generation":1,"after":true,"offsets":{"t/id/1":[1,null]}}}',
        b'17 {"other":{"generation":99999999999999999999,"after":1,"offsets":{"t/id/1":[1,null]}}}',
        b'17 {"other":{"generation":1,"after":1,"offsets":{"t/id/1":[-9,null]}}}',
    ],
)
def test_a_heartbeat_that_cannot_be_parsed_has_no_pending_offsets(content):
    assert parse_pending(content, {"other"}) == []


# --- what the leader may commit ---


def test_the_leader_commits_offsets_of_other_members_in_one_entry(group):
    own = PendingOffsets("leader", group.log.head().generation, group.version, (offset(7, 0),))
    before = group.entries
    group.lead(own, pending(group, offset(100, note="hello")))
    assert (group.committed(0), group.committed(1), group.entries) == (7, 100, before + 1)
    (found,) = group.log.committed([("t", "id", 1)])
    assert found == offset(100, note="hello")


def test_offsets_that_are_committed_already_make_no_entry(group):
    group.lead(pending(group))
    before = group.entries
    group.lead(pending(group, after=before))
    assert group.entries == before


def test_a_member_may_go_back(group):
    group.lead(pending(group))
    group.lead(pending(group, offset(50), after=group.entries))
    assert group.committed() == 50


def test_offsets_from_before_another_commit_of_the_partition_are_void(group):
    shown = pending(group, offset(100))
    commit(group.log, "other", offset(120))
    group.lead(shown)
    assert group.committed() == 120


def test_a_commit_that_takes_the_slot_first_voids_the_pending_offset(group):
    other = GroupLog(group.store, "g")
    group.store.first = lambda: commit(other, "other", offset(120))
    group.lead(pending(group, offset(100)))
    assert group.committed() == 120


def test_a_leader_that_acts_late_repeats_nothing(group):
    """It was suspended with an old heartbeat in hand, while another leader committed a newer one, of a seek."""
    old = pending(group, offset(100))
    group.lead(pending(group, offset(50)))
    group.lead(old)
    assert group.committed() == 50


def test_another_commit_voids_only_its_own_partition(group):
    leave(group.log, "leader")
    shown = PendingOffsets("other", group.log.head().generation, group.entries, (offset(5, 0), offset(6, 1)))
    commit(group.log, "other", offset(9, 0))
    group.lead(shown)
    assert (group.committed(0), group.committed(1)) == (9, 6)


def test_offsets_of_partitions_of_others_are_left_out(group):
    group.lead(pending(group, offset(100, 0), offset(101, 1), offset(102, 2)))
    assert (group.committed(0), group.committed(1), group.committed(2)) == (None, 101, None)


def test_offsets_of_a_former_member_are_void(group):
    shown = pending(group)
    leave(group.log, "other")
    group.lead(shown)
    assert group.committed() is None


def test_offsets_of_an_earlier_generation_are_void(group):
    """In the new generation the member may have started again from the committed offset."""
    shown = pending(group)
    join(group.log, "third", partitions={"t": 2})
    assert group.log.head().owners["t", 1].member_id == "other"
    group.lead(shown)
    assert group.committed() is None
    group.lead(pending(group))
    assert group.committed() == 100


def test_a_negative_offset_is_not_committed(group):
    group.lead(pending(group, offset(-1)))
    assert group.committed() is None
