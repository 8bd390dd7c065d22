"""Requests and results of the calls about consumer groups, with the names and attributes of
confluent-kafka. No I/O.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deltaq.admin.calls import OrderedEnum, check_partition
from deltaq.delta.table_state import TableState
from deltaq.errors import KafkaError, KafkaException
from deltaq.groups.state import PROTOCOL_TYPE, GroupHead, Key, Member, is_there
from deltaq.groups.transaction_offsets import transaction_offsets
from deltaq.message import OFFSET_INVALID, TopicPartition
from deltaq.metadata import BrokerMetadata, Node
from deltaq.names import group_folder


class ConsumerGroupState(OrderedEnum):
    """Kafka's states of a group.

    deltaq uses four: STABLE, PREPARING_REBALANCING while a partition waits for its owner to release
    it, EMPTY without members, and DEAD for a group that does not exist.
    """

    UNKNOWN = 0
    UNKOWN = UNKNOWN  # Kafka's misspelt alias
    PREPARING_REBALANCING = 1
    COMPLETING_REBALANCING = 2
    STABLE = 3
    DEAD = 4
    EMPTY = 5


class ConsumerGroupType(OrderedEnum):
    """Kafka's types of a group. A deltaq group is CLASSIC, whatever `group.protocol` its members
    have.
    """

    UNKNOWN = 0
    CONSUMER = 1
    CLASSIC = 2


@dataclass(slots=True)
class ConsumerGroupTopicPartitions:
    """A group and some of its partitions: with offsets in a result and in a request to alter
    them.
    """

    group_id: str
    topic_partitions: list[TopicPartition] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupListing:
    """A group in a list. `is_simple_consumer_group`: the group has committed offsets, but never had
    a member.
    """

    group_id: str
    is_simple_consumer_group: bool
    state: ConsumerGroupState
    type: ConsumerGroupType = ConsumerGroupType.CLASSIC


@dataclass(frozen=True, slots=True)
class ListConsumerGroupsResult:
    """The groups that could be read, and why others could not."""

    valid: list[ConsumerGroupListing] = field(default_factory=list)
    errors: list[KafkaException] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The partitions of a member."""

    topic_partitions: list[TopicPartition] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group.

    `assignment` has the partitions that it owns: only it may commit their offsets.
    `target_assignment` is None unless the member is to have others, which it gets when their owners
    release them.
    """

    member_id: str
    client_id: str
    host: str
    assignment: MemberAssignment
    group_instance_id: str | None = None
    target_assignment: MemberAssignment | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """A group and its members. `partition_assignor` is empty in a group without members.

    The coordinator is the synthetic broker: a group needs none. A group whose members have all died
    is STABLE until a consumer or the admin client finds them dead.
    """

    group_id: str
    is_simple_consumer_group: bool
    members: list[MemberDescription]
    partition_assignor: str
    state: ConsumerGroupState
    coordinator: Node
    authorized_operations: None = None
    type: ConsumerGroupType = ConsumerGroupType.CLASSIC


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group in the result of `list_groups`.

    `metadata` and `assignment` are what the member has stored for its assignor: no bytes for a
    deltaq consumer.
    """

    id: str
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group in the result of `list_groups`. `state` has Kafka's names, such as
    `PreparingRebalance`.
    """

    broker: BrokerMetadata
    id: str
    error: KafkaError | None
    state: str
    protocol_type: str
    protocol: str
    members: list[GroupMember]

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in one partition.

    `committed` is the committed offset; None if there is none. `lag` is `end_offset - committed`,
    and not below 0. Without a committed offset it is 0 in a partition without records, and
    otherwise None: where a consumer begins depends on its `auto.offset.reset`. A committed offset
    below `start_offset` means that records were removed before the group has read them. The member
    is the one that owns the partition; None if there is none.
    """

    topic: str
    partition: int
    committed: int | None
    start_offset: int
    end_offset: int
    lag: int | None
    member_id: str | None
    client_id: str | None
    host: str | None


@dataclass(frozen=True, slots=True)
class PendingOffset:
    """An offset that was sent to a transaction. It counts once that is committed."""

    topic: str
    partition: int
    offset: int
    transactional_id: str


@dataclass(frozen=True, slots=True)
class ConsumerGroupLag:
    """How far a group is behind: all partitions of the topics that it has committed offsets of or
    subscribes to, sorted. `pending` are the offsets that open transactions hold.
    """

    group_id: str
    state: ConsumerGroupState
    partitions: list[PartitionLag]
    pending: list[PendingOffset] = field(default_factory=list)

    @property
    def lag(self) -> int | None:
        """The total over all partitions; None if that of one is not known, or if there are none."""
        return total_lag(self.partitions)


def total_lag(partitions: Sequence[PartitionLag]) -> int | None:
    """The total over partitions; None if that of one is not known, or if there are none."""
    known = [partition.lag for partition in partitions if partition.lag is not None]
    return sum(known) if known and len(known) == len(partitions) else None


_OLD_STATES = {
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.EMPTY: "Empty",
    ConsumerGroupState.DEAD: "Dead",
}


