"""How the membership of a group changes, without a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from deltaq import InvalidConfig, KafkaError, KafkaException
from deltaq.groups.assignors import ASSIGNORS, Assignment, MemberSubscription
from deltaq.groups.rebalance import (
    Strategies,
    chosen_protocol,
    joined,
    left,
    needs_rebalance,
    released,
    resubscribed,
    strategies,
    with_partition_counts,
)
from deltaq.groups.state import GroupHead, Key, Member, Owner, PartitionCount, parse_head
from tests.doubles.groups import RANGE, new_member, partition_counts

COOPERATIVE = strategies(["cooperative-sticky"])
FOUR = partition_counts(t=4)


def grown(head: GroupHead, *names: str, using: Strategies = RANGE) -> GroupHead:
    """The group after these members have joined."""
    for name in names:
        head = joined(head, name, new_member(name, 10_000, *using.assignors), FOUR, (), using)
    return head


def keys(*numbers: int, topic: str = "t") -> frozenset[Key]:
    return frozenset((topic, number) for number in numbers)


def shares(by_member: Mapping[str, frozenset[Key]]) -> dict[str, list[int]]:
    """The partition numbers of topic t by member."""
    return {
        name: sorted(number for topic, number in of if topic == "t")
        for name, of in by_member.items()
    }


def owned(head: GroupHead) -> dict[str, list[int]]:
    return shares({name: head.owned(name) for name in head.members})


def assigned(head: GroupHead) -> dict[str, list[int]]:
    return shares(head.assigned)


# --- joining ---


def test_the_first_member_owns_everything_at_once():
    head = grown(GroupHead(), "a")
    assert (head.generation, head.protocol, head.partitions) == (1, "range", {"t": 4})
    assert head.members == {"a": new_member("a", 10_000, joined=1)}
    assert owned(head) == assigned(head) == {"a": [0, 1, 2, 3]}
    assert set(head.owners.values()) == {Owner("a", 1)}
    assert head.is_stable()


def test_a_second_member_is_assigned_its_share_and_owns_nothing_before_it_is_released():
    head = grown(GroupHead(), "a", "b")
    assert head.generation == 2
    assert assigned(head) == {"a": [0, 1], "b": [2, 3]}
    assert owned(head) == {"a": [0, 1, 2, 3], "b": []}
    assert not head.is_stable()


def test_a_partition_without_an_owner_goes_to_a_joining_member_at_once():
    head = grown(GroupHead(), "a")
    head = replace(
        head, owners={key: owner for key, owner in head.owners.items() if key != ("t", 3)}
    )
    head = grown(head, "b")
    assert owned(head) == {"a": [0, 1, 2], "b": [3]}
    assert head.owners["t", 3] == Owner("b", 2)


def test_a_member_joins_a_group_of_other_topics():
    head = grown(GroupHead(), "a")
    head = joined(head, "b", new_member(topics=("u",)), partition_counts(u=1), (), RANGE)
    assert head.partitions == {"t": 4, "u": 1}
    assert head.assigned == {"a": keys(0, 1, 2, 3), "b": keys(0, topic="u")}
    assert head.is_stable()


def test_a_member_of_topics_that_do_not_exist_gets_nothing():
    head = joined(GroupHead(), "a", new_member(), partition_counts(t=0), (), RANGE)
    assert head.partitions == {}
    assert head.assigned == {"a": frozenset()}
    assert head.is_stable()


def test_a_pattern_matches_the_topics_of_other_members():
    head = grown(GroupHead(), "a")
    head = joined(head, "b", new_member(topics=("^[tu]$",)), partition_counts(u=1), (), RANGE)
    assert head.assigned["b"] == keys(2, 3) | keys(0, topic="u")


def test_a_join_removes_members_that_are_gone():
    head = grown(GroupHead(), "a", "b")
    head = joined(head, "c", new_member("c"), FOUR, ["a", "unknown"], RANGE)
    assert list(head.members) == ["b", "c"]
    assert owned(head) == assigned(head) == {"b": [0, 1], "c": [2, 3]}
    assert head.generation == 3


def test_a_member_of_a_group_in_format_1_is_dropped():
    head = GroupHead(6, {"old": Member(("t",), "old", "host", 45_000)}, format=1)
    head = grown(head, "new")
    assert list(head.members) == ["new"]
    assert owned(head) == {"new": [0, 1, 2, 3]}
    assert (head.generation, head.format) == (7, 2)


# --- leaving and releasing ---


@pytest.mark.fault("R1")
@pytest.mark.parametrize("using", [RANGE, COOPERATIVE])
def test_what_a_leaving_member_owned_is_free_at_once(using):
    head = grown(GroupHead(), "a", "b", using=using)
    head = left(head, ["a"], using)
    assert head.generation == 3
    assert owned(head) == assigned(head) == {"b": [0, 1, 2, 3]}
    assert set(head.owners.values()) == {Owner("b", 3)}
    assert left(head, ["b"], using) == GroupHead(4)


def test_an_eager_release_hands_over_without_a_new_generation():
    head = grown(GroupHead(), "a", "b")
    after = released(head, "a", keys(3), RANGE)
    assert owned(after) == {"a": [0, 1, 2], "b": [3]}
    assert after.owners["t", 3] == Owner("b", 2)
    assert (after.generation, after.assigned) == (2, head.assigned)
    assert released(after, "a", keys(2), RANGE).is_stable()


def test_a_cooperative_assignment_leaves_out_what_others_own_until_it_is_released():
    head = grown(GroupHead(), "a", "b", using=COOPERATIVE)
    assert assigned(head) == {"a": [2, 3], "b": []}
    assert owned(head) == {"a": [0, 1, 2, 3], "b": []}
    head = released(head, "a", keys(0, 1), COOPERATIVE)
    assert owned(head) == assigned(head) == {"a": [2, 3], "b": [0, 1]}
    assert head.generation == 3
    assert head.owners["t", 2] == Owner("a", 1), "it has not moved"
    assert head.owners["t", 0] == Owner("b", 3)


@pytest.mark.parametrize("using", [RANGE, COOPERATIVE])
def test_a_member_releases_only_what_it_owns(using):
    head = grown(GroupHead(), "a", "b", using=using)
    assert released(head, "b", keys(0, 1, 2, 3), using).owners == head.owners


@pytest.mark.parametrize("using", [RANGE, COOPERATIVE])
def test_a_released_partition_that_is_assigned_to_its_owner_comes_back(using):
    head = grown(GroupHead(), "a", using=using)
    assert owned(released(head, "a", keys(1), using)) == {"a": [0, 1, 2, 3]}


# --- other subscriptions ---


def two_topics(*names: str, using: Strategies = COOPERATIVE) -> GroupHead:
    """The group after these members have joined, which subscribe to two topics of two
    partitions.
    """
    head = GroupHead()
    for name in names:
        member = new_member(name, 10_000, *using.assignors, topics=("t", "u"))
        head = joined(head, name, member, partition_counts(t=2, u=2), (), using)
    return head


def test_a_member_that_leaves_a_topic_out_owns_none_of_it():
    head = two_topics("a")
    after = resubscribed(head, "a", ("u",), partition_counts(u=2), COOPERATIVE)
    assert after is not None
    assert (after.generation, after.partitions, after.owned("a")) == (
        2,
        {"u": 2},
        keys(0, 1, topic="u"),
    )
    assert after.owners["u", 0] == head.owners["u", 0], "what stays is not interrupted"
    assert after.members["a"] == replace(head.members["a"], topics=("u",))


def test_another_member_that_subscribes_to_the_topic_owns_it_in_the_same_generation():
    head = two_topics("a", "b")
    head = released(head, "a", head.to_release("a"), COOPERATIVE)
    after = resubscribed(head, "a", ("u",), partition_counts(u=2), COOPERATIVE)
    assert after is not None
    assert keys(0, 1) <= after.owned("b")
    assert {after.owners[key].since for key in keys(0, 1) - head.owned("b")} <= {after.generation}


def test_a_member_gets_a_new_topic_and_keeps_what_it_has():
    head = grown(GroupHead(), "a", using=COOPERATIVE)
    after = resubscribed(head, "a", ("^[tu]$",), partition_counts(t=4, u=1), COOPERATIVE)
    assert after is not None
    assert after.owners == {**head.owners, ("u", 0): Owner("a", 2)}


@pytest.mark.parametrize("known", [{}, FOUR])
def test_the_same_subscription_changes_nothing(known):
    assert resubscribed(grown(GroupHead(), "a"), "a", ("t",), known, RANGE) is None


def test_the_same_subscription_takes_over_newer_sizes():
    head = grown(GroupHead(), "a")
    assert resubscribed(
        head, "a", ("t",), partition_counts(1, t=5), RANGE
    ) == with_partition_counts(head, partition_counts(1, t=5), RANGE)


def test_a_former_member_changes_no_subscription():
    assert resubscribed(grown(GroupHead(), "a"), "b", ("u",), {}, RANGE) is None


# --- topics ---


@pytest.mark.fault("R8")
def test_new_partitions_go_to_members_at_once_and_old_ones_stay_with_their_owners():
    head = grown(GroupHead(), "a", "b")
    head = released(head, "a", keys(2, 3), RANGE)
    head = with_partition_counts(head, partition_counts(1, t=5), RANGE)
    assert assigned(head) == {"a": [0, 1, 2], "b": [3, 4]}
    assert owned(head) == {"a": [0, 1], "b": [2, 3, 4]}
    assert head.owners["t", 4] == Owner("b", 3)


@pytest.mark.fault("R8")
def test_partitions_of_a_deleted_topic_have_no_owner_and_begin_anew():
    head = with_partition_counts(grown(GroupHead(), "a"), partition_counts(1, t=0), RANGE)
    assert (head.partitions, head.owners, head.assigned) == ({}, {}, {"a": frozenset()})
    head = with_partition_counts(head, partition_counts(2, t=2), RANGE)
    assert head.owners == {("t", 0): Owner("a", 3), ("t", 1): Owner("a", 3)}, (
        "created again: earlier commits are late"
    )


def test_topics_that_no_member_subscribes_to_are_not_kept():
    head = joined(GroupHead(), "a", new_member(topics=("u",)), partition_counts(u=1), (), RANGE)
    head = left(grown(head, "b"), ["a"], RANGE)
    assert head.partition_counts == FOUR


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, False),
        (partition_counts(1, t=4), False),
        (partition_counts(1, u=0), False),
        (partition_counts(1, t=5), True),
        (partition_counts(1, t=0), True),
        (partition_counts(u=1), True),
        (partition_counts(0, t=5), False),
        (partition_counts(-1, t=0), False),
        ({"t": PartitionCount(2, version=0, created_ms=1)}, True),
    ],
)
def test_a_rebalance_is_needed_if_a_newer_reading_finds_other_partitions(known, expected):
    assert needs_rebalance(grown(GroupHead(), "a"), known) == expected


@pytest.mark.parametrize(
    "stale", [partition_counts(-1, t=0), partition_counts(2, t=3), partition_counts(2, t=6)]
)
def test_a_member_that_has_read_less_of_a_topic_takes_no_partition_from_its_owner(stale):
    """It joins before it sees a topic that others have created, or partitions that they have
    added.
    """
    head = with_partition_counts(grown(GroupHead(), "a"), partition_counts(3, t=5), RANGE)
    head = joined(head, "b", new_member(), stale, (), RANGE)
    assert (head.partition_counts, owned(head), assigned(head)) == (
        partition_counts(3, t=5),
        {"a": [0, 1, 2, 3, 4], "b": []},
        {"a": [0, 1, 2], "b": [3, 4]},
    )
    assert with_partition_counts(
        head, partition_counts(4, t=2), RANGE
    ).partition_counts == partition_counts(4, t=2), "created again with fewer"


# --- static members ---


def static(name: str, **more: object) -> Member:
    return new_member(name, 10_000, instance_id=f"static-{name}", **more)


def with_static(*names: str) -> GroupHead:
    head = GroupHead()
    for name in names:
        head = joined(head, f"{name}-1", static(name), FOUR, (), RANGE)
    return head


def test_a_static_member_that_returns_takes_its_place_without_a_new_generation():
    head = with_static("a", "b")
    after = joined(head, "a-2", static("a"), FOUR, (), RANGE)
    assert after.generation == head.generation == 2
    assert owned(after) == {"a-2": [0, 1, 2, 3], "b-1": []}
    assert assigned(after) == {"a-2": [0, 1], "b-1": [2, 3]}
    assert after.members["a-2"].joined == 1
    assert after.leader == "a-2"
    assert after.owners["t", 0] == Owner("a-2", 1)


def test_a_static_member_finds_its_place_although_its_last_session_has_ended():
    head = with_static("a", "b")
    assert joined(head, "a-2", static("a"), FOUR, ["a-1"], RANGE) == joined(
        head, "a-2", static("a"), FOUR, (), RANGE
    )


@pytest.mark.parametrize(
    ("member", "known", "gone"),
    [
        (static("a", topics=("t", "u")), FOUR, ()),
        (replace(static("a"), protocols=(("roundrobin", ""), ("range", ""))), FOUR, ()),
        (static("a"), partition_counts(1, t=5), ()),
        (static("a"), FOUR, ["b-1"]),
    ],
)
def test_a_static_member_that_returns_with_a_change_makes_a_generation(member, known, gone):
    head = with_static("a", "b")
    after = joined(head, "a-2", member, known, gone, strategies(["roundrobin", "range"]))
    assert after.generation == 3
    assert set(after.members) == {"a-2", "b-1"} - set(gone)
    assert after.members["a-2"] == replace(member, joined=1)
    assert after.owned("a-2") >= keys(0, 1, 2, 3) - after.owned("b-1")


def test_a_static_member_that_returns_with_another_list_owns_nothing_of_what_it_leaves_out():
    sizes = partition_counts(t=2, u=2)
    head = joined(GroupHead(), "a-1", static("a", topics=("t", "u")), sizes, (), COOPERATIVE)
    head = joined(head, "b-1", static("b", topics=("t", "u")), sizes, (), COOPERATIVE)
    assert {topic for topic, _ in head.owned("a-1")} == {"t", "u"}
    after = joined(head, "a-2", static("a", topics=("t",)), sizes, (), COOPERATIVE)
    assert {topic for topic, _ in after.owned("a-2")} == {"t"}
    assert after.owned("b-1") == keys(0, 1, topic="u")


def test_other_settings_of_a_static_member_change_without_a_generation():
    head = with_static("a")
    after = joined(
        head,
        "a-2",
        replace(static("a"), host="elsewhere", session_timeout_ms=20_000),
        FOUR,
        (),
        RANGE,
    )
    assert (
        after.generation,
        after.members["a-2"].host,
        after.members["a-2"].session_timeout_ms,
    ) == (
        1,
        "elsewhere",
        20_000,
    )


def test_members_without_an_instance_id_do_not_replace_each_other():
    assert list(grown(GroupHead(), "a", "b", "c").members) == ["a", "b", "c"]


# --- the assignor of the group ---


@pytest.mark.parametrize(
    ("of_members", "expected"),
    [
        ([["range"]], "range"),
        ([["range", "roundrobin"]], "range"),
        ([["range", "roundrobin"], ["roundrobin"]], "roundrobin"),
        ([["range", "roundrobin"], ["roundrobin", "range"], ["roundrobin", "range"]], "roundrobin"),
        (
            [["sticky", "roundrobin"], ["sticky", "range", "roundrobin"], ["roundrobin", "range"]],
            "roundrobin",
        ),
        (
            [["sticky", "range", "roundrobin"], ["range", "roundrobin"], ["roundrobin", "range"]],
            "range",
        ),
    ],
)
def test_the_group_uses_the_assignor_that_all_support_and_most_prefer(of_members, expected):
    members = {str(number): new_member("c", 1, *names) for number, names in enumerate(of_members)}
    assert chosen_protocol(members) == expected


@pytest.mark.parametrize(
    "other",
    [
        new_member("b", 1, "roundrobin"),
        new_member("b", 1, "cooperative-sticky"),
        replace(new_member("b"), protocols=()),
        replace(new_member("b"), protocol_type="connect"),
    ],
)
def test_a_member_without_a_common_assignor_is_refused(other):
    head = grown(GroupHead(), "a")
    with pytest.raises(KafkaException) as caught:
        joined(head, "b", other, FOUR, (), RANGE)
    assert caught.value.args[0] == KafkaError.INCONSISTENT_GROUP_PROTOCOL
    for text in (
        "partition.assignment.strategy",
        "a: range",
        f"b: {','.join(name for name, _ in other.protocols)}",
    ):
        assert text in caught.value.error.str()


def test_a_refused_member_joins_once_the_others_are_gone():
    head = grown(GroupHead(), "a")
    other = strategies(["roundrobin"])
    after = joined(head, "b", new_member("b", 1, "roundrobin"), FOUR, ["a"], other)
    assert (after.protocol, owned(after)) == ("roundrobin", {"b": [0, 1, 2, 3]})


def to_the_last(partitions: Mapping[str, int], members: Sequence[MemberSubscription]) -> Assignment:
    """A user's own assignor: the member that was named last gets everything."""
    return {
        members[-1].member_id: [
            (topic, number) for topic, count in partitions.items() for number in range(count)
        ]
    }


