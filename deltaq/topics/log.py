"""A topic's log as a typed thing: its head, its files, and the commits that change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
from deltaq.delta.log import DeltaLog, Draft, LogCleaned
from deltaq.delta.table_state import DELTAQ_DOMAIN, TableState
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
    raised_uploads,
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
    "Appended",
    "CommitConflict",
    "CommitOutcome",
    "CommittedByPeer",
    "SharedTopicLog",
    "StalePlan",
    "TopicLog",
    "UploadsExpired",
]

ENGINE = f"deltaq/{__version__}"

_APPEND = "WRITE"
"""The operation of entries that append records."""

_SETTLE = "SETTLE"
"""The operation of entries that change nothing, and take a slot or withdraw what was offered."""

TURN_TIMEOUT_S = 5.0
"""How long maintenance keeps the writer beside it waiting at most, if the store does not answer."""

OFFERS_BEHIND = 6
"""How many versions behind the log's end an offer may be to be looked for. What is older its own writer commits."""

SHARED_FILES_MAX = 256
"""Files of others that one entry takes along at most."""


class AlreadyCommitted(Exception):
    """The application transaction (`app_id`, `version`) is in the topic already; nothing was written."""


class UploadsExpired(Exception):
    """Segments were uploaded so long ago that they may have been removed as orphans; nothing was written.

    `paths` says which: upload them again.
    """

    def __init__(self, paths: frozenset[str]) -> None:
        super().__init__(f"{len(paths)} uploaded files may be gone")
        self.paths = paths


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What the log says, as far as it is known, about files that others may commit.

    `landed` are in it, with their offsets. `unseen` are paths of which that cannot be told any more.
    """

    landed: Mapping[str, DataFile]
    unseen: frozenset[str]


class CommittedByPeer(Exception):
    """Peers have committed some of the segments; nothing was written.

    `landed` and `unseen` are those of `CommitOutcome`.
    """

    def __init__(self, fate: CommitOutcome) -> None:
        super().__init__(f"{len(fate.landed)} files are in the topic already, {len(fate.unseen)} may be")
        self.landed = fate.landed
        self.unseen = fate.unseen


class CommitConflict(Exception):
    """Somebody else has taken the slot; nothing was written. Whoever did so may take us along next time."""


class StalePlan(Exception):
    """What was planned does not fit the topic as it is now. Make a new plan.

    `may_have_stood`: an entry for it was sent, into a slot that has been cleaned up since. Its files may have been in
    the topic, and others may read them still. Otherwise nothing was written.
    """

    def __init__(self, *, may_have_stood: bool = False) -> None:
        super().__init__("the topic has changed since this was planned")
        self.may_have_stood = may_have_stood


@dataclass(frozen=True, slots=True)
class Appended:
    """Segments that got their offsets, with what the commit cost.

    `others` has the number of appends of each other writer since the append before; nothing after the first one.
    `taken_along` counts the files of others in the same entry, `files_seen` all that came since the append before.
    """

    files: tuple[DataFile, ...]
    lost_races: int
    seconds: float
    others: Mapping[str, int]
    taken_along: int = 0
    files_seen: int = 0


@dataclass(frozen=True, slots=True)
class _Drafted:
    """An entry that was checked before it was written: it takes the topic to `after`.

    With a hundred files in it, to check it again once it stands takes as long as all else that a writer waits for.
    """

    entry: Entry
    after: TopicHead

    def is_read_as(self, entry: Entry) -> bool:
        """Whether `entry` does the same in the same slot."""
        return entry.version == self.entry.version and entry.actions == self.entry.actions


class TopicLog:
    """A position in one topic's log. Not thread-safe: one owner at a time.

    `head` is None while the topic does not exist (never created, or deleted). `index` is kept only if asked for.
    Maintenance `beside` a writer need not read what that one has read or written, and commits in its turn, so that
    neither loses a race against the other. `between` is called between two of many small things as it catches up.
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
        between: Callable[[], object] = lambda: None,
    ) -> None:
        self.topic = topic
        self.folder = names.topic_folder(topic)
        self.client_id = client_id
        self.index = OffsetIndex()
        self._indexed = indexed
        self._beside = beside
        self._between = between
        self._last: TopicHead | None = None
        self.writer = clock.unique_id()[-WRITER_CHARS:]
        self.awaited = PendingSharedFiles() if beside is None else beside.awaited
        self._ledger = SharedFileTracker()
        self._files_seen = 0  # added by appends since our last one
        self._appended_by = ""  # the writer of the newest append
        self._others: Counter[str] | None = None  # appends of others since our last one; readers have none
        self._adopted: TopicLog | None = None  # while another position is taken over: that one
        self._drafted: _Drafted | None = None  # what was checked before it was written
        self._settings: tuple[Metadata, TopicSettings] | None = None
        self._log = DeltaLog(store, self.folder, clock, follower=self)
        self._clock = clock
        self._store = store

    # --- what it says ---

    @property
    def version(self) -> int:
        return self._log.state.version

    @property
    def is_beside_writer(self) -> bool:
        """Whether it commits in the turn of a writer."""
        return self._beside is not None

    @property
    def delta_log(self) -> DeltaLog:
        """The log under this one, for those to whom a topic is a table like any other."""
        return self._log

    @property
    def head(self) -> TopicHead | None:
        """The topic as it lives now; None if there is none."""
        return None if self._last is None or self._last.deleted else self._last

    @property
    def live_head(self) -> TopicHead:
        """The topic as it lives now. Raises UnknownTopic."""
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
        """The head of a topic that was deleted, and has had no successor yet."""
        return self._last if self._last is not None and self._last.deleted else None

    @property
    def settings(self) -> TopicSettings:
        """The topic's settings; of a deleted one those that it had. Raises UnknownTopic."""
        metadata = self._log.state.metadata
        if metadata is None:
            raise UnknownTopic(self.topic)
        if self._settings is None or self._settings[0] is not metadata:  # they are asked for at every commit
            self._settings = metadata, TopicSettings.from_properties(metadata.configuration)
        return self._settings[1]

    @property
    def is_end_open(self) -> bool:
        """Whether nobody has looked yet if the position is the end of the log or a gap in it: `check_end` does."""
        return self._log.is_end_open

    def load(self, *, to_end: bool = True) -> bool:
        """Go to the newest version; whether the topic exists. Unless `to_end`, that may leave the `is_end_open`.

        Raises InvalidConfig if the store takes this name and that of another topic for the same, Corrupt, Incompatible,
        Unavailable.
        """
        self._log.load(to_end=to_end)
        if self._others is not None:
            self._others.clear()  # who wrote before we came need not be there any more
        self._check_case()
        return self.head is not None

    def _check_case(self) -> None:
        """On a case-folding store, `Orders` finds the folder of `orders`: two names for one topic, seen as two."""
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
        """The next entry, applied; None if there is none yet. Raises LogCleaned and what `load` raises."""
        return self._log.read_next()

    def read_following(self, count: int) -> int:
        """Apply up to `count` next entries, asked for all at once; how many there were. Raises as `read_next`."""
        return self._log.read_following(count)

    def catch_up(self, *, to_end: bool = True) -> bool:
        """Go to the newest version from where the position is; whether the topic exists. Unless `to_end`, that may
        leave the `is_end_open`.

        Raises what `load` and `between` raise.
        """
        if self._beside is not None:
            with self._beside.turn:
                log = self._beside.log
                if log.version > self.version and not log.delta_log.is_partial:
                    self.adopt(log)
        if self.version < 0:
            return self.load(to_end=to_end)
        try:
            while self.read_next() is not None:
                self._between()
        except LogCleaned:
            self.load(to_end=to_end)
        if to_end and self.is_end_open:
            self.check_end()
        return self.head is not None

    def check_end(self) -> None:
        """Make sure that the position is the end of the log and not a gap in it; go on to the end, if it is not.

        Raises what `load` raises.
        """
        try:
            self._log.check_end()
        except LogCleaned:
            self.load()

    def is_lost(self, file: DataFile) -> bool:
        """Whether a file is named by the log, as far as it is known, and yet is not there. Raises Unavailable."""
        return file.path in self.index.files and is_lost(self._store, self._clock, file)

    def copied_state(self) -> TableState:
        """The table as it is now, which stays so while the log moves on."""
        return self._log.state.copy()

    def adopt(self, other: TopicLog) -> None:
        """Go to where `other` is, another position in this log, which keeps an index if this one does."""
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
        if self._adopted is not None:
            # All is understood and checked already, and doing so again would take time that a writer wants.
            self._last, self.index = self._adopted._last, self._adopted.index.copy()
            self._ledger, self._appended_by = self._adopted._ledger.copy(), self._adopted._appended_by
            return
        self._last = None
        self._ledger = SharedFileTracker(state.version)
        self.awaited.note((state.files[path] for path in self.awaited.paths.copy() if path in state.files), self.folder)
        self.index = OffsetIndex()
        if DELTAQ_DOMAIN in state.domains:
            self._last = parse_head(state.domains[DELTAQ_DOMAIN], self.folder, state.version)
            for add in state.files.values():
                self._index(add)
            if self._indexed and not self._last.deleted:
                check_covered(self.index, self._last, self.folder, state.version)

    def advancing(self, entry: Entry, path: str) -> None:
        self._last, self._drafted = self._checked(entry, path), None
        self._ledger.note(entry)
        self.awaited.note((action for action in entry.actions if isinstance(action, Add)), self.folder)
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
        """The head after the entry that comes next. Raises Corrupt."""
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

    # --- what changes it ---

    def create(self, partitions: int, schema_string: str, properties: Mapping[str, str], deadline: float) -> TopicHead:
        """Bring the topic into being, with offsets from 0. Raises TopicExists, and what `DeltaLog.commit` raises."""
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
        """End the topic: a commit that removes every file. Raises UnknownTopic, and what `DeltaLog.commit` raises."""
        txn_id = self._new_token()

        def write(state: TableState) -> Draft:
            now = self._now()
            return Draft(
                self._info(txn_id, now, "DELETE", blind=False), delete_actions(self.live_head, tuple(state.files), now)
            )

        self.load()
        self._log.commit(write, deadline)

    def change(self, decide: Callable[[TopicHead, Mapping[str, str]], TopicChange], deadline: float) -> TopicHead:
        """Change what `decide(head, properties)` says, in one commit.

        It is asked anew for each slot tried, so it always sees what it changes, and may raise to give up.
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
        take_segments: Callable[[], Sequence[PendingSegment]],
        topic_id: str,
        deadline: float,
        txn: Txn | None = None,
        *,
        shared: bool = False,
        tries: int | None = None,
        trying: Callable[[str], None] = lambda _: None,
    ) -> Appended:
        """Append uploaded segments in one commit.

        `take_segments()` is asked anew for each slot tried and may return more than before. `topic_id` is the topic the
        rows were meant for: UnknownTopic if another one has taken its name. With `txn`, AlreadyCommitted if the topic
        has that transaction version or a later one. UploadsExpired if segments have waited for too long.
        `shared`: add the shared files of peers, too. CommittedByPeer if peers have committed some of these segments.
        CommitConflict if others have taken as many slots as `tries`. `trying` is called with the token of each slot
        tried, before `take_segments`.
        """
        txn_id = self._new_token()
        # Bound to the topic's id: what an earlier topic of this name has taken says nothing about this one.
        own = None if txn is None else replace(txn, app_id=f"{txn.app_id}/{topic_id}")
        taken_along = 0

        def write(state: TableState) -> Draft:
            nonlocal taken_along, tries
            trying(self._log.token(state.version + 1, txn_id))
            segments = take_segments()
            self.check_taken(segments)  # before anything else: what is in the log has not failed
            if tries is not None:
                if tries == 0:
                    raise CommitConflict
                tries -= 1
            head = self.live_head
            if head.topic_id != topic_id:
                raise UnknownTopic(
                    self.topic, reason="it was deleted and created again while these messages were on their way"
                )
            if own is not None and (done := state.txns.get(own.app_id)) is not None and done.version >= own.version:
                self._log.sync()
                raise AlreadyCommitted
            now = self._now()
            log_append_time = self.settings.message_timestamp_type == "LogAppendTime"
            _check_uploads(segments, head)
            others = self._offered(head) if shared and own is None else []
            rows = [*segments, *others]
            after, actions = appended(head, state.version + 1, rows, now, log_append_time, self._indexed_columns())
            info = self._info(txn_id, max(now, head.time_ms), _APPEND, blind=own is None)
            if own is not None:
                # Trying again is safe: if the entry stands, the table has its transaction.
                return Draft(info, [own, *actions], lambda _: False)

            def may_stand(later: TableState) -> bool:
                # Others may have committed what we took along, at the same offsets or at others.
                is_blurred = any(segment.path in later.files for segment in others)
                return is_blurred or may_have_left(head, after, self._last, later.files.values(), self.folder)

            taken_along = len(others)
            mine = frozenset(segment.path for segment in segments if segment.path not in self.awaited.paths)
            return Draft(info, actions, may_stand, mine)

        committed = self._log.commit(write, deadline)
        others, seen = self.others_since()
        files = self._files(committed.entry)
        return Appended(files, committed.lost_races, committed.seconds, others, taken_along, seen)

    def others_since(self) -> tuple[Mapping[str, int], int]:
        """The number of appends of each other writer since this was last asked, or since the append before; and of
        files in all appends."""
        others, seen = self._others, self._files_seen
        self._others, self._files_seen = Counter(), 0
        return others or {}, seen

    @property
    def is_ours(self) -> bool:
        """Whether the newest append, as far as is known, is by this writer."""
        return self._appended_by == self.writer

    def check_taken(self, segments: Sequence[PendingSegment]) -> None:
        """Raises CommittedByPeer if others have committed some of these uploads, as far as is known, or if that was
        missed; Unavailable if they cannot be made durable, of which their writer may not be sure yet."""
        fate = self._fate(segments)
        if fate.landed:
            self._log.sync()
        if fate.landed or fate.unseen:
            raise CommittedByPeer(fate)

    def withdraw(self, segments: Sequence[PendingSegment], deadline: float) -> CommitOutcome:
        """See to it that nobody adds these offers of ours any more, by an entry of our own; what became of them until
        then. Raises what `DeltaLog.commit` raises: then they may be added yet."""
        txn_id = self._new_token()

        def write(_: TableState) -> Draft:
            fate = self._fate(segments)
            if self._last is None:
                raise CommittedByPeer(
                    CommitOutcome(fate.landed, frozenset())
                )  # the log was removed, and nobody adds them to it
            if len(fate.landed) + len(fate.unseen) == len(segments):
                self._log.sync()
                raise CommittedByPeer(fate)  # there is nothing to withdraw
            return Draft(self._info(txn_id, self._now(), _SETTLE, blind=True), [])

        try:
            self._log.commit(write, deadline)
        except CommittedByPeer as found:
            return CommitOutcome(found.landed, found.unseen)
        return self._fate(segments)

    def _fate(self, segments: Sequence[PendingSegment]) -> CommitOutcome:
        """What is known of those that others may commit."""
        offers = [segment for segment in segments if segment.path in self.awaited.paths]
        landed = {path: self.awaited.landed[path] for s in offers if (path := s.path) in self.awaited.landed}
        unseen = {s.path for s in offers if s.as_of < self._ledger.followed} - landed.keys()
        return CommitOutcome(landed, frozenset(unseen))

    def _offered(self, head: TopicHead) -> list[PendingSegment]:
        """What others have uploaded, and may be committed next."""
        folder, after = names.offers_folder(self.folder), max(0, self.version - OFFERS_BEHIND)
        found = []
        try:
            for entry in self._store.glance(folder, names.offers_after(self.folder, after)):
                offer = parse_shared_file(entry.key.removeprefix(self.folder))
                if offer is not None and offer.segment.size == entry.size:
                    found.append(offer)
            takable = list(self._ledger.takable(found, head, self.version, self.writer))[:SHARED_FILES_MAX]
            # An upload is seen before it is durable, and an entry must not outlive its files.
            folders = {f"{self.folder}{segment.path}".rpartition("/")[0] + "/" for segment in takable}
            for taken_from in sorted(folders):
                self._store.sync(taken_from)
        except StoreError:
            return []  # theirs is to commit them, ours only to help
        return takable

    # --- maintenance ---

    def prepare_rewrite(
        self,
        inputs: Sequence[str],
        outputs: Sequence[RewrittenSegment],
        between: Callable[[], object] = lambda: None,
    ) -> Prepared:
        """What takes long of a `rewrite`, done at leisure instead of in the turn of a writer who wants it back.

        `between` is called now and then, and what it raises passes.
        """
        return prepared(rewritten(inputs, outputs, self._now(), self._indexed_columns()), between)

    def rewrite(
        self,
        inputs: Sequence[str],
        outputs: Sequence[RewrittenSegment],
        deadline: float,
        before: Prepared | None = None,
        planned_for: TopicSettings | None = None,
    ) -> None:
        """Put `outputs` in the place of the files `inputs` (paths). The position must be at or behind their versions.

        `before` is what was prepared for these.

        Raises StalePlan if one of the inputs has left the topic, if the outputs have waited for too long, or if the
        topic's settings are not those that this was `planned_for`; what `DeltaLog.commit` raises.
        """

        is_uncertain = False

        def actions(state: TableState, head: TopicHead, now_ms: int) -> list[Action]:
            is_here = all(path in state.files for path in inputs)
            if not is_here or _voided(outputs, head) or not _has_settings(state, planned_for):
                raise StalePlan(may_have_stood=is_uncertain)
            return [renewed(head, now_ms)]

        def may_stand(_: TableState) -> bool:
            # If it stands, its inputs are gone, and so is the plan: trying again is safe.
            nonlocal is_uncertain
            is_uncertain = True
            return False

        self._maintain("OPTIMIZE", actions, deadline, may_stand, before or self.prepare_rewrite(inputs, outputs))

    def retain(
        self, decide: Callable[[TopicHead], Trimmed], deadline: float, planned_for: TopicSettings | None = None
    ) -> None:
        """Remove records: what `decide` says, asked anew for each slot tried; it may raise StalePlan to give up.

        Raises StalePlan if one of the files has left the topic already, or if the topic's settings are not those that
        this was `planned_for`; what `DeltaLog.commit` raises.
        """

        def actions(state: TableState, head: TopicHead, now_ms: int) -> list[Action]:
            trimmed = decide(head)
            if not all(path in state.files for path in trimmed.paths) or not _has_settings(state, planned_for):
                raise StalePlan
            return retained(head, trimmed, now_ms)

        self._maintain("DELETE", actions, deadline)

    def raise_uploads(self, uploads_from: int, deadline: float) -> None:
        """Refuse from now on all files whose upload began before the log was known up to version `uploads_from`.

        A deleted topic is no exception. Raises what `DeltaLog.commit` raises.
        """
        self._maintain("VACUUM START", lambda _, head, now: raised_uploads(head, uploads_from, now), deadline)

    @property
    def names_statistics(self) -> bool:
        """Whether the table says which of its columns have statistics. Raises UnknownTopic."""
        return STATISTICS_PROPERTY in self.metadata.configuration

    def name_statistics(self, deadline: float) -> None:
        """Say which columns have statistics in a table that does not: deltaq's own.

        Its files may have none of others, and delta-rs would take them for files without a match.
        Raises StalePlan if the table says it already or the topic is gone; what `DeltaLog.commit` raises.
        """

        def actions(state: TableState, head: TopicHead, now_ms: int) -> list[Action]:
            if head.deleted or state.metadata is None or STATISTICS_PROPERTY in state.metadata.configuration:
                raise StalePlan
            change = TopicChange(head.partitions, {STATISTICS_PROPERTY: statistics_property()})
            return changed(head, state.metadata, change, now_ms)

        self._maintain("SET TBLPROPERTIES", actions, deadline)

    def _maintain(
        self,
        operation: str,
        actions: Callable[[TableState, TopicHead, int], list[Action]],
        deadline: float,
        may_stand: Callable[[TableState], bool] = lambda _: False,
        before: Prepared = NOTHING_PREPARED,
    ) -> None:
        info = self._info(self._new_token(), self._now(), operation, blind=False)
        if self._beside is None:
            self._log.commit(lambda state: self._draft(info, state, actions, may_stand, before), deadline)
            return
        deadline = min(deadline, self._clock.monotonic() + TURN_TIMEOUT_S)
        with self._beside.turn:
            log = self._beside.log
            if log.version < self.version:
                self._lead(log)  # others have written, and its writer has not heard of it yet
            log._log.commit(lambda state: log._draft(info, state, actions, may_stand, before), deadline)
            self.adopt(log)

    def _lead(self, writer: TopicLog) -> None:
        """Bring a writer to this position. Raises what `read_next` raises, but for LogCleaned."""
        has_begun = writer.version >= 0 and not writer._log.is_partial
        try:
            # What was loaded meanwhile has not been read one by one: a writer that took it over would not know any more
            # whether others have committed what it has offered before.
            while has_begun and self._ledger.followed > writer._ledger.followed and writer.version < self.version:
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
        actions: Callable[[TableState, TopicHead, int], list[Action]],
        may_stand: Callable[[TableState], bool],
        before: Prepared,
    ) -> Draft:
        if self._last is None:
            raise StalePlan
        now = self._now()
        info = replace(info, timestamp=now)
        rest = actions(state, self._last, now)
        # A defect in maintenance must not leave an entry behind that every reader refuses for ever.
        entry = Entry(state.version + 1, info, (*before.actions, *rest))
        self._drafted = _Drafted(entry, self._checked(entry, f"a new entry of {self.folder}"))
        return Draft(info, rest, may_stand, before=before)

    def settle(self, token: str, deadline: float) -> tuple[DataFile, ...] | None:
        """What became of an append that ended in OutcomeUnknown: its files with their offsets, or None if it never
        will stand."""
        version, what = self._log.parse_token(token)
        if (offered := SharedFileId.parse(what)) is not None:
            return self._settle_offer(token, version, offered, deadline)
        txn_id = self._new_token()

        def write(_: TableState) -> Draft:
            return Draft(self._info(txn_id, self._now(), _SETTLE, blind=True), [])

        entry = self._log.settle(token, write, deadline)
        return None if entry is None else self._files(entry)

    def _settle_offer(
        self, token: str, as_of: int, offered: SharedFileId, deadline: float
    ) -> tuple[DataFile, ...] | None:
        """What became of an offer. An entry in its writer's name ends it: nobody adds behind that what was offered
        before, and a create of that writer's that is still on its way finds its slot filled."""
        txn_id = offered.writer + self._clock.unique_id()[-WRITER_CHARS:]

        def write(_: TableState) -> Draft:
            return Draft(self._info(txn_id, self._now(), _SETTLE, blind=True), [])

        def is_it(add: Add) -> bool:
            offer = parse_shared_file(add.path)
            return offer is not None and offer.id == offered

        found = self._log.settle_in(token, as_of, write, is_it, deadline)
        return None if found is None else (data_file(found, self.folder),)

    def offer_token(self, segment: PendingSegment) -> str | None:
        """What finds an offer again whose outcome is unknown; None if the segment is none."""
        offer = parse_shared_file(segment.path)
        return None if offer is None else self._log.token(segment.as_of, str(offer.id))

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
    """A writer's position in its topic's log, which others may move too while it is their turn. Thread-safe.

    `log` is used inside `with turn`. That is the lock itself: a context manager in Python would leave it taken when a
    signal handler raises between the lock and the block.
    """

    def __init__(self, log: TopicLog, clock: Clock) -> None:
        self.log = log
        self.turn = clock.lock()

    @property
    def version(self) -> int:
        """A version that the log has reached."""
        return self.log.version

    @property
    def writer(self) -> str:
        """What all tokens of the writer begin with."""
        return self.log.writer

    @property
    def awaited(self) -> PendingSharedFiles:
        """What the writer has offered."""
        return self.log.awaited

    def offer_token(self, segment: PendingSegment) -> str | None:
        """See `TopicLog.offer_token`."""
        return self.log.offer_token(segment)


def _has_settings(state: TableState, planned_for: TopicSettings | None) -> bool:
    """Whether a plan that was made for certain settings meets them still: whoever was told that a setting is another
    one loses nothing by the former."""
    if planned_for is None or state.metadata is None:
        return planned_for is None
    return TopicSettings.from_properties(state.metadata.configuration) == planned_for


def _voided(segments: Sequence[PendingSegment] | Sequence[RewrittenSegment], head: TopicHead) -> frozenset[str]:
    """The paths of uploads that may have been removed as orphans: a look at the topic's folder may have found them."""
    return frozenset(segment.path for segment in segments if segment.as_of < head.uploads_from)


def _check_uploads(segments: Sequence[PendingSegment], head: TopicHead) -> None:
    gone = _voided(segments, head)
    if gone:
        raise UploadsExpired(gone)


def _is_append(entry: Entry) -> bool:
    """Whether it is by somebody who wants the log for itself again and again; maintenance comes by now and then."""
    return entry.info is not None and entry.info.operation == _APPEND
