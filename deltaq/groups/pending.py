"""Offsets that a member asks the group's leader to commit. They are part of its heartbeat object.

The leader reads the heartbeats of all members anyway, and commits what it finds in one entry: so the commits of a large
group neither compete for the slots of its log nor make each member read as many entries as there are members.
`docs/decisions/0031-offsets-in-heartbeats.md` has the reasons.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from deltaq.delta.table_state import TableState
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.state import GroupHead
from deltaq.serde.json_text import compact_json, strict_json

PENDING_MAX = 1_000
"""Most offsets in one heartbeat object, some 100 KB. A member with more of them commits itself."""


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """Offsets of a member that read the records in `generation`. They are void in any other generation, and each one
    once the group's log has another offset of its partition in an entry after version `after`."""

    member_id: str
    generation: int
    after: int
    offsets: tuple[CommittedOffset, ...]


def heartbeat_content(beat: int, pending: PendingOffsets | None) -> bytes:
    """The content of a heartbeat object: a number that differs each time, and pending offsets."""
    if pending is None:
        return b"%d" % beat
    offsets = {offset.app_id: [offset.offset, offset.metadata] for offset in pending.offsets}
    body = {"generation": pending.generation, "after": pending.after, "offsets": offsets}
    return b"%d %s" % (beat, compact_json({pending.member_id: body}).encode())


def parse_pending(content: bytes | None, member_ids: Collection[str]) -> list[PendingOffsets]:
    """The pending offsets of these members in the content of a heartbeat object; none if it cannot be parsed."""
    _, _, text = (content or b"").partition(b" ")
    if not text:
        return []
    try:
        body = strict_json(text)
        if not isinstance(body, dict):
            raise TypeError("not an object")
        return [_parsed(member_id, of) for member_id, of in body.items() if member_id in member_ids]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _parsed(member_id: str, body: Mapping[str, object]) -> PendingOffsets:
    offsets = body["offsets"]
    if not isinstance(offsets, dict):
        raise TypeError("the offsets are not an object")
    found = [_offset(app_id, *entry) for app_id, entry in offsets.items()]
    return PendingOffsets(member_id, _number(body["generation"]), _number(body["after"]), tuple(found))


def _offset(app_id: str, offset: object, metadata: object) -> CommittedOffset:
    topic, topic_id, partition = app_id.split("/")
    if metadata is not None and not isinstance(metadata, str):
        raise TypeError("the metadata of an offset is not a text")
    return CommittedOffset(topic, topic_id, int(partition), _number(offset), metadata)


def _number(value: object) -> int:
    if type(value) is not int or value < -1:
        raise ValueError(f"{value!r} is not a number")
    return value


def acceptable(state: TableState, head: GroupHead, pending: Iterable[PendingOffsets]) -> list[CommittedOffset]:
    """Those of the pending offsets that may be committed after `state`, without those that are committed already.

    The check is stricter than that of an own commit, because a leader may act late on an old heartbeat: the group must
    not have begun another generation, in which the member may have started again from the committed offset, nor may it
    have committed another offset of the partition.
    """
    found = []
    for of_member in pending:
        for offset in of_member.offsets:
            owner = head.owners.get((offset.topic, offset.partition))
            if owner is None or owner.member_id != of_member.member_id or of_member.generation != head.generation:
                continue
            committed = state.txns.get(offset.app_id)
            is_new = committed is None or committed.version != offset.offset
            if is_new and offset.offset >= 0 and state.txn_slots.get(offset.app_id, -1) <= of_member.after:
                found.append(offset)
    return found
