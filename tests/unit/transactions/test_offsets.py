"""The offsets of transactions in a group's log, as pure rules."""

from __future__ import annotations

import json

import pytest

from deltaq.delta.actions import DomainMetadata
from deltaq.delta.table_state import restored_state
from deltaq.errors import Corrupt, Fenced
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.state import TRANSACTIONS_DOMAIN, MemberIdentity
from deltaq.groups.transaction_offsets import (
    TransactionOffsets,
    sent_actions,
    transaction_offsets,
)
from deltaq.names import TransactionKey

KEY = TransactionKey("t", 0, 1)


def after(*sent: tuple[MemberIdentity | None, int]) -> TransactionOffsets:
    """What is pending after these members have sent an offset of these partitions."""
    pending: dict[str, TransactionOffsets] = {}
    for identity, partition in sent:
        offsets = (CommittedOffset("in", "id", partition, 1),)
        (action,) = sent_actions(pending, TransactionOffsets(KEY, identity, offsets), 0)
        assert isinstance(action, DomainMetadata)
        pending = parsed(action.configuration)
    return pending["t"]


def parsed(text: str) -> dict[str, TransactionOffsets]:
    state = restored_state(0, [DomainMetadata(TRANSACTIONS_DOMAIN, text)])
    return transaction_offsets(state, "groups/g/")


def test_offsets_sent_in_an_earlier_generation_do_not_become_those_of_a_later_one():
    """Between the two, the member may have lost the first partition and got it back. It reads that
    from the committed offset then, so this transaction must not commit the later one.
    """
    found = after((MemberIdentity("m", 7), 0), (MemberIdentity("m", 10), 1))
    assert found.identity == MemberIdentity("m", 7)
    assert [offset.partition for offset in found.offsets] == [0, 1]


def test_offsets_without_a_member_do_not_become_those_of_one():
    assert after((None, 0), (MemberIdentity("m", 10), 1)).identity is None


def test_offsets_of_a_later_transaction_of_the_id_fence_its_sender():
    offsets = (CommittedOffset("in", "id", 0, 1),)
    sent = TransactionOffsets(KEY, None, offsets)
    for later in (KEY._replace(epoch=2), KEY._replace(number=KEY.number + 1)):
        with pytest.raises(Fenced, match="offsets of a later transaction"):
            sent_actions({"t": TransactionOffsets(later, None, offsets)}, sent, 9)


@pytest.mark.parametrize("offsets", [None, [], "x", 1])
def test_offsets_that_are_no_object_are_damage(offsets: object):
    body = {"t": {"epoch": 0, "number": 1, "time": 0, "offsets": offsets}}
    with pytest.raises(Corrupt):
        parsed(json.dumps(body))