def state_of(state: TableState, head: GroupHead) -> ConsumerGroupState:
    """The state of a group."""
    if not is_there(state, head):
        return ConsumerGroupState.DEAD
    if not head.members:
        return ConsumerGroupState.EMPTY
    return (
        ConsumerGroupState.STABLE if head.is_stable() else ConsumerGroupState.PREPARING_REBALANCING
    )


def listing(group: str, state: TableState, head: GroupHead) -> ConsumerGroupListing:
    """A group for a list."""
    return ConsumerGroupListing(group, not head.generation, state_of(state, head))


def description(
    group: str, state: TableState, head: GroupHead, node: Node
) -> ConsumerGroupDescription:
    """A group and its members."""
    members = [_described(head, name, member) for name, member in sorted(head.members.items())]
    return ConsumerGroupDescription(
        group, not head.generation, members, head.protocol, state_of(state, head), node
    )


def pending_offsets(group: str, state: TableState) -> list[PendingOffset]:
    """The offsets of a group that transactions hold, sorted. Raises Corrupt."""
    pending = transaction_offsets(state, group_folder(group))
    found = [
        PendingOffset(offset.topic, offset.partition, offset.offset, transactional_id)
        for transactional_id, of in pending.items()
        for offset in of.offsets
    ]
    return sorted(found, key=lambda offset: (offset.topic, offset.partition))


def _described(head: GroupHead, name: str, member: Member) -> MemberDescription:
    owned, assigned = head.owned(name), head.assigned.get(name, frozenset())
    target = None if owned == assigned else MemberAssignment(_listed(assigned))
    return MemberDescription(
        name,
        member.client_id,
        member.host,
        MemberAssignment(_listed(owned)),
        member.instance_id,
        target,
    )


def _listed(keys: Iterable[Key]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition, OFFSET_INVALID) for topic, partition in sorted(keys)]


def group_metadata(
    group: str, state: TableState, head: GroupHead, broker: BrokerMetadata
) -> GroupMetadata:
    """A group for `list_groups`."""
    protocol_type = next((member.protocol_type for member in head.members.values()), PROTOCOL_TYPE)
    members = [
        GroupMember(
            name,
            member.client_id,
            member.host,
            base64.b64decode(dict(member.protocols).get(head.protocol, "")),
            base64.b64decode(member.assignment),
        )
        for name, member in sorted(head.members.items())
    ]
    old_state = _OLD_STATES[state_of(state, head)]
    return GroupMetadata(broker, group, None, old_state, protocol_type, head.protocol, members)


def check_groups(group_ids: object, what: str) -> list[str]:
    """The group ids of a request. Raises TypeError, ValueError."""
    if not isinstance(group_ids, list):
        raise TypeError(f"Expected input to be list of group ids to be {what}")
    if not group_ids:
        raise ValueError(f"Expected at least one group to be {what}")
    for group in group_ids:
        if not isinstance(group, str):
            raise TypeError(f"a group id must be str, not {type(group).__name__}")
    return group_ids


def check_filter(wanted: object, kind: type[OrderedEnum], name: str) -> None:
    """Raise TypeError for what is neither None nor a set of `kind`."""
    if wanted is not None and not isinstance(wanted, set):
        raise TypeError(f"'{name}' must be a set")
    for value in wanted or ():
        if not isinstance(value, kind):
            raise TypeError(f"All elements of {name} must be of type {kind.__name__}")


def check_offsets(request: object, verb: str, *, has_offsets: bool) -> ConsumerGroupTopicPartitions:
    """The request for one group, whose partitions have an offset each or none. Raises TypeError,
    ValueError.
    """
    if not isinstance(request, list):
        raise TypeError("request must be a list")
    if len(request) != 1:
        raise ValueError(f"Currently we support {verb} offsets for a single consumer group only")
    (asked,) = request
    if not isinstance(asked, ConsumerGroupTopicPartitions):
        raise TypeError("Expected list of 'ConsumerGroupTopicPartitions'")
    if not isinstance(asked.group_id, str):
        raise TypeError("'group_id' must be a string")
    if not asked.group_id:
        raise ValueError("'group_id' cannot be empty")
    partitions = asked.topic_partitions
    if partitions is None:
        return asked
    if not isinstance(partitions, list):
        raise TypeError("'topic_partitions' must be a list or None")
    if not partitions:
        raise ValueError("'topic_partitions' cannot be empty")
    for partition in partitions:
        check_partition(partition)
        if has_offsets and partition.offset < 0:
            raise ValueError(
                "Element of 'topic_partitions' must not have negative value for 'offset' field"
            )
        if has_offsets and partition.offset >= 2**63:
            raise ValueError(
                "Element of 'topic_partitions' must have a value below 2^63 for 'offset' field"
            )
        if not has_offsets and partition.offset != OFFSET_INVALID:
            raise ValueError("Element of 'topic_partitions' must not have 'offset' value")
    return asked


def named_partitions(asked: ConsumerGroupTopicPartitions) -> list[TopicPartition]:
    """The partitions of a request that has to name them. Raises ValueError."""
    if asked.topic_partitions is None:
        raise ValueError("'topic_partitions' cannot be null")
    return asked.topic_partitions
