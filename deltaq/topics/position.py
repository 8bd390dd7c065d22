"""A position in one topic's log: its head and files as read so far, and the reads that move it."""

from __future__ import annotations

from collections import Counter

from deltaq import names
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.delta.actions import Add, Entry
from deltaq.delta.log import DeltaLog
from deltaq.delta.reader import LogCleaned
from deltaq.delta.table_state import TableState
from deltaq.errors import InvalidConfig, KafkaError
from deltaq.parquet.column_bounds import indexed_columns
from deltaq.store import Store
from deltaq.topics.readable import ReadableTopic
from deltaq.topics.shared_files import (
    WRITER_CHARS,
    PendingSharedFiles,
    SharedFileTracker,
    writer_of,
)
from deltaq.topics.view import CheckedDraft, TopicView, following, restored_view

APPEND_OPERATION = "WRITE"
"""The operation of entries that append records."""


class TopicPosition(ReadableTopic):
    """A position in one topic's log. Not thread-safe: one owner at a time.

    `index` is kept only if `indexed`. `writer` is the prefix of the tokens of commits from this
    position, and `pending_shared` are the writer's shared files whose outcome is open.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        indexed: bool = False,
        pending_shared: PendingSharedFiles | None = None,
    ) -> None:
        super().__init__(store, topic, clock)
        self._view = TopicView(self.folder, indexed)
        self.writer = clock.unique_id()[-WRITER_CHARS:]
        self.pending_shared = PendingSharedFiles() if pending_shared is None else pending_shared
        self._tracker = SharedFileTracker()
        self._files_seen = 0  # added by appends since our last one
        self._appended_by = ""  # the writer of the newest append
        # Appends of others since our last one; readers have none.
        self._others: Counter[str] | None = None
        self._drafted: CheckedDraft | None = None
        self._log = DeltaLog(store, self.folder, clock, follower=self)

    # --- reading ---

    @property
    def view(self) -> TopicView:
        return self._view

    @property
    def state(self) -> TableState:
        """The table at this position."""
        return self._log.state

    @property
    def delta_log(self) -> DeltaLog:
        """The table log of this topic, for code that treats it as any Delta table."""
        return self._log

    @property
    def is_end_open(self) -> bool:
        """Whether the position may be a gap in the log instead of its end; `check_end` finds
        out.
        """
        return self._log.is_end_open

    def load(self, *, to_end: bool = True) -> bool:
        self._log.load(to_end=to_end)
        if self._others is not None:
            self._others.clear()  # earlier writers may not be active any more
        self._check_case()
        return self.head is not None

    def _check_case(self) -> None:
        """Refuse a topic of another case: on a store that folds case, `Orders` opens the folder of
        `orders`.
        """
        table = self.table
        twin = names.case_twin(self.topic, [table.name or ""]) if table is not None else None
        if self.head is not None and twin is not None:
            raise InvalidConfig(
                f"topic {self.topic!r} differs only in case from topic {twin!r}, "
                "and this store does not tell them apart: use "
                "that one, or another name",
                key="topic",
                code=KafkaError.TOPIC_EXCEPTION,
            )

    def read_next(self) -> Entry | None:
        """Read and apply the next entry; None if there is none yet. Raises LogCleaned and what
        `load` raises.
        """
        return self._log.read_next()

    def read_following(self, count: int) -> int:
        """Apply up to `count` next entries, requested in parallel; the number applied. Raises as
        `read_next` does.
        """
        return self._log.read_following(count)

    def catch_up(self, *, to_end: bool = True) -> bool:
        """Follow the log to its newest version; whether the topic exists. Unless `to_end`,
        `is_end_open` may be true afterwards.

        Raises what `load` raises.
        """
        if self.version < 0:
            return self.load(to_end=to_end)
        try:
            while self.read_next() is not None:
                pass
        except LogCleaned:
            self.load(to_end=to_end)
        if to_end and self.is_end_open:
            self.check_end()
        return self.head is not None

    def check_end(self) -> None:
        """Check that the position is the end of the log; if it is a gap, go on to the end.

        Raises what `load` raises.
        """
        try:
            self._log.check_end()
        except LogCleaned:
            self.load()

    def adopt(self, other: TopicPosition) -> None:
        """Move to the position of `other` in the same log. `other` must keep an index if this one
        does.
        """
        if self.view.is_indexed and not other.view.is_indexed:
            raise ValueError("a position without an index cannot give one to another")
        self._log.adopt(other.state, other._log.proven_at, is_end_open=other._log.is_end_open)
        self._view = other.view
        self._tracker, self._appended_by = other._tracker.copy(), other._appended_by

    def _indexed_columns(self) -> tuple[str, ...]:
        """The value columns that have statistics in this table."""
        return () if self.table is None else indexed_columns(self.table.configuration)

    # --- the log's follower ---

    def restored(self, state: TableState) -> None:
        self._view = restored_view(state, self.folder, is_indexed=self.view.is_indexed)
        self._tracker = SharedFileTracker(state.version)
        pending = self.pending_shared
        pending.note(
            (state.files[path] for path in pending.paths.copy() if path in state.files), self.folder
        )

    def advancing(self, entry: Entry, path: str) -> None:
        self._view, self._drafted = following(self._view, entry, path, self._drafted), None
        self._tracker.note(entry)
        self.pending_shared.note(
            (action for action in entry.actions if isinstance(action, Add)), self.folder
        )
        writer = writer_of(entry.txn_id)
        if _is_append(entry):
            self._appended_by = writer
            self._files_seen += sum(isinstance(action, Add) for action in entry.actions)
            if self._others is not None and writer != self.writer:
                self._others[writer] += 1


def _is_append(entry: Entry) -> bool:
    """Whether it appends records. Only such writers count as contention; maintenance commits
    rarely.
    """
    return entry.info is not None and entry.info.operation == APPEND_OPERATION
