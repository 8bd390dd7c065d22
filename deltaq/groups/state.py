"""What a group's log says: who is a member, and which offsets are committed. Pure rules; `group_log` acts on them.

The specification is `docs/internals/format.md`, "Groups". Members stand in the domain metadata `deltaq`; each committed
offset is a Delta `txn` action whose `appId` names topic, topic id and partition and whose `version` is the next offset
to read, so that any Delta client can look it up.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deltaq.delta.actions import FORMAT, Action, DomainMetadata, Metadata, Txn
from deltaq.delta.table_state import DELTAQ_DOMAIN, FORGOTTEN_VERSION, PROTOCOL, TableState
from deltaq.errors import Corrupt, Fenced, GroupInUse, Incompatible, KafkaError
from deltaq.serde.json_text import compact_json, strict_json

__all__ = [
    "CommittedOffset",
    "GroupHead",
    "Member",
    "commit_actions",
    "committed_offset",
    "forget_actions",
    "forget_over_actions",
    "group_head",
    "in_use",
    "join_actions",
    "leave_actions",
]

METADATA_DOMAIN = "deltaq.offset_metadata"

# A Delta table must have a column, though a group never has a row.
_SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": "group", "type": "string", "nullable": True, "metadata": {}}]}
)


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of a group, and its `session.timeout.ms`: the silence after which others take it for dead."""

    topics: tuple[str, ...]
    client_id: str
    host: str
    session_timeout_ms: int

    @property
    def session_timeout_s(self) -> float:
        return self.session_timeout_ms / 1000


@dataclass(frozen=True, slots=True)
class GroupHead:
    """A group at one version. `generation` counts changes of membership."""

    generation: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)

    def action(self) -> DomainMetadata:
        """This head as domain metadata."""
        members = {
            name: {
                "topics": list(member.topics),
                "client": member.client_id,
                "host": member.host,
                "session": member.session_timeout_ms,
            }
            for name, member in self.members.items()
        }
        body = {"format": FORMAT, "generation": self.generation, "members": members}
        return DomainMetadata(DELTAQ_DOMAIN, compact_json(body))


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset to read of a partition, with the committer's note.

    `topic_id` keeps it from a later topic of that name.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    metadata: str | None = None

    @property
    def app_id(self) -> str:
        return f"{self.topic}/{self.topic_id}/{self.partition}"


def group_head(state: TableState, path: str) -> GroupHead:
    """The head in a table's state; an empty one for a group that was never used. Raises Corrupt, Incompatible."""
    configuration = state.domains.get(DELTAQ_DOMAIN)
    if configuration is None:
        return GroupHead()
    try:
        body = strict_json(configuration)
        if not isinstance(body, dict) or not isinstance(members := body["members"], dict):
            raise TypeError("not an object")
        if body.get("format") != FORMAT:
            raise Incompatible(
                f"group at {path!r} has format {body.get('format')!r}; this deltaq reads {FORMAT}. Upgrade deltaq."
            )
        parsed = {name: _member(member) for name, member in members.items()}
        return GroupHead(int(body["generation"]), parsed)
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"the group's members cannot be parsed: {error}", path=path, version=state.version) from error


def _member(body: dict[str, object]) -> Member:
    """Raises ValueError, KeyError, TypeError."""
    topics, session_ms = body["topics"], body["session"]
    if not isinstance(topics, list) or type(session_ms) is not int or session_ms <= 0:
        raise ValueError("a member's topics or its session are not what they can be")
    return Member(tuple(topics), str(body["client"]), str(body["host"]), session_ms)


def committed_offset(state: TableState, topic: str, topic_id: str, partition: int) -> CommittedOffset | None:
    """The committed offset of a partition; None if there is none for the topic with this id. Raises Corrupt."""
    key = CommittedOffset(topic, topic_id, partition, 0)
    txn = state.txns.get(key.app_id)
    if txn is not None and txn.version < 0:  # it would read as one of the OFFSET_ constants
        raise Corrupt(f"the committed offset {txn.version} is negative", path=key.app_id, version=state.version)
    return None if txn is None else replace(key, offset=txn.version, metadata=_notes(state).get(key.app_id))


def _notes(state: TableState) -> dict[str, str]:
    try:
        notes = strict_json(state.domains.get(METADATA_DOMAIN, "{}"))
    except ValueError as error:
        reason = f"the notes of committed offsets cannot be parsed: {error}"
        raise Corrupt(reason, path=METADATA_DOMAIN, version=state.version) from error
    return {str(key): str(text) for key, text in notes.items()} if isinstance(notes, dict) else {}


def _holder(member_id: str, member: Member) -> str:
    """Which consumer a member is, for an error text."""
    return f"consumer {member.client_id!r} on host {member.host!r} (member id {member_id!r})"


