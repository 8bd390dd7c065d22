"""One numbered log, read and written: snapshot, tail, and the commit loop.

The log is the sequencer of everything in deltaq. Entry `v` is the object `_delta_log/<v>.json`; it is created only if
absent, and whoever creates it has decided what happened at `v`. Rules that keep this true under crashes, retries and
lost answers (`docs/internals/format.md`, "Committing"):

* Never go past a slot before having seen who fills it: a late write may still land in an empty one.
* After any error the slot is read; the token (`txnId`) in the entry tells whose it is.
* An entry follows another one. A commit counts only while the entry before it is in its slot: else the log's folder was
  removed or replaced under this client, and no reader would find what was committed.
* A log that is cleaned up re-opens its old slots. So a clean-up first leaves a marker in `_deltaq/log_start/`, and
  whoever has not been in touch with the log for `HEAD_PROOF_S` looks for a marker above the slot before it believes
  that slot, be it filled or empty.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from deltaq import errors, names
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.delta.actions import (
    NOTHING_PREPARED,
    Action,
    Add,
    CommitInfo,
    Entry,
    Prepared,
    encode_entry,
    parse_entry,
)
from deltaq.delta.checkpoint import (
    Checkpoint,
    parse_checkpoint,
    pointed_version,
    read_checkpoint,
    read_checkpoint_but,
    read_newest_checkpoint,
)
from deltaq.delta.retry import error_pause_s, race_pause_s
from deltaq.delta.store_errors import unavailable
from deltaq.delta.table_state import TableState
from deltaq.errors import Corrupt, Incompatible, OutcomeUnknown, Unavailable
from deltaq.store import (
    ObjectExists,
    ObjectMissing,
    Store,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UnsafeStore,
    probed,
)
from deltaq.store.parallel import in_parallel

__all__ = ["CLEAN_UP_GRACE_S", "HEAD_PROOF_S", "Committed", "DeltaLog", "Draft", "LogCleaned"]

_log = logging.getLogger("deltaq.log")

T = TypeVar("T")

HEAD_PROOF_S = 30.0
"""How long a position at the head of the log is trusted without looking for log-start markers, in seconds of uptime.

Far below the shortest time in which maintenance removes an entry, far above a normal commit.
"""

CLEAN_UP_GRACE_S = 2 * HEAD_PROOF_S
"""How long clean-up waits between its log-start marker and the removal of entries below it, in seconds.

Whoever may still go by what it saw before the marker finds its slots as they were.
"""

READ_AHEAD_MAX = 64
"""Most entries that are asked for at once when a log on a remote store is read from its beginning or a checkpoint."""

_LOAD_ATTEMPTS = 5
_SYNC_ATTEMPTS = 3

_TOKEN_BYTES = 1024
"""How much of an entry has the token of its commit in it."""

_REPLACED = (
    "the log entry before this commit is gone or another one: the folder was removed or replaced while this client "
    "used it, and what was written there is lost. To delete a topic, call AdminClient.delete_topics or Topic.delete; "
    "remove or restore folders only while no client runs"
)

_TXN_ID = re.compile(rb'"txnId":"([^"]*)"')

_TOKEN = re.compile(r"([0-9]{1,18}):([!-9;-~]{1,200}):([0-9a-f]{8})")


class LogCleaned(Exception):
    """The next entry was removed by log clean-up: load a snapshot and go on from there."""


class _SlotCleaned(Exception):
    """The slot we aim at lies below the log's start; `maybe` tells whether an earlier create may have filled it in
    time."""

    def __init__(self, maybe: bool) -> None:
        super().__init__()
        self.maybe = maybe


@dataclass(frozen=True, slots=True)
class Draft:
    """What a writer wants to put into the next slot.

    `may_stand(state)` is asked if it was perhaps created in time and its slot has been cleaned up since: whether it may
    be that the table in `state` had its files and has them no more. Without it, that may be. `own` are the paths of
    files that no other commit can add: one of them in the table proves that this one stands. Without it, all are.
    `before` are actions that come ahead of the others, encoded already.
    """

    info: CommitInfo
    actions: Sequence[Action]
    may_stand: Callable[[TableState], bool] | None = None
    own: frozenset[str] | None = None
    before: Prepared = NOTHING_PREPARED


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that stands.

    `entry` is what is in the log; `lost_races` counts the slots others took before it. `seconds` is for how long others
    could come between, in all slots tried: from the last look at the log to the answer of the store.
    """

    entry: Entry
    lost_races: int
    seconds: float


