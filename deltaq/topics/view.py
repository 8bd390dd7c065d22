"""A topic at one version of its log, as a value: what a checkpoint or an entry makes of it, with
every check.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.actions import Add, Entry, Metadata, Remove
from deltaq.delta.known_log import KNOWN_LOGS, KnownLog, LogState
from deltaq.delta.table_state import DELTAQ_DOMAIN, TableState
from deltaq.store import Store
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.rewrites import check_covered, check_files, check_rewrite
from deltaq.topics.shared_files import PendingSharedFiles, WriterHistory
from deltaq.topics.state import TopicHead, check_entry, data_file, parse_head


@dataclass(slots=True)
class TopicView:
    """A topic at `version`, -1 before its first entry. A value: neither it nor its index is ever
    changed.

    `last_head` and `table` are those of the newest entry, also of a deleted topic. The index is
    kept only if `is_indexed`, for readers of records; otherwise it is empty. `history` is of the
    entries that were read one by one.
    """

    folder: str
    is_indexed: bool
    version: int = -1
    last_head: TopicHead | None = None
    table: Metadata | None = None
    index: OffsetIndex = field(default_factory=OffsetIndex)
    history: WriterHistory = field(default_factory=WriterHistory)


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
    history = WriterHistory(state.version, state.version)
    if DELTAQ_DOMAIN not in state.domains:
        return TopicView(folder, is_indexed, state.version, table=state.metadata, history=history)
    head, index = parse_head(state.domains[DELTAQ_DOMAIN], folder, state.version), OffsetIndex()
    if is_indexed:
        for add in state.files.values():
            index.add(data_file(add, folder))
        if not head.deleted:
            check_covered(index, head, folder, state.version)
    return TopicView(folder, is_indexed, state.version, head, state.metadata, index, history)


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
    history = view.history.after(entry)
    return TopicView(view.folder, view.is_indexed, entry.version, head, table, index, history)


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


@dataclass(frozen=True, slots=True)
class TopicFold:
    """Makes the views of a topic, and notes which of the process's shared files it meets."""

    folder: str
    is_indexed: bool
    pending: PendingSharedFiles

    def restored(self, table: TableState) -> TopicView:
        """As `restored_view`."""
        view = restored_view(table, self.folder, is_indexed=self.is_indexed)
        paths = self.pending.paths.copy()
        self.pending.note((table.files[path] for path in paths if path in table.files), self.folder)
        return view

    def following(
        self,
        state: LogState[TopicView],
        entry: Entry,
        path: str,
        draft: CheckedDraft | None = None,
    ) -> TopicView:
        """As the function `following`."""
        view = following(state.view, entry, path, draft)
        self.pending.note(
            (action for action in entry.actions if isinstance(action, Add)), self.folder
        )
        return view

    def may_skip_to(self, view: TopicView) -> bool:
        """Not past entries that may have one of the process's shared files and that no position has
        read: a checkpoint does not say in which entry a file was, or whether it was there.
        """
        pending = self.pending
        return all(
            as_of >= view.history.followed or path in pending.committed
            for path, as_of in pending.paths.copy().items()
        )


class KnownTopic(KnownLog[TopicView]):
    """What positions know of one topic's log, if they share it. `pending_shared` are the shared
    files of its writer whose outcome is open.
    """

    fold: TopicFold

    def __init__(self, clock: Clock, folder: str, *, indexed: bool) -> None:
        self.pending_shared = PendingSharedFiles()
        super().__init__(clock, TopicFold(folder, indexed, self.pending_shared))


def known_topic(store: Store, topic: str, clock: Clock) -> KnownTopic:
    """What this process knows of a topic, for the positions that live on: consumers, the sender and
    its maintenance.
    """
    folder = names.topic_folder(topic)
    return KNOWN_LOGS.get(store, folder, clock, lambda: KnownTopic(clock, folder, indexed=True))
