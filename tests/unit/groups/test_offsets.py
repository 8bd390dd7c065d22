"""Committed offsets as transactions of a table: set, replaced, deleted, and their metadata
texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import Corrupt, KafkaError, TopicPartition
from deltaq.delta.actions import Action, DomainMetadata, Entry, Txn
from deltaq.delta.table_state import TableState
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import (
    PENDING_BYTES_MAX,
    CommittedOffset,
    PendingOffsets,
    committed_offset,
    committed_offsets,
    forget_actions,
    heartbeat_content,
    metadata_fault,
    offset_actions,
    parse_pending,
)
from deltaq.groups.rebalance import released
from deltaq.groups.state import MemberIdentity
from deltaq.maintenance.checkpoint import write_checkpoint
from deltaq.names import LOG_FOLDER, group_folder
from deltaq.store import MemoryStore
from tests.doubles.groups import FOREVER, RANGE, commit, join, leave, new_member, partition_counts


def after(state: TableState, actions: Sequence[Action]) -> TableState:
    """The state once the actions are the next entry."""
    return state.after(Entry(state.version + 1, None, tuple(actions)))


def committed(state: TableState, *offsets: CommittedOffset) -> TableState:
    return after(state, offset_actions(state, offsets, 0))


def found(state: TableState, partition: int = 0) -> tuple[int, str | None] | None:
    """The committed offset of a partition and its metadata text."""
    offset = committed_offset(state, "t", "id", partition)
    return None if offset is None else (offset.offset, offset.metadata)


def test_an_offset_is_a_transaction_of_the_topic_with_that_id():
    state = committed(TableState(), CommittedOffset("orders", "1f", 3, 42))
    assert state.txns == {"orders/1f/3": Txn("orders/1f/3", 42, 0)}
    assert committed_offset(state, "orders", "1f", 3) == CommittedOffset("orders", "1f", 3, 42)
    assert committed_offset(state, "orders", "2f", 3) is None
    assert committed_offset(state, "orders", "1f", 4) is None


@pytest.mark.parametrize("text", [None, "", "x" * 4096, "\u00e9" * 4096, "\U0001f4a1" * 2048])
def test_metadata_has_up_to_4096_characters(text: str | None):
    assert metadata_fault(TopicPartition("t", 0, 1, text)) is None
    fault = metadata_fault(TopicPartition("t", 7, 1, (text or "x" * 4096) + "x"))
    assert fault is not None
    assert fault.args[0] == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert "partition 7 of topic 't' has 4,097 characters: use 4,096 at most" in str(fault)


def test_an_offset_has_the_time_of_its_commit():
    assert offset_actions(TableState(), [CommittedOffset("t", "id", 0, 5)], 17) == [
        Txn("t/id/0", 5, 17)
    ]


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(0, 2**62), st.none() | st.text(max_size=5)),
            max_size=4,
        ),
        max_size=10,
    )
)
def test_the_last_commit_of_each_partition_counts_with_its_metadata(commits):
    state = TableState()
    model: dict[int, tuple[int, str | None]] = {}
    for entry in commits:
        offsets = {
            partition: CommittedOffset("t", "id", partition, at, note)
            for partition, at, note in entry
        }
        model |= {
            partition: (offset.offset, offset.metadata) for partition, offset in offsets.items()
        }
        state = committed(state, *offsets.values())
    assert {number: found(state, number) for number in range(4)} == {
        number: model.get(number) for number in range(4)
    }


def test_deleted_offsets_and_their_metadata_are_gone():
    state = committed(
        TableState(),
        CommittedOffset("t", "id", 0, 5, "note"),
        CommittedOffset("t", "id", 1, 6, "kept"),
    )
    state = after(state, forget_actions(state, ["t/id/0", "t/id/7"], 5))
    assert found(state, 0) is None
    assert found(state, 1) == (6, "kept")
    state = committed(state, CommittedOffset("t", "id", 0, 1))
    assert found(state, 0) == (1, None)
    assert after(state, forget_actions(state, state.txns, 5)).txns == {}


def test_deleting_an_offset_that_does_not_exist_writes_nothing():
    assert forget_actions(TableState(), ["t/id/0"], 5) == []


def test_a_negative_offset_is_damage_because_it_would_be_read_as_a_constant():
    state = after(TableState(), [Txn("t/id/0", -2, 0)])
    for read in (lambda: committed_offset(state, "t", "id", 0), lambda: committed_offsets(state)):
        with pytest.raises(Corrupt, match="-2 is negative"):
            read()


@pytest.mark.parametrize("body", ["", "{", '{"a":1,"a":2}'])
def test_damaged_metadata_texts_are_refused(body):
    state = after(
        TableState(), [Txn("t/id/0", 5, 0), DomainMetadata("deltaq.offset_metadata", body)]
    )
    with pytest.raises(Corrupt, match=r"deltaq\.offset_metadata \(version 0\)"):
        committed_offset(state, "t", "id", 0)


# --- offsets in heartbeats ---


LEADER = MemberIdentity("leader", 2)


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
        join(self.log, "leader", known=partition_counts(t=2))
        join(self.log, "other", known=partition_counts(t=2))
        self.release(1)
        assert [self.log.head().owners["t", partition].member_id for partition in (0, 1)] == [
            "leader",
            "other",
        ]
        self.version = self.log.state().version

    def release(self, partition: int) -> None:
        """The leader releases a partition."""
        self.log.change(
            "RELEASE",
            LEADER,
            lambda head: released(head, "leader", [("t", partition)], RANGE),
            FOREVER,
        )

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


def pending(
    group: Group, *offsets: CommittedOffset, generation: int | None = None, after: int | None = None
):
    known = group.log.head().generation if generation is None else generation
    return PendingOffsets(
        "other", known, group.version if after is None else after, offsets or (offset(100),)
    )


# --- the content of a heartbeat ---


@given(
    beat=st.integers(0, 10**9),
    generation=st.integers(0, 2**40),
    after=st.integers(0, 2**40),
    offsets=st.lists(
        st.builds(offset, st.integers(0, 2**62), st.integers(0, 999), st.none() | st.text()),
        max_size=5,
        unique_by=lambda of: of.partition,
    ),
)
def test_pending_offsets_survive_the_way_through_a_heartbeat(beat, generation, after, offsets):
    shown = PendingOffsets("other", generation, after, tuple(offsets))
    content = heartbeat_content(beat, shown)
    assert content != heartbeat_content(beat + 1, shown), (
        "each heartbeat differs from the one before"
    )
    assert parse_pending(content, "other") == shown
    assert parse_pending(content, "third") is None, "an object speaks for its own member only"


@pytest.mark.parametrize("shown", [None, PendingOffsets("other", 1, 1, ())])
def test_a_heartbeat_that_is_read_with_a_wrong_bit_equals_no_other_one(shown):
    contents = {heartbeat_content(beat, shown) for beat in range(300)}
    assert len(contents) == 300
    for content in contents:
        for bit in range(8 * len(content)):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            assert bytes(damaged) not in contents


def body(
    app_id: str = "t/id/1", entry: str = "[1,null]", generation: str = "1", after: str = "1"
) -> bytes:
    return b'{"other":{"generation":%s,"after":%s,"offsets":{"%s":%s}}}' % tuple(
        text.encode() for text in (generation, after, app_id, entry)
    )


def heartbeat(text: bytes) -> bytes:
    return b"17 %08x %s" % (crc32(text), text)


def test_the_heartbeats_below_differ_from_this_one_in_one_place():
    assert parse_pending(heartbeat(body()), "other") == PendingOffsets("other", 1, 1, (offset(1),))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"{",
        b"\xff",
        b"[]",
        b'"other"',
        b"[" * 90_000,
        b'{"other":' * 5_000,
        b'{"other":7}',
        b'{"other":[]}',
        b'{"other":{}}',
        b'{"other":{"generation":1,"after":1,"offsets":[]}}',
        b'{"other":{"generation":1,"after":1,"offsets":{"t/id/1":[1,null],"t/id/1":[2,null]}}}',
        body("t/id"),
        body("t/id/1/2"),
        body("t//1"),
        body("/id/1"),
        body("../id/1"),
        body("_delta_log/id/1"),
        body("t/id/x"),
        body("t/id/-1"),
        body("t/id/+1"),
        body("t/id/01"),
        body("t/id/\u0661"),
        body("t/id/" + "9" * 9_000),
        body(entry="[1]"),
        body(entry="[1,2]"),
        body(entry="[1,null,null]"),
        body(entry="7"),
        body(entry="null"),
        body(entry="[1.5,null]"),
        body(entry='["1",null]'),
        body(entry="[-1,null]"),
        body(entry="[99999999999999999999,null]"),
        body(entry="[NaN,null]"),
        body(after="true"),
        body(after="-1"),
        body(generation="99999999999999999999"),
        body(generation="null"),
        body() + b" " * PENDING_BYTES_MAX,
    ],
)
def test_a_heartbeat_that_cannot_be_parsed_has_no_pending_offsets(text):
    assert parse_pending(heartbeat(text), "other") is None


@pytest.mark.parametrize(
    "content", [None, b"", b"17", b"17 ", b"17 00000000", b"17  ", body(), b"17 " + body()]
)
def test_a_heartbeat_without_a_checksum_has_no_pending_offsets(content):
    assert parse_pending(content, "other") is None


def test_a_damaged_heartbeat_has_no_pending_offsets():
    """A wrong bit in an offset could make the group skip records."""
    content = heartbeat(body())
    for bit in range(8 * len(b"17 "), 8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        assert parse_pending(bytes(damaged), "other") is None


# --- what the leader may commit ---


def test_the_leader_commits_offsets_of_other_members_in_one_entry(group):
    own = PendingOffsets("leader", group.log.head().generation, group.version, (offset(7, 0),))
    before = group.entries
    group.lead(own, pending(group, offset(100, note="hello")))
    assert (group.committed(0), group.committed(1), group.entries) == (7, 100, before + 1)
    (found,) = group.log.committed([("t", "id", 1)])
    assert found == offset(100, note="hello")


def test_an_offset_that_is_shown_again_voids_what_was_shown_between(group):
    """The member has gone on to 120, and back to 100: what it wants last counts, though it is
    committed already.
    """
    group.lead(pending(group, offset(100)))
    between = pending(group, offset(120), after=group.entries)
    group.lead(pending(group, offset(100), after=group.entries))
    group.lead(between)
    assert group.committed() == 100


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
    """It was suspended with an old heartbeat in hand, while another leader committed a newer one,
    of a seek.
    """
    old = pending(group, offset(100))
    group.lead(pending(group, offset(50)))
    group.lead(old)
    assert group.committed() == 50


def test_another_commit_voids_only_its_own_partition(group):
    leave(group.log, "leader")
    shown = PendingOffsets(
        "other", group.log.head().generation, group.entries, (offset(5, 0), offset(6, 1))
    )
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
    join(group.log, "third", known=partition_counts(t=2))
    assert group.log.head().owners["t", 1].member_id == "other"
    group.lead(shown)
    assert group.committed() is None
    group.lead(pending(group))
    assert group.committed() == 100


def test_of_two_leaders_at_once_the_one_with_the_older_heartbeat_commits_nothing(group):
    """One was suspended, the other leads since; the member has gone back in between."""
    old, new = pending(group, offset(100)), pending(group, offset(50))
    later = GroupLog(group.store, "g")
    group.store.first = lambda: later.commit_pending(MemberIdentity("later", 2), [new], FOREVER)
    group.lead(old)
    assert group.committed() == 50
    group.lead(old)
    assert group.committed() == 50


def test_offsets_of_a_static_member_that_was_replaced_are_void(group):
    """The other consumer has its place, in the same generation, and reads on from the committed
    offset.
    """
    static = new_member("s", instance_id="i")
    join(group.log, "before", static, known=partition_counts(t=2), gone=["other"])
    group.release(0)
    assert group.log.head().owners["t", 0].member_id == "before"
    shown = PendingOffsets("before", group.log.head().generation, group.entries, (offset(100, 0),))
    join(group.log, "after", static, known=partition_counts(t=2))
    head = group.log.head()
    assert (head.generation, head.owners["t", 0].member_id) == (shown.generation, "after")
    group.lead(shown)
    assert group.committed(0) is None


def test_offsets_of_a_partition_that_moved_and_came_back_are_void(group):
    shown = pending(group, offset(100))
    leave(group.log, "other")
    commit(group.log, "leader", offset(150))
    join(group.log, "other", known=partition_counts(t=2))
    group.release(1)
    assert group.log.head().owners["t", 1].member_id == "other"
    group.lead(shown)
    assert group.committed() == 150


def test_final_offsets_in_a_release_void_the_pending_offset(group):
    shown = pending(group, offset(100))
    identity = MemberIdentity("other", group.log.head().generation)
    group.log.change("RELEASE", identity, lambda head: None, FOREVER, [offset(120)])
    group.lead(shown)
    assert group.committed() == 120


def test_offsets_of_a_topic_that_was_created_again_stay_apart(group):
    """The partition has the same owner and generation, and another topic id."""
    commit(group.log, "other", CommittedOffset("t", "new", 1, 3))
    group.lead(pending(group, offset(100)))
    assert group.committed() == 100
    assert group.log.committed([("t", "new", 1)])[0] == CommittedOffset("t", "new", 1, 3)


def test_offsets_are_void_once_those_of_the_partition_were_deleted(group):
    commit(group.log, "other", offset(7))
    shown = pending(group, offset(100), after=group.entries)
    group.log.forget_over([offset(7).app_id], FOREVER)
    group.lead(shown)
    assert group.committed() is None


def test_a_late_leader_writes_nothing_into_a_group_that_was_deleted(group):
    shown = pending(group, offset(100))
    commit(group.log, "leader", offset(7, 0))
    leave(group.log, "other", "leader")
    group.log.delete(FOREVER)
    before = group.entries
    group.lead(shown)
    assert (group.committed(), group.entries) == (None, before)


def test_a_version_that_the_log_has_not_reached_is_refused(group):
    """No member has read it; the comparison would let everything pass."""
    commit(group.log, "other", offset(120))
    group.lead(pending(group, offset(100), after=10**9))
    assert group.committed() == 120


def test_a_leader_that_begins_at_a_checkpoint_refuses_what_was_shown_before_it(group):
    """A checkpoint does not say which entry has committed an offset."""
    commit(group.log, "other", offset(120))
    shown = pending(group, offset(100))
    write_checkpoint(group.store, group_folder("g") + LOG_FOLDER, group.log.state())
    late = GroupLog(group.store, "g")
    assert late.state().restored_version == group.entries, "it began at the checkpoint"
    late.commit_pending(LEADER, [shown], FOREVER)
    assert group.committed() == 120
    late.commit_pending(LEADER, [pending(group, offset(130), after=group.entries)], FOREVER)
    assert group.committed() == 130