def in_use(group: str, member_id: str, member: Member) -> GroupInUse:
    """What a consumer is told that cannot join the group since another one lives in it."""
    return GroupInUse(
        group,
        reason=f"{_holder(member_id, member)} is subscribed with group.id {group!r}, and in this version of deltaq a "
        f"group has one member at a time. poll() joins once that consumer has closed or, if it dies, "
        f"{member.session_timeout_s:g} s later (its session.timeout.ms). To read now, use another group.id or assign()",
    )


def join_actions(
    state: TableState, head: GroupHead, group: str, member_id: str, member: Member, dead: Sequence[str], now_ms: int
) -> list[Action]:
    """`member_id` becomes the group's only member; those in `dead` are put out. GroupInUse if another one lives."""
    others = [other for other in head.members if other != member_id and other not in dead]
    if others:
        raise in_use(group, others[0], head.members[others[0]])
    after = GroupHead(head.generation + 1, {member_id: member})
    return [*_table(state, group, now_ms), after.action()]


def leave_actions(head: GroupHead, member_id: str) -> list[Action]:
    """`member_id` is no longer a member."""
    members = {other: member for other, member in head.members.items() if other != member_id}
    return [GroupHead(head.generation + 1, members).action()]


def commit_actions(
    state: TableState,
    head: GroupHead,
    group: str,
    member_id: str | None,
    offsets: Sequence[CommittedOffset],
    now_ms: int,
    dead: Collection[str] = (),
) -> list[Action]:
    """Commit `offsets` for a member, or with None for a consumer that assigns its partitions itself.

    The second puts out the members in `dead`. Raises Fenced if the member was put out of the group, or if a group with
    other members is to be written from outside.
    """
    _check_may_commit(head, group, member_id, dead)
    after_head = GroupHead(head.generation + 1) if member_id is None and head.members else head
    actions: list[Action] = [Txn(offset.app_id, offset.offset, now_ms) for offset in offsets]
    notes = _notes(state)
    after = {key: text for key, text in notes.items() if key not in {offset.app_id for offset in offsets}}
    after |= {offset.app_id: offset.metadata for offset in offsets if offset.metadata}
    if after != notes:
        actions.append(DomainMetadata(METADATA_DOMAIN, compact_json(after)))
    table = _table(state, group, now_ms)
    return [*table, after_head.action(), *actions] if table or after_head is not head else actions


def _check_may_commit(head: GroupHead, group: str, member_id: str | None, dead: Collection[str]) -> None:
    living = [(name, member) for name, member in head.members.items() if name not in dead]
    if (member_id is None and not living) or member_id in head.members:
        return
    if member_id is None:
        name, member = living[0]
        reason = (
            f"{_holder(name, member)} is subscribed with group.id {group!r}, so this consumer, which uses assign(), "
            f"cannot commit to that group: use another group.id, or close that consumer. If it has died, commits are "
            f"accepted from {member.session_timeout_s:g} s (its session.timeout.ms) after the first one was refused."
        )
    elif member_id:
        reason = f"this consumer is no longer a member of group {group!r}: it was silent for its session.timeout.ms"
    else:
        reason = f"this consumer is not a member of group {group!r}: commit once poll() has assigned partitions to it"
    raise Fenced(reason, code=KafkaError.UNKNOWN_MEMBER_ID, fatal=False)


def forget_actions(
    state: TableState, head: GroupHead, group: str, app_ids: Sequence[str] | None, dead: Sequence[str], now_ms: int
) -> list[Action]:
    """The committed offsets with these app ids (None: all) are forgotten; members in `dead` are put out.

    Raises GroupInUse if the group has other members: to them it would look as if they had never committed.
    """
    others = [(name, member) for name, member in head.members.items() if name not in dead]
    if others:
        reason = f"{_holder(*others[0])} is subscribed with group.id {group!r}, so its committed offsets stay"
        raise GroupInUse(group, reason=reason)
    actions = forget_over_actions(state, state.txns if app_ids is None else app_ids, now_ms)
    return [GroupHead(head.generation + 1, {}).action(), *actions] if head.members else actions


def forget_over_actions(state: TableState, app_ids: Iterable[str], now_ms: int) -> list[Action]:
    """The committed offsets with these app ids are forgotten. With members in the group, only those of topic ids that
    are no more: nobody can ask for them."""
    forgotten = [app_id for app_id in app_ids if app_id in state.txns]
    actions: list[Action] = [Txn(app_id, FORGOTTEN_VERSION, now_ms) for app_id in forgotten]
    notes = _notes(state)
    after = {key: text for key, text in notes.items() if key not in forgotten}
    if after != notes:
        actions.append(DomainMetadata(METADATA_DOMAIN, compact_json(after)))
    return actions


def _table(state: TableState, group: str, now_ms: int) -> list[Action]:
    """What a log's first entry must say."""
    if state.version >= 0:
        return []
    return [PROTOCOL, Metadata(f"group-{group}", _SCHEMA, {}, now_ms, name=group)]
