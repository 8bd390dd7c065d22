"""A topic at one version of its log, as a value: what a checkpoint or an entry makes of it, with
every check. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deltaq.delta.actions import Add, Entry, Metadata, Remove
from deltaq.delta.table_state import DELTAQ_DOMAIN, TableState
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.rewrites import check_covered, check_files, check_rewrite
from deltaq.topics.state import TopicHead, check_entry, data_file, parse_head


@dataclass(slots=True)
class TopicView:
    """A topic at `version`, -1 before its first entry. A value: neither it nor its index is ever
    changed.

    `last_head` and `table` are those of the newest entry, also of a deleted topic. The index is
    kept only if `is_indexed`, for readers of records; otherwise it is empty.
    """

    folder: str
    is_indexed: bool
    version: int = -1
    last_head: TopicHead | None = None
    table: Metadata | None = None
    index: OffsetIndex = field(default_factory=OffsetIndex)


@dataclass(frozen=True, slots=True)
class CheckedDraft:
    """An entry that was checked before it was written, with the head `after` it.

    It is not checked again once it is written: with a hundred files, that takes as long as the rest
    of the commit.
    """

    entry: Entry
    after: TopicHead

    def is_read_as(self, entry: Entry) -> bool:
        """Whether `entry` has the same version and actions."""
        return entry.version == self.entry.version and entry.actions == self.entry.actions


def restored_view(state: TableState, folder: str, *, is_indexed: bool) -> TopicView:
    """The view of a table without entries, or as a checkpoint describes it. Raises Corrupt."""
    if DELTAQ_DOMAIN not in state.domains:
        return TopicView(folder, is_indexed, state.version, table=state.metadata)
    head, index = parse_head(state.domains[DELTAQ_DOMAIN], folder, state.version), OffsetIndex()
    if is_indexed:
        for add in state.files.values():
            index.add(data_file(add, folder))
        if not head.deleted:
            check_covered(index, head, folder, state.version)
    return TopicView(folder, is_indexed, state.version, head, state.metadata, index)


def following(
    view: TopicView, entry: Entry, path: str, draft: CheckedDraft | None = None
) -> TopicView:
    """The view after the next entry, read from `path`. Raises Corrupt to refuse it. `draft`: what
    was checked before it was written, perhaps as this entry.
    """
    head = (
        draft.after if draft is not None and draft.is_read_as(entry) else checked(view, entry, path)
    )
    table, index = view.table, view.index.copy() if view.is_indexed else view.index
    if view.is_indexed:
        index.remove(action.path for action in entry.actions if isinstance(action, Remove))
    for action in entry.actions:
        if isinstance(action, Add) and view.is_indexed:
            index.add(data_file(action, view.folder))
        elif isinstance(action, Metadata):
            table = action
    return TopicView(view.folder, view.is_indexed, entry.version, head, table, index)


def checked(view: TopicView, entry: Entry, path: str) -> TopicHead:
    """The head after the next entry. Raises Corrupt if the entry must not follow the view."""
    before, after = view.last_head, check_entry(view.last_head, entry, view.folder, path)
    if (
        view.is_indexed
        and before is not None
        and before.topic_id == after.topic_id
        and not after.deleted
    ):
        check_files(view.index, entry, path)
        removed = [action.path for action in entry.actions if isinstance(action, Remove)]
        added = [
            data_file(a, view.folder)
            for a in entry.actions
            if isinstance(a, Add) and not a.data_change
        ]
        if removed or added:
            check_rewrite(view.index, removed, added, after, path, entry.version)
    return after
