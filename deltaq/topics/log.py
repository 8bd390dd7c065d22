"""A topic's log: its head, its files, and the commits that change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from deltaq import names
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config import TopicSettings
from deltaq.delta.actions import (
    NOTHING_PREPARED,
    Action,
    Add,
    CommitInfo,
    Entry,
    Metadata,
    Prepared,
    Remove,
    Txn,
    prepared,
)
from deltaq.delta.log import Abandoned, Committed, DeltaLog, Draft
from deltaq.delta.reader import LogCleaned
from deltaq.delta.resolve import resolve_add, resolve_commit
from deltaq.delta.table_state import DELTAQ_DOMAIN, TableState
from deltaq.delta.tokens import parse_commit_token
from deltaq.errors import InvalidConfig, KafkaError, TopicExists, UnknownTopic
from deltaq.parquet.file_statistics import STATISTICS_PROPERTY, indexed_columns, statistics_property
from deltaq.store import Store, StoreError
from deltaq.topics.offset_index import OffsetIndex
from deltaq.topics.rewrites import (
    RewrittenSegment,
    Trimmed,
    check_covered,
    check_files,
    check_rewrite,
    may_have_left,
    raised_min_upload_version,
    renewed,
    retained,
    rewritten,
)
from deltaq.topics.scan import is_lost
from deltaq.topics.shared_files import (
    WRITER_CHARS,
    PendingSharedFiles,
    SharedFileId,
    SharedFileTracker,
    parse_shared_file,
    writer_of,
)
from deltaq.topics.snapshot import TopicSnapshot
from deltaq.topics.state import (
    DataFile,
    PendingSegment,
    TopicChange,
    TopicHead,
    appended,
    changed,
    check_entry,
    create_actions,
    data_file,
    delete_actions,
    parse_head,
)
from deltaq.version import __version__

__all__ = [
    "AlreadyCommitted",
    "AppendOutcome",
    "Appended",
    "CommitConflict",
    "CommittedByPeer",
    "NotAppended",
    "NothingToAppend",
    "SharedTopicLog",
    "StalePlan",
    "TopicLog",
    "UploadsExpired",
]

ENGINE = f"deltaq/{__version__}"

_APPEND = "WRITE"
"""The operation of entries that append records."""

_FENCE = "FENCE"
"""The operation of entries without effect, which fill a slot or revoke shared files."""

LOCK_HOLD_MAX_S = 5.0
"""Longest time in seconds for which a maintenance commit holds the writer's lock, if the store does not answer."""

SHARED_FILES_BEHIND = 6
"""Versions behind the log's end within which shared files are listed. Their own writer commits older ones."""

SHARED_FILES_MAX = 256
"""Most shared files of peers in one entry."""


