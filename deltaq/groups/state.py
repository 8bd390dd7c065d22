"""The membership of a group, as its log holds it: members, their assignment, and who owns each
partition.

The specification is `docs/internals/format.md`, "Groups". The domain metadata `deltaq` of the
group's table holds the whole membership. `groups/rebalance.py` computes how it changes,
`groups/offsets.py` has the committed offsets.

What the log of a group refuses follows from the membership, too. Each check sees the head that the
entry would follow, so no clock decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from deltaq.config.client_table import PARTITIONS_MAX
from deltaq.delta.actions import DomainMetadata
from deltaq.delta.table_state import DELTAQ_DOMAIN, TableState
from deltaq.errors import (
    Corrupt,
    Fenced,
    GroupInUse,
    Incompatible,
    InvalidConfig,
    KafkaError,
    KafkaException,
)
from deltaq.names import check_id, check_topic
from deltaq.serde.json_text import compact_json, strict_json

GROUP_FORMAT = 2
"""The format of a group's membership. Format 1 knew one member, which owned all partitions of its
topics.
"""

PROTOCOL_TYPE = "consumer"

SHARE_FORMAT = 3
"""The format of a share group: `deltaq/share_groups/`. Clients that know none refuse it."""

SHARE_TYPE = "share"

TRANSACTIONS_DOMAIN = "deltaq.transactions"
"""The domain metadata of the offsets that were sent to transactions."""

Key: TypeAlias = "tuple[str, int]"
"""A topic's name and a partition's number."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group. It counts as dead after `session_timeout_ms` without a heartbeat.

    `topics` are names and, with `^`, regular expressions. `protocols` are the assignors that the
    member supports, the preferred one first, each with opaque metadata as base64 text. `assignment`
    is opaque too; only clients of another `protocol_type` use it. `heartbeat` is the name of the
    heartbeat object, which several members of one process may share. `joined` is the generation in
    which the member joined.
    """

    topics: tuple[str, ...]
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int = 0
    instance_id: str | None = None
    protocols: tuple[tuple[str, str], ...] = ()
    protocol_type: str = PROTOCOL_TYPE
    assignment: str = ""
    heartbeat: str = ""
    joined: int = 0

    @property
    def session_timeout_s(self) -> float:
        return self.session_timeout_ms / 1000


@dataclass(frozen=True, slots=True)
class Owner:
    """The member that owns a partition, and the generation in which it became the owner."""

    member_id: str
    since: int


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """A topic's number of partitions, 0 if it does not exist, as a member read it at `version` of
    the topic's log.

    `created_ms` is when the topic's table was created. It orders the partition counts of two tables
    if the folder of the first one was removed by hand: then the versions of the second one begin at
    0 again.
    """

    partitions: int
    version: int = -1
    created_ms: int = 0

    def is_newer(self, than: PartitionCount | None) -> bool:
        """Whether this size was read at a later time of the topic than the other one. False for the
        same version.
        """
        return than is None or self.version > than.version or self.created_ms > than.created_ms


@dataclass(frozen=True, slots=True)
class GroupHead:
    """A group at one version. `generation` counts rebalances.

    `partition_counts` has the topics that exist and that a member subscribes to, `assigned` what
    each member shall have, and `owners` what each has: only the owner of a partition may commit its
    offsets. A partition that is assigned to a member and owned by another one moves as soon as the
    owner releases it.
    """

    generation: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)
    protocol: str = ""
    partition_counts: Mapping[str, PartitionCount] = field(default_factory=dict)
    assigned: Mapping[str, frozenset[Key]] = field(default_factory=dict)
    owners: Mapping[Key, Owner] = field(default_factory=dict)
    format: int = GROUP_FORMAT

    @property
    def partitions(self) -> dict[str, int]:
        """The number of partitions of each topic in `partition_counts`."""
        return {topic: size.partitions for topic, size in self.partition_counts.items()}

    @property
    def leader(self) -> str | None:
        """The oldest member, which watches the heartbeats of all others."""
        return min(
            self.members,
            key=lambda member_id: (self.members[member_id].joined, member_id),
            default=None,
        )

    def owned(self, member_id: str) -> frozenset[Key]:
        """The partitions that a member owns."""
        return frozenset(key for key, owner in self.owners.items() if owner.member_id == member_id)

    def to_release(self, member_id: str) -> frozenset[Key]:
        """The partitions that a member owns and is not assigned."""
        return self.owned(member_id) - self.assigned.get(member_id, frozenset())

    def is_stable(self) -> bool:
        """Whether each partition that is assigned is owned by the member that it is assigned to,
        and no other is.
        """
        assigned = {key: member_id for member_id, keys in self.assigned.items() for key in keys}
        return assigned == {key: owner.member_id for key, owner in self.owners.items()}

    def instance(self, instance_id: str | None) -> str | None:
        """The member with this `group.instance.id`, if there is one."""
        if instance_id is None:
            return None
        return next(
            (name for name, member in self.members.items() if member.instance_id == instance_id),
            None,
        )

    def action(self) -> DomainMetadata:
        """This head as domain metadata."""
        owned: dict[str, dict[str, list[list[int]]]] = {}
        for (topic, partition), owner in sorted(self.owners.items()):
            owned.setdefault(owner.member_id, {}).setdefault(topic, []).append(
                [partition, owner.since]
            )
        members = {
            member_id: _member_body(
                member, self.assigned.get(member_id, frozenset()), owned.get(member_id, {})
            )
            for member_id, member in self.members.items()
        }
        body = {
            "format": GROUP_FORMAT,
            "generation": self.generation,
            "protocolType": PROTOCOL_TYPE,
            "protocol": self.protocol,
            "leader": self.leader,
            "partitions": {
                topic: [size.partitions, size.version, size.created_ms]
                for topic, size in self.partition_counts.items()
            },
            "members": members,
        }
        return DomainMetadata(DELTAQ_DOMAIN, compact_json(body))


def _member_body(
    member: Member, assigned: Iterable[Key], owned: Mapping[str, Sequence[Sequence[int]]]
) -> dict[str, object]:
    return {
        "topics": list(member.topics),
        "client": member.client_id,
        "host": member.host,
        "session": member.session_timeout_ms,
        "rebalance": member.rebalance_timeout_ms,
        "instance": member.instance_id,
        "protocolType": member.protocol_type,
        "protocols": dict(member.protocols),
        "assignment": member.assignment,
        "heartbeat": member.heartbeat,
        "joined": member.joined,
        "assigned": by_topic(assigned),
        "owned": owned,
    }


def by_topic(keys: Iterable[Key]) -> dict[str, list[int]]:
    """The partition numbers of each topic, sorted."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(keys):
        found.setdefault(topic, []).append(partition)
    return found


