"""The rules of a group's log, without a log."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import Corrupt, Fenced, GroupInUse, Incompatible, KafkaError
from deltaq.delta.actions import DomainMetadata, Metadata, Protocol, Txn
from deltaq.delta.table_state import TableState
from deltaq.groups.state import (
    CommittedOffset,
    GroupHead,
    Member,
    commit_actions,
    committed_offset,
    forget_actions,
    group_head,
    join_actions,
    leave_actions,
)

ALICE, BOB = Member(("t",), "alice", "host-a", 45_000), Member(("t", "u"), "bob", "host-b", 45_000)


def after(state: TableState, actions) -> TableState:
    """The state once the actions are the next entry."""
    state.restore(state.version + 1, actions)
    return state


def head_of(state: TableState) -> GroupHead:
    return group_head(state, "groups/g/")


def join(state: TableState, name: str, member: Member, dead=()) -> TableState:
    return after(state, join_actions(state, head_of(state), "g", name, member, dead, 0))


def commit(state: TableState, name: str | None, *offsets: CommittedOffset, dead=()) -> TableState:
    return after(state, commit_actions(state, head_of(state), "g", name, offsets, 0, dead))


def test_a_group_that_was_never_used_is_empty():
    assert head_of(TableState()) == GroupHead(0, {})
    assert committed_offset(TableState(), "t", "id", 0) is None


def test_the_first_entry_makes_a_table_that_only_deltaq_may_write():
    actions = join_actions(TableState(), GroupHead(), "g", "a", ALICE, (), 0)
    protocol = next(action for action in actions if isinstance(action, Protocol))
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 7)
    assert "deltaq" in protocol.writer_features
    assert next(action for action in actions if isinstance(action, Metadata)).name == "g"


def test_each_join_leave_and_removal_of_a_member_is_a_generation():
    state = join(TableState(), "a", ALICE)
    assert head_of(state) == GroupHead(1, {"a": ALICE})
    with pytest.raises(GroupInUse, match="consumer 'alice' on host 'host-a'") as caught:
        join(state, "b", BOB)
    assert caught.value.args[0].retriable()
    assert head_of(join(state, "b", BOB, dead=["a"])) == GroupHead(2, {"b": BOB})
    assert head_of(after(state, leave_actions(head_of(state), "b"))) == GroupHead(3, {})
    assert head_of(join(state, "a", ALICE)) == GroupHead(4, {"a": ALICE})


def test_only_members_commit_and_outsiders_only_to_a_group_without_any():
    state = commit(TableState(), None, CommittedOffset("t", "id", 0, 5))
    state = join(state, "a", ALICE)
    state = commit(state, "a", CommittedOffset("t", "id", 0, 7), CommittedOffset("t", "id", 1, 1))
    for name in (None, "b", ""):
        with pytest.raises(Fenced) as caught:
            commit(state, name, CommittedOffset("t", "id", 0, 9))
        assert caught.value.args[0] == KafkaError.UNKNOWN_MEMBER_ID
        assert not caught.value.args[0].fatal()
    found = committed_offset(state, "t", "id", 0)
    assert found is not None
    assert found.offset == 7


def test_an_outside_commit_removes_dead_members_in_the_same_entry():
    state = join(TableState(), "a", ALICE)
    state = commit(state, "a", CommittedOffset("t", "id", 0, 7))
    state = commit(state, None, CommittedOffset("t", "id", 0, 9), dead=["a"])
    assert head_of(state) == GroupHead(2, {})
    found = committed_offset(state, "t", "id", 0)
    assert found is not None
    assert found.offset == 9
    with pytest.raises(Fenced, match="no longer a member"):
        commit(state, "a", CommittedOffset("t", "id", 0, 8))
    state = join(state, "b", BOB)
    with pytest.raises(Fenced, match="consumer 'bob' on host 'host-b'"):
        commit(state, None, CommittedOffset("t", "id", 0, 10), dead=["a"])
    assert head_of(commit(state, "b", CommittedOffset("t", "id", 0, 10), dead=["a"])) == GroupHead(3, {"b": BOB})


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        (None, ["'g'", "assign()", "'alice' on host 'host-a'", "member id 'a'", "another group.id", "45 s"]),
        ("b", ["'g'", "no longer a member", "session.timeout.ms"]),
        ("", ["'g'", "is not a member", "poll()"]),
    ],
)
def test_a_refused_commit_has_a_reason_and_a_remedy(name, texts):
    state = join(TableState(), "a", ALICE)
    with pytest.raises(Fenced) as caught:
        commit(state, name, CommittedOffset("t", "id", 0, 9))
    for text in texts:
        assert text in caught.value.error.str()


def test_an_offset_is_a_transaction_of_the_topic_with_that_id():
    state = commit(TableState(), None, CommittedOffset("orders", "1f", 3, 42))
    assert state.txns == {"orders/1f/3": Txn("orders/1f/3", 42, 0)}
    assert committed_offset(state, "orders", "1f", 3) == CommittedOffset("orders", "1f", 3, 42)
    assert committed_offset(state, "orders", "2f", 3) is None
    assert committed_offset(state, "orders", "1f", 4) is None


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**62), st.none() | st.text(max_size=5)), max_size=4),
        max_size=10,
    )
)
def test_the_last_commit_of_each_partition_counts_with_its_metadata(commits):
    state = TableState()
    model: dict[int, CommittedOffset] = {}
    for entry in commits:
        offsets = {partition: CommittedOffset("t", "id", partition, at, note) for partition, at, note in entry}
        model |= offsets
        state = commit(state, None, *offsets.values())
    for partition in range(4):
        found, expected = committed_offset(state, "t", "id", partition), model.get(partition)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert (found.offset, found.metadata) == (expected.offset, expected.metadata or None)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("", Corrupt),
        ("[]", Corrupt),
        ('{"format":1}', Corrupt),
        ('{"format":1,"generation":1,"members":{"a":{}}}', Corrupt),
        ('{"format":1,"generation":1,"members":{"a":[]}}', Corrupt),
        ('{"format":1,"generation":1,"members":{"a":{"topics":1,"client":"c","host":"h","session":1}}}', Corrupt),
        ('{"format":1,"generation":1,"members":{"a":{"topics":[],"client":"c","host":"h"}}}', Corrupt),
        ('{"format":1,"generation":1,"members":{"a":{"topics":[],"client":"c","host":"h","session":0}}}', Corrupt),
        ('{"format":1,"generation":1,"members":{"a":{"topics":[],"client":"c","host":"h","session":true}}}', Corrupt),
        ('{"format":1,"generation":1,"generation":2,"members":{}}', Corrupt),
        ('{"format":2,"generation":1,"members":{}}', Incompatible),
    ],
)
def test_a_damaged_or_newer_group_is_refused_with_path_and_version(body, error):
    state = TableState()
    state.restore(7, [DomainMetadata("deltaq", body)])
    with pytest.raises(error, match="groups/g/"):
        head_of(state)


def test_the_members_are_readable_json():
    state = join(TableState(), "a", ALICE)
    body = json.loads(state.domains["deltaq"])
    assert body == {
        "format": 1,
        "generation": 1,
        "members": {"a": {"topics": ["t"], "client": "alice", "host": "host-a", "session": 45_000}},
    }


def forget(state: TableState, app_ids, dead=()) -> TableState:
    return after(state, forget_actions(state, head_of(state), "g", app_ids, dead, 5))


def test_forgotten_offsets_and_their_metadata_are_gone():
    state = commit(
        TableState(), None, CommittedOffset("t", "id", 0, 5, "note"), CommittedOffset("t", "id", 1, 6, "kept")
    )
    state = forget(state, ["t/id/0", "t/id/7"])
    assert committed_offset(state, "t", "id", 0) is None
    kept = committed_offset(state, "t", "id", 1)
    assert kept is not None
    assert (kept.offset, kept.metadata) == (6, "kept")
    state = commit(state, None, CommittedOffset("t", "id", 0, 1))
    again = committed_offset(state, "t", "id", 0)
    assert again is not None
    assert (again.offset, again.metadata) == (1, None)
    assert forget(state, None).txns == {}


def test_nothing_is_forgotten_of_a_group_that_has_a_member():
    state = commit(join(TableState(), "a", ALICE), "a", CommittedOffset("t", "id", 0, 5))
    with pytest.raises(GroupInUse, match="consumer 'alice' on host 'host-a'"):
        forget(state, None)
    assert committed_offset(state, "t", "id", 0) is not None
    state = forget(state, None, dead=["a"])
    assert head_of(state) == GroupHead(2, {})
    assert state.txns == {}
    with pytest.raises(Fenced):
        commit(state, "a", CommittedOffset("t", "id", 0, 9))