class Follower(Protocol):
    """Keeps a typed view of the table in step with a `DeltaLog`. May raise Corrupt to refuse an entry."""

    def restored(self, state: TableState) -> None:
        """The position was set anew: `state` is empty, or what a checkpoint says."""

    def advancing(self, entry: Entry, path: str) -> None:
        """`entry`, found at `path`, comes next."""


class DeltaLog:
    """A position in one log, and the only way to move it. Not thread-safe: one owner at a time.

    `state` is the table at that position. `folder` ends in `/` and is relative to the store's root.
    """

    def __init__(
        self, store: Store, folder: str, clock: Clock = SYSTEM_CLOCK, follower: Follower | None = None
    ) -> None:
        self.store = store
        self.folder = folder
        self.clock = clock
        self.state = TableState()
        self._follower = follower
        self._log_folder = folder + names.LOG_FOLDER
        self._proven_at = float("-inf")
        self._in_place_at = float("-inf")  # when the newest entry was last seen in its slot
        self._is_partial = False  # loading has begun and not succeeded: `state` is neither old nor new
        self._is_end_open = False
        self._looked_at = 0.0  # when the look began that found no further entry
        self._crowded = False  # others wrote between our last two commits, so they probably have again

    # --- reading ---

    @property
    def is_partial(self) -> bool:
        """Whether the last `load` failed half way: `state` is then not to be relied on."""
        return self._is_partial

    @property
    def is_end_open(self) -> bool:
        """Whether nobody has looked yet if the position is the end of the log or a gap in it: `check_end` does."""
        return self._is_end_open

    def load(self, *, to_end: bool = True) -> bool:
        """Move to the newest version, from the newest checkpoint or from version 0. False if there is no such table.

        Unless `to_end`, that may leave the `is_end_open`: who looks for what is old would list the log in vain.
        Raises Corrupt, Incompatible, Unavailable.
        """
        self._is_partial = True
        exists = self._load(to_end)
        self._is_partial = False
        return exists

    @property
    def proven_at(self) -> float:
        """When (`Clock.uptime`) clean-up had certainly not re-opened the slot behind the position."""
        return self._proven_at

    def adopt(self, state: TableState, proven_at: float = float("-inf"), *, is_end_open: bool = False) -> None:
        """Take over the position of another `DeltaLog` of this table, and with it what that one has verified.

        `state` is this log's own from now on.
        """
        self.state = state
        self._is_partial = False
        self._is_end_open = is_end_open
        self._proven_at = self._in_place_at = proven_at
        if self._follower is not None:
            self._follower.restored(state)

    def _load(self, to_end: bool) -> bool:
        for attempt in range(1, _LOAD_ATTEMPTS + 1):
            self._restore(None)
            started_at = self.clock.uptime()
            newest, listed = self._reading(self._newest_checkpoint)
            if newest is not None:
                self._restore(newest)
            first = self.state.version + 1
            self._proven_at = self._in_place_at = started_at
            self._advance_to_end()
            self._learn_token()
            if listed is not None and self.state.version > max(listed, default=first - 1):
                listed = None  # the log has grown since, and there may be a gap in what came
            start = self._log_start()
            if self.state.version < 0:
                if not self._has_entries(start, is_last_look=attempt == _LOAD_ATTEMPTS):
                    return False
                # Created, or cleaned up, between our look and the listing; or the store lists what it does not give.
            elif start <= first and not to_end and listed is None:
                self._is_end_open = True
                return True
            elif start <= first and self._is_whole(listed):
                return True
            elif start > first and attempt == _LOAD_ATTEMPTS and self._is_unreadable_from(start):
                reason = f"no checkpoint at or above the log's start {start} can be read"
                raise Corrupt(reason, path=self._log_folder, version=start)
            # Entries were cleaned up while we read, and what we read in their slots may have come after that: from a
            # writer that was paused. The newer checkpoint that they gave way to has them.
            self._pause(attempt)
        raise Unavailable(f"the log of {self.folder!r} changes faster than it can be read; try again")

    def _learn_token(self) -> None:
        """Where a look costs no request: what the entry is called that a checkpoint took the place of."""
        if self.state.version >= 0 and self.state.txn_id is None and not self.store.is_remote:
            try:
                self.state.txn_id = self._token_in_slot()
            except StoreError:
                pass  # then it is not known

    def _newest_checkpoint(self) -> tuple[Checkpoint | None, set[int] | None]:
        """The newest checkpoint; and of a remote store, if that is the one that the log points to, what lies behind it,
        listed meanwhile: that takes as long as a checkpoint. Raises StoreError."""
        if not self.store.is_remote:
            return read_newest_checkpoint(self.store, self._log_folder), None
        pointed = pointed_version(self.store, self._log_folder)
        if pointed is None:
            return read_checkpoint_but(self.store, self._log_folder, None), None
        listed: set[int] = set()

        def read(checkpoint: bool) -> Checkpoint | None:
            if checkpoint:
                return read_checkpoint(self.store, self._log_folder, pointed)
            listed.update(self._listed_versions(self._entry_key(pointed)))
            return None

        found, _ = in_parallel(self.clock, read, (True, False))
        if found is None:
            return read_checkpoint_but(self.store, self._log_folder, pointed), None
        return found, listed

    def _is_unreadable_from(self, start: int) -> bool:
        """Whether every checkpoint from the log's start on is damaged, or none is there. Unavailable if one comes and
        goes."""
        return self._reading(lambda: all(self._is_damaged(e.key, start) for e in self.store.list(self._log_folder)))

    def _is_damaged(self, key: str, start: int) -> bool:
        version = names.checkpoint_version(key)
        if version is None or version < start:
            return True  # nothing that could help
        try:
            parse_checkpoint(self.store.get(key), version, key)
        except Corrupt:
            return True
        return False

    def _is_whole(self, listed: set[int] | None) -> bool:
        """Whether the position is the end of the log, and no clean-up came in between. Raises what `check_end` does."""
        try:
            self.check_end(listed)
        except LogCleaned:
            return False
        return True

    def _advance_to_end(self) -> None:
        window = 1
        while True:
            following = range(self.state.version + 1, self.state.version + 1 + window)
            for entry in in_parallel(self.clock, self._read_entry, following):
                if entry is None:
                    return
                self._apply(entry)
            if self.store.is_remote:
                window = min(window * 4, READ_AHEAD_MAX)  # a long log is read ahead, a short one costs one miss

    def check_end(self, listed: set[int] | None = None) -> None:
        """An entry that was lost from the middle must not pass for the log's end: a writer would fill its slot.

        Lists the log, unless there is a listing from a while ago: what was behind the gap then has to be found too.
        Raises what `read_next` raises.
        """
        first = self.state.version + 1
        versions = self._listed_versions(self._entry_key(self.state.version)) if listed is None else listed
        newest = max(versions, default=-1)
        for attempt in range(1, _LOAD_ATTEMPTS + 1):
            if newest > self.state.version:
                self._advance_to_end()  # most likely they have been written just now
            following = self.state.version + 1
            # What is missing, and what was read just now, may have been cleaned up meanwhile.
            if following != first and not self._reading(lambda: self._is_proven(first)):
                raise LogCleaned(self.folder)
            if following > newest:
                self._is_end_open = False
                return
            path = self._entry_key(following)
            if following not in versions and self._log_start() > following:
                raise LogCleaned(self.folder)
            if following not in versions:
                raise Corrupt("log entry is missing, and later ones exist", path=path, version=following)
            self._pause(attempt)
        raise Unavailable(f"the store lists {path!r} and does not find it; try again")

    def _has_entries(self, log_start: int, *, is_last_look: bool) -> bool:
        """There is no entry 0 and no checkpoint: fine for a table that was never created, and only for that."""
        versions = self._listed_versions("")
        is_cut = min(versions) > 0 if versions else log_start > 0
        if is_last_look and is_cut and self._is_unreadable_from(log_start):
            reason = (
                "the log's first entries are missing and no checkpoint replaces them. "
                "Restore the folder from a backup, or remove all of it while no client runs"
            )
            raise Corrupt(reason, path=self._log_folder, version=0)
        return bool(versions) or log_start > 0

    def _listed_versions(self, start_after: str) -> set[int]:
        listed = self._reading(lambda: [entry.key for entry in self.store.list(self._log_folder, start_after)])
        return {version for key in listed if (version := names.entry_version(key)) is not None}

    def _pause(self, attempt: int) -> None:
        self.clock.sleep(error_pause_s(attempt, self.clock.random()))

    def read_next(self) -> Entry | None:
        """The next entry, applied to `state`; None if there is none yet.

        Raises LogCleaned, also if the last `load` failed; Corrupt, Incompatible, Unavailable.
        """
        if self._is_partial:
            raise LogCleaned(self.folder)
        version = self.state.version + 1
        looked_at = self.clock.uptime()
        entry = self._read_entry(version)
        self._accept(version, entry, looked_at)
        return entry

    def read_following(self, count: int) -> int:
        """Apply up to `count` next entries, asked for all at once; how many there were. Raises what `read_next` raises.

        Whoever asks for more than there are looks for entries that others are about to write: some stores let these
        wait for that.
        """
        if self._is_partial:
            raise LogCleaned(self.folder)
        first = self.state.version + 1
        versions = range(first, first + count)
        looked_at = self.clock.uptime()
        for version, entry in zip(versions, in_parallel(self.clock, self._read_entry, versions), strict=True):
            self._accept(version, entry, looked_at)
            if entry is None:
                return version - first
        return count

    def _accept(self, version: int, entry: Entry | None, looked_at: float) -> None:
        """Go on by what was found in the next slot by a look that began at `looked_at`. Raises what `read_next`
        raises."""
        # Counted from after the look: whoever was suspended during it may have been shown a slot that was re-opened.
        if not self._reading(lambda: self._is_proven(version)):
            raise LogCleaned(self.folder)
        if entry is None:
            self._proven_at = max(self._proven_at, looked_at)
        else:
            self._apply(entry)

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        self.state = TableState()
        if checkpoint is not None:
            self.state.restore(checkpoint.version, checkpoint.actions)
        if self._follower is not None:
            self._follower.restored(self.state)

    def _apply(self, entry: Entry) -> None:
        path = self._entry_key(entry.version)
        self.state.check(entry, path)
        if self._follower is not None:
            self._follower.advancing(entry, path)
        self.state.apply(entry)

    def _read_entry(self, version: int) -> Entry | None:
        found = self._reading(lambda: self._fetch(version))
        return None if found is None else found[0]

    def _fetch(self, version: int) -> tuple[Entry, bytes] | None:
        """An entry and its bytes; None if it is not there. Raises Corrupt, StoreError."""
        key = self._entry_key(version)
        try:
            data = self.store.peek(key)
            try:
                entry = parse_entry(data, version, key)
            except (Corrupt, Incompatible):
                entry = None
            if entry is None or entry.info is None:
                # The damage may have happened on the way; it can also make an entry look like a stranger's.
                data = self.store.get(key)
                entry = parse_entry(data, version, key)
            return entry, data
        except ObjectMissing:
            return None

    def _log_start(self) -> int:
        """The lowest version that clean-up has promised to keep; 0 if nothing was ever removed."""
        return self._reading(self._log_start_raw)

    def _entry_key(self, version: int) -> str:
        return names.log_entry(self._log_folder, version)

    def _reading(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except StoreError as error:
            raise unavailable(error) from error

    def _is_proven(self, version: int) -> bool:
        """Whether slot `version` is none that clean-up has re-opened, as far as was seen up to this call.

        `_proven_at` is a time at which the slot was empty, or above the log's start. Clean-up leaves
        `CLEAN_UP_GRACE_S` between its marker and what it removes, so that is proof enough for `HEAD_PROOF_S`. That
        somebody else has filled a slot proves nothing about the next one: it may be as old.
        """
        asked_at = self.clock.uptime()  # before the listing: what it shows is no older
        if asked_at - self._proven_at > HEAD_PROOF_S:
            if self._log_start_raw() > version:
                return False
            self._proven_at = asked_at
        return True

    def _is_in_place(self) -> bool:
        """Whether the newest entry that this log knows is in its slot. Raises StoreError."""
        known = self.state.txn_id
        try:
            if self._token_in_slot() == known or known is None:
                return True
            found = self._fetch(self.state.version)  # the token may have been damaged on the way
        except (ObjectMissing, Corrupt, Incompatible):
            return False
        return found is not None and found[0].txn_id == known

    def _token_in_slot(self) -> str | None:
        """The token of the entry in the slot of the newest one, as far as can be told quickly. Raises StoreError."""
        found = _TXN_ID.search(self.store.get_range(self._entry_key(self.state.version), 0, _TOKEN_BYTES))
        return None if found is None else found[1].decode(errors="replace")

    def _check_in_place(self, token: str, *, maybe: bool) -> None:
        """Make sure that a commit follows what this log knows. `maybe`: it may have been written already.

        Raises OutcomeUnknown or, if nothing was written, Corrupt when the log was removed or replaced; _SlotCleaned,
        StoreError.
        """
        asked_at = self.clock.uptime()
        version = self.state.version
        if version >= 0 and not self._is_in_place():
            if self._log_start_raw() > version:
                raise _SlotCleaned(maybe)
            path = self._entry_key(version)
            self._is_partial = True  # begin anew with what is there now, if anything is
            self._restore(None)
            _log.warning("log removed or replaced log=%r version=%d", self.folder, version)
            if maybe:
                raise OutcomeUnknown(_REPLACED, token=token)
            raise Corrupt(_REPLACED, path=path, version=version)
        self._in_place_at = asked_at

    def sync(self) -> None:
        """Make durable what was read of the log, for a caller that is about to vouch for it. Raises Unavailable.

        The entry's own writer may not have come to that yet. A commit needs no such call: it syncs the folder, and with
        it all entries before.
        """
        for attempt in range(1, _SYNC_ATTEMPTS + 1):
            try:
                return self.store.sync(self._log_folder)
            except StoreError as error:
                refusal = error
                self._pause(attempt)  # a caller that tries again at once must not keep the processor busy
        raise unavailable(refusal) from refusal

    def _sync_or_unknown(self, token: str) -> None:
        """The same, for a commit that stands as long as there is no power failure."""
        try:
            self.sync()
        except Unavailable as error:
            raise OutcomeUnknown(error.error.str(), token=token) from error

    # --- writing ---

    def commit(self, write: Callable[[TableState], Draft], deadline: float) -> Committed:
        """Append one entry: `write(state)` is called for each slot that is tried, the last call's entry stands.

        `write` must give each commit one `txn_id` of its own, may grow the draft from slot to slot, and may raise to
        give up (nothing of its last draft is then in the log). `deadline` is on `clock.monotonic()`.

        Raises OutcomeUnknown (the entry may stand now or later; see `settle`), Unavailable (it does not stand),
        Corrupt,
        Incompatible.
        """
        self._prove_store()
        if self._is_partial:
            self.load()
        lost_races = 0
        exposed_s = 0.0
        # A look costs less than a create that is bound to fail; who writes alone is spared even that.
        crowded = self._crowded and self._catch_up()
        started_at = self._looked_at if self._crowded else self.clock.monotonic()
        while True:
            draft = write(self.state)
            try:
                entry = self._fill(draft, deadline)
            except _SlotCleaned as cleaned:
                found = self._look_in_snapshot(draft, cleaned.maybe, deadline)
                if found is not None:
                    return Committed(found, lost_races, exposed_s)
                continue
            seconds = self.clock.monotonic() - started_at
            exposed_s += seconds
            self._apply(entry)
            if entry.txn_id == draft.info.txn_id:
                self._crowded = crowded or lost_races > 0
                return Committed(entry, lost_races, exposed_s)
            lost_races += 1
            self._back_off(lost_races, seconds, deadline)
            started_at = self._looked_at

    def _prove_store(self) -> None:
        """Once per process: nothing is entrusted to a store that lets two writers create the same entry."""
        try:
            probed(self.store, self.clock)
        except UnsafeStore as error:
            raise errors.UnsafeStore(str(error)) from error
        except StoreError as error:
            raise unavailable(error) from error

    def _fill(self, draft: Draft, deadline: float) -> Entry:
        """Try to create the next slot until it is known who fills it; that entry, ours or not."""
        version = self.state.version + 1
        key = self._entry_key(version)
        # Once per slot: a late write of it must equal a repeated one.
        body = encode_entry(draft.info, draft.actions, draft.before)
        token = self.token(version, draft.info.txn_id)
        maybe = False  # a create was sent that may have filled the slot, or may still
        failures = 0
        ours = parse_entry(body, version, key, draft.before)  # before anything is written: nobody could read it again
        self._check_before(token)
        after = self._entry_key(self.state.version) if version else ""
        first_tried_at = self.clock.uptime()
        while True:
            tried_at = self.clock.uptime()
            refusal = self._try_create(key, body, after)
            maybe = maybe or isinstance(refusal, StoreUnavailable)
            entry: Entry | None = None
            try:
                entry = ours
                if refusal is not None:
                    entry = self._look(version, body, token, maybe)
                if not self._is_proven(version):
                    # It may have been created before the clean-up, and the answer have come long after that.
                    raise _SlotCleaned(maybe or refusal is None)
                if not self.store.is_remote:
                    self._check_in_place(token, maybe=maybe or refusal is None)
                if entry is not None and entry.txn_id == draft.info.txn_id and refusal is not None:
                    self.store.sync(self._log_folder)  # it is there, but its create did not say that it is durable
            except StoreError as error:
                # An unreadable slot that refused us may hold our own entry: the refusal may answer a hidden retry.
                maybe = maybe or refusal is None or isinstance(refusal, ObjectExists)
                refusal = error
            else:
                if entry is not None and entry.txn_id == draft.info.txn_id:
                    self._proven_at = max(self._proven_at, first_tried_at)
                if entry is not None:
                    return entry
                self._proven_at = max(self._proven_at, tried_at)
            if isinstance(refusal, StoreRefused) and not maybe:
                raise unavailable(refusal) from refusal
            failures += 1
            left = deadline - self.clock.monotonic()
            if left <= 0:
                raise self._gave_up(refusal, token, maybe)
            self.clock.sleep(min(left, error_pause_s(failures, self.clock.random())))

    def _try_create(self, key: str, body: bytes, after: str) -> StoreError | None:
        """Why the store did not say that the entry was created; None if it did."""
        try:
            self.store.create(key, body, after)
        except (ObjectExists, ObjectMissing, StoreRefused, StoreUnavailable) as error:
            return error
        except Exception as error:  # noqa: BLE001 - a defect below us: but the write may be on its way
            return StoreUnavailable("create", key, f"unexpected {type(error).__name__}: {error}")
        return None

    def _check_before(self, token: str) -> None:
        """Write nothing into a log that was removed or replaced. Where a look costs a request, now and then only.

        Raises Corrupt, _SlotCleaned.
        """
        if self.store.is_remote and self.clock.uptime() - self._in_place_at <= HEAD_PROOF_S:
            return
        try:
            self._check_in_place(token, maybe=False)
        except StoreError:
            pass  # the create that follows has to cope with that too

    def _look(self, version: int, sent: bytes, token: str, maybe: bool) -> Entry | None:
        """Who fills the slot after an attempt that did not succeed; None if nobody does, as far as is to be seen."""
        try:
            found = self._fetch(version)
        except (Corrupt, Incompatible) as damage:
            if maybe:  # what cannot be read may be ours
                raise OutcomeUnknown(damage.error.str(), token=token) from damage
            raise
        if found is None:
            return None
        entry, seen = found
        if maybe and entry.info is None:
            reason = f"what is in slot {version} of {self.folder!r} does not tell whose it is"
            raise OutcomeUnknown(reason, token=token)
        if self.token(version, entry.txn_id or "") == token and seen != sent:
            path = self._entry_key(version)
            differs = Corrupt("the commit that was read back differs from the one sent", path=path, version=version)
            raise OutcomeUnknown(differs.error.str(), token=token) from differs
        return entry

    def _gave_up(self, cause: StoreError | None, token: str, maybe: bool) -> OutcomeUnknown | Unavailable:
        reason = cause.reason if cause is not None else "the slot stayed empty"
        if maybe:
            return OutcomeUnknown(
                f"no answer about the commit to {self.folder!r} before the deadline: {reason}", token=token
            )
        return Unavailable(f"commit to {self.folder!r} not possible before the deadline: {reason}")

    def _look_in_snapshot(self, draft: Draft, maybe: bool, deadline: float) -> Entry | None:
        """Decide about a commit whose slot was cleaned up: it stands if the table has its files.

        If it has not, they may have been there all the same: rewritten since, or expired.
        """
        slot = self.state.version + 1
        self._load_until(deadline, self.token(slot, draft.info.txn_id), maybe)
        adds = tuple(action for action in (*draft.before.actions, *draft.actions) if isinstance(action, Add))
        own = [add for add in adds if draft.own is None or add.path in draft.own]
        if any(add.path in self.state.files for add in own):
            self._sync_or_unknown(self.token(slot, draft.info.txn_id))
            return Entry(slot, draft.info, adds)
        if maybe and own and (draft.may_stand is None or draft.may_stand(self.state)):
            raise OutcomeUnknown(
                f"a commit to {self.folder!r} was interrupted for longer than the log is kept",
                token=self.token(slot, draft.info.txn_id),
            )
        return None

    def _load_until(self, deadline: float, token: str, maybe: bool) -> None:
        """Load, again and again: without an answer a commit that may stand must not be taken for one that does not."""
        failures = 0
        while True:
            try:
                self.load()
            except (Corrupt, Incompatible) as error:
                if maybe:
                    raise OutcomeUnknown(error.error.str(), token=token) from error
                raise
            except Unavailable as error:
                failures += 1
                left = deadline - self.clock.monotonic()
                if left <= 0 and maybe:
                    raise OutcomeUnknown(error.error.str(), token=token) from error
                if left <= 0:
                    raise
                self.clock.sleep(min(left, error_pause_s(failures, self.clock.random())))
            else:
                return

    def _back_off(self, lost_races: int, commit_s: float, deadline: float) -> None:
        """Wait a little, then catch up, so that the next create aims at a slot that is still free."""
        if self._crowded or lost_races > 1:
            self.clock.sleep(race_pause_s(lost_races, commit_s, self.clock.random()))
        # Otherwise somebody came by who is not known to want the next slot too: most likely maintenance.
        if self.clock.monotonic() >= deadline:
            raise Unavailable(
                f"commit to {self.folder!r} lost {lost_races} races against other writers before its deadline; "
                "raise message.timeout.ms, or linger.ms so that each writer commits less often"
            )
        self._catch_up()

    def _catch_up(self) -> bool:
        """Go to the end of the log, as far as the store tells; whether others had written.

        Only an optimisation: the create that follows settles the next slot by itself.
        """
        before = self.state.version
        self._looked_at = self.clock.monotonic()
        try:
            while self.read_next() is not None:
                self._looked_at = self.clock.monotonic()
        except LogCleaned:
            self.load()
        except Unavailable:
            pass
        return self.state.version > before

    def settle(self, token: str, write: Callable[[TableState], Draft], deadline: float) -> Entry | None:
        """Find out what became of a commit that ended in OutcomeUnknown: its entry, or None if it does not and never
        will stand.

        `write` drafts an entry without effect: if the slot in question is still empty it is filled with that, so that a
        late write can no longer land. Raises OutcomeUnknown with the same token if the store does not say what became
        of it before the deadline; Corrupt, Incompatible; ValueError for a malformed token.
        """
        version, txn_id = self.parse_token(token)
        try:
            self._load_until(deadline, token, maybe=True)
            if self.state.version < version - 1:
                return None  # there is no log any more, or a shorter one: it was removed, or restored from a backup
            if self.state.version < version:
                self.commit(write, deadline)
            entry = self._read_entry(version)
            start = self._log_start()
        except (Unavailable, OutcomeUnknown) as error:
            # Not that we could not look is asked, nor what became of our own entry.
            raise OutcomeUnknown(error.error.str().partition(" (token ")[0], token=token) from error
        # What is in a slot below the log's start came there after clean-up: it says nothing, even if it is ours.
        if entry is None or start > version:
            raise OutcomeUnknown(
                f"version {version} of {self.folder!r} was cleaned up before it could be looked at", token=token
            )
        if entry.txn_id != txn_id:
            return None
        self._sync_or_unknown(token)
        return entry

    def settle_in(
        self,
        token: str,
        as_of: int,
        write: Callable[[TableState], Draft],
        is_it: Callable[[Add], bool],
        deadline: float,
    ) -> Add | None:
        """Find out whether a file was added behind version `as_of`, by whomever; None if it was not and never will be.

        `write` drafts an entry without effect behind which nobody adds it. Raises OutcomeUnknown with the same token if
        the store does not say what became of it before the deadline; Corrupt, Incompatible.
        """
        try:
            self._load_until(deadline, token, maybe=True)
            if self.state.version < 0:
                return None
            ended = self.commit(write, deadline).entry.version
            live = next((add for add in self.state.files.values() if is_it(add)), None)
            if live is not None:
                return live
            found = self._first_with(is_it, range(as_of + 1, ended), token)
        except (Unavailable, OutcomeUnknown) as error:
            raise OutcomeUnknown(error.error.str().partition(" (token ")[0], token=token) from error
        return found

    def _first_with(self, is_it: Callable[[Add], bool], versions: range, token: str) -> Add | None:
        """The first file that `is_it` in these entries. Raises OutcomeUnknown if they are not all there any more."""
        found: Add | None = None
        missing = False
        for version in versions:
            entry = self._read_entry(version)
            missing = entry is None
            adds = (action for action in entry.actions if isinstance(action, Add)) if entry is not None else ()
            found = next((add for add in adds if is_it(add)), None)
            if missing or found is not None:
                break
        # What is in a slot below the log's start came there after clean-up: it says nothing.
        if missing or (versions and self._log_start() > versions[0]):
            reason = f"version {versions[0]} of {self.folder!r} was cleaned up before it could be looked at"
            raise OutcomeUnknown(reason, token=token)
        return found

    def token(self, version: int, txn_id: str) -> str:
        """What finds a commit again. It names the log, so that no other one is asked about it."""
        return f"{version}:{txn_id}:{zlib.crc32(self.folder.encode()):08x}"

    def parse_token(self, token: str) -> tuple[int, str]:
        """Version and txnId (or what stands for it) of a token of this log. ValueError for any other text."""
        if not isinstance(token, str):
            raise TypeError(f"token must be str, not {type(token).__name__}")
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            raise ValueError(f"{token!r:.100} is not the token of an OutcomeUnknown error")
        version, txn_id = int(parts[1]), parts[2]
        if self.token(version, txn_id) != token:
            raise ValueError(f"{token!r:.100} is the token of another topic's or group's commit than {self.folder!r}'s")
        return version, txn_id

    def _log_start_raw(self) -> int:
        folder = names.log_start_folder(self.folder)
        versions = [names.log_start_version(entry.key) for entry in self.store.list(folder)]
        return max((version for version in versions if version is not None), default=0)
