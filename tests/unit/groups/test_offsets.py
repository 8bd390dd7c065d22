"""Committed offsets as transactions of a table: set, replaced, deleted, and their metadata
texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import Corrupt
from deltaq.delta.actions import Action, DomainMetadata, Entry, Txn
from deltaq.delta.table_state import TableState
from deltaq.groups.offsets import (
    CommittedOffset,
    committed_offset,
    committed_offsets,
    forget_actions,
    offset_actions,
)


def after(state: TableState, actions: Sequence[Action]) -> TableState:
    """The state once the actions are the next entry."""
    return state.after(Entry(state.version + 1, None, tuple(actions)))


def commit(state: TableState, *offsets: CommittedOffset) -> TableState:
    return after(state, offset_actions(state, offsets, 0))


def found(state: TableState, partition: int = 0) -> tuple[int, str | None] | None:
    """The committed offset of a partition and its metadata text."""
    offset = committed_offset(state, "t", "id", partition)
    return None if offset is None else (offset.offset, offset.metadata)


def test_an_offset_is_a_transaction_of_the_topic_with_that_id():
    state = commit(TableState(), CommittedOffset("orders", "1f", 3, 42))
    assert state.txns == {"orders/1f/3": Txn("orders/1f/3", 42, 0)}
    assert committed_offset(state, "orders", "1f", 3) == CommittedOffset("orders", "1f", 3, 42)
    assert committed_offset(state, "orders", "2f", 3) is None
    assert committed_offset(state, "orders", "1f", 4) is None


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
        state = commit(state, *offsets.values())
    assert {number: found(state, number) for number in range(4)} == {
        number: model.get(number) for number in range(4)
    }


def test_deleted_offsets_and_their_metadata_are_gone():
    state = commit(
        TableState(),
        CommittedOffset("t", "id", 0, 5, "note"),
        CommittedOffset("t", "id", 1, 6, "kept"),
    )
    state = after(state, forget_actions(state, ["t/id/0", "t/id/7"], 5))
    assert found(state, 0) is None
    assert found(state, 1) == (6, "kept")
    state = commit(state, CommittedOffset("t", "id", 0, 1))
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
