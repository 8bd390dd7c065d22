"""Reads and writes one Delta table log: snapshot, tail, and the commit loop.

The log orders everything that happens to a table. Entry `v` is the object `_delta_log/<v>.json`. It is created only if
absent, so exactly one writer decides the content of version `v`. These rules keep that true under crashes, retries and
lost answers (`docs/internals/format.md`, "Committing"):

* A client passes a slot only after it has read the entry in it: a delayed write may still fill an empty slot.
* After any error the client reads the slot. The token (`txnId`) in the entry identifies its writer.
* A commit counts only while the entry before it is in its slot. Otherwise the log's folder was removed or replaced
  while this client used it, and no reader would find the commit.
* Log clean-up frees old slots, so that they could be created again. It therefore first writes a marker to
  `_deltaq/log_start/`. A client that has not read the log for `HEAD_PROOF_S` looks for a marker above the slot before
  it trusts that slot, whether the slot is filled or empty.
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

_log = logging.getLogger("deltaq.delta")

T = TypeVar("T")

HEAD_PROOF_S = 30.0
"""How long a position at the head of the log is trusted without reading the log-start markers, in seconds of uptime.

Far shorter than the time after which maintenance removes an entry, far longer than a normal commit.
"""

CLEAN_UP_GRACE_S = 2 * HEAD_PROOF_S
"""How long clean-up waits between writing its log-start marker and removing the entries below it, in seconds.

A client that still trusts a position from before the marker finds its slots unchanged.
"""

READ_AHEAD_MAX = 64
"""Maximum number of entries read in parallel when a log on a remote store is loaded."""

_LOAD_ATTEMPTS = 5
_SYNC_ATTEMPTS = 3

_TOKEN_BYTES = 1024
"""Bytes at the start of an entry that contain the token of its commit."""

_REPLACED = (
    "the log entry before this commit is gone or another one: the folder was removed or replaced while this client "
    "used it, and what was written there is lost. To delete a topic, call AdminClient.delete_topics or Topic.delete; "
    "remove or restore folders only while no client runs"
)

_TXN_ID = re.compile(rb'"txnId":"([^"]*)"')

_TOKEN = re.compile(r"([0-9]{1,18}):([!-9;-~]{1,200}):([0-9a-f]{8})")


class LogCleaned(Exception):
    """Log clean-up removed the next entry: load a snapshot and continue from there."""


class _SlotCleaned(Exception):
    """The slot to be filled lies below the log's start. `maybe`: an earlier create may have filled it before the
    clean-up."""

    def __init__(self, maybe: bool) -> None:
        super().__init__()
        self.maybe = maybe


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of a commit, for the next slot.

    `before` are actions that were encoded in advance and precede `actions`.

    `own` and `may_stand` resolve a commit whose slot was cleaned up before its outcome was known. `own` are the paths
    of files that no other commit can add: if the table has one of them, the commit succeeded. None means all files of
    the draft. `may_stand(state)` returns whether the table in `state` may have had the files and lost them since. None
    means that it may.
    """

    info: CommitInfo
    actions: Sequence[Action]
    may_stand: Callable[[TableState], bool] | None = None
    own: frozenset[str] | None = None
    before: Prepared = NOTHING_PREPARED


@dataclass(frozen=True, slots=True)
class Committed:
    """A successful commit.

    `entry` is the entry in the log. `lost_races` counts the slots that other writers took before it. `seconds` is the
    total time in which other writers could take the slot, over all slots tried: from the last read of the log to the
    answer of the store.
    """

    entry: Entry
    lost_races: int
    seconds: float


class Follower(Protocol):
    """Keeps a typed view of the table in step with a `DeltaLog`. May raise Corrupt to refuse an entry."""

    def restored(self, state: TableState) -> None:
        """The position was reset: `state` is empty, or the state of a checkpoint."""

    def advancing(self, entry: Entry, path: str) -> None:
        """`entry`, read from `path`, is about to be applied."""


