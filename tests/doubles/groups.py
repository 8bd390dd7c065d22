"""Members of a group that a test writes into the group's log itself, without a consumer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from deltaq.clock import Clock
from deltaq.groups.log import GroupLog
from deltaq.groups.membership import Membership
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.rebalance import Strategies, joined, left, strategies
from deltaq.groups.session import MemberSettings, MemberTopics
from deltaq.groups.state import NO_MEMBER, GroupHead, Member, MemberIdentity, PartitionCount
from deltaq.store import Store

__all__ = [
    "FOREVER",
    "RANGE",
    "commit",
    "join",
    "leave",
    "new_member",
    "new_membership",
    "partition_counts",
    "topics",
]

FOREVER = float("inf")
RANGE = strategies(["range"])


def new_member(
    client_id: str = "killed", session_timeout_ms: int = 45_000, *names: str, **more: Any
) -> Member:
    """A member that subscribes to topic `t` and supports these assignors, by default `range`."""
    protocols = tuple((name, "") for name in names or ("range",))
    fields = {"topics": ("t",), "host": "host", "protocols": protocols} | more
    return Member(client_id=client_id, session_timeout_ms=session_timeout_ms, **fields)


def partition_counts(version: int = 0, **partitions: int) -> dict[str, PartitionCount]:
    """The sizes of topics, as read at one version of their logs."""
    return {topic: PartitionCount(number, version) for topic, number in partitions.items()}


def topics(version: int = 0, **partitions: int) -> MemberTopics:
    """A first subscription to these topics by name, with their sizes."""
    return MemberTopics(0, tuple(sorted(partitions)), partition_counts(version, **partitions))


def join(
    log: GroupLog,
    member_id: str,
    member: Member | None = None,
    gone: Collection[str] = (),
    known: Mapping[str, PartitionCount] | None = None,
    using: Strategies = RANGE,
) -> GroupHead:
    """Add a member, by default one of topic `t` with one partition, and remove those in `gone`."""
    return log.change(
        "JOIN",
        NO_MEMBER,
        lambda head: joined(
            head, member_id, member or new_member(), known or partition_counts(t=1), gone, using
        ),
        FOREVER,
    )


def leave(log: GroupLog, *member_ids: str) -> GroupHead:
    """Remove members, as another member does that takes them for dead."""
    return log.change("LEAVE", NO_MEMBER, lambda head: left(head, member_ids, RANGE), FOREVER)


def commit(log: GroupLog, member_id: str, *offsets: CommittedOffset) -> None:
    """Commit offsets on behalf of a member, in the newest generation."""
    log.commit(MemberIdentity(member_id, log.head().generation), offsets, FOREVER)


def new_membership(
    store: Store,
    clock: Clock,
    member: Member,
    heartbeat_interval_s: float = 3,
    max_poll_interval_s: float = 1e9,
) -> Membership:
    """The membership of a consumer that does not poll, in group `g`; it knows topic `t` with two
    partitions.
    """
    settings = MemberSettings(
        store, GroupLog(store, "g", clock), member, RANGE, heartbeat_interval_s, clock
    )
    made = Membership(settings, max_poll_interval_s, lambda: None)
    made.set_topics(topics(t=2))
    return made
