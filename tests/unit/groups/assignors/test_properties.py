"""Properties of all assignors, on random groups."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaq.groups.assignors import ASSIGNORS, MemberSubscription
from deltaq.groups.assignors.subscription import Assignment, TopicPartition
from tests.depth import depth

TOPICS = ("ta", "tb", "tc")

STEPS_MAX = 8
"""Most rebalances until a cooperative assignment is complete. Two are enough nearly always; of half
a million random groups one took four, and none more.
"""

partitions_of_topics = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1)
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=7)


def members_of(topics: list[frozenset[str]]) -> list[MemberSubscription]:
    return [MemberSubscription(f"m{number}", topics) for number, topics in enumerate(topics)]


def rejoined(
    members: list[MemberSubscription], assignment: Assignment, generation: int
) -> list[MemberSubscription]:
    """The members as they join again with what they were assigned."""
    return [
        MemberSubscription(
            m.member_id, m.topics, tuple(assignment.get(m.member_id, ())), generation
        )
        for m in members
    ]


def assignable(
    partitions: dict[str, int], members: list[MemberSubscription]
) -> list[TopicPartition]:
    subscribed = {topic for member in members for topic in member.topics}
    return [(topic, number) for topic in subscribed for number in range(partitions.get(topic, 0))]


@pytest.mark.parametrize("name", ASSIGNORS)
@given(partitions=partitions_of_topics, topics=subscriptions)
def test_each_partition_has_one_owner_that_is_subscribed(
    name: str, partitions: dict[str, int], topics: list[frozenset[str]]
) -> None:
    members = members_of(topics)
    assignment = ASSIGNORS[name](partitions, members)
    assert list(assignment) == [member.member_id for member in members]
    assert Counter(p for owned in assignment.values() for p in owned) == Counter(
        assignable(partitions, members)
    )
    for member in members:
        assert {topic for topic, _ in assignment[member.member_id]} <= member.topics


@pytest.mark.parametrize("name", ["roundrobin", "sticky", "cooperative-sticky"])
@given(partitions=partitions_of_topics, count=st.integers(1, 7))
def test_loads_differ_by_one_at_most_with_equal_subscriptions(
    name: str, partitions: dict[str, int], count: int
) -> None:
    loads = [
        len(owned)
        for owned in ASSIGNORS[name](partitions, members_of([frozenset(TOPICS)] * count)).values()
    ]
    assert max(loads) - min(loads) <= 1


@given(partitions=partitions_of_topics, count=st.integers(1, 7))
def test_range_differs_by_one_at_most_of_each_topic(partitions: dict[str, int], count: int) -> None:
    assignment = ASSIGNORS["range"](partitions, members_of([frozenset(TOPICS)] * count))
    for topic in partitions:
        of_topic = [
            [number for name, number in owned if name == topic] for owned in assignment.values()
        ]
        assert max(map(len, of_topic)) - min(map(len, of_topic)) <= 1
        assert all(
            numbers == list(range(numbers[0], numbers[-1] + 1)) for numbers in of_topic if numbers
        )


@given(partitions=partitions_of_topics, topics=subscriptions)
def test_sticky_leaves_no_move_that_would_improve_the_balance(
    partitions: dict[str, int], topics: list[frozenset[str]]
) -> None:
    members = members_of(topics)
    assignment = ASSIGNORS["sticky"](partitions, members)
    for owner in members:
        for topic, _ in assignment[owner.member_id]:
            for other in members:
                if topic in other.topics:
                    assert len(assignment[owner.member_id]) <= len(assignment[other.member_id]) + 1


@given(partitions=partitions_of_topics, topics=subscriptions)
def test_sticky_moves_nothing_when_nothing_has_changed(
    partitions: dict[str, int], topics: list[frozenset[str]]
) -> None:
    members = members_of(topics)
    first = ASSIGNORS["sticky"](partitions, members)
    again = ASSIGNORS["sticky"](partitions, rejoined(members, first, 1))
    assert {m: sorted(owned) for m, owned in first.items()} == {
        m: sorted(owned) for m, owned in again.items()
    }


@given(partitions=partitions_of_topics, count=st.integers(2, 7))
def test_sticky_moves_only_what_a_leaving_member_had(
    partitions: dict[str, int], count: int
) -> None:
    members = members_of([frozenset(TOPICS)] * count)
    first = ASSIGNORS["sticky"](partitions, members)
    left = rejoined(members[1:], first, 1)
    after = ASSIGNORS["sticky"](partitions, left)
    for member in left:
        assert set(member.owned) <= set(after[member.member_id])


@given(partitions=partitions_of_topics, count=st.integers(1, 6))
def test_sticky_moves_no_more_to_a_joining_member_than_its_share(
    partitions: dict[str, int], count: int
) -> None:
    members = members_of([frozenset(TOPICS)] * count)
    first = ASSIGNORS["sticky"](partitions, members)
    joined = [*rejoined(members, first, 1), MemberSubscription("new", frozenset(TOPICS))]
    after = ASSIGNORS["sticky"](partitions, joined)
    for member in joined[:-1]:
        assert set(after[member.member_id]) <= set(member.owned)


@settings(max_examples=depth(80, 400))
@given(
    partitions=partitions_of_topics,
    changes=partitions_of_topics,
    topics=subscriptions,
    later=st.lists(st.frozensets(st.sampled_from(TOPICS)), max_size=9),
)
def test_cooperative_sticky_completes_in_a_few_steps_and_shares_no_partition(
    partitions: dict[str, int],
    changes: dict[str, int],
    topics: list[frozenset[str]],
    later: list[frozenset[str]],
) -> None:
    """From a balanced group of which topics and subscriptions change, and members come or go."""
    owned = ASSIGNORS["sticky"](partitions, members_of(topics))
    members = rejoined(members_of(later), owned, 1)
    existing = partitions | changes
    for step in range(1, STEPS_MAX + 1):
        target = ASSIGNORS["sticky"](existing, members)
        given_now = ASSIGNORS["cooperative-sticky"](existing, members)
        for member in members:
            held_by_others = {p for other in members if other is not member for p in other.owned}
            assert held_by_others.isdisjoint(given_now[member.member_id])
            assert set(given_now[member.member_id]) <= set(target[member.member_id])
        members = rejoined(members, given_now, step + 1)
        if Counter(p for of in given_now.values() for p in of) == Counter(
            assignable(existing, members)
        ):
            break
    assert given_now == ASSIGNORS["cooperative-sticky"](existing, members), "complete, and it stays"


@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_thousand_partitions_and_two_hundred_members(name: str) -> None:
    partitions = {f"t{number}": 100 for number in range(10)}
    members = [
        MemberSubscription(
            f"m{number:03}",
            frozenset(f"t{(number + place) % 10}" for place in range(1 + number % 5)),
        )
        for number in range(200)
    ]
    assignment = ASSIGNORS[name](partitions, members)
    assert Counter(p for owned in assignment.values() for p in owned) == Counter(
        assignable(partitions, members)
    )