class DeltaLog:
    """A position in one log, with the operations that move it. Not thread-safe: one owner at a time.

    `state` is the table at that position. `folder` is the table's; it ends in `/` and is relative to the store's root.
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
        self._anchor = -1  # version of an entry that was there when this client began to write
        self._is_partial = False  # a load began and did not succeed: `state` is incomplete
        self._is_end_open = False
        self._read_at = 0.0  # start of the last read that found no further entry, `Clock.monotonic`
        self._contended = False  # other writers committed between our last two commits, and probably have again

    # --- reading ---

    @property
    def is_partial(self) -> bool:
        """Whether the last `load` failed half way, so that `state` is incomplete."""
        return self._is_partial

    @property
    def is_end_open(self) -> bool:
        """Whether the position may be a gap in the log instead of its end: `check_end` has not run yet."""
        return self._is_end_open

    def load(self, *, to_end: bool = True) -> bool:
        """Move to the newest version, from the newest checkpoint or from version 0. False if the table does not exist.

        With `to_end=False` the end of the log may stay unchecked (`is_end_open`). That saves a listing for a reader
        that needs only old entries. Raises Corrupt, Incompatible, Unavailable.
        """
        self._is_partial = True
        exists = self._load(to_end)
        self._is_partial = False
        return exists

    @property
    def proven_at(self) -> float:
        """The latest time (`Clock.uptime`) at which clean-up had certainly not freed the slot after the position."""
        return self._proven_at

    def adopt(self, state: TableState, proven_at: float = float("-inf"), *, is_end_open: bool = False) -> None:
        """Take over the position of another `DeltaLog` of this table, with everything it has verified.

        The caller hands over `state` and must not change it afterwards.
        """
        self.state = state
        self._anchor = -1
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
                listed = None  # the log has grown since the listing, and the new entries may have a gap
            start = self._log_start()
            if self.state.version < 0:
                if not self._has_entries(start, is_last_attempt=attempt == _LOAD_ATTEMPTS):
                    return False
                # The log was created or cleaned up between our read and the listing, or the store lists an object that
                # it does not return yet.
            elif start <= first and not to_end and listed is None:
                self._is_end_open = True
                return True
            elif start <= first and self._is_whole(listed):
                return True
            elif start > first and attempt == _LOAD_ATTEMPTS and self._is_unreadable_from(start):
                reason = f"no checkpoint at or above the log's start {start} can be read"
                raise Corrupt(reason, path=self._log_folder, version=start)
            # Entries were cleaned up during the read, and a writer that was paused may have filled their slots after
            # that. The newer checkpoint contains the original entries.
            self._pause(attempt)
        raise Unavailable(f"the log of {self.folder!r} changes faster than it can be read; try again")

    def _learn_token(self) -> None:
        """On a local store, read the token of the newest entry if the state came from a checkpoint."""
        if self.state.version >= 0 and self.state.txn_id is None and not self.store.is_remote:
            try:
                self.state.txn_id = self._token_in_slot()
            except StoreError:
                pass  # the token stays unknown

    def _newest_checkpoint(self) -> tuple[Checkpoint | None, set[int] | None]:
        """The newest checkpoint and, from a remote store, the versions above it if `_last_checkpoint` names it.

        The listing runs in parallel with the read of the checkpoint and takes about as long. Raises StoreError.
        """
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
        """Whether no checkpoint from `start` on exists undamaged. Unavailable if one disappears during the check."""
        return self._reading(lambda: all(self._is_damaged(e.key, start) for e in self.store.list(self._log_folder)))

    def _is_damaged(self, key: str, start: int) -> bool:
        version = names.checkpoint_version(key)
        if version is None or version < start:
            return True  # cannot replace the missing entries
        try:
            parse_checkpoint(self.store.get(key), version, key)
        except Corrupt:
            return True
        return False

    def _is_whole(self, listed: set[int] | None) -> bool:
        """Whether the position is the end of the log and no clean-up intervened. Raises what `check_end` raises."""
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
                window = min(window * 4, READ_AHEAD_MAX)  # reads a long log ahead; a short one costs one failed read

    def check_end(self, listed: set[int] | None = None) -> None:
        """Check that the position is the end of the log and not a gap, whose slot a writer would fill.

        Lists the log, or uses the earlier listing `listed`: then every version in it must be readable. Raises what
        `read_next` raises.
        """
        first = self.state.version + 1
        versions = self._listed_versions(self._entry_key(self.state.version)) if listed is None else listed
        newest = max(versions, default=-1)
        for attempt in range(1, _LOAD_ATTEMPTS + 1):
            if newest > self.state.version:
                self._advance_to_end()  # most likely they were written just now
            following = self.state.version + 1
            # The missing entry and those read just now may have been cleaned up in the meantime.
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

    def _has_entries(self, log_start: int, *, is_last_attempt: bool) -> bool:
        """Whether a table without entry 0 and without checkpoint has entries, or had some. Corrupt if it is damaged."""
        versions = self._listed_versions("")
        is_cut = min(versions) > 0 if versions else log_start > 0
        if is_last_attempt and is_cut and self._is_unreadable_from(log_start):
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
        read_at = self.clock.uptime()
        entry = self._read_entry(version)
        self._accept(version, entry, read_at)
        return entry

    def read_following(self, count: int) -> int:
        """Apply up to `count` next entries, read in parallel; returns their number. Raises what `read_next` raises.

        A read of an entry that is being written at that moment can block on some stores, so `count` should not exceed
        the number of entries that are likely to exist.
        """
        if self._is_partial:
            raise LogCleaned(self.folder)
        first = self.state.version + 1
        versions = range(first, first + count)
        read_at = self.clock.uptime()
        for version, entry in zip(versions, in_parallel(self.clock, self._read_entry, versions), strict=True):
            self._accept(version, entry, read_at)
            if entry is None:
                return version - first
        return count

    def _accept(self, version: int, entry: Entry | None, read_at: float) -> None:
        """Apply the result of a read of the next slot that began at `read_at` (`Clock.uptime`). Raises what
        `read_next` raises."""
        # Checked after the read: a process that was suspended during the read may have seen a freed slot.
        if not self._reading(lambda: self._is_proven(version)):
            raise LogCleaned(self.folder)
        if entry is None:
            self._proven_at = max(self._proven_at, read_at)
        else:
            self._apply(entry)

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        self.state = TableState()
        self._anchor = -1
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
            data = self.store.get_impatient(key)
            try:
                entry = parse_entry(data, version, key)
            except (Corrupt, Incompatible):
                entry = None
            if entry is None or entry.info is None:
                # The data may have been damaged in transit, which can also make our entry look like a foreign one.
                data = self.store.get(key)
                entry = parse_entry(data, version, key)
            return entry, data
        except ObjectMissing:
            return None

    def _log_start(self) -> int:
        """The lowest version that clean-up keeps; 0 if it has never run."""
        return self._reading(self._log_start_raw)

    def _entry_key(self, version: int) -> str:
        return names.log_entry(self._log_folder, version)

    def _reading(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except StoreError as error:
            raise unavailable(error) from error

    def _is_proven(self, version: int) -> bool:
        """Whether everything read of slot `version` before this call was read before clean-up could free the slot.

        `_proven_at` is a time at which the slot was empty, or above the log's start. Clean-up waits `CLEAN_UP_GRACE_S`
        between writing its marker and removing entries, so that proof is valid for `HEAD_PROOF_S`. An entry of another
        writer in a slot proves nothing about the next slot: it may itself have been freed long ago.
        """
        asked_at = self.clock.uptime()  # taken before the listing, which may only be newer
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
            found = self._fetch(self.state.version)  # the token may have been damaged in transit
        except (ObjectMissing, Corrupt, Incompatible):
            return False
        return found is not None and found[0].txn_id == known

    def _is_anchored(self) -> bool:
        """Whether an entry from the time when this client began to write is still there. Raises StoreError.

        `rm -rf` lists a folder and then removes what it has listed. Entries created in between survive, and each of
        them would vouch for the next one.
        """
        version = self.state.version
        if not 0 <= self._anchor <= version:
            self._anchor = version
        if self._anchor == version:
            return True
        try:
            self.store.get_range(self._entry_key(self._anchor), 0, 1)
        except ObjectMissing:
            if self._log_start_raw() <= self._anchor:
                return False
            self._anchor = version  # log clean-up has removed it
        return True

    def _token_in_slot(self) -> str | None:
        """The token in the slot of the newest known entry, from its first bytes; None if not found. StoreError."""
        found = _TXN_ID.search(self.store.get_range(self._entry_key(self.state.version), 0, _TOKEN_BYTES))
        return None if found is None else found[1].decode(errors="replace")

    def _check_in_place(self, token: str, *, maybe: bool) -> None:
        """Check that the entry before a commit is still in its slot. `maybe`: the commit may have been written already.

        If the log was removed or replaced, raises OutcomeUnknown, or Corrupt if nothing was written. Also raises
        _SlotCleaned, StoreError.
        """
        asked_at = self.clock.uptime()
        version = self.state.version
        if version >= 0 and not (self._is_in_place() and self._is_anchored()):
            if self._log_start_raw() > version:
                raise _SlotCleaned(maybe)
            path = self._entry_key(version)
            self._is_partial = True  # the next operation loads the log that is there now, if any
            self._restore(None)
            _log.warning("log removed or replaced log=%r version=%d", self.folder, version)
            if maybe:
                raise OutcomeUnknown(_REPLACED, token=token)
            raise Corrupt(_REPLACED, path=path, version=version)
        self._in_place_at = asked_at

    def sync(self) -> None:
        """Make the entries read so far durable, for a caller that is about to act on them durably. Raises Unavailable.

        The writer of an entry may not have synced it yet. A commit needs no such call: it syncs the folder, and with
        it all earlier entries.
        """
        for attempt in range(1, _SYNC_ATTEMPTS + 1):
            try:
                return self.store.sync(self._log_folder)
            except StoreError as error:
                refusal = error
                self._pause(attempt)  # bounds the CPU use of a caller that retries at once
        raise unavailable(refusal) from refusal

    def _sync_or_unknown(self, token: str) -> None:
        """`sync` for a commit that is visible but perhaps not durable: raises OutcomeUnknown if it fails."""
        try:
            self.sync()
        except Unavailable as error:
            raise OutcomeUnknown(error.error.str(), token=token) from error

    # --- writing ---

    def commit(self, write: Callable[[TableState], Draft], deadline: float) -> Committed:
        """Append one entry: `write(state)` is called for each slot that is tried, and the last draft is committed.

        `write` must use one unique `txn_id` per commit. It may extend the draft from slot to slot, and may raise to
        give up; none of its drafts is then in the log. `deadline` is a time of `clock.monotonic()`.

        Raises OutcomeUnknown (the entry may exist now or later; see `resolve`), Unavailable (it was not and will not be
        committed), Corrupt, Incompatible.
        """
        self._prove_store()
        if self._is_partial:
            self.load()
        lost_races = 0
        exposed_s = 0.0
        # Under contention, a read of the next slot costs less than a create that will probably fail.
        contended = self._contended and self._catch_up()
        started_at = self._read_at if self._contended else self.clock.monotonic()
        while True:
            draft = write(self.state)
            try:
                entry = self._fill(draft, deadline)
            except _SlotCleaned as cleaned:
                found = self._resolve_from_snapshot(draft, cleaned.maybe, deadline)
                if found is not None:
                    return Committed(found, lost_races, exposed_s)
                continue
            seconds = self.clock.monotonic() - started_at
            exposed_s += seconds
            self._apply(entry)
            if entry.txn_id == draft.info.txn_id:
                self._contended = contended or lost_races > 0
                return Committed(entry, lost_races, exposed_s)
            lost_races += 1
            self._back_off(lost_races, seconds, deadline)
            started_at = self._read_at

    def _prove_store(self) -> None:
        """Probe the store, once per process: without create-if-absent, writers would overwrite each other's entries."""
        try:
            probed(self.store, self.clock)
        except UnsafeStore as error:
            raise errors.UnsafeStore(str(error)) from error
        except StoreError as error:
            raise unavailable(error) from error

    def _fill(self, draft: Draft, deadline: float) -> Entry:
        """Try to create the next slot until an entry in it is known; returns that entry, ours or another writer's."""
        version = self.state.version + 1
        key = self._entry_key(version)
        # Encoded once per slot, so that a delayed write and its retry have the same bytes.
        body = encode_entry(draft.info, draft.actions, draft.before)
        token = self.token(version, draft.info.txn_id)
        maybe = False  # a create was sent that may have filled the slot, or may still
        failures = 0
        ours = parse_entry(body, version, key, draft.before)  # an entry that cannot be read back must not be written
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
                    entry = self._read_slot(version, body, token, maybe)
                if not self._is_proven(version):
                    # The entry may have been created before the clean-up, and the answer delayed until after it.
                    raise _SlotCleaned(maybe or refusal is None)
                if not self.store.is_remote:
                    self._check_in_place(token, maybe=maybe or refusal is None)
                if entry is not None and entry.txn_id == draft.info.txn_id and refusal is not None:
                    self.store.sync(self._log_folder)  # it exists, but its create did not confirm that it is durable
            except StoreError as error:
                # The slot refused our create and cannot be read. It may hold our own entry: the refusal may be the
                # answer to a retry inside the network.
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
        """Create the entry. Returns the error if the store did not confirm it, else None."""
        try:
            self.store.create(key, body, after)
        except (ObjectExists, ObjectMissing, StoreRefused, StoreUnavailable) as error:
            return error
        except Exception as error:  # noqa: BLE001 - a defect of the store: the write may still happen
            return StoreUnavailable("create", key, f"unexpected {type(error).__name__}: {error}")
        return None

    def _check_before(self, token: str) -> None:
        """Check, before anything is written, that the log was not removed or replaced.

        A remote store, where the check costs a request, is checked at most once per `HEAD_PROOF_S`. Raises Corrupt,
        _SlotCleaned.
        """
        if self.store.is_remote and self.clock.uptime() - self._in_place_at <= HEAD_PROOF_S:
            return
        try:
            self._check_in_place(token, maybe=False)
        except StoreError:
            pass  # the create that follows handles the error

    def _read_slot(self, version: int, sent: bytes, token: str, maybe: bool) -> Entry | None:
        """The entry in the slot after an attempt that did not succeed; None if the slot is still empty."""
        try:
            found = self._fetch(version)
        except (Corrupt, Incompatible) as damage:
            if maybe:  # the unreadable entry may be ours
                raise OutcomeUnknown(damage.error.str(), token=token) from damage
            raise
        if found is None:
            return None
        entry, seen = found
        if maybe and entry.info is None:
            reason = f"the entry in slot {version} of {self.folder!r} has no token, so its writer is unknown"
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

    def _resolve_from_snapshot(self, draft: Draft, maybe: bool, deadline: float) -> Entry | None:
        """Resolve a commit whose slot was cleaned up: the commit succeeded if the table has its files.

        If the table lacks them, the outcome may still be unknown: the files may have been rewritten or expired since.
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
        """Load, with retries until the deadline. With `maybe`, a failure means that the outcome of a commit is unknown:
        raises OutcomeUnknown instead of the error."""
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
        """Wait, then catch up, so that the next create is for a slot that is probably free."""
        if self._contended or lost_races > 1:
            self.clock.sleep(race_pause_s(lost_races, commit_s, self.clock.random()))
        # Without contention, the other writer is most likely maintenance, which rarely wants the next slot too.
        if self.clock.monotonic() >= deadline:
            raise Unavailable(
                f"commit to {self.folder!r} lost {lost_races} races against other writers before its deadline; "
                "raise message.timeout.ms, or linger.ms so that each writer commits less often"
            )
        self._catch_up()

    def _catch_up(self) -> bool:
        """Read to the end of the log; returns whether other writers had committed.

        Only an optimisation, so errors are ignored: the create that follows decides the next slot.
        """
        before = self.state.version
        self._read_at = self.clock.monotonic()
        try:
            while self.read_next() is not None:
                self._read_at = self.clock.monotonic()
        except LogCleaned:
            self.load()
        except Unavailable:
            pass
        return self.state.version > before

    def resolve(self, token: str, write: Callable[[TableState], Draft], deadline: float) -> Entry | None:
        """Resolve a commit that ended in OutcomeUnknown: its entry, or None if it was not and will not be committed.

        `write` drafts an entry without effect. If the slot is still empty, that entry fills it, so that the delayed
        write fails. Raises OutcomeUnknown with the same token if the outcome is not known by the deadline; Corrupt,
        Incompatible; ValueError for a malformed token.
        """
        version, txn_id = self.parse_token(token)
        try:
            self._load_until(deadline, token, maybe=True)
            if self.state.version < version - 1:
                return None  # the log is gone or shorter: it was removed, or restored from a backup
            if self.state.version < version:
                self.commit(write, deadline)
            entry = self._read_entry(version)
            start = self._log_start()
        except (Unavailable, OutcomeUnknown) as error:
            # Report the outcome of the commit asked about, not the failure of this lookup or of its own entry.
            raise OutcomeUnknown(error.error.str().partition(" (token ")[0], token=token) from error
        # An entry in a slot below the log's start was written after clean-up, so it proves nothing, even if it is ours.
        if entry is None or start > version:
            raise OutcomeUnknown(
                f"version {version} of {self.folder!r} was cleaned up before it could be read", token=token
            )
        if entry.txn_id != txn_id:
            return None
        self._sync_or_unknown(token)
        return entry

    def resolve_add(
        self,
        token: str,
        as_of: int,
        write: Callable[[TableState], Draft],
        is_it: Callable[[Add], bool],
        deadline: float,
    ) -> Add | None:
        """The shared file that `is_it` identifies, if any writer added it after version `as_of`; None if it was not
        added and will not be.

        `write` drafts an entry without effect after which no writer adds the file. Raises OutcomeUnknown with the same
        token if the outcome is not known by the deadline; Corrupt, Incompatible.
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
        """The first file in these entries that `is_it` accepts. Raises OutcomeUnknown if an entry was cleaned up."""
        found: Add | None = None
        missing = False
        for version in versions:
            entry = self._read_entry(version)
            missing = entry is None
            adds = (action for action in entry.actions if isinstance(action, Add)) if entry is not None else ()
            found = next((add for add in adds if is_it(add)), None)
            if missing or found is not None:
                break
        # An entry in a slot below the log's start was written after clean-up, so it proves nothing.
        if missing or (versions and self._log_start() > versions[0]):
            reason = f"version {versions[0]} of {self.folder!r} was cleaned up before it could be read"
            raise OutcomeUnknown(reason, token=token)
        return found

    def token(self, version: int, txn_id: str) -> str:
        """The token of a commit, for `resolve`. It contains a checksum of the log's folder, so that a token of another
        log is refused."""
        return f"{version}:{txn_id}:{zlib.crc32(self.folder.encode()):08x}"

    def parse_token(self, token: str) -> tuple[int, str]:
        """Version and txnId of a token of this log. ValueError for any other text, TypeError if not a str."""
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