@dataclass(frozen=True, slots=True)
class StalePlan:
    """The outcome of a commit whose plan does not fit the current topic: nothing was written. Make a new plan.

    `may_have_stood`: an entry for the plan was sent into a slot that has been cleaned up since. Its files may have been
    in the topic, and readers may still use them.
    """

    may_have_stood: bool = False


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an append: files with offsets, and the cost of the commit.

    `others` has the number of appends of each other writer since the last append of this one; empty after the first.
    `peer_files` counts the shared files of peers in the entry, `files_seen` all files since the last append.
    """

    files: tuple[DataFile, ...]
    lost_races: int
    seconds: float
    others: Mapping[str, int]
    peer_files: int = 0
    files_seen: int = 0


@dataclass(frozen=True, slots=True)
class CommittedByPeer:
    """Which shared files of a writer its peers have committed. As the outcome of an append: nothing was written.

    `committed` are in the log, with their offsets. For the paths in `unknown`, the log can no longer tell.
    """

    committed: Mapping[str, DataFile]
    unknown: frozenset[str]


@dataclass(frozen=True, slots=True)
class CommitConflict:
    """The outcome of an append whose slot another writer has taken; nothing was written.

    That writer may commit these files as shared files next.
    """


@dataclass(frozen=True, slots=True)
class UploadsExpired:
    """The outcome of an append of files that may have been removed as orphans; nothing was written.

    Upload the files `paths` again.
    """

    paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """The outcome of an append whose application transaction is in the topic already; nothing was written."""


@dataclass(frozen=True, slots=True)
class NothingToAppend:
    """The outcome of an append whose segments were withdrawn before it succeeded; nothing was written."""


NotAppended: TypeAlias = CommittedByPeer | CommitConflict | UploadsExpired | AlreadyCommitted | NothingToAppend
AppendOutcome: TypeAlias = Appended | NotAppended


@dataclass(frozen=True, slots=True)
class _Drafted:
    """An entry that was checked before it was written, with the head `after` it.

    It is not checked again once it is written: with a hundred files, that takes as long as the rest of the commit.
    """

    entry: Entry
    after: TopicHead

    def is_read_as(self, entry: Entry) -> bool:
        """Whether `entry` has the same version and actions."""
        return entry.version == self.entry.version and entry.actions == self.entry.actions


class TopicLog:
    """A position in one topic's log. Not thread-safe: one owner at a time.

    `head` is None while the topic does not exist (never created, or deleted). `index` is kept only if `indexed`.
    Maintenance `beside` a writer takes over the entries which that one has read, and commits under its lock, so that
    the two do not race for slots.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        indexed: bool = False,
        client_id: str = "",
        beside: SharedTopicLog | None = None,
    ) -> None:
        self.topic = topic
        self.folder = names.topic_folder(topic)
        self.client_id = client_id
        self.index = OffsetIndex()
        self._indexed = indexed
        self._beside = beside
        self._last: TopicHead | None = None
        self.writer = clock.unique_id()[-WRITER_CHARS:]
        self.pending_shared = PendingSharedFiles() if beside is None else beside.pending_shared
        self._tracker = SharedFileTracker()
        self._files_seen = 0  # added by appends since our last one
        self._appended_by = ""  # the writer of the newest append
        self._others: Counter[str] | None = None  # appends of others since our last one; readers have none
        self._adopted: TopicLog | None = None  # while another position is taken over: that one
        self._drafted: _Drafted | None = None  # checked before it was written
        self._settings: tuple[Metadata, TopicSettings] | None = None
        self._snapshot: TopicSnapshot | None = None  # of this position, once it was asked for
        self._log = DeltaLog(store, self.folder, clock, follower=self)
        self._clock = clock
        self._store = store

    # --- reading ---

    @property
    def version(self) -> int:
        return self._log.state.version

    @property
    def is_beside_writer(self) -> bool:
        """Whether it commits under the lock of a writer in this process."""
        return self._beside is not None

    @property
    def delta_log(self) -> DeltaLog:
        """The table log of this topic, for code that treats it as any Delta table."""
        return self._log

    @property
    def head(self) -> TopicHead | None:
        """The head of the topic; None if the topic does not exist."""
        return None if self._last is None or self._last.deleted else self._last

    @property
    def live_head(self) -> TopicHead:
        """The head of the topic. Raises UnknownTopic."""
        head = self.head
        if head is None:
            raise UnknownTopic(self.topic)
        return head

    @property
    def metadata(self) -> Metadata:
        """The table's schema and properties. Raises UnknownTopic."""
        if self.head is None or self._log.state.metadata is None:
            raise UnknownTopic(self.topic)
        return self._log.state.metadata

    @property
    def ended(self) -> TopicHead | None:
        """The last head of a deleted topic, until a topic of this name is created again."""
        return self._last if self._last is not None and self._last.deleted else None

    @property
    def settings(self) -> TopicSettings:
        """The topic's settings, also after its deletion. Raises UnknownTopic."""
        metadata = self._log.state.metadata
        if metadata is None:
            raise UnknownTopic(self.topic)
        if self._settings is None or self._settings[0] is not metadata:  # every commit reads them
            self._settings = metadata, TopicSettings.from_properties(metadata.configuration)
        return self._settings[1]

    @property
    def is_end_open(self) -> bool:
        """Whether the position may be a gap in the log instead of its end; `check_end` finds out."""
        return self._log.is_end_open

    def snapshot(self) -> TopicSnapshot:
        """The topic at this position, as a value: the same object until the position or what is known of it changes."""
        found = self._snapshot
        if found is None or found.is_end_open != self.is_end_open:
            state = self._log.state
            found = TopicSnapshot(
                self.topic, state.version, self._last, state.metadata, self.index.copy(), self.is_end_open
            )
            self._snapshot = found
        return found

    def load(self, *, to_end: bool = True) -> bool:
        """Load the newest version; whether the topic exists. Unless `to_end`, `is_end_open` may be true afterwards.

        Raises InvalidConfig if the store does not distinguish this name from another topic's, Corrupt, Incompatible,
        Unavailable.
        """
        self._log.load(to_end=to_end)
        if self._others is not None:
            self._others.clear()  # earlier writers may not be active any more
        self._check_case()
        return self.head is not None

    def _check_case(self) -> None:
        """Refuse a topic of another case: on a store that folds case, `Orders` opens the folder of `orders`."""
        metadata = self._log.state.metadata
        twin = names.case_twin(self.topic, [metadata.name or ""]) if metadata is not None else None
        if self.head is not None and twin is not None:
            raise InvalidConfig(
                f"topic {self.topic!r} differs only in case from topic {twin!r}, "
                "and this store does not tell them apart: use "
                "that one, or another name",
                key="topic",
                code=KafkaError.TOPIC_EXCEPTION,
            )

    def read_next(self) -> Entry | None:
        """Read and apply the next entry; None if there is none yet. Raises LogCleaned and what `load` raises."""
        return self._log.read_next()

    def read_following(self, count: int) -> int:
        """Apply up to `count` next entries, requested in parallel; the number applied. Raises as `read_next` does."""
        return self._log.read_following(count)

    def catch_up(self, *, to_end: bool = True) -> bool:
        """Follow the log to its newest version; whether the topic exists. Unless `to_end`, `is_end_open` may be true
        afterwards.

        Raises what `load` raises.
        """
        if self._beside is not None:
            with self._beside.lock:
                log = self._beside.log
                if log.version > self.version and not log.delta_log.is_partial:
                    self.adopt(log)
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

    def is_lost(self, file: DataFile) -> bool:
        """Whether a file that the log names, as read so far, is missing. Raises Unavailable."""
        return file.path in self.index.files and is_lost(self._store, self._clock, file)

    def copied_state(self) -> TableState:
        """A copy of the table state at this position."""
        return self._log.state.copy()

    def adopt(self, other: TopicLog) -> None:
        """Move to the position of `other` in the same log. `other` must keep an index if this one does."""
        if self._indexed and not other._indexed:
            raise ValueError("a position without an index cannot give one to another")
        self._adopted = other
        try:
            open_end = other._log.is_end_open
            self._log.adopt(other.copied_state(), other._log.proven_at, is_end_open=open_end)
        finally:
            self._adopted = None

    def _indexed_columns(self) -> tuple[str, ...]:
        """The value columns that have statistics in this table."""
        metadata = self._log.state.metadata
        return () if metadata is None else indexed_columns(metadata.configuration)

    # --- the log's follower ---

    def restored(self, state: TableState) -> None:
        self._snapshot = None
        if self._adopted is not None:
            # Parsed and checked already; doing it again would hold the writer's lock for longer.
            self._last, self.index = self._adopted._last, self._adopted.index.copy()
            self._tracker, self._appended_by = self._adopted._tracker.copy(), self._adopted._appended_by
            return
        self._last = None
        self._tracker = SharedFileTracker(state.version)
        pending = self.pending_shared
        pending.note((state.files[path] for path in pending.paths.copy() if path in state.files), self.folder)
        self.index = OffsetIndex()
        if DELTAQ_DOMAIN in state.domains:
            self._last = parse_head(state.domains[DELTAQ_DOMAIN], self.folder, state.version)
            for add in state.files.values():
                self._index(add)
            if self._indexed and not self._last.deleted:
                check_covered(self.index, self._last, self.folder, state.version)

    def advancing(self, entry: Entry, path: str) -> None:
        self._last, self._drafted, self._snapshot = self._checked(entry, path), None, None
        self._tracker.note(entry)
        self.pending_shared.note((action for action in entry.actions if isinstance(action, Add)), self.folder)
        writer = writer_of(entry.txn_id)
        if _is_append(entry):
            self._appended_by = writer
            self._files_seen += sum(isinstance(action, Add) for action in entry.actions)
            if self._others is not None and writer != self.writer:
                self._others[writer] += 1
        self.index.remove(action.path for action in entry.actions if isinstance(action, Remove))
        for action in entry.actions:
            if isinstance(action, Add):
                self._index(action)

    def _checked(self, entry: Entry, path: str) -> TopicHead:
        """Check the next entry; the head after it. Raises Corrupt."""
        if self._drafted is not None and self._drafted.is_read_as(entry):
            return self._drafted.after
        before, after = self._last, check_entry(self._last, entry, self.folder, path)
        if self._indexed and before is not None and before.topic_id == after.topic_id and not after.deleted:
            check_files(self.index, entry, path)
            removed = [action.path for action in entry.actions if isinstance(action, Remove)]
            added = [data_file(a, self.folder) for a in entry.actions if isinstance(a, Add) and not a.data_change]
            if removed or added:
                check_rewrite(self.index, removed, added, after, path, entry.version)
        return after

    def _index(self, add: Add) -> None:
        if self._indexed:
            self.index.add(data_file(add, self.folder))

    # --- changes ---

    def create(self, partitions: int, schema_string: str, properties: Mapping[str, str], deadline: float) -> TopicHead:
        """Create the topic, with offsets from 0. Raises TopicExists, and what `DeltaLog.commit` raises."""
        txn_id = self._new_token()

        def write(state: TableState) -> Draft:
            if self.head is not None:
                raise TopicExists(self.topic)
            now = self._now()
            actions = create_actions(
                self.topic, txn_id, partitions, schema_string, properties, now, first=state.version < 0
            )
            return Draft(self._info(txn_id, now, "CREATE TABLE", blind=False), actions)

        self.load()
        self._log.commit(write, deadline)
        return self.live_head

    def delete(self, deadline: float) -> None:
        """Delete the topic by a commit that removes every file. Raises UnknownTopic, what `DeltaLog.commit` raises."""
        txn_id = self._new_token()

        def write(state: TableState) -> Draft:
            now = self._now()
            return Draft(
                self._info(txn_id, now, "DELETE", blind=False), delete_actions(self.live_head, tuple(state.files), now)
            )

        self.load()
        self._log.commit(write, deadline)

    def change(self, decide: Callable[[TopicHead, Mapping[str, str]], TopicChange], deadline: float) -> TopicHead:
        """Apply the change that `decide(head, properties)` returns, in one commit.

        `decide` is called again for each slot tried, with the state that it changes. It may raise to give up.
        Raises UnknownTopic, and what `DeltaLog.commit` raises.
        """
        txn_id = self._new_token()

        def write(_: TableState) -> Draft:
            now = self._now()
            change = decide(self.live_head, self.metadata.configuration)
            return Draft(
                self._info(txn_id, now, "SET TBLPROPERTIES", blind=False),
                changed(self.live_head, self.metadata, change, now),
            )

        self.load()
        self._log.commit(write, deadline)
        return self.live_head

    def append(
        self,
        take_segments: Callable[[], Sequence[PendingSegment] | None],
        topic_id: str,
        deadline: float,
        txn: Txn | None = None,
        *,
        shared: bool = False,
        tries: int | None = None,
        trying: Callable[[str], None] = lambda _: None,
    ) -> AppendOutcome:
        """Append uploaded segments in one commit.

        `take_segments()` is called again for each slot tried and may return more than before, or None to end the append
        with NothingToAppend. `trying` is called before it, with the token of the slot tried. `shared`: add the shared
        files of peers, too.

        Nothing is written, and the outcome is AlreadyCommitted if the topic has the transaction version of `txn` or a
        later one; UploadsExpired if segments have waited for too long; CommittedByPeer if peers have committed some of
        these segments; CommitConflict if others have taken as many slots as `tries`.

        Raises UnknownTopic if `topic_id`, the topic that the rows are for, has been replaced; what `DeltaLog.commit`
        raises.
        """
        txn_id = self._new_token()
        # Bound to the topic id: transactions of an earlier topic of this name do not count.
        own = None if txn is None else replace(txn, app_id=f"{txn.app_id}/{topic_id}")
        peer_files = 0

        def write(state: TableState) -> Draft | Abandoned[NotAppended]:
            nonlocal peer_files, tries
            trying(self._log.token(state.version + 1, txn_id))
            segments = take_segments()
            if segments is None:
                return Abandoned(NothingToAppend())
            if (found := self._not_appended(state, segments, topic_id, own, lost=tries == 0)) is not None:
                return Abandoned(found)
            tries = None if tries is None else tries - 1
            head, now = self.live_head, self._now()
            log_append_time = self.settings.message_timestamp_type == "LogAppendTime"
            others = self._shared_by_peers(head) if shared and own is None else []
            rows = [*segments, *others]
            after, actions = appended(head, state.version + 1, rows, now, log_append_time, self._indexed_columns())
            info = self._info(txn_id, max(now, head.time_ms), _APPEND, blind=own is None)
            if own is not None:
                # A retry is safe: if the entry is in the log, the table has its transaction.
                return Draft(info, [own, *actions], lambda _: False)

            def may_stand(later: TableState) -> bool:
                # Their own writers may have committed the shared files, at the same offsets or at others.
                is_blurred = any(segment.path in later.files for segment in others)
                return is_blurred or may_have_left(head, after, self._last, later.files.values(), self.folder)

            peer_files = len(others)
            pending = self.pending_shared.paths
            mine = frozenset(segment.path for segment in segments if segment.path not in pending)
            return Draft(info, actions, may_stand, mine)

        outcome = self._log.commit(write, deadline)
        if not isinstance(outcome, Committed):
            return outcome
        others, seen = self.others_since()
        files = self._files(outcome.entry)
        return Appended(files, outcome.lost_races, outcome.seconds, others, peer_files, seen)

    def _not_appended(
        self, state: TableState, segments: Sequence[PendingSegment], topic_id: str, txn: Txn | None, *, lost: bool
    ) -> NotAppended | None:
        """Why segments must not be appended to the next slot, for `append`; None if they can be.

        `lost`: others have taken all slots to be tried. Raises UnknownTopic, Unavailable.
        """
        # First, since segments in the log must not be reported as failed.
        if (found := self.committed_by_peer(segments)) is not None:
            return found
        if lost:
            return CommitConflict()
        head = self.live_head
        if head.topic_id != topic_id:
            raise UnknownTopic(self.topic, reason="it was deleted and created again after these messages were produced")
        if txn is not None and (done := state.txns.get(txn.app_id)) is not None and done.version >= txn.version:
            self._log.sync()
            return AlreadyCommitted()
        expired = _voided(segments, head)
        return UploadsExpired(expired) if expired else None

    def others_since(self) -> tuple[Mapping[str, int], int]:
        """Appends of each other writer, and files in all appends, since the last call or the last append."""
        others, seen = self._others, self._files_seen
        self._others, self._files_seen = Counter(), 0
        return others or {}, seen

    @property
    def is_ours(self) -> bool:
        """Whether the newest append read so far is by this writer."""
        return self._appended_by == self.writer

    def committed_by_peer(self, segments: Sequence[PendingSegment]) -> CommittedByPeer | None:
        """Which of these segments peers have committed, as read so far; None if they have committed none.

        Raises Unavailable if those entries cannot be synced: the peer may not have made them durable yet.
        """
        outcome = self._outcome(segments)
        if outcome.committed:
            self._log.sync()
        return outcome if outcome.committed or outcome.unknown else None

    def revoke(self, segments: Sequence[PendingSegment], deadline: float) -> CommittedByPeer:
        """Revoke shared files of this writer by an entry of its own; which of them peers have committed until then.

        Raises what `DeltaLog.commit` raises: the files may still be committed then.
        """
        txn_id = self._new_token()

        def write(_: TableState) -> Draft | Abandoned[CommittedByPeer]:
            outcome = self._outcome(segments)
            if self._last is None:  # the log was removed, so no writer can add them
                return Abandoned(CommittedByPeer(outcome.committed, frozenset()))
            if len(outcome.committed) + len(outcome.unknown) == len(segments):  # nothing is left to revoke
                self._log.sync()
                return Abandoned(outcome)
            return Draft(self._info(txn_id, self._now(), _FENCE, blind=True), [])

        outcome = self._log.commit(write, deadline)
        return outcome if isinstance(outcome, CommittedByPeer) else self._outcome(segments)

    def _outcome(self, segments: Sequence[PendingSegment]) -> CommittedByPeer:
        """What the entries read so far say about shared files among `segments`."""
        pending = self.pending_shared
        shared = [segment for segment in segments if segment.path in pending.paths]
        committed = {path: pending.committed[path] for s in shared if (path := s.path) in pending.committed}
        unknown = {s.path for s in shared if s.as_of < self._tracker.followed} - committed.keys()
        return CommittedByPeer(committed, frozenset(unknown))

    def _shared_by_peers(self, head: TopicHead) -> list[PendingSegment]:
        """Shared files of peers that may be committed next."""
        folder, after = names.shared_files_folder(self.folder), max(0, self.version - SHARED_FILES_BEHIND)
        found = []
        try:
            for entry in self._store.list_some(folder, names.shared_files_after(self.folder, after)):
                shared_file = parse_shared_file(entry.key.removeprefix(self.folder))
                if shared_file is not None and shared_file.segment.size == entry.size:
                    found.append(shared_file)
            takable = list(self._tracker.takable(found, head, self.version, self.writer))[:SHARED_FILES_MAX]
            # A listing shows files before they are durable, and a durable entry must not name lost files.
            folders = {f"{self.folder}{segment.path}".rpartition("/")[0] + "/" for segment in takable}
            for taken_from in sorted(folders):
                self._store.sync(taken_from)
        except StoreError:
            return []  # optional: their own writers commit them otherwise
        return takable

    # --- maintenance ---

    def rewrite_actions(self, inputs: Sequence[str], outputs: Sequence[RewrittenSegment]) -> list[Action]:
        """The actions of a `rewrite` that can be prepared in advance, to hold the writer's lock for a shorter time."""
        return rewritten(inputs, outputs, self._now(), self._indexed_columns())

    def rewrite(
        self,
        inputs: Sequence[str],
        outputs: Sequence[RewrittenSegment],
        deadline: float,
        before: Prepared | None = None,
        planned_for: TopicSettings | None = None,
    ) -> StalePlan | None:
        """Replace the files `inputs` (paths) by `outputs`. The position must not be before their versions.

        `before` are the prepared `rewrite_actions` for them. The plan is stale if one of the inputs has left the topic,
        if the outputs have waited for too long, or if the topic's settings are not `planned_for`. Raises what
        `DeltaLog.commit` raises.
        """
        is_uncertain = False

        def actions(state: TableState, head: TopicHead, now_ms: int) -> list[Action] | StalePlan:
            is_here = all(path in state.files for path in inputs)
            if not is_here or _voided(outputs, head) or not _has_settings(state, planned_for):
                return StalePlan(is_uncertain)
            return [renewed(head, now_ms)]

        def may_stand(_: TableState) -> bool:
            # A retry is safe: if the entry is in the log, its inputs are not, and the plan is stale.
            nonlocal is_uncertain
            is_uncertain = True
            return False

        before = before or prepared(self.rewrite_actions(inputs, outputs))
        return self._maintain("OPTIMIZE", actions, deadline, may_stand, before)

    def retain(
        self,
        decide: Callable[[TopicHead], Trimmed | StalePlan],
        deadline: float,
        planned_for: TopicSettings | None = None,
    ) -> StalePlan | None:
        """Remove records as `decide` says, which is called again for each slot tried.

        The plan is stale if `decide` says so, if one of the files has already left the topic, or if the topic's
        settings are not `planned_for`. Raises what `DeltaLog.commit` raises.
        """

        def actions(state: TableState, head: TopicHead, now_ms: int) -> list[Action] | StalePlan:
            trimmed = decide(head)
            if isinstance(trimmed, StalePlan):
                return trimmed
            if not all(path in state.files for path in trimmed.paths) or not _has_settings(state, planned_for):
                return StalePlan()
            return retained(head, trimmed, now_ms)

        return self._maintain("DELETE", actions, deadline)

    def raise_min_upload_version(self, min_upload_version: int, deadline: float) -> StalePlan | None:
        """Void uploads: refuse from now on all files whose upload began at a known version below `min_upload_version`.

        Applies to deleted topics, too; StalePlan if the log was removed. Raises what `DeltaLog.commit` raises.
        """
        return self._maintain(
            "VACUUM START", lambda _, head, now: raised_min_upload_version(head, min_upload_version, now), deadline
        )

    @property
    def names_statistics(self) -> bool:
        """Whether the table property names the columns with statistics. Raises UnknownTopic."""
        return STATISTICS_PROPERTY in self.metadata.configuration

    def name_statistics(self, deadline: float) -> StalePlan | None:
        """Set the table property that names the columns with statistics to deltaq's own columns, where it is missing.

        Files may lack statistics of other columns, and delta-rs would skip them as files without a match. The plan is
        stale if the property is set or the topic was deleted. Raises what `DeltaLog.commit` raises.
        """

        def actions(state: TableState, head: TopicHead, now_ms: int) -> list[Action] | StalePlan:
            if head.deleted or state.metadata is None or STATISTICS_PROPERTY in state.metadata.configuration:
                return StalePlan()
            change = TopicChange(head.partitions, {STATISTICS_PROPERTY: statistics_property()})
            return changed(head, state.metadata, change, now_ms)

        return self._maintain("SET TBLPROPERTIES", actions, deadline)

    def _maintain(
        self,
        operation: str,
        actions: Callable[[TableState, TopicHead, int], list[Action] | StalePlan],
        deadline: float,
        may_stand: Callable[[TableState], bool] = lambda _: False,
        before: Prepared = NOTHING_PREPARED,
    ) -> StalePlan | None:
        info = self._info(self._new_token(), self._now(), operation, blind=False)
        if self._beside is None:
            outcome = self._log.commit(lambda state: self._draft(info, state, actions, may_stand, before), deadline)
            return outcome if isinstance(outcome, StalePlan) else None
        deadline = min(deadline, self._clock.monotonic() + LOCK_HOLD_MAX_S)
        with self._beside.lock:
            log = self._beside.log
            if log.version < self.version:
                self._lead(log)  # its writer has not read the newest entries yet
            outcome = log._log.commit(lambda state: log._draft(info, state, actions, may_stand, before), deadline)
            if isinstance(outcome, StalePlan):
                return outcome
            self.adopt(log)
            return None

    def _lead(self, writer: TopicLog) -> None:
        """Move a writer to this position. Raises what `read_next` raises, except LogCleaned."""
        has_begun = writer.version >= 0 and not writer._log.is_partial
        try:
            # This position may come from a load, which skips entries. A writer must read them one by one, to know
            # whether peers have committed its shared files.
            while has_begun and self._tracker.followed > writer._tracker.followed and writer.version < self.version:
                if writer.read_next() is None:
                    break
        except LogCleaned:
            pass
        if writer.version < self.version:
            writer.adopt(self)

    def _draft(
        self,
        info: CommitInfo,
        state: TableState,
        actions: Callable[[TableState, TopicHead, int], list[Action] | StalePlan],
        may_stand: Callable[[TableState], bool],
        before: Prepared,
    ) -> Draft | Abandoned[StalePlan]:
        if self._last is None:
            return Abandoned(StalePlan())
        now = self._now()
        info = replace(info, timestamp=now)
        rest = actions(state, self._last, now)
        if isinstance(rest, StalePlan):
            return Abandoned(rest)
        # Check it before the write: no defect in maintenance may create an entry that all readers refuse for ever.
        entry = Entry(state.version + 1, info, (*before.actions, *rest))
        self._drafted = _Drafted(entry, self._checked(entry, f"a new entry of {self.folder}"))
        return Draft(info, rest, may_stand, before=before)

    def resolve(self, token: str, deadline: float) -> tuple[DataFile, ...] | None:
        """Resolve an append that ended in OutcomeUnknown: its files with their offsets, or None if it is not in the log
        and never will be."""
        version, what = parse_commit_token(self.folder, token)
        if (shared_file := SharedFileId.parse(what)) is not None:
            return self._resolve_shared_file(token, version, shared_file, deadline)
        txn_id = self._new_token()

        def write(_: TableState) -> Draft:
            return Draft(self._info(txn_id, self._now(), _FENCE, blind=True), [])

        entry = resolve_commit(self._log, token, write, deadline)
        return None if entry is None else self._files(entry)

    def _resolve_shared_file(
        self, token: str, as_of: int, shared_file: SharedFileId, deadline: float
    ) -> tuple[DataFile, ...] | None:
        """Resolve a shared file by an entry in its writer's name. Peers do not add files that the writer shared before
        such an entry, and a create request of the writer that is still under way finds its slot taken."""
        txn_id = shared_file.writer + self._clock.unique_id()[-WRITER_CHARS:]

        def write(_: TableState) -> Draft:
            return Draft(self._info(txn_id, self._now(), _FENCE, blind=True), [])

        def is_it(add: Add) -> bool:
            found = parse_shared_file(add.path)
            return found is not None and found.id == shared_file

        found = resolve_add(self._log, token, as_of, write, is_it, deadline)
        return None if found is None else (data_file(found, self.folder),)

    def shared_file_token(self, segment: PendingSegment) -> str | None:
        """The token that resolves a shared file whose outcome is unknown; None for another segment."""
        found = parse_shared_file(segment.path)
        return None if found is None else self._log.token(segment.as_of, str(found.id))

    def _files(self, entry: Entry) -> tuple[DataFile, ...]:
        return tuple(data_file(action, self.folder) for action in entry.actions if isinstance(action, Add))

    def _new_token(self) -> str:
        return self.writer + self._clock.unique_id()[-WRITER_CHARS:]

    def _now(self) -> int:
        return max(self._clock.time_ms(), 0 if self._last is None else self._last.time_ms)

    def _info(self, txn_id: str, now_ms: int, operation: str, *, blind: bool) -> CommitInfo:
        mode = {"mode": "Append"} if operation == _APPEND else {}
        return CommitInfo(txn_id, now_ms, operation, self.client_id, ENGINE, is_blind_append=blind, parameters=mode)


