"""Random sequences of changes of a group's membership keep its rules, under each assignor."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deltaq.groups.assignors import ASSIGNORS
from deltaq.groups.rebalance import (
    Strategies,
    joined,
    left,
    needs_rebalance,
    released,
    resubscribed,
    strategies,
    with_partition_counts,
)
from deltaq.groups.state import GroupHead, Key, Owner, PartitionCount, matching, parse_head
from tests.depth import depth
from tests.doubles.groups import new_member

TOPICS = ("ta", "tb", "u")
subscriptions = st.sampled_from(
    [("ta",), ("tb",), ("ta", "tb"), ("^t",), ("^",), ("u", "ta"), ("u",), ("never",)]
)
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 6))

STEPS_MAX = 12
"""Most rounds, in each of which every member releases what is not assigned to it, until a group is
stable.
"""


def to_release(head: GroupHead, member_id: str) -> frozenset[Key]:
    """What a member owns that is assigned to another one, or to none."""
    return head.owned(member_id) - head.assigned[member_id]


class GroupMachine(RuleBasedStateMachine):
    """Members that join, return, leave, die and release at any time, and topics that change."""

    using: Strategies = strategies(["range"])

    def __init__(self) -> None:
        super().__init__()
        self.head = GroupHead()
        self.exists: dict[str, int] = {}
        self.resizes = 0
        self.sessions = 0
        self.ended: dict[tuple[Key, str], int] = {}
        """The newest generation in which each member had a partition that it has lost since."""

    def change(self, after: GroupHead) -> None:
        before, self.head = self.head, after
        assert after.generation in (before.generation, before.generation + 1)
        assert parse_head(after.action().configuration, "g/") == after
        for key, owner in before.owners.items():
            if after.owners.get(key) != owner:
                self.ended[key, owner.member_id] = before.generation
        for key, owner in after.owners.items():
            if before.owners.get(key) != owner and not self.is_renamed(before, key, owner):
                assert owner.since == after.generation
                assert owner.since > self.ended.get((key, owner.member_id), -1), (
                    "its earlier commits would be accepted"
                )

    def is_renamed(self, before: GroupHead, key: Key, owner: Owner) -> bool:
        """Whether a static member has returned to its place."""
        earlier = before.owners.get(key)
        if earlier is None or earlier.since != owner.since:
            return False
        now, was = self.head.members[owner.member_id], before.members[earlier.member_id]
        return (
            earlier.member_id not in self.head.members
            and now.instance_id == was.instance_id is not None
        )

    def known(self, topics: Iterable[str]) -> dict[str, PartitionCount]:
        """What a consumer knows of the topics that it subscribes to."""
        found = matching(list(topics), TOPICS)
        return {topic: PartitionCount(self.exists.get(topic, 0), self.resizes) for topic in found}

    def members(
        self, data: st.DataObject, min_size: int = 0, max_size: int | None = None
    ) -> list[str]:
        return data.draw(
            st.lists(
                st.sampled_from(sorted(self.head.members)),
                unique=True,
                min_size=min_size,
                max_size=max_size,
            )
        )

    @initialize(exists=counts)
    def begin(self, exists: dict[str, int]) -> None:
        self.exists = exists

    @rule(topics=subscriptions, instance=st.sampled_from([None, None, None, "one", "two"]))
    def join(self, topics: tuple[str, ...], instance: str | None) -> None:
        self.sessions += 1
        member = new_member("c", 1_000, *self.using.assignors, topics=topics, instance_id=instance)
        # A later member is not the last by name.
        name = f"{'zyx'[self.sessions % 3]}{self.sessions}"
        self.change(joined(self.head, name, member, self.known(topics), (), self.using))
        assert name in self.head.members

    @precondition(lambda self: self.head.members)
    @rule(data=st.data(), topics=subscriptions)
    def join_and_remove_the_dead(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        gone = self.members(data)
        self.sessions += 1
        member = new_member("c", 1_000, *self.using.assignors, topics=topics)
        self.change(
            joined(self.head, f"n{self.sessions}", member, self.known(topics), gone, self.using)
        )
        assert self.head.members.keys().isdisjoint(gone)

    @precondition(lambda self: self.head.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        gone = self.members(data, min_size=1)
        self.change(left(self.head, gone, self.using))
        assert self.head.members.keys().isdisjoint(gone)

    @precondition(lambda self: self.head.members)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        (name,) = self.members(data, min_size=1, max_size=1)
        mine = sorted(to_release(self.head, name))
        some = data.draw(st.lists(st.sampled_from(mine), unique=True)) if mine else []
        self.change(released(self.head, name, some, self.using))

    @precondition(lambda self: self.head.members)
    @rule(data=st.data(), key=st.tuples(st.sampled_from(TOPICS), st.integers(0, 5)))
    def release_what_another_owns(self, data: st.DataObject, key: Key) -> None:
        (name,) = self.members(data, min_size=1, max_size=1)
        if self.head.owners.get(key, Owner("", 0)).member_id != name:
            before = self.head.owners
            self.change(released(self.head, name, [key], self.using))
            assert {k: owner for k, owner in self.head.owners.items() if k in before} == before

    @precondition(lambda self: self.head.members)
    @rule(changes=counts, data=st.data())
    def resize(self, changes: dict[str, int], data: st.DataObject) -> None:
        self.exists |= changes
        self.resizes += 1
        (name,) = self.members(data, min_size=1, max_size=1)
        known = self.known(self.head.members[name].topics)
        if needs_rebalance(self.head, known):
            self.change(with_partition_counts(self.head, known, self.using))
        assert not needs_rebalance(self.head, known)

    @precondition(lambda self: self.head.members)
    @rule(data=st.data(), topics=subscriptions)
    def subscribe_to_others(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        (name,) = self.members(data, min_size=1, max_size=1)
        before = self.head
        if (
            after := resubscribed(before, name, topics, self.known(topics), self.using)
        ) is not None:
            self.change(after)
        assert self.head.members[name].topics == topics
        assert {topic for topic, _ in self.head.owned(name)} <= matching(topics, TOPICS)
        for key in before.owners.keys() - before.owned(name):
            if key in self.head.owners:
                assert self.head.owners[key] == before.owners[key], (
                    "nothing is taken from another member"
                )

    @invariant()
    def each_partition_is_assigned_and_owned_once(self) -> None:
        head = self.head
        assert head.assigned.keys() == head.members.keys()
        all_assigned = [key for keys in head.assigned.values() for key in keys]
        assert len(all_assigned) == len(set(all_assigned))
        for topic, number in {*all_assigned, *head.owners}:
            assert 0 <= number < head.partitions[topic]
        assert {owner.member_id for owner in head.owners.values()} <= head.members.keys()
        assert all(0 < owner.since <= head.generation for owner in head.owners.values())
        assert set(head.owners) >= set(all_assigned), (
            "what is assigned is owned, if not by that member"
        )
        for name, member in head.members.items():
            assert {topic for topic, _ in head.assigned[name]} <= matching(member.topics, TOPICS)

    @invariant()
    def once_all_is_released_every_partition_has_an_owner(self) -> None:
        head = self.head
        for _ in range(STEPS_MAX):
            for name in head.members:
                if mine := to_release(head, name):
                    head = released(head, name, mine, self.using)
            if head.is_stable():
                break
        assert head.is_stable()
        subscribed = matching(
            [topic for member in head.members.values() for topic in member.topics], head.partitions
        )
        assert set(head.owners) == {
            (topic, number) for topic in subscribed for number in range(head.partitions[topic])
        }


def machine(name: str) -> type[GroupMachine]:
    return type(f"Of {name}", (GroupMachine,), {"using": strategies([name])})


@pytest.mark.fault("R1", "R2")
@pytest.mark.parametrize("name", ASSIGNORS)
def test_random_changes_keep_the_rules_of_a_group(name: str) -> None:
    case = machine(name).TestCase
    case.settings = settings(max_examples=depth(25, 100), stateful_step_count=20)
    case("runTest").runTest()
