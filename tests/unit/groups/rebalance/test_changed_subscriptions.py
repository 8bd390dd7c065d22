"""A subscribed consumer that calls `subscribe` again stays a member, and keeps what stays of its
subscription.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from deltaq import Consumer, KafkaError, KafkaException, TopicPartition
from deltaq.groups.state import Key
from tests.doubles.consumer_group import ConsumerGroup
from tests.doubles.reading import drain, eventually, next_message

EAGER, COOPERATIVE = "range", "cooperative-sticky"
A, B, C = ([("a", 0), ("a", 1)], [("b", 0), ("b", 1)], [("c", 0), ("c", 1)])


@pytest.fixture
def group(root: str) -> Iterator[ConsumerGroup]:
    made = ConsumerGroup(root)
    for name in "abc":
        made.topic(name, 2)
    yield made
    made.close_all()


def join(
    group: ConsumerGroup,
    topics: list[str],
    strategy: str = COOPERATIVE,
    name: str = "X",
    **conf: Any,
) -> Consumer:
    return group.join(name, topics, partition__assignment__strategy=strategy, **conf)


def keys(reader: Consumer) -> list[Key]:
    return [(tp.topic, tp.partition) for tp in reader.assignment()]


def subscribe(group: ConsumerGroup, topics: list[str], name: str = "X", **callbacks: Any) -> None:
    """Let a consumer that has all its partitions subscribe to other topics, with callbacks that
    record as `new`.
    """
    group.calls.clear()
    group.consumers[name].subscribe(topics, **(group.callbacks("new") | callbacks))
    assert group.calls == [], "callbacks run inside poll"


def calls(group: ConsumerGroup) -> list[tuple[str, list[Key]]]:
    """What the new callbacks got."""
    assert {name for name, _, _ in group.calls} <= {"new"}
    return [(event, partitions) for _, event, partitions in group.calls]


CHANGES: dict[str, tuple[list[str], list[str], list[tuple[str, list[Key]]]]] = {
    "more": (["a"], ["a", "b"], [("assign", B)]),
    "fewer": (["a", "b"], ["b"], [("revoke", A), ("assign", [])]),
    "others": (["a", "b"], ["b", "c"], [("revoke", A), ("assign", C)]),
    "none of them": (["a"], ["c"], [("revoke", A), ("assign", C)]),
    "a name that the pattern matches": (["^[ab]$"], ["b", "c"], [("revoke", A), ("assign", C)]),
    "another pattern": (["^[ab]$"], ["^[bc]$"], [("revoke", A), ("assign", C)]),
    "a pattern for a name": (["a"], ["^[ab]$"], [("assign", B)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_under_a_cooperative_assignor_only_what_goes_is_revoked_and_what_comes_is_assigned(
    change: str, group: ConsumerGroup
) -> None:
    first, second, expected = CHANGES[change]
    reader = join(group, first)
    group.follow()
    before, generation = reader.memberid(), group.log.head().generation
    subscribe(group, second)
    group.poll_until(lambda: bool(calls(group)) and calls(group)[-1] == expected[-1], "the change")
    group.follow()
    assert calls(group) == expected
    head = group.log.head()
    assert {name: member.topics for name, member in head.members.items()} == {
        before: tuple(sorted(second))
    }
    assert (reader.memberid(), head.generation) == (before, generation + 1)


@pytest.mark.parametrize(
    ("second", "expected"), [(["a", "b"], [*A, *B]), (["b", "c"], [*B, *C]), (["b"], B)]
)
def test_under_an_eager_assignor_all_is_revoked_and_assigned_anew(
    second: list[str], expected: list[Key], group: ConsumerGroup
) -> None:
    reader = join(group, ["a", "b"], EAGER)
    group.follow()
    before = reader.memberid()
    subscribe(group, second)
    group.poll_until(lambda: len(group.calls) == 2, "the change")
    assert calls(group) == [("revoke", [*A, *B]), ("assign", expected)]
    assert (reader.memberid(), list(group.log.head().members)) == (before, [before])


@pytest.mark.parametrize("topics", [["a", "b"], ["b", "a"]])
def test_the_same_topics_change_nothing_under_a_cooperative_assignor(
    topics: list[str], group: ConsumerGroup
) -> None:
    reader = join(group, ["a", "b"])
    group.follow()
    head = group.log.head()
    subscribe(group, topics)
    for _ in range(20):
        group.poll(reader)
    assert (calls(group), group.log.head(), keys(reader)) == ([], head, [*A, *B])
    group.close("X")
    assert calls(group) == [("revoke", [*A, *B])], "to the callbacks given last"


def test_what_was_fetched_and_paused_of_partitions_that_stay_is_kept(group: ConsumerGroup) -> None:
    for partition in (0, 1):
        group.fill("a", 30, partition)
    group.fill("b", 1)
    reader = join(group, ["a"])
    read = [(message.partition(), message.offset()) for message in drain(reader, 40)]
    at = reader.position([TopicPartition("a", 0), TopicPartition("a", 1)])
    reader.pause([TopicPartition("a", 1)])
    subscribe(group, ["a", "b"])
    group.poll_until(lambda: keys(reader) == [*A, *B], "the new topic")
    assert reader.position(at)[1].offset == at[1].offset, "it is paused"
    group.poll_until(
        lambda: ("b", 0) in {(m.topic(), m.partition()) for _, m in group.messages}, "a record of b"
    )
    reader.resume([TopicPartition("a", 1)])
    later = lambda: [(m.partition(), m.offset()) for _, m in group.messages if m.topic() == "a"]  # noqa: E731
    group.poll_until(lambda: len(read) + len(later()) >= 60, "all records of a")
    assert sorted(read + later()) == [
        (partition, offset) for partition in (0, 1) for offset in range(30)
    ]


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_nothing_is_returned_of_topics_that_are_left_out(
    strategy: str, group: ConsumerGroup
) -> None:
    group.fill("a", 10)
    reader = join(group, ["a", "b"], strategy)
    drain(reader, 2)  # the others are fetched, too
    subscribe(group, ["b"])
    group.fill("b", 3)
    assert [message.topic() for message in drain(reader, 3)] == ["b"] * 3
    assert reader.poll(0.05) is None


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
@pytest.mark.parametrize("auto_commit", [True, False])
def test_the_next_owner_begins_where_the_member_that_left_the_topic_out_has_stopped(
    auto_commit: bool, strategy: str, group: ConsumerGroup
) -> None:
    group.fill("a", 5)
    reader = join(
        group,
        ["a"],
        strategy,
        enable__auto__commit=auto_commit,
        auto__commit__interval__ms=3_600_000,
    )
    drain(reader, 3)

    def commit(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not auto_commit and partitions[0].topic == "a":
            consumer.commit(asynchronous=False)

    subscribe(group, ["b"], on_revoke=commit)
    group.poll_until(lambda: keys(reader) == B, "the change")
    other = group.consumer("Y", partition__assignment__strategy=strategy)
    other.subscribe(["a"])
    assert [message.offset() for message in drain(other, 2)] == [3, 4]


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_another_member_gets_what_one_leaves_out_and_gives_it_back(
    strategy: str, group: ConsumerGroup
) -> None:
    for name in "XY":
        join(group, ["a", "b"], strategy, name)
        group.follow()
    members = {name: reader.memberid() for name, reader in group.consumers.items()}

    def topics(name: str) -> list[str]:
        return sorted({topic for topic, _ in keys(group.consumers[name])})

    subscribe(group, ["a"])
    group.poll_until(lambda: set(B) <= set(keys(group.consumers["Y"])), "the partitions of b")
    group.follow()
    assert topics("X") == ["a"]
    assert sorted(keys(group.consumers["X"]) + keys(group.consumers["Y"])) == [*A, *B]
    subscribe(group, ["b"])
    group.poll_until(lambda: topics("X") == ["b"], "the other topic")
    group.follow()
    assert sorted(keys(group.consumers["X"]) + keys(group.consumers["Y"])) == [*A, *B]
    assert {name: reader.memberid() for name, reader in group.consumers.items()} == members


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_a_subscription_may_change_while_partitions_move(
    strategy: str, group: ConsumerGroup
) -> None:
    first = join(group, ["a", "b"], strategy)
    group.follow()
    second = join(group, ["a", "b"], strategy, "Y")
    eventually(lambda: len(group.log.head().members) == 2, "the join of Y")
    subscribe(group, ["b", "c"])  # before it has released anything
    group.poll_until(
        lambda: set(C) <= set(keys(first)) and set(A) <= set(keys(second)), "the change"
    )
    group.follow()
    assert sorted(keys(first) + keys(second)) == [*A, *B, *C]


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_only_the_last_of_several_subscriptions_counts(strategy: str, group: ConsumerGroup) -> None:
    reader = join(group, ["a"], strategy)
    subscribe(group, ["b"])
    group.poll_until(lambda: keys(reader) == B, "the partitions of b")
    assert calls(group) == [("assign", B)]
    members = list(group.log.head().members)
    subscribe(group, ["a"])
    subscribe(group, ["a", "b", "c"])
    group.poll_until(lambda: keys(reader) == [*A, *B, *C], "all partitions")
    expected = (
        [("assign", [*A, *C])]
        if strategy == COOPERATIVE
        else [("revoke", B), ("assign", [*A, *B, *C])]
    )
    assert calls(group) == expected
    assert list(group.log.head().members) == members


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_a_static_member_keeps_its_place(strategy: str, group: ConsumerGroup) -> None:
    reader = join(group, ["a"], strategy, group__instance__id="one")
    group.follow()
    before = reader.memberid()
    subscribe(group, ["a", "b"])
    group.poll_until(lambda: keys(reader) == [*A, *B], "the new topic")
    group.close("X")
    head = group.log.head()
    assert [(name, member.instance_id) for name, member in head.members.items()] == [
        (before, "one")
    ]
    assert head.owned(before or "") == {*A, *B}


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_an_exception_of_on_revoke_does_not_hold_up_the_change(
    strategy: str, group: ConsumerGroup
) -> None:
    reader = join(group, ["a"], strategy)
    group.follow()

    def fail(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions[0].topic == "a":
            raise LookupError("from on_revoke")

    subscribe(group, ["b"], on_revoke=fail)
    with pytest.raises(LookupError, match="from on_revoke"):
        next_message(reader)
    group.poll_until(lambda: keys(reader) == B, "the change")


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_on_revoke_may_subscribe_to_what_it_gives_up(strategy: str, group: ConsumerGroup) -> None:
    reader = join(group, ["a"], strategy)
    group.follow()
    before = reader.memberid()

    def back(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.subscribe(["a"], **group.callbacks("new"))

    subscribe(group, ["b"], on_revoke=back)
    group.poll_until(lambda: ("assign", A) in calls(group), "the first topic")
    assert (keys(reader), reader.memberid()) == (A, before)
    assert ("assign", B) not in calls(group)


def test_partitions_are_owned_until_on_revoke_has_run_for_them(group: ConsumerGroup) -> None:
    """Also those that a subscription leaves out that was made in `on_revoke` of the one before."""
    reader = join(group, ["a", "b", "c"])
    group.follow()
    subscription, known = reader._state.current, list[tuple[str, ...]]()
    assert subscription is not None

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assert {(tp.topic, tp.partition) for tp in partitions} <= group.log.head().owned(
            reader.memberid() or ""
        )
        assert subscription.membership._topics is not None
        known.append(subscription.membership._topics.names)
        if len(known) == 1:
            consumer.subscribe(["c"], on_revoke=revoked)

    reader.subscribe(["b", "c"], on_revoke=revoked)
    group.poll_until(lambda: len(known) == 2, "the other change")
    assert known == [("a", "b", "c")] * 2
    group.poll_until(lambda: keys(reader) == C, "the last subscription")
    group.close("X")


def test_a_changed_pattern_begins_with_the_topics_known_before(group: ConsumerGroup) -> None:
    """Also those of others, whose logs would otherwise be read anew."""
    for name in "de":
        group.topic(name)
    for name in "XY":
        join(group, ["^[de]$"], name=name)
    group.follow()
    reader = group.consumers["X"]
    assert len(keys(reader)) == 1
    reader.subscribe(["^[c-e]$"])
    assert reader._reader is not None
    assert sorted(
        topic
        for topic, size in reader._reader.fetcher.partition_counts().items()
        if size is not None
    ) == ["d", "e"]


def test_a_consumer_that_unsubscribes_before_it_subscribes_joins_anew(group: ConsumerGroup) -> None:
    reader = join(group, ["a"])
    group.follow()
    before = reader.memberid()
    reader.unsubscribe()
    assert group.log.head().members == {}
    reader.subscribe(["a", "b"])
    group.follow()
    assert before != reader.memberid() is not None
    assert keys(reader) == [*A, *B]


def test_a_consumer_whose_place_another_one_took_cannot_subscribe(group: ConsumerGroup) -> None:
    reader = join(group, ["a"], group__instance__id="one")
    group.follow()
    join(group, ["a"], name="Y", group__instance__id="one")
    eventually(
        lambda: (
            (message := reader.poll(0.005)) is not None and message.error() == KafkaError._FATAL
        ),
        "the event",
    )
    with pytest.raises(KafkaException, match="close this one"):
        reader.subscribe(["b"])
