"""The offsets of a group: those that its log holds, those to commit, and those that members ask the
group's leader to commit.

A committed offset is a Delta `txn` action: its `appId` names topic, topic id and partition, and its
`version` is the next offset to read, so that any Delta client can look it up.

What the leader is to commit is part of a member's heartbeat object. The leader reads the heartbeats
of all members anyway, and commits what it finds in one entry. So the commits of a large group
neither compete for the slots of its log nor make each member read as many entries as there are
members. `docs/decisions/0031-offsets-in-heartbeats.md` has the reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from zlib import crc32

from deltaq import names
from deltaq.delta.actions import Action, DomainMetadata, Txn
from deltaq.delta.table_state import FORGOTTEN_VERSION, TableState
from deltaq.errors import Corrupt, InvalidConfig, KafkaError, KafkaException
from deltaq.groups.state import GroupHead
from deltaq.message import TopicPartition
from deltaq.serde.json_text import compact_json, strict_json

METADATA_DOMAIN = "deltaq.offset_metadata"

PENDING_BYTES_MAX = 100_000
"""Most bytes of offsets in one heartbeat object, those of a thousand partitions. A member with more
commits itself.
"""

METADATA_CHARS_MAX = 4_096
"""Most characters in the metadata text of a committed offset, those above U+FFFF counted twice:
Kafka's default of the brokers' `offset.metadata.max.bytes`, which are UTF-16 units.
"""

_DIGITS_MAX = 20


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset to read of a partition of the topic with `topic_id`, and the commit's
    metadata text.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    metadata: str | None = None

    @property
    def app_id(self) -> str:
        return f"{self.topic}/{self.topic_id}/{self.partition}"


def metadata_fault(wanted: TopicPartition) -> KafkaException | None:
    """The error (OFFSET_METADATA_TOO_LARGE) of an offset to commit whose metadata text is too long;
    None for any other. Only new offsets are checked: what is committed already may have any length.
    """
    length = len((wanted.metadata or "").encode("utf-16-le")) // 2
    if length <= METADATA_CHARS_MAX:
        return None
    reason = (
        f"the metadata of the offset of partition {wanted.partition} of topic {wanted.topic!r} has "
        f"{length:,} characters: use {METADATA_CHARS_MAX:,} at most"
    )
    return KafkaException(KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE, reason))


@dataclass(frozen=True, slots=True)
class ToCommit:
    """An offset to commit, with the id of its topic; None for the topic that has the name now."""

    wanted: TopicPartition
    topic_id: str | None

    @property
    def key(self) -> tuple[str, int]:
        """Topic and partition."""
        return self.wanted.topic, self.wanted.partition

    def located(self, topic_id: str) -> CommittedOffset:
        """The offset as the group's log has it."""
        wanted = self.wanted
        return CommittedOffset(
            wanted.topic, topic_id, wanted.partition, wanted.offset, wanted.metadata
        )


def committed_offset(
    state: TableState, topic: str, topic_id: str, partition: int
) -> CommittedOffset | None:
    """The committed offset of a partition; None if there is none for the topic with this id. Raises
    Corrupt.
    """
    key = CommittedOffset(topic, topic_id, partition, 0)
    txn = state.txns.get(key.app_id)
    return (
        None
        if txn is None
        else replace(key, offset=_offset(state, txn), metadata=_notes(state).get(key.app_id))
    )


def committed_offsets(state: TableState) -> list[CommittedOffset]:
    """All committed offsets, also those of topics that no longer exist, sorted. Raises Corrupt."""
    notes = _notes(state)
    found = []
    for app_id, txn in state.txns.items():
        topic, *rest = app_id.split("/")
        if len(rest) == 2 and rest[1].isdecimal():
            found.append(
                CommittedOffset(
                    topic, rest[0], int(rest[1]), _offset(state, txn), notes.get(app_id)
                )
            )
    return sorted(found, key=lambda offset: (offset.topic, offset.partition, offset.topic_id))


def _offset(state: TableState, txn: Txn) -> int:
    if txn.version < 0:  # it would be read as an OFFSET_ constant
        raise Corrupt(
            f"the committed offset {txn.version} is negative",
            path=txn.app_id,
            version=state.version,
        )
    return txn.version


def offset_actions(
    state: TableState, offsets: Sequence[CommittedOffset], now_ms: int
) -> list[Action]:
    """Commit these offsets, and their metadata texts."""
    versions = {offset.app_id: offset.offset for offset in offsets}
    return _actions(
        state,
        versions,
        {offset.app_id: offset.metadata for offset in offsets if offset.metadata is not None},
        now_ms,
    )


def forget_actions(state: TableState, app_ids: Iterable[str], now_ms: int) -> list[Action]:
    """Delete the committed offsets with these app ids."""
    return _actions(
        state, {app_id: FORGOTTEN_VERSION for app_id in app_ids if app_id in state.txns}, {}, now_ms
    )


def _actions(
    state: TableState, versions: Mapping[str, int], notes: Mapping[str, str], now_ms: int
) -> list[Action]:
    """Set the versions of app ids, and replace their metadata texts by `notes`."""
    actions: list[Action] = [Txn(app_id, version, now_ms) for app_id, version in versions.items()]
    before = _notes(state)
    after = {app_id: text for app_id, text in before.items() if app_id not in versions} | dict(
        notes
    )
    if after != before:
        actions.append(DomainMetadata(METADATA_DOMAIN, compact_json(after)))
    return actions


def _notes(state: TableState) -> dict[str, str]:
    try:
        notes = strict_json(state.domains.get(METADATA_DOMAIN, "{}"))
    except ValueError as error:
        reason = f"the notes of committed offsets cannot be parsed: {error}"
        raise Corrupt(reason, path=METADATA_DOMAIN, version=state.version) from error
    return {str(key): str(text) for key, text in notes.items()} if isinstance(notes, dict) else {}


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


class OffsetDelegation(Protocol):
    """Lets the leader of a group commit the offsets of all members. Called by the membership's
    thread.
    """

    def pending(self, member_id: str) -> PendingOffsets | None:
        """The offsets of this member that its next heartbeat shows to the leader."""

    def commit_pending(self, pending: Sequence[PendingOffsets]) -> None:
        """Commit these offsets of other members, soon, as the leader."""


# --- the heartbeat object ---


def heartbeat_content(beat: int, pending: PendingOffsets | None) -> bytes:
    """The content of a heartbeat object: a number that differs each time and its checksum, so that
    a damaged read of a new content is not taken for an earlier one; then pending offsets with
    theirs, so that a damaged one is not committed.
    """
    number = b"%d" % beat
    shown = b"%s-%08x" % (number, crc32(number))
    if pending is None:
        return shown
    text = pending.encoded()
    return b"%s %08x %s" % (shown, crc32(text), text)


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
    found = tuple(parsed_offset(app_id, *entry) for app_id, entry in offsets.items())
    return PendingOffsets(member_id, _number(body["generation"]), _number(body["after"]), found)


def parsed_offset(app_id: str, offset: object, metadata: object) -> CommittedOffset:
    """An offset as JSON has it. Raises ValueError, TypeError, InvalidConfig."""
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