def group_head(state: TableState, path: str) -> GroupHead:
    """The group's head in a table state; an empty one for a new group. Raises Corrupt,
    Incompatible, and KafkaException (INCONSISTENT_GROUP_PROTOCOL) for a share group.
    """
    configuration = state.domains.get(DELTAQ_DOMAIN)
    if configuration is None:
        return GroupHead()
    if is_share_group(state):
        reason = f"{path!r} is a share group: read it with a ShareConsumer, or use another group.id"
        raise KafkaException(KafkaError(KafkaError.INCONSISTENT_GROUP_PROTOCOL, reason))
    try:
        return parse_head(configuration, path)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidConfig) as error:
        raise Corrupt(
            f"the group's members cannot be parsed: {error}", path=path, version=state.version
        ) from error


def is_share_group(state: TableState) -> bool:
    """Whether the log is that of a share group, of this format or a later one."""
    try:
        body = strict_json(state.domains.get(DELTAQ_DOMAIN, "{}"))
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("type") == SHARE_TYPE


@lru_cache(maxsize=64)
def parse_head(configuration: str, path: str) -> GroupHead:
    """Parse the domain metadata of a group. Raises Incompatible, ValueError, KeyError, TypeError,
    AttributeError, and InvalidConfig for a name that would lead out of its folder.
    """
    body = strict_json(configuration)
    if not isinstance(body, dict) or not isinstance(body["members"], dict):
        raise TypeError("not an object")
    found = body.get("format")
    if type(found) is not int or not 1 <= found <= GROUP_FORMAT:
        raise Incompatible(
            f"group at {path!r} has format {found!r}; this deltaq reads {GROUP_FORMAT}. Upgrade "
            "deltaq."
        )
    members = {_object_name(name): _member(member) for name, member in body["members"].items()}
    owned = [entry for name, member in body["members"].items() for entry in _owned(name, member)]
    owners = dict(owned)
    if len(owners) < len(owned):
        raise ValueError("a partition has two owners")
    return GroupHead(
        int(body["generation"]),
        members,
        str(body.get("protocol", "")),
        {topic: _size(*size) for topic, size in _of_topics(body, "partitions")},
        {name: _assigned(member) for name, member in body["members"].items()},
        owners,
        found,
    )


