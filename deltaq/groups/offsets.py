"""The committed offsets of a group, as its log holds them, and those to commit.

A committed offset is a Delta `txn` action: its `appId` names topic, topic id and partition, and its
`version` is the next offset to read, so that any Delta client can look it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from deltaq.delta.actions import Action, DomainMetadata, Txn
from deltaq.delta.table_state import FORGOTTEN_VERSION, TableState
from deltaq.errors import Corrupt
from deltaq.message import TopicPartition
from deltaq.serde.json_text import compact_json, strict_json

METADATA_DOMAIN = "deltaq.offset_metadata"


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
