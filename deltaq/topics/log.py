"""A topic's log: its head, its files, and the commits that change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from deltaq import names
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.delta.actions import (
    NOTHING_PREPARED,
    Action,
    Add,
    CommitInfo,
    Entry,
    Metadata,
    Prepared,
    Txn,
)
from deltaq.delta.log import Abandoned, Committed, DeltaLog, Draft
from deltaq.delta.position import LogCleaned
from deltaq.delta.resolve import resolve_add, resolve_commit
from deltaq.delta.table_state import TableState
from deltaq.delta.tokens import parse_commit_token
from deltaq.errors import InvalidConfig, KafkaError, TopicExists, UnknownTopic
from deltaq.parquet.column_bounds import indexed_columns
from deltaq.store import Store, StoreError
from deltaq.topics.readable import ReadableTopic
from deltaq.topics.rewrites import check_files, may_have_left
from deltaq.topics.shared_files import (
    APPEND_OPERATION,
    WRITER_CHARS,
    SharedFileId,
    WriterHistory,
    parse_shared_file,
)
from deltaq.topics.state import (
    DataFile,
    PendingSegment,
    TopicChange,
    TopicHead,
    appended,
    changed,
    create_actions,
    data_file,
    delete_actions,
)
from deltaq.topics.view import CheckedDraft, KnownTopic, TopicView, checked
from deltaq.version import __version__

ENGINE = f"deltaq/{__version__}"

_FENCE = "FENCE"
"""The operation of entries without effect, which fill a slot or revoke shared files."""

SHARED_FILES_BEHIND = 6
"""Versions behind the log's end within which shared files are listed. Their own writer commits
older ones.
"""

SHARED_FILES_FAR_BEHIND = 128
"""The same where this writer seems to be the only one: there are few shared files, made by others
that fell behind.
"""

SHARED_FILES_MAX = 256
"""Most shared files of peers in one entry."""


@dataclass(frozen=True, slots=True)
class StalePlan:
    """The outcome of a commit whose plan does not fit the current topic: nothing was written. Make
    a new plan.

    `may_have_stood`: an entry for the plan was sent into a slot that has been cleaned up since. Its
    files may have been in the topic, and readers may still use them.
    """

    may_have_stood: bool = False


@dataclass(frozen=True, slots=True)
class AppendMode:
    """How an append shares slots with others: `with_peers` also adds the shared files of peers, and
    with `far_behind` older ones, too. `tries` is the number of slots to try; None: any.
    """

    with_peers: bool = False
    far_behind: bool = False
    tries: int | None = None


ALONE = AppendMode()


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an append: files with offsets, and the cost of the commit.

    `others` has the number of appends of each other writer since the last append of this one; empty
    after the first. `peer_files` counts the shared files of peers in the entry, `files_seen` all
    files since the last append.
    """

    files: tuple[DataFile, ...]
    lost_races: int
    seconds: float
    others: Mapping[str, int]
    peer_files: int = 0
    files_seen: int = 0