def _member(body: dict[str, Any]) -> Member:
    topics, session_ms = body["topics"], body["session"]
    if not isinstance(topics, list) or type(session_ms) is not int or session_ms <= 0:
        raise ValueError(
            "a member's topics are not a list, or its session time-out is not a positive integer"
        )
    try:
        matching(topics, ())
    except (re.error, AttributeError) as error:
        raise ValueError(
            f"a member's topics are neither names nor regular expressions: {topics!r}"
        ) from error
    instance = body.get("instance")
    return Member(
        tuple(topics),
        str(body["client"]),
        str(body["host"]),
        session_ms,
        int(body.get("rebalance", session_ms)),
        None if instance is None else str(instance),
        tuple((str(name), str(metadata)) for name, metadata in body.get("protocols", {}).items()),
        str(body.get("protocolType", PROTOCOL_TYPE)),
        str(body.get("assignment", "")),
        _object_name(heartbeat) if (heartbeat := body.get("heartbeat", "")) else "",
        int(body.get("joined", 0)),
    )


def _object_name(name: object) -> str:
    """A member id or the name of a heartbeat object: either becomes the last part of a key."""
    return check_id(name, "member id")


def _count(count: object, most: float = float("inf")) -> int:
    if type(count) is not int or not 0 <= count <= most:
        raise ValueError(f"{count!r} is not a number from 0 to {most}")
    return count


def _size(partitions: object, version: object, created_ms: object) -> PartitionCount:
    return PartitionCount(_count(partitions, PARTITIONS_MAX), _count(version), _count(created_ms))


def _assigned(body: dict[str, Any]) -> frozenset[Key]:
    return frozenset(
        (topic, _count(partition))
        for topic, numbers in _of_topics(body, "assigned")
        for partition in numbers
    )


def _owned(member_id: str, body: dict[str, Any]) -> Iterable[tuple[Key, Owner]]:
    for topic, numbers in _of_topics(body, "owned"):
        for partition, since in numbers:
            yield (topic, _count(partition)), Owner(member_id, _count(since))


def _of_topics(body: dict[str, Any], field: str) -> Iterable[tuple[str, Any]]:
    """The items of a field that is an object from topic to anything."""
    return ((check_topic(topic), found) for topic, found in body.get(field, {}).items())


def matching(topics: Sequence[str], existing: Iterable[str]) -> frozenset[str]:
    """The existing topics that a subscription names or, with `^`, matches."""
    names = {topic for topic in topics if not topic.startswith("^")}
    patterns = [re.compile(topic) for topic in topics if topic.startswith("^")]
    return frozenset(
        topic for topic in existing if topic in names or any(p.search(topic) for p in patterns)
    )


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """On whose behalf an offset commit is made: a member, and the generation in which it read the
    records.
    """

    member_id: str
    generation: int
    instance_id: str | None = None


NO_MEMBER = MemberIdentity("", -1)
"""With this identity every commit is refused: no member has an empty id."""


