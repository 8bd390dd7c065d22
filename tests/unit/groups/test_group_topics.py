"""Topics that grow, come and go under a group of two consumers, and consumers that are dropped."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence

import pytest

from deltaq import AdminClient, KafkaError, KafkaException, TopicPartition
from deltaq.admin import NewPartitions
from deltaq.groups.assignors import Assignment, MemberSubscription
from tests.doubles.consumer_group import ConsumerGroup
from tests.doubles.reading import eventually, poll_until_raised

EAGER, COOPERATIVE = "range", "cooperative-sticky"
QUICK = {"topic__metadata__refresh__interval__ms": 20}


@pytest.fixture
def group(root: str) -> Iterator[ConsumerGroup]:
    made = ConsumerGroup(root)
    yield made
    made.close_all()


@pytest.fixture
def admin(root: str) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": root}) as client:
        yield client


def topics(group: ConsumerGroup) -> dict[str, list[tuple[str, int]]]:
    """The assigned partitions by client id."""
    return {
        name: [(tp.topic, tp.partition) for tp in c.assignment()]
        for name, c in group.consumers.items()
    }


@pytest.mark.fault("R8")
@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_new_partitions_are_shared_and_those_that_exist_stay(
    strategy: str, group: ConsumerGroup, admin: AdminClient
) -> None:
    group.topic("t", 2)
    for name in "AB":
        group.join(name, ["t"], partition__assignment__strategy=strategy)
    group.follow()
    before = group.assignment()
    admin.create_partitions([NewPartitions("t", 4)])["t"].result(20)
    group.poll_until(lambda: sum(map(len, group.assignment().values())) == 4, "four partitions")
    group.follow()
    after = group.assignment()
    assert sorted(after["A"] + after["B"]) == [0, 1, 2, 3]
    assert [len(numbers) for numbers in after.values()] == [2, 2]
    if strategy == COOPERATIVE:
        assert all(set(before[name]) <= set(after[name]) for name in "AB")
        assert "revoke" not in [event for _, event, _ in group.calls[4:]]


def test_a_new_topic_that_matches_is_shared_by_all_that_subscribe_to_the_pattern(
    group: ConsumerGroup,
) -> None:
    group.topic("a-1", 2)
    group.topic("other", 2)
    for name in "AB":
        group.join(name, ["^a-"], **QUICK)
    group.follow()
    group.topic("a-2", 2)
    group.poll_until(lambda: sum(map(len, topics(group).values())) == 4, "the new topic")
    group.follow()
    assert topics(group) == {"A": [("a-1", 0), ("a-2", 0)], "B": [("a-1", 1), ("a-2", 1)]}


def test_members_with_different_subscriptions_share_what_they_have_in_common(
    group: ConsumerGroup,
) -> None:
    for name in ("t", "u"):
        group.topic(name, 2)
    group.join("A", ["t"])
    group.join("B", ["^[tu]$"], **QUICK)
    group.follow()
    assert topics(group) == {"A": [("t", 0)], "B": [("t", 1), ("u", 0), ("u", 1)]}
    group.close("B")
    group.follow()
    assert topics(group) == {"A": [("t", 0), ("t", 1)]}


@pytest.mark.fault("R8")
@pytest.mark.parametrize("subscription", [["t", "u"], ["^[tu]$"]])
def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_beginning(
    subscription: list[str], group: ConsumerGroup, admin: AdminClient
) -> None:
    for name in ("t", "u"):
        group.topic(name, 2)
    for name in "AB":
        group.join(name, subscription, allow__auto__create__topics=False, **QUICK)
    group.follow()
    for partition in range(2):
        group.fill("t", 3, partition)
    group.poll_until(lambda: len(group.messages) == 6, "the records of the first topic")
    for reader in group.consumers.values():
        reader.commit(asynchronous=False)
    group.messages.clear()
    admin.delete_topics(["t"])["t"].result(20)
    group.poll_until(
        lambda: all(("t", n) not in of for of in topics(group).values() for n in range(2)),
        "its end",
    )
    group.poll_until(
        lambda: group.log.head().partitions == {"u": 2}, "that the group counts it no more"
    )
    group.follow()
    group.messages.clear()
    group.topic("t", 2)
    for partition in range(2):
        group.fill("t", 2, partition, start=10)
    group.poll_until(
        lambda: len([m for _, m in group.messages if m.error() is None]) == 4, "the new records"
    )
    found = [(m.partition(), m.offset(), m.value()) for _, m in group.messages if m.error() is None]
    assert sorted(found, key=str) == [(p, o, b"v%d" % (10 + o)) for p in range(2) for o in range(2)]
    assert topics(group) == {"A": [("t", 0), ("u", 0)], "B": [("t", 1), ("u", 1)]}


def test_a_consumer_that_is_garbage_collected_leaves_its_partitions_to_the_others(
    group: ConsumerGroup,
) -> None:
    group.topic("t", 2)
    for name in "AB":
        group.join(name, ["t"])
    group.follow()
    assert group.assignment() == {"A": [0], "B": [1]}
    del group.consumers["A"]
    gc.collect()
    eventually(
        lambda: len(group.log.head().members) == 1, "the end of A, long before its session time-out"
    )
    group.follow()
    assert group.assignment() == {"B": [0, 1]}


# --- a user's own assignor ---


def by_client_id(
    partitions: Mapping[str, int], members: Sequence[MemberSubscription]
) -> Assignment:
    """Partition 0 of each topic to the last member by id, the others to the first."""
    first, *_, last = sorted(member.member_id for member in [*members, *members])
    found: Assignment = {first: [], last: []}
    for topic, count in partitions.items():
        for number in range(count):
            found[first if number else last].append((topic, number))
    return found


def test_members_share_by_a_users_own_function(group: ConsumerGroup) -> None:
    group.topic("t", 4)
    for name in "AB":
        group.join(name, ["t"], partition__assignment__strategy=[by_client_id, "range"])
    group.follow()
    assert group.log.head().protocol == "by_client_id"
    assert group.assignment() == {"A": [1, 2, 3], "B": [0]}
    group.close("A")
    group.follow()
    assert group.assignment() == {"B": [0, 1, 2, 3]}


def test_members_use_a_common_assignor_while_one_lacks_the_function(group: ConsumerGroup) -> None:
    group.topic("t", 4)
    for name in "AB":
        group.join(name, ["t"], partition__assignment__strategy=[by_client_id, "range"])
    group.follow()
    group.join("C", ["t"], partition__assignment__strategy="range")
    group.follow()
    assert group.log.head().protocol == "range"
    assert group.assignment() == {"A": [0, 1], "B": [2], "C": [3]}
    group.close("C")
    group.poll_until(
        lambda: group.log.head().protocol == "by_client_id", "a rebalance by a member that knows it"
    )
    group.follow()
    assert group.assignment() == {"A": [1, 2, 3], "B": [0]}


def test_a_failing_function_is_reported_and_the_consumer_can_be_closed(
    group: ConsumerGroup,
) -> None:
    group.topic("t", 2)

    def careless(
        partitions: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> Assignment:
        return {"unknown": [("t", 0)]} if len(members) > 1 else {members[0].member_id: [("t", 0)]}

    group.join("A", ["t"], partition__assignment__strategy=careless)
    group.poll_until(lambda: group.assignment() == {"A": [0]}, "what it gives to one member")
    second = group.consumer("B", partition__assignment__strategy=[careless])
    second.subscribe(["t"])
    with pytest.raises(
        KafkaException, match="the assignor 'careless' failed: ValueError: 'unknown'"
    ) as caught:
        poll_until_raised(second)
    assert caught.value.args[0] == KafkaError._FAIL
    assert group.consumers["A"].assignment() == [TopicPartition("t", 0)], "undisturbed"
    group.close("B")
    assert [member.client_id for member in group.log.head().members.values()] == ["A"]