@dataclass(frozen=True, slots=True)
class CommittedByPeer:
    """Which shared files of a writer its peers have committed. As the outcome of an append: nothing
    was written.

    `committed` are in the log, with their offsets. For the paths in `unknown`, the log can no
    longer tell.
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
    """The outcome of an append whose application transaction is in the topic already; nothing was
    written.
    """


@dataclass(frozen=True, slots=True)
class NothingToAppend:
    """The outcome of an append whose segments were withdrawn before it succeeded; nothing was
    written.
    """


NotAppended: TypeAlias = (
    CommittedByPeer | CommitConflict | UploadsExpired | AlreadyCommitted | NothingToAppend
)
AppendOutcome: TypeAlias = Appended | NotAppended


class TopicLog(ReadableTopic):
    """A position in one topic's log that commits changes. Not thread-safe: one owner at a time.

    Positions with the same `known` share what they have read, and keep an index of the records if
    it does; a position without one shares nothing, and keeps an index if `indexed`. `writer` is the
    prefix of the tokens of commits from this position.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        clock: Clock = SYSTEM_CLOCK,
        *,
        indexed: bool = False,
        client_id: str = "",
        known: KnownTopic | None = None,
    ) -> None:
        super().__init__(store, topic, clock)
        known = known or KnownTopic(clock, self.folder, indexed=indexed)
        self.client_id = client_id
        self.writer = clock.unique_id()[-WRITER_CHARS:]
        self.known = known
        self.pending_shared = known.pending_shared
        self._log = DeltaLog(store, self.folder, clock, known)
        # Up to which appends were counted; None before the first append from this position.
        self._counted: WriterHistory | None = None

    # --- reading ---

    @property
    def view(self) -> TopicView:
        return self._log.at.view

    @property
    def state(self) -> TableState:
        """The table at this position."""
        return self._log.state

    @property
    def delta_log(self) -> DeltaLog[TopicView]:
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
        if self._counted is not None:
            self._counted = self.view.history  # earlier writers may not be active any more
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

    def take_over(self) -> bool:
        """Move to what another position of this process has read, if that is newer."""
        return self._log.take_over()

    def versions_behind(self) -> int:
        """By how many versions this position is behind the newest one that the process has read."""
        newest = self.known.newest
        return 0 if newest is None else max(0, newest.state.table.version - self.version)

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

    def catch_up(self, *, to_end: bool = True, pause: Callable[[], object] | None = None) -> bool:
        """Follow the log to its newest version; whether the topic exists. Unless `to_end`,
        `is_end_open` may be true afterwards. `pause` is called after each entry that is read.

        Raises what `load` raises.
        """
        is_new = self.version < 0
        self._log.catch_up(to_end=to_end, pause=pause)
        if is_new:
            self._check_case()
        return self.head is not None

    def check_end(self) -> None:
        """Check that the position is the end of the log; if it is a gap, go on to the end.

        Raises what `load` raises.
        """
        try:
            self._log.check_end()
        except LogCleaned:
            self.load()

    def _indexed_columns(self) -> tuple[str, ...]:
        """The value columns that have statistics in this table."""
        return () if self.table is None else indexed_columns(self.table.configuration)

    # --- the topic ---

    def create(
        self, partitions: int, schema_string: str, properties: Mapping[str, str], deadline: float
    ) -> TopicHead:
        """Create the topic, with offsets from 0. Raises TopicExists, and what `DeltaLog.commit`
        raises.
        """
        txn_id = self._new_token()

        def write(state: TableState) -> Draft:
            if self.head is not None:
                raise TopicExists(self.topic)
            now = self._now()
            actions = create_actions(
                self.topic,
                txn_id,
                partitions,
                schema_string,
                properties,
                now,
                first=state.version < 0,
            )
            return Draft(self._info(txn_id, now, "CREATE TABLE", blind=False), actions)

        self.load()
        self._log.commit(write, deadline)
        return self.live_head

    def delete(self, deadline: float) -> None:
        """Delete the topic by a commit that removes every file. Raises UnknownTopic, what
        `DeltaLog.commit` raises.
        """
        txn_id = self._new_token()

        def write(state: TableState) -> Draft:
            now = self._now()
            return Draft(
                self._info(txn_id, now, "DELETE", blind=False),
                delete_actions(self.live_head, tuple(state.files), now),
            )

        self.load()
        self._log.commit(write, deadline)

    def change(
        self, decide: Callable[[TopicHead, Metadata], TopicChange | None], deadline: float
    ) -> TopicHead:
        """Apply the change that `decide(head, metadata)` returns, in one commit; None changes
        nothing.

        `decide` is called again for each slot tried, with the state that it changes. It may raise
        to give up. Raises UnknownTopic, and what `DeltaLog.commit` raises.
        """
        txn_id = self._new_token()

        def write(_: TableState) -> Draft | Abandoned[None]:
            now = self._now()
            change = decide(self.live_head, self.metadata)
            if change is None:
                return Abandoned(None)
            operation = "SET TBLPROPERTIES" if change.schema_string is None else "UPDATE SCHEMA"
            return Draft(
                self._info(txn_id, now, operation, blind=False),
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
        how: AppendMode = ALONE,
        trying: Callable[[str], None] = lambda _: None,
        is_decided: bool = False,
    ) -> AppendOutcome:
        """Append uploaded segments in one commit.

        `take_segments()` is called again for each slot tried and may return more than before, or
        None to end the append with NothingToAppend. `trying` is called before it, with the token of
        the slot tried.

        Nothing is written, and the outcome is AlreadyCommitted if the topic has the transaction
        version of `txn` or a later one; UploadsExpired if segments have waited for too long, unless
        `is_decided`: orphan removal keeps the files of transactions that are;
        CommittedByPeer if peers have committed some of these segments; CommitConflict if others
        have taken as many slots as `how.tries`.

        Raises UnknownTopic if `topic_id`, the topic that the rows are for, has been replaced; what
        `DeltaLog.commit` raises.
        """
        txn_id = self._new_token()
        # Bound to the topic id: transactions of an earlier topic of this name do not count.
        own = None if txn is None else replace(txn, app_id=f"{txn.app_id}/{topic_id}")
        peer_files, tries = 0, how.tries

        def write(state: TableState) -> Draft | Abandoned[NotAppended]:
            nonlocal peer_files, tries
            trying(self._log.token(state.version + 1, txn_id))
            segments = take_segments()
            if segments is None:
                return Abandoned(NothingToAppend())
            if (
                found := self._not_appended(state, segments, topic_id, own, lost=tries == 0)
            ) is not None and not (is_decided and isinstance(found, UploadsExpired)):
                return Abandoned(found)
            tries = None if tries is None else tries - 1
            head, now = self.live_head, self._now()
            log_append_time = self.settings.message_timestamp_type == "LogAppendTime"
            with_peers = how.with_peers and own is None
            others = self._shared_by_peers(head, far_behind=how.far_behind) if with_peers else []
            rows = [*segments, *others]
            after, actions = appended(
                head, state.version + 1, rows, now, log_append_time, self._indexed_columns()
            )
            info = self._info(txn_id, max(now, head.time_ms), APPEND_OPERATION, blind=own is None)
            if own is not None:
                # A retry is safe: if the entry is in the log, the table has its transaction.
                return Draft(info, [own, *actions], lambda _: False)
            own_append = (
                self._own_append(Entry(state.version + 1, info, tuple(actions)), after)
                if not others
                else None
            )

            def may_stand(later: TableState) -> bool:
                # Their own writers may have committed the shared files, at the same offsets or at
                # others.
                is_blurred = any(segment.path in later.files for segment in others)
                return is_blurred or may_have_left(
                    head, after, self.last_head, later.files.values(), self.folder
                )

            peer_files = len(others)
            pending = self.pending_shared.paths
            mine = frozenset(segment.path for segment in segments if segment.path not in pending)
            return Draft(
                info, actions, may_stand, mine, is_proven=True, after=self._folding(own_append)
            )

        outcome = self._log.commit(write, deadline, takes_turns=how.with_peers)
        if not isinstance(outcome, Committed):
            return outcome
        others, seen = self.others_since()
        files = self._files(outcome.entry)
        return Appended(files, outcome.lost_races, outcome.seconds, others, peer_files, seen)

    def _own_append(self, entry: Entry, after: TopicHead) -> CheckedDraft:
        """An append of own segments, whose offsets continue those of the head before it. Raises
        Corrupt if a file is in the topic already: no reader would accept the entry.
        """
        check_files(self.index, entry, f"a new entry of {self.folder}")
        return CheckedDraft(entry, after)

    def _folding(self, draft: CheckedDraft | None) -> Callable[[Entry], TopicView] | None:
        """`Draft.after` of an entry that was checked before it is written, for this position."""
        if draft is None:
            return None
        fold, at, log = self.known.fold, self._log.at, self._log
        return lambda entry: fold.following(at, entry, log.entries.key(entry.version), draft)

    def _not_appended(
        self,
        state: TableState,
        segments: Sequence[PendingSegment],
        topic_id: str,
        txn: Txn | None,
        *,
        lost: bool,
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
            raise UnknownTopic(
                self.topic,
                reason="it was deleted and created again after these messages were produced",
            )
        if (
            txn is not None
            and (done := state.txns.get(txn.app_id)) is not None
            and done.version >= txn.version
        ):
            self._log.sync()
            return AlreadyCommitted()
        expired = voided_uploads(segments, head)
        return UploadsExpired(expired) if expired else None

    def others_since(self) -> tuple[Mapping[str, int], int]:
        """Appends of each other writer, and files in all appends, since the last call or the last
        append.
        """
        before, self._counted = self._counted, self.view.history
        return ({}, 0) if before is None else self._counted.appends_since(before, self.writer)

    @property
    def is_ours(self) -> bool:
        """Whether the newest append read so far is by this writer."""
        return self.view.history.appended_by == self.writer

    def is_listed(self, segment: PendingSegment) -> bool:
        """Whether peers that have read as much of the log still find a shared file."""
        return segment.as_of >= self.version - SHARED_FILES_BEHIND

    def committed_by_peer(self, segments: Sequence[PendingSegment]) -> CommittedByPeer | None:
        """Which of these segments peers have committed, as read so far; None if they have committed
        none.

        Raises Unavailable if those entries cannot be synced: the peer may not have made them
        durable yet.
        """
        outcome = self._outcome(segments)
        if outcome.committed:
            self._log.sync()
        return outcome if outcome.committed or outcome.unknown else None

    def revoke(self, segments: Sequence[PendingSegment], deadline: float) -> CommittedByPeer:
        """Revoke shared files of this writer by an entry of its own; which of them peers have
        committed until then.

        Raises what `DeltaLog.commit` raises: the files may still be committed then.
        """
        txn_id = self._new_token()

        def write(_: TableState) -> Draft | Abandoned[CommittedByPeer]:
            outcome = self._outcome(segments)
            if self.last_head is None:  # the log was removed, so no writer can add them
                return Abandoned(CommittedByPeer(outcome.committed, frozenset()))
            # Nothing is left to revoke.
            if len(outcome.committed) + len(outcome.unknown) == len(segments):
                self._log.sync()
                return Abandoned(outcome)
            return Draft(self._info(txn_id, self._now(), _FENCE, blind=True), [])

        outcome = self._log.commit(write, deadline)
        return outcome if isinstance(outcome, CommittedByPeer) else self._outcome(segments)

    def _outcome(self, segments: Sequence[PendingSegment]) -> CommittedByPeer:
        """What the entries read so far say about shared files among `segments`."""
        pending = self.pending_shared
        shared = [segment for segment in segments if segment.path in pending.paths]
        committed = {
            path: pending.committed[path] for s in shared if (path := s.path) in pending.committed
        }
        unknown = {
            s.path for s in shared if s.as_of < self.view.history.followed
        } - committed.keys()
        return CommittedByPeer(committed, frozenset(unknown))

    def _shared_by_peers(self, head: TopicHead, *, far_behind: bool) -> list[PendingSegment]:
        """Shared files of peers that may be committed next."""
        behind = SHARED_FILES_FAR_BEHIND if far_behind else SHARED_FILES_BEHIND
        folder, after = names.shared_files_folder(self.folder), max(0, self.version - behind)
        found = []
        try:
            for entry in self._store.list_some(
                folder, names.shared_files_after(self.folder, after)
            ):
                shared_file = parse_shared_file(entry.key.removeprefix(self.folder))
                if shared_file is not None and shared_file.segment.size == entry.size:
                    found.append(shared_file)
            takable = list(self.view.history.takable(found, head, self.version, self.writer))[
                :SHARED_FILES_MAX
            ]
            # A listing shows files before they are durable, and a durable entry must not name lost
            # files.
            folders = {
                f"{self.folder}{segment.path}".rpartition("/")[0] + "/" for segment in takable
            }
            for taken_from in sorted(folders):
                self._store.sync(taken_from)
        except StoreError:
            return []  # optional: their own writers commit them otherwise
        return takable

    def resolve(self, token: str, deadline: float) -> tuple[DataFile, ...] | None:
        """Resolve an append that ended in OutcomeUnknown: its files with their offsets, or None if
        it is not in the log and never will be.
        """
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
        """Resolve a shared file by an entry in its writer's name. Peers do not add files that the
        writer shared before such an entry, and a create request of the writer that is still under
        way finds its slot taken.
        """
        txn_id = shared_file.writer + self._clock.unique_id()[-WRITER_CHARS:]

        def write(_: TableState) -> Draft:
            return Draft(self._info(txn_id, self._now(), _FENCE, blind=True), [])

        def is_it(add: Add) -> bool:
            found = parse_shared_file(add.path)
            return found is not None and found.id == shared_file

        found = resolve_add(self._log, token, as_of, write, is_it, deadline)
        return None if found is None else (data_file(found, self.folder),)

    def shared_file_token(self, segment: PendingSegment) -> str | None:
        """The token that resolves a shared file whose outcome is unknown; None for another
        segment.
        """
        found = parse_shared_file(segment.path)
        return None if found is None else self._log.token(segment.as_of, str(found.id))

    def _files(self, entry: Entry) -> tuple[DataFile, ...]:
        return tuple(
            data_file(action, self.folder) for action in entry.actions if isinstance(action, Add)
        )

    # --- any commit ---

    def commit_checked(
        self,
        info: CommitInfo,
        actions: Callable[[TableState, TopicHead, int], list[Action] | StalePlan],
        deadline: float,
        may_stand: Callable[[TableState], bool] = lambda _: False,
        before: Prepared = NOTHING_PREPARED,
    ) -> StalePlan | None:
        """Commit `before` and what `actions(state, head, now_ms)` returns, checked as a reader
        would check it.

        No defect in maintenance may create an entry that all readers refuse for ever. The plan is
        stale if the log does not exist, or if `actions` says so. Raises what `DeltaLog.commit`
        raises.
        """

        def write(state: TableState) -> Draft | Abandoned[StalePlan]:
            if self.last_head is None:
                return Abandoned(StalePlan())
            now = self._now()
            stamped = replace(info, timestamp=now)
            rest = actions(state, self.last_head, now)
            if isinstance(rest, StalePlan):
                return Abandoned(rest)
            entry = Entry(state.version + 1, stamped, (*before.actions, *rest))
            after = checked(self.view, entry, f"a new entry of {self.folder}")
            folding = self._folding(CheckedDraft(entry, after))
            return Draft(stamped, rest, may_stand, before=before, after=folding)

        outcome = self._log.commit(write, deadline)
        return outcome if isinstance(outcome, StalePlan) else None

    def _new_token(self) -> str:
        return self.writer + self._clock.unique_id()[-WRITER_CHARS:]

    def _now(self) -> int:
        return max(self._clock.time_ms(), 0 if self.last_head is None else self.last_head.time_ms)

    def _info(self, txn_id: str, now_ms: int, operation: str, *, blind: bool) -> CommitInfo:
        mode = {"mode": "Append"} if operation == APPEND_OPERATION else {}
        return CommitInfo(
            txn_id,
            now_ms,
            operation,
            self.client_id,
            ENGINE,
            is_blind_append=blind,
            parameters=mode,
        )


def voided_uploads(segments: Sequence[PendingSegment], head: TopicHead) -> frozenset[str]:
    """The paths of uploads that may have been removed as orphans."""
    return frozenset(
        segment.path for segment in segments if segment.as_of < head.min_upload_version
    )
