"""How the membership of a group changes: pure functions from one `GroupHead` to the next.

Each change of membership computes the assignment anew and is one entry of the group's log, so of
two members that react to the same event one wins, and the other finds that nothing is left to do. A
partition without an owner goes to the member that it is assigned to in the same entry. A partition
that another member owns stays with that one until it releases the partition, leaves, or is removed
because it died.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from operator import index

from deltaq.errors import InvalidConfig, KafkaError, KafkaException
from deltaq.groups.assignors import ASSIGNORS, Assignment, Assignor, MemberSubscription
from deltaq.groups.state import GroupHead, Key, Member, Owner, PartitionCount, matching

COOPERATIVE = "cooperative-sticky"


@dataclass(frozen=True, slots=True)
class Strategies:
    """The assignors that a consumer supports, the preferred one first, and whether they are
    cooperative: then each release of a partition is a new generation, in which the partition gets
    its next owner.
    """

    assignors: Mapping[str, Assignor]
    is_cooperative: bool


def strategies(chosen: Iterable[str | Assignor]) -> Strategies:
    """The strategies of `partition.assignment.strategy`: names of assignors, or functions, known by
    their names.

    Raises InvalidConfig for a function without a name of its own.
    """
    assignors: dict[str, Assignor] = {}
    for strategy in chosen:
        if isinstance(strategy, str):
            assignors[strategy] = ASSIGNORS[strategy]
            continue
        name = str(getattr(strategy, "__name__", type(strategy).__name__))
        if name in ASSIGNORS or name in assignors or not name.isidentifier():
            reason = (
                f"the members of a group know an assignor by its name, so {name!r} cannot be the "
                "name of your function: define it with `def` and a name of its own"
            )
            raise InvalidConfig(reason, key="partition.assignment.strategy")
        assignors[name] = strategy
    return Strategies(assignors, COOPERATIVE in assignors)


def joined(
    head: GroupHead,
    member_id: str,
    member: Member,
    partition_counts: Mapping[str, PartitionCount],
    gone: Collection[str],
    strategies: Strategies,
) -> GroupHead:
    """Add a member, and remove those in `gone`. `partition_counts` are those of the topics that the
    member subscribes to.

    A member with the `group.instance.id` of another one takes that one's place. If nothing else
    changes, there is no new generation. Raises KafkaException (INCONSISTENT_GROUP_PROTOCOL, or
    _FAIL for a failing assignor).
    """
    replaced = head.instance(member.instance_id)
    if replaced is not None:
        return _returned(
            head, replaced, member_id, member, partition_counts, set(gone) - {replaced}, strategies
        )
    # The clients of format 1 refuse format 2 and stop, so their members need not be waited for.
    members = (
        {}
        if head.format == 1
        else {name: other for name, other in head.members.items() if name not in gone}
    )
    members[member_id] = replace(member, joined=head.generation + 1)
    return rebalanced(head, members, partition_counts, strategies)


def _returned(
    head: GroupHead,
    before: str,
    member_id: str,
    member: Member,
    partition_counts: Mapping[str, PartitionCount],
    gone: Set[str],
    strategies: Strategies,
) -> GroupHead:
    """Put a static member in the place that it had as the member `before`."""
    was = head.members[before]
    after = _renamed(head, before, member_id, replace(member, joined=was.joined))
    is_same = was.topics == member.topics and was.protocols == member.protocols
    # It has returned as it was, so no other member has to notice.
    if is_same and not needs_rebalance(head, partition_counts) and not head.members.keys() & gone:
        return after
    members = {name: other for name, other in after.members.items() if name not in gone}
    after = _without_left_out(after, member_id, member.topics)
    return rebalanced(after, members, partition_counts, strategies)


def left(head: GroupHead, gone: Collection[str], strategies: Strategies) -> GroupHead:
    """Remove members. What they own is free at once."""
    return rebalanced(
        head,
        {name: member for name, member in head.members.items() if name not in gone},
        {},
        strategies,
    )


def released(
    head: GroupHead, member_id: str, keys: Collection[Key], strategies: Strategies
) -> GroupHead:
    """Take these partitions from a member that owns them, and hand each one to the member that it
    is assigned to.
    """
    owners = {
        key: owner
        for key, owner in head.owners.items()
        if key not in keys or owner.member_id != member_id
    }
    free = replace(head, owners=owners)
    if strategies.is_cooperative:
        return rebalanced(free, head.members, {}, strategies)
    return replace(free, owners=_handed_out(free, head.assigned, head.generation))


def with_partition_counts(
    head: GroupHead, partition_counts: Mapping[str, PartitionCount], strategies: Strategies
) -> GroupHead:
    """Take over partition counts of topics that are newer than those that the group knows."""
    return rebalanced(head, head.members, partition_counts, strategies)


def resubscribed(
    head: GroupHead,
    member_id: str,
    topics: tuple[str, ...],
    partition_counts: Mapping[str, PartitionCount],
    strategies: Strategies,
) -> GroupHead | None:
    """Let a member subscribe to these topics, and take over newer partition counts of them. None if
    nothing changes.

    The member no longer owns partitions of the topics that it leaves out, so it must not hold any.
    """
    member = head.members.get(member_id)
    # A member that the group has removed finds that out in its next round.
    if member is None or member.topics == topics:
        return (
            with_partition_counts(head, partition_counts, strategies)
            if needs_rebalance(head, partition_counts)
            else None
        )
    members = {**head.members, member_id: replace(member, topics=topics)}
    after = _without_left_out(head, member_id, topics)
    return rebalanced(after, members, partition_counts, strategies)


def _without_left_out(head: GroupHead, member_id: str, topics: tuple[str, ...]) -> GroupHead:
    """Take the partitions of topics that its new subscription leaves out from a member, which
    holds none of them.
    """
    stays = matching(topics, {topic for topic, _ in head.owned(member_id)})
    owners = {
        key: owner
        for key, owner in head.owners.items()
        if owner.member_id != member_id or key[0] in stays
    }
    return replace(head, owners=owners)


def needs_rebalance(head: GroupHead, partition_counts: Mapping[str, PartitionCount]) -> bool:
    """Whether these partition counts are newer than the group's and differ in the number of
    partitions, or the group has no assignment because the member that left last does not know the
    assignor.
    """
    is_unassigned = bool(head.members) and not head.protocol
    before, after = (
        head.partitions,
        {topic: size.partitions for topic, size in _newest(head, partition_counts).items()},
    )
    return is_unassigned or any(before.get(topic, 0) != count for topic, count in after.items())


def _newest(
    head: GroupHead, partition_counts: Mapping[str, PartitionCount]
) -> dict[str, PartitionCount]:
    """The newest known size of each topic. A member that has read a topic's log less far than
    others takes no partitions from their owners.
    """
    return dict(head.partition_counts) | {
        topic: size
        for topic, size in partition_counts.items()
        if size.is_newer(head.partition_counts.get(topic))
    }


def rebalanced(
    head: GroupHead,
    members: Mapping[str, Member],
    partition_counts: Mapping[str, PartitionCount],
    strategies: Strategies,
) -> GroupHead:
    """The next generation of a group, with these members and partition counts of topics. Raises as
    `joined`.
    """
    generation = head.generation + 1
    # The last member has left. The committed offsets stay.
    if not members:
        return GroupHead(generation)
    protocol = chosen_protocol(members)
    known = _newest(head, partition_counts)
    topics = {name: matching(member.topics, known) for name, member in members.items()}
    kept = {
        topic: size
        for topic, size in known.items()
        if size.partitions and any(topic in of for of in topics.values())
    }
    counts = {topic: size.partitions for topic, size in kept.items()}
    owners = {
        (topic, partition): owner
        for (topic, partition), owner in head.owners.items()
        if owner.member_id in members and partition < counts.get(topic, 0)
    }
    owned: dict[str, list[Key]] = {name: [] for name in members}
    for key, owner in owners.items():
        owned[owner.member_id].append(key)
    subscriptions = [
        MemberSubscription(
            name, topics[name], tuple(sorted(owned[name])), head.generation, member.instance_id
        )
        for name, member in members.items()
    ]
    assignor = strategies.assignors.get(protocol) or ASSIGNORS.get(protocol)
    if assignor is None:  # a leaving member need not know what the others agree on
        assigned = {
            name: frozenset(
                key for key in head.assigned.get(name, ()) if key[1] < counts.get(key[0], 0)
            )
            for name in members
        }
        return GroupHead(generation, members, "", kept, assigned, owners)
    try:
        assigned = _checked(assignor(dict(counts), list(subscriptions)), counts, subscriptions)
    except Exception as error:  # it may be the user's own
        reason = f"the assignor {protocol!r} failed: {type(error).__name__}: {error}"
        raise KafkaException(KafkaError(KafkaError._FAIL, reason)) from error
    after = GroupHead(generation, members, protocol, kept, assigned, owners)
    return replace(after, owners=_handed_out(after, assigned, generation))


def _handed_out(
    head: GroupHead, assigned: Mapping[str, frozenset[Key]], generation: int
) -> dict[Key, Owner]:
    """The owners, with each partition without an owner given to the member that it is assigned
    to.
    """
    owners = dict(head.owners)
    for member_id, keys in assigned.items():
        for key in keys:
            owners.setdefault(key, Owner(member_id, generation))
    return owners


def _renamed(head: GroupHead, before: str, after: str, member: Member) -> GroupHead:
    """Replace a member by another one with the same place in the group."""
    return replace(
        head,
        members={
            after if name == before else name: member if name == before else m
            for name, m in head.members.items()
        },
        assigned={after if name == before else name: keys for name, keys in head.assigned.items()},
        owners={
            key: Owner(after, owner.since) if owner.member_id == before else owner
            for key, owner in head.owners.items()
        },
    )


def chosen_protocol(members: Mapping[str, Member]) -> str:
    """The assignor that all members support and most of them prefer. Rule: Kafka's
    `ClassicGroup.selectProtocol`.

    Raises KafkaException (INCONSISTENT_GROUP_PROTOCOL).
    """
    supported = {
        name: [protocol for protocol, _ in member.protocols] for name, member in members.items()
    }
    common = set.intersection(*map(set, supported.values()))
    types = {member.protocol_type for member in members.values()}
    if not common or len(types) > 1:
        raise KafkaException(
            KafkaError(
                KafkaError.INCONSISTENT_GROUP_PROTOCOL,
                "the members of the group have no partition.assignment.strategy in common: "
                + "; ".join(
                    f"{name}: {','.join(protocols)}" for name, protocols in supported.items()
                ),
            )
        )
    votes = Counter(next(name for name in names if name in common) for names in supported.values())
    return max(votes, key=lambda name: votes[name])


def _checked(
    assignment: Assignment, counts: Mapping[str, int], members: Iterable[MemberSubscription]
) -> dict[str, frozenset[Key]]:
    """An assignor's result. Raises ValueError if it is not valid."""
    topics = {member.member_id: member.topics for member in members}
    owner_of: dict[Key, str] = {}
    for member_id, keys in assignment.items():
        for topic, number in keys:
            key = topic, index(number)
            first = owner_of.setdefault(key, member_id)
            wrong = (
                f"{member_id!r} is no member"
                if member_id not in topics
                else f"{member_id!r} does not subscribe to {topic!r}"
                if topic not in topics[member_id]
                else f"{topic!r} has no partition {number}"
                if not 0 <= key[1] < counts.get(topic, 0)
                else f"{topic}[{number}] is assigned to {first!r} too"
                if first != member_id
                else ""
            )
            if wrong:
                raise ValueError(wrong)
    return {
        name: frozenset((topic, index(number)) for topic, number in assignment.get(name, ()))
        for name in topics
    }