def test_a_member_leaves_a_group_whose_next_assignor_it_does_not_know():
    """The next member that looks assigns what is free."""
    knowing = strategies([to_the_last, "range"])
    head = grown(grown(GroupHead(), "a", "b", using=knowing), "c")
    assert head.protocol == "range"
    after = left(head, ["c"], RANGE)
    assert (after.protocol, after.generation) == ("", 4)
    assert set(after.members) == {"a", "b"}
    assert after.owners == head.owners
    assert needs_rebalance(after, {})
    again = with_partition_counts(after, {}, knowing)
    assert (again.protocol, assigned(again)) == ("to_the_last", {"a": [], "b": [0, 1, 2, 3]})
    assert not needs_rebalance(again, {})
    assert not needs_rebalance(left(head, ["a", "b", "c"], RANGE), {}), (
        "an empty group has no assignor"
    )


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"x": [("t", 0)]}, "ValueError: 'x' is no member"),
        ({"a": [("u", 0)]}, "ValueError: 'a' does not subscribe to 'u'"),
        ({"a": [("t", 4)]}, "ValueError: 't' has no partition 4"),
        ({"a": [("t", -1)]}, "ValueError: 't' has no partition -1"),
        ({"a": [("t", 0)], "b": [("t", 0)]}, "ValueError: t[0] is assigned to 'a' too"),
        ({"a": [("t", 0.0)]}, "TypeError: "),
        ({"a": ["t"]}, "ValueError: "),
        ([("t", 0)], "AttributeError: "),
        (None, "AttributeError: "),
    ],
)
def test_a_wrong_result_of_a_users_assignor_is_refused(wrong, text):
    def mine(partitions: Mapping[str, int], members: Sequence[MemberSubscription]) -> Any:
        return wrong if len(members) == 2 else {}

    head = grown(GroupHead(), "b", using=strategies([mine]))
    with pytest.raises(KafkaException) as caught:
        grown(head, "a", using=strategies([mine]))
    assert caught.value.args[0] == KafkaError._FAIL
    assert f"the assignor 'mine' failed: {text}" in caught.value.error.str()


