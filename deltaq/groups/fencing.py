"""What the log of a group refuses. Each check sees the head that the entry would follow, so no
clock decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from deltaq.delta.table_state import TableState
from deltaq.errors import Fenced, GroupInUse, KafkaError, KafkaException
from deltaq.groups.state import GroupHead, Key, Member, matching


@dataclass(frozen=True, slots=True)
class Claim:
    """On whose behalf an offset commit is made: a member, and the generation in which it read the
    records.
    """

    member_id: str
    generation: int
    instance_id: str | None = None


NO_MEMBER = Claim("", -1)
"""A claim with which every commit is refused: no member has an empty id."""


def check_may_commit(head: GroupHead, group: str, claim: Claim, keys: Iterable[Key]) -> None:
    """Raise Fenced unless the claim's member owns these partitions, and has owned them since the
    claim's generation.

    A partition without an owner may be committed by each member, as in Kafka.
    """
    if not claim.member_id:
        reason = (
            f"this consumer is not a member of group {group!r}: commit once poll() has assigned "
            "partitions to it"
        )
        raise Fenced(reason, code=KafkaError.UNKNOWN_MEMBER_ID, fatal=False)
    if claim.member_id not in head.members:
        raise not_a_member(head, group, claim.instance_id)
    for key in keys:
        owner = head.owners.get(key)
        if owner is not None and (
            owner.member_id != claim.member_id or claim.generation < owner.since
        ):
            topic, partition = key
            reason = (
                f"since generation {claim.generation}, in which this consumer read the records, "
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
    """Whether there is such a group: a group exists while it has members or committed offsets."""
    return bool(head.members or state.txns)


def check_there(state: TableState, head: GroupHead, group: str) -> None:
    """Raise KafkaException (GROUP_ID_NOT_FOUND) unless there is such a group."""
    if not is_there(state, head):
        reason = f"group {group!r} does not exist: it has no members and no committed offsets"
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
