"""The state of a group in its log: its member and committed offsets. Pure functions; `groups/log.py` commits.

The specification is `docs/internals/format.md`, "Groups". The domain metadata `deltaq` holds the members. A committed
offset is a Delta `txn` action: its `appId` names topic, topic id and partition, and its `version` is the next offset
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

METADATA_DOMAIN = "deltaq.offset_metadata"

# A Delta table must have a column, though a group never has a row.
_SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": "group", "type": "string", "nullable": True, "metadata": {}}]}
)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group. It counts as dead after `session_timeout_ms` without a heartbeat."""

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
    """The next offset to read of a partition of the topic with `topic_id`, and the commit's metadata text."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    metadata: str | None = None

    @property
    def app_id(self) -> str:
        return f"{self.topic}/{self.topic_id}/{self.partition}"


def group_head(state: TableState, path: str) -> GroupHead:
    """The group's head in a table state; an empty one for a new group. Raises Corrupt, Incompatible."""
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
        raise ValueError("a member's topics are not a list, or its session time-out is not a positive integer")
    return Member(tuple(topics), str(body["client"]), str(body["host"]), session_ms)


def committed_offset(state: TableState, topic: str, topic_id: str, partition: int) -> CommittedOffset | None:
    """The committed offset of a partition; None if there is none for the topic with this id. Raises Corrupt."""
    key = CommittedOffset(topic, topic_id, partition, 0)
    txn = state.txns.get(key.app_id)
    if txn is not None and txn.version < 0:  # it would be read as an OFFSET_ constant
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
    """A member's client id, host and member id, for an error text."""
    return f"consumer {member.client_id!r} on host {member.host!r} (member id {member_id!r})"


def in_use(group: str, member_id: str, member: Member) -> GroupInUse:
    """The error of a consumer that cannot join the group because another member is alive."""
    return GroupInUse(
        group,
        reason=f"{_holder(member_id, member)} is subscribed with group.id {group!r}, and in this version of deltaq a "
        f"group has one member at a time. poll() joins once that consumer has closed or, if it dies, "
        f"{member.session_timeout_s:g} s later (its session.timeout.ms). To read now, use another group.id or assign()",
    )


def join_actions(
    state: TableState, head: GroupHead, group: str, member_id: str, member: Member, dead: Sequence[str], now_ms: int
) -> list[Action]:
    """Make `member_id` the only member, removing those in `dead`. Raises GroupInUse if there is another member."""
    others = [other for other in head.members if other != member_id and other not in dead]
    if others:
        raise in_use(group, others[0], head.members[others[0]])
    after = GroupHead(head.generation + 1, {member_id: member})
    return [*_table(state, group, now_ms), after.action()]


def leave_actions(head: GroupHead, member_id: str) -> list[Action]:
    """Remove the member `member_id`."""
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
    """Commit `offsets` for a member; with `member_id` None for a consumer that uses `assign`, which removes the members
    in `dead`. Raises Fenced for a `member_id` that is no member, or without one if the group has a living member."""
    _check_may_commit(head, group, member_id, dead)
    after_head = GroupHead(head.generation + 1) if member_id is None and head.members else head
    txns = {offset.app_id: offset.offset for offset in offsets}
    notes = {offset.app_id: offset.metadata for offset in offsets if offset.metadata}
    actions = _offset_actions(state, txns, notes, now_ms)
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
    """Delete the committed offsets with these app ids (None: all), and remove the members in `dead`. Raises GroupInUse
    if the group has other members, which would lose their commits."""
    others = [(name, member) for name, member in head.members.items() if name not in dead]
    if others:
        reason = f"{_holder(*others[0])} is subscribed with group.id {group!r}, so its committed offsets stay"
        raise GroupInUse(group, reason=reason)
    actions = forget_over_actions(state, state.txns if app_ids is None else app_ids, now_ms)
    return [GroupHead(head.generation + 1, {}).action(), *actions] if head.members else actions


def forget_over_actions(state: TableState, app_ids: Iterable[str], now_ms: int) -> list[Action]:
    """Delete the committed offsets with these app ids. Where the group has members, no consumer may read them."""
    forgotten = {app_id: FORGOTTEN_VERSION for app_id in app_ids if app_id in state.txns}
    return _offset_actions(state, forgotten, {}, now_ms)


def _offset_actions(state: TableState, txns: Mapping[str, int], notes: dict[str, str], now_ms: int) -> list[Action]:
    """Set the versions of app ids, and replace their metadata texts by `notes`."""
    actions: list[Action] = [Txn(app_id, version, now_ms) for app_id, version in txns.items()]
    before = _notes(state)
    after = {app_id: text for app_id, text in before.items() if app_id not in txns} | notes
    if after != before:
        actions.append(DomainMetadata(METADATA_DOMAIN, compact_json(after)))
    return actions


def _table(state: TableState, group: str, now_ms: int) -> list[Action]:
    """The protocol and metadata actions of a log's first entry; none for a log that exists."""
    if state.version >= 0:
        return []
    return [PROTOCOL, Metadata(f"group-{group}", _SCHEMA, {}, now_ms, name=group)]