def test_a_users_assignor_cannot_assign_partitions_of_a_topic_that_was_deleted():
    def mine(partitions: Mapping[str, int], members: Sequence[MemberSubscription]) -> Assignment:
        return {"a": [("t", 0)]}

    head = grown(GroupHead(), "a", using=strategies([mine]))
    with pytest.raises(KafkaException, match="'t' has no partition 0"):
        with_partition_counts(head, partition_counts(1, t=0), strategies([mine]))


def test_a_users_assignor_may_leave_out_members_and_partitions_and_spoil_its_arguments():
    def mine(
        partitions: dict[str, int], members: list[MemberSubscription]
    ) -> dict[str, list[tuple[str, bool]]]:
        partitions.clear()
        members.clear()
        # A number like those of numpy, which JSON would not write as one.
        return {"a": [("t", True)]}

    head = grown(GroupHead(), "a", "b", using=strategies([mine]))  # type: ignore[list-item]  # it is that careless
    assert owned(head) == assigned(head) == {"a": [1], "b": []}
    assert head.partition_counts == FOUR
    assert parse_head(head.action().configuration, "g/") == head


def test_strategies_are_known_by_name_and_cooperative_by_their_kind():
    assert strategies(["range", "roundrobin"]) == Strategies(
        {"range": ASSIGNORS["range"], "roundrobin": ASSIGNORS["roundrobin"]}, is_cooperative=False
    )
    assert COOPERATIVE.is_cooperative


def test_a_users_assignor_must_have_a_name_of_its_own():
    def sticky(partitions: Mapping[str, int], members: Sequence[MemberSubscription]) -> Assignment:
        return {}

    def also(partitions: Mapping[str, int], members: Sequence[MemberSubscription]) -> Assignment:
        return {}

    also.__name__ = "to_the_last"
    for wrong, name in (
        ([sticky], "'sticky'"),
        ([to_the_last, also], "'to_the_last'"),
        ([lambda *_: {}], "'<lambda>'"),
    ):
        with pytest.raises(
            InvalidConfig, match=f"{name} cannot be the name of your function"
        ) as caught:
            strategies(wrong)
        assert caught.value.key == "partition.assignment.strategy"


def test_an_assignor_may_be_an_object_that_is_known_by_its_class():
    class Mine:
        def __call__(
            self, partitions: Mapping[str, int], members: Sequence[MemberSubscription]
        ) -> Assignment:
            return {}

    mine = Mine()
    assert strategies([mine]).assignors == {"Mine": mine}
