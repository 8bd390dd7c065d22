"""The sticky assignors: as balanced as possible, and among balanced assignments one that moves few
partitions.

The rules and their order are those of librdkafka's sticky assignor without racks, which Kafka's
Python client uses, so that a program finds the same assignments here:

1. A partition stays with its owner if that is still a member and still subscribed.
2. A partition without owner goes to the subscriber with the fewest partitions.
3. While some member could take a partition from a member with more partitions, the partitions are
   tried in turn. A partition moves if one of its subscribers has at least two partitions fewer than
   its owner: to its owner of the generation before if that has so few, else to the subscriber with
   the fewest partitions. If a partition of the same topic has moved in the opposite direction
   before, that one moves back instead.
4. All moves are undone if they did not make the assignment more balanced.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from deltaq.groups.assignors.subscription import (
    Assignment,
    MemberSubscription,
    TopicPartition,
    TopicPartitions,
    eligible_topics,
)


def assign_sticky(partitions: TopicPartitions, members: Sequence[MemberSubscription]) -> Assignment:
    """A balanced assignment in which members keep what they own as far as balance allows."""
    subscribers = {
        topic: [member.member_id for member in members if topic in member.topics]
        for topic in eligible_topics(partitions, members)
    }
    start = _start(partitions, subscribers, members)
    balancing = _Balancing(start, subscribers, start.owners)
    without_owner = [partition for partition in start.order if partition not in start.owners]
    for partition in without_owner:
        balancing.give(partition, balancing.least_loaded(partition[0]))
    before = dict(balancing.owner_of)
    was_empty = not start.owners
    if not start.must_revoke:
        balancing.move(
            [partition for partition in without_owner if len(subscribers[partition[0]]) > 1]
        )
    has_moved = balancing.move(
        [partition for partition in start.order if len(subscribers[partition[0]]) > 1]
    )
    after = balancing.owner_of
    if has_moved and not was_empty and _imbalance(after, members) >= _imbalance(before, members):
        after = before
    assignment: Assignment = {member.member_id: [] for member in members}
    for partition in sorted(after):
        assignment[after[partition]].append(partition)
    return assignment


def assign_cooperative_sticky(
    partitions: TopicPartitions, members: Sequence[MemberSubscription]
) -> Assignment:
    """As `assign_sticky`, without the partitions that another member still owns.

    That member gives them up first; the assignment that follows contains them. Rule: Kafka's
    `CooperativeStickyAssignor`.
    """
    owner_of = {partition: owners[0] for partition, owners in _claims(members).items()}
    return {
        member_id: [
            partition for partition in assigned if owner_of.get(partition, member_id) == member_id
        ]
        for member_id, assigned in assign_sticky(partitions, members).items()
    }


@dataclass(frozen=True, slots=True)
class _Start:
    """What the members bring: owners that remain, owners of the generation before, and the order of
    reassignment.
    """

    owners: Mapping[TopicPartition, str]
    previous: Mapping[TopicPartition, str]
    order: Sequence[TopicPartition]
    must_revoke: bool


def _start(
    partitions: TopicPartitions,
    subscribers: Mapping[str, Sequence[str]],
    members: Sequence[MemberSubscription],
) -> _Start:
    existing = [
        (topic, partition) for topic in subscribers for partition in range(partitions[topic])
    ]
    claims = {p: owners for p, owners in _claims(members).items() if p[1] < partitions.get(p[0], 0)}
    owners = {
        p: claims[p][0] for p in existing if p in claims and claims[p][0] in subscribers[p[0]]
    }
    previous = {p: claims[p][1] for p in existing if len(claims.get(p, ())) > 1}
    must_revoke = any(p in claims and p not in owners for p in existing)
    if all(len(subscribed) == len(members) for subscribed in subscribers.values()):
        order = _most_loaded_first(existing, owners, previous)
    else:
        order = sorted(existing, key=lambda p: (len(subscribers[p[0]]), p))
    return _Start(owners, previous, order, must_revoke)


def _claims(members: Sequence[MemberSubscription]) -> dict[TopicPartition, list[str]]:
    """The members that name each partition as owned, newest generation first.

    A partition that two members name for the same generation has no owner.
    """
    claims: dict[TopicPartition, dict[int, str]] = defaultdict(dict)
    disputed: set[TopicPartition] = set()
    for member in members:
        for partition in member.owned:
            if (
                claims[partition].setdefault(member.generation, member.member_id)
                != member.member_id
            ):
                disputed.add(partition)
    return {
        partition: [by_generation[generation] for generation in sorted(by_generation, reverse=True)]
        for partition, by_generation in claims.items()
        if partition not in disputed
    }


def _most_loaded_first(
    existing: Sequence[TopicPartition],
    owners: Mapping[TopicPartition, str],
    previous: Mapping[TopicPartition, str],
) -> list[TopicPartition]:
    """The order if all subscriptions are equal: in turn one partition of the member that has most
    left, first those that had another owner before; then the partitions without owner.
    """
    if not owners:
        return list(existing)
    left: dict[str, list[TopicPartition]] = defaultdict(list)
    for partition in sorted(owners, reverse=True):
        left[owners[partition]].append(partition)  # taken from the end
    for of_member in left.values():
        of_member.sort(key=lambda partition: partition in previous)
    loads = sorted((len(of_member), member_id) for member_id, of_member in left.items())
    order = []
    while loads:
        load, member_id = loads.pop()
        order.append(left[member_id].pop())
        if load > 1:
            insort(loads, (load - 1, member_id))
    # librdkafka iterates over a map that begins with what was inserted last.
    return order + [partition for partition in reversed(existing) if partition not in owners]


class _Balancing:
    """An assignment while partitions are given to members and moved between them."""

    def __init__(
        self,
        start: _Start,
        subscribers: Mapping[str, Sequence[str]],
        owners: Mapping[TopicPartition, str],
    ) -> None:
        self.owner_of: dict[TopicPartition, str] = {}
        self._previous = start.previous
        self._subscribers = {topic: frozenset(members) for topic, members in subscribers.items()}
        self._topic_sizes: dict[str, int] = defaultdict(int)
        for topic, _ in start.order:
            self._topic_sizes[topic] += 1
        self._load = {member_id: 0 for members in subscribers.values() for member_id in members}
        self._by_load = sorted((0, member_id) for member_id in self._load)
        self._owned_of_topic: dict[str, dict[str, int]] = {
            topic: defaultdict(int) for topic in subscribers
        }
        self._moved: dict[TopicPartition, tuple[str, str]] = {}
        self._moves: dict[tuple[str, str, str], list[TopicPartition]] = defaultdict(list)
        for partition, member_id in owners.items():
            self.give(partition, member_id)

    def give(self, partition: TopicPartition, member_id: str) -> None:
        """Make a member the owner of a partition."""
        topic = partition[0]
        before = self.owner_of.get(partition)
        if before is not None:
            self._owned_of_topic[topic][before] -= 1
            self._change_load(before, -1)
        self.owner_of[partition] = member_id
        self._owned_of_topic[topic][member_id] += 1
        self._change_load(member_id, 1)

    def least_loaded(self, topic: str) -> str:
        """The subscriber of a topic with the fewest partitions, the first by id of several."""
        return next(
            member_id for _, member_id in self._by_load if member_id in self._subscribers[topic]
        )

    def move(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move partitions among these until no move improves the balance; whether any moved."""
        has_moved = False
        is_moving = True
        while is_moving:
            is_moving = False
            for partition in partitions:
                if self._is_balanced():
                    break
                target = self._target(partition)
                if target is not None:
                    self._move(partition, target)
                    has_moved = is_moving = True
        return has_moved

    def _target(self, partition: TopicPartition) -> str | None:
        """The member to which the partition should move; None if it should stay."""
        load = self._load[self.owner_of[partition]]
        previous = self._previous.get(partition)
        if previous is not None and load > self._load.get(previous, load) + 1:
            return previous
        least = self.least_loaded(partition[0])
        return least if load > self._load[least] + 1 else None

    def _move(self, partition: TopicPartition, target: str) -> None:
        topic, owner = partition[0], self.owner_of[partition]
        source = self._moved.get(partition, (owner, owner))[0]
        opposite = self._moves.get((topic, target, source))
        if opposite:
            partition = opposite[0]
            owner = self.owner_of[partition]
        self._note_move(partition, owner, target)
        self.give(partition, target)

    def _note_move(self, partition: TopicPartition, owner: str, target: str) -> None:
        source = owner
        if (moved := self._moved.pop(partition, None)) is not None:
            source = moved[0]
            self._moves[partition[0], moved[0], moved[1]].remove(partition)
        if source != target:
            self._moved[partition] = source, target
            self._moves[partition[0], source, target].append(partition)

    def _is_balanced(self) -> bool:
        """Whether no member could take a partition from a member with more partitions."""
        if not self._by_load or self._by_load[0][0] >= self._by_load[-1][0] - 1:
            return True
        highest = {
            topic: max(
                (self._load[member_id] for member_id, count in owned.items() if count), default=0
            )
            for topic, owned in self._owned_of_topic.items()
        }
        return not any(
            self._load[member_id] < highest[topic]
            for topic, members in self._subscribers.items()
            for member_id in members
            if self._owned_of_topic[topic][member_id] < self._topic_sizes[topic]
        )

    def _change_load(self, member_id: str, change: int) -> None:
        load = self._load[member_id]
        del self._by_load[bisect_left(self._by_load, (load, member_id))]
        self._load[member_id] = load + change
        insort(self._by_load, (load + change, member_id))


def _imbalance(
    owner_of: Mapping[TopicPartition, str], members: Sequence[MemberSubscription]
) -> int:
    """The sum of the differences of load over all pairs of members; 0 if all have the same."""
    load = {member.member_id: 0 for member in members}
    for member_id in owner_of.values():
        load[member_id] += 1
    return sum(abs(a - b) for a, b in combinations(load.values(), 2))