def check_may_commit(
    head: GroupHead, group: str, identity: MemberIdentity, keys: Iterable[Key]
) -> None:
    """Raise Fenced unless the member owns these partitions, and has owned them since the generation
    that its identity names.

    A partition without an owner may be committed by each member, as in Kafka.
    """
    if not identity.member_id:
        reason = (
            f"this consumer is not a member of group {group!r}: commit once poll() has assigned "
            "partitions to it"
        )
        raise Fenced(reason, code=KafkaError.UNKNOWN_MEMBER_ID, fatal=False)
    if identity.member_id not in head.members:
        raise not_a_member(head, group, identity.instance_id)
    for key in keys:
        owner = head.owners.get(key)
        if owner is not None and (
            owner.member_id != identity.member_id or identity.generation < owner.since
        ):
            topic, partition = key
            reason = (
                f"since generation {identity.generation}, in which this consumer read the records, "
                f"{topic}[{partition}] was given to another member of group {group!r}"
            )
            raise Fenced(reason, code=KafkaError.ILLEGAL_GENERATION, fatal=False)


def not_a_member(head: GroupHead, group: str, instance_id: str | None) -> Fenced:
    """The error of a consumer that is no longer a member."""
    if head.instance(instance_id) is not None:
        reason = (
            f"another consumer has joined group {group!r} with the same group.instance.id "
            f"{instance_id!r}"
        )
        return Fenced(reason, code=KafkaError.FENCED_INSTANCE_ID, fatal=True)
    reason = (
        f"this consumer was removed from group {group!r}: it sent no heartbeat for its "
        "session.timeout.ms"
    )
    return Fenced(reason, code=KafkaError.UNKNOWN_MEMBER_ID, fatal=False)


def check_no_members(head: GroupHead, group: str, dead: Collection[str]) -> None:
    """Raise Fenced if the group has members that are not `dead`: only they may commit."""
    for member_id, member in _living(head, dead):
        reason = (
            f"{_named(member_id, member)} is subscribed with group.id {group!r}, so this consumer, "
            "which uses assign(), cannot commit to that group: use another group.id, or close "
            f"that consumer. If it has died, commits are accepted {member.session_timeout_s:g} s "
            "(its session.timeout.ms) after the first refusal."
        )
        raise Fenced(reason, code=KafkaError.UNKNOWN_MEMBER_ID, fatal=False)


def check_not_in_use(head: GroupHead, group: str, dead: Collection[str]) -> None:
    """Raise GroupInUse if the group has members that are not `dead`: they would lose their
    commits.
    """
    for member_id, member in _living(head, dead):
        reason = (
            f"{_named(member_id, member)} is subscribed with group.id {group!r}, so its committed "
            "offsets stay"
        )
        raise GroupInUse(group, reason=reason)


def is_there(state: TableState, head: GroupHead) -> bool:
    """Whether there is such a group: a group exists while it has members or offsets, committed or
    sent to a transaction.
    """
    return bool(head.members or state.txns or has_pending_offsets(state))


def has_pending_offsets(state: TableState) -> bool:
    """Whether transactions that have not ended have offsets of the group."""
    return state.domains.get(TRANSACTIONS_DOMAIN, "{}") != "{}"


def check_there(state: TableState, head: GroupHead, group: str) -> None:
    """Raise KafkaException (GROUP_ID_NOT_FOUND) unless there is such a group."""
    if not is_there(state, head):
        reason = f"group {group!r} does not exist: it has no members and no offsets"
        raise KafkaException(KafkaError(KafkaError.GROUP_ID_NOT_FOUND, reason))


def subscribed(
    head: GroupHead, topics: Iterable[str], dead: Collection[str] = ()
) -> frozenset[str]:
    """Those of the topics to which members that are not `dead` subscribe."""
    listed = frozenset(topics)
    living = [member.topics for name, member in head.members.items() if name not in dead]
    return frozenset().union(*(matching(wanted, listed) for wanted in living))


def _living(head: GroupHead, dead: Collection[str]) -> list[tuple[str, Member]]:
    return [
        (member_id, member) for member_id, member in head.members.items() if member_id not in dead
    ]


def _named(member_id: str, member: Member) -> str:
    return f"consumer {member.client_id!r} on host {member.host!r} (member id {member_id!r})"
