"""Offsets that a member asks the group's leader to commit. They are part of its heartbeat object.

The leader reads the heartbeats of all members anyway, and commits what it finds in one entry. So
the commits of a large group neither compete for the slots of its log nor make each member read as
many entries as there are members. `docs/decisions/0031-offsets-in-heartbeats.md` has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from deltaq import names
from deltaq.delta.table_state import TableState
from deltaq.errors import InvalidConfig
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.state import GroupHead
from deltaq.serde.json_text import compact_json, strict_json

PENDING_BYTES_MAX = 100_000
"""Most bytes of offsets in one heartbeat object, those of a thousand partitions. A member with more
commits itself.
"""

_DIGITS_MAX = 20


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """Offsets of a member that read the records in `generation`. They are void in any other
    generation, and each one once the group's log has an offset of its partition in an entry after
    version `after`.
    """

    member_id: str
    generation: int
    after: int
    offsets: tuple[CommittedOffset, ...]

    def encoded(self) -> bytes:
        """The offsets as they stand in a heartbeat object."""
        offsets = {offset.app_id: [offset.offset, offset.metadata] for offset in self.offsets}
        body = {"generation": self.generation, "after": self.after, "offsets": offsets}
        return compact_json({self.member_id: body}).encode()


class OffsetSharing(Protocol):
    """Lets the leader of a group commit the offsets of all members. Called by the membership's
    thread.
    """

    def pending(self, member_id: str) -> PendingOffsets | None:
        """The offsets of this member that its next heartbeat shows to the leader."""

    def commit_pending(self, pending: Sequence[PendingOffsets]) -> None:
        """Commit these offsets of other members, soon, as the leader."""


# --- the heartbeat object ---


def heartbeat_content(beat: int, pending: PendingOffsets | None) -> bytes:
    """The content of a heartbeat object: a number that differs each time; then pending offsets with
    their checksum, so that a damaged one is not committed.
    """
    if pending is None:
        return b"%d" % beat
    text = pending.encoded()
    return b"%d %08x %s" % (beat, crc32(text), text)


def parse_pending(content: bytes | None, member_id: str) -> PendingOffsets | None:
    """The pending offsets of a member in the content of its heartbeat object; None if it cannot be
    parsed.
    """
    _, _, offsets = (content or b"").partition(b" ")
    checksum, _, text = offsets.partition(b" ")
    if len(text) > PENDING_BYTES_MAX or checksum != b"%08x" % crc32(text):
        return None
    try:
        body = strict_json(text)
        return (
            _parsed(member_id, body[member_id])
            if isinstance(body, dict) and member_id in body
            else None
        )
    except (ValueError, KeyError, TypeError, InvalidConfig):
        return None


def _parsed(member_id: str, body: Mapping[str, object]) -> PendingOffsets:
    offsets = body["offsets"]
    if not isinstance(offsets, dict):
        raise TypeError("the offsets are not an object")
    found = tuple(_offset(app_id, *entry) for app_id, entry in offsets.items())
    return PendingOffsets(member_id, _number(body["generation"]), _number(body["after"]), found)


def _offset(app_id: str, offset: object, metadata: object) -> CommittedOffset:
    topic, topic_id, partition = app_id.split("/")
    if metadata is not None and not isinstance(metadata, str):
        raise TypeError("the metadata of an offset is not a text")
    number = _number(int(partition[:_DIGITS_MAX]))  # Python converts long numbers in quadratic time
    found = CommittedOffset(names.check_topic(topic), topic_id, number, _number(offset), metadata)
    if found.app_id != app_id or not topic_id:
        raise ValueError(f"{app_id!r} does not name a partition")
    return found


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number from 0")
    return value


# --- the rule of the log ---


def acceptable(
    state: TableState, head: GroupHead, pending: Iterable[PendingOffsets]
) -> list[CommittedOffset]:
    """Those of the pending offsets that may be committed after `state`, whose head is `head`.

    The check is stricter than that of an own commit, because a leader may act late on an old
    heartbeat: the group must not have begun another generation, in which the member may have
    started again from the committed offset, nor may it have committed an offset of the partition
    that the member did not know of.
    """
    found: dict[str, CommittedOffset] = {}
    for of_member in pending:
        if of_member.generation != head.generation or of_member.after > state.version:
            continue
        for offset in of_member.offsets:
            owner = head.owners.get((offset.topic, offset.partition))
            is_owner = owner is not None and owner.member_id == of_member.member_id
            if is_owner and state.txn_slot_max(offset.app_id) <= of_member.after:
                found[offset.app_id] = offset
    return list(found.values())