class SharedTopicLog:
    """A writer's position in its topic's log, which maintenance in the same process moves, too. Thread-safe.

    `log` is used inside `with lock`. `lock` is the lock itself: a context manager written in Python would leave it
    locked if a signal handler raised between the lock and the block.
    """

    def __init__(self, log: TopicLog, clock: Clock) -> None:
        self.log = log
        self.lock = clock.lock()

    @property
    def version(self) -> int:
        """A version that the log has reached, readable without the lock."""
        return self.log.version

    @property
    def writer(self) -> str:
        """The prefix of all tokens of the writer."""
        return self.log.writer

    @property
    def pending_shared(self) -> PendingSharedFiles:
        """Shared files of the writer whose outcome is open."""
        return self.log.pending_shared

    def shared_file_token(self, segment: PendingSegment) -> str | None:
        """See `TopicLog.shared_file_token`."""
        return self.log.shared_file_token(segment)


def _has_settings(state: TableState, planned_for: TopicSettings | None) -> bool:
    """Whether the settings that a plan was made for still apply. Once `alter_configs` has returned, no record may be
    removed by the former settings."""
    if planned_for is None or state.metadata is None:
        return planned_for is None
    return TopicSettings.from_properties(state.metadata.configuration) == planned_for


def _voided(segments: Sequence[PendingSegment] | Sequence[RewrittenSegment], head: TopicHead) -> frozenset[str]:
    """The paths of uploads that may have been removed as orphans."""
    return frozenset(segment.path for segment in segments if segment.as_of < head.min_upload_version)


def _is_append(entry: Entry) -> bool:
    """Whether it appends records. Only such writers count as contention; maintenance commits rarely."""
    return entry.info is not None and entry.info.operation == _APPEND
