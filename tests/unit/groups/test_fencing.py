"""What the log of a group refuses, with Kafka's code, a reason and a remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deltaq import Fenced, GroupInUse, KafkaError
from deltaq.groups.fencing import (
    NO_MEMBER,
    Claim,
    check_may_commit,
    check_no_members,
    check_not_in_use,
    not_a_member,
)
from deltaq.groups.state import GroupHead, Owner
from tests.doubles.groups import new_member, sizes

ALICE, BOB = new_member("alice"), new_member("bob", instance_id="static-b")
HEAD = GroupHead(
    9,
    {"a": ALICE, "b": BOB},
    sizes=sizes(t=4),
    assigned={"a": frozenset({("t", 0), ("t", 1)}), "b": frozenset({("t", 2)})},
    owners={("t", 0): Owner("a", 1), ("t", 1): Owner("b", 5), ("t", 2): Owner("b", 7)},
)


@pytest.mark.parametrize(
    ("claim", "partitions"),
    [
        (Claim("a", 9), [0]),
        (Claim("a", 1), [0]),  # older than many rebalances, none of which has moved the partition
        (Claim("b", 5), [1]),  # assigned to another member, and not released yet
        (Claim("b", 7), [1, 2]),
        (Claim("b", 7, "static-b"), [1, 2]),
        (Claim("a", 9), [3]),  # has no owner
        (Claim("a", -1), [3, 17]),
        (Claim("a", 9), []),
    ],
)
def test_the_owner_of_the_partitions_may_commit(claim, partitions):
    check_may_commit(HEAD, "g", claim, [("t", partition) for partition in partitions])


@pytest.mark.fault("R3")
@pytest.mark.parametrize(
    ("claim", "partitions", "code", "texts"),
    [
        (
            Claim("a", 0),
            [0],
            KafkaError.ILLEGAL_GENERATION,
            ["generation 0", "t[0]", "another member", "'g'"],
        ),
        (Claim("b", 4), [1], KafkaError.ILLEGAL_GENERATION, ["generation 4", "t[1]"]),
        (Claim("b", 6), [1, 2], KafkaError.ILLEGAL_GENERATION, ["generation 6", "t[2]"]),
        (Claim("a", 9), [1], KafkaError.ILLEGAL_GENERATION, ["t[1]", "another member"]),
        (Claim("a", 9), [0, 3, 2], KafkaError.ILLEGAL_GENERATION, ["t[2]"]),
        (
            Claim("c", 9),
            [0],
            KafkaError.UNKNOWN_MEMBER_ID,
            ["removed from group 'g'", "session.timeout.ms"],
        ),
        (Claim("c", 9), [3], KafkaError.UNKNOWN_MEMBER_ID, ["removed from group 'g'"]),
        (Claim("c", 9), [], KafkaError.UNKNOWN_MEMBER_ID, ["removed from group 'g'"]),
        (Claim("c", 9, "static-c"), [0], KafkaError.UNKNOWN_MEMBER_ID, ["removed from group 'g'"]),
        (NO_MEMBER, [3], KafkaError.UNKNOWN_MEMBER_ID, ["not a member of group 'g'", "poll()"]),
    ],
)
def test_a_commit_by_another_member_or_of_an_earlier_ownership_is_refused(
    claim, partitions, code, texts
):
    with pytest.raises(Fenced) as caught:
        check_may_commit(HEAD, "g", claim, [("t", partition) for partition in partitions])
    assert caught.value.args[0] == code
    assert not caught.value.error.fatal()
    for text in texts:
        assert text in caught.value.error.str()


def test_a_static_member_that_another_consumer_has_replaced_is_fenced_for_good():
    with pytest.raises(Fenced) as caught:
        check_may_commit(HEAD, "g", Claim("former-b", 8, "static-b"), [("t", 1)])
    assert caught.value.args[0] == KafkaError.FENCED_INSTANCE_ID
    assert caught.value.error.fatal()
    for text in ("'g'", "group.instance.id 'static-b'"):
        assert text in caught.value.error.str()


@pytest.mark.fault("R3")
def test_a_commit_into_a_partition_that_came_back_needs_the_newer_generation():
    """The member has lost the partition and got it again: records read before are those of the
    earlier ownership.
    """
    for since, may in ((5, True), (6, False)):
        head = replace(HEAD, owners={("t", 0): Owner("a", since)})
        if may:
            check_may_commit(head, "g", Claim("a", 5), [("t", 0)])
        else:
            with pytest.raises(Fenced):
                check_may_commit(head, "g", Claim("a", 5), [("t", 0)])


def test_a_former_member_learns_whether_it_may_join_again():
    assert not not_a_member(HEAD, "g", None).error.fatal()
    assert not not_a_member(HEAD, "g", "static-c").error.fatal()
    assert not_a_member(HEAD, "g", "static-b").error.fatal()


def test_an_outside_commit_is_refused_while_a_member_is_not_dead():
    with pytest.raises(Fenced) as caught:
        check_no_members(HEAD, "g", ["a"])
    assert caught.value.args[0] == KafkaError.UNKNOWN_MEMBER_ID
    assert not caught.value.error.fatal()
    for text in (
        "'g'",
        "assign()",
        "'bob' on host 'host'",
        "member id 'b'",
        "another group.id",
        "45 s",
    ):
        assert text in caught.value.error.str()
    check_no_members(HEAD, "g", ["b", "a", "c"])
    check_no_members(GroupHead(4), "g", [])


def test_offsets_are_deleted_only_while_all_members_are_dead():
    with pytest.raises(GroupInUse, match="consumer 'alice' on host 'host'") as caught:
        check_not_in_use(HEAD, "g", [])
    assert caught.value.group == "g"
    assert caught.value.args[0] == KafkaError.NON_EMPTY_GROUP
    assert not caught.value.error.retriable()
    with pytest.raises(GroupInUse, match="consumer 'bob'"):
        check_not_in_use(HEAD, "g", ["a"])
    check_not_in_use(HEAD, "g", ["a", "b"])
    check_not_in_use(GroupHead(4), "g", [])
