"""A position in one Delta table log: loading it, following it entry by entry, and checking that it
is the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic

from deltaq.clock import Clock
from deltaq.delta.actions import Entry
from deltaq.delta.checkpoint import Checkpoint
from deltaq.delta.entries import LogEntries
from deltaq.delta.known_log import KnownLog, KnownState, LogState, V
from deltaq.delta.retry import error_pause_s
from deltaq.delta.slot_proof import HEAD_PROOF_S, SlotProof
from deltaq.delta.snapshot import find_load_start, has_entries, is_unreadable_from
from deltaq.delta.store_errors import reading, unavailable
from deltaq.delta.table_state import TableState, restored_state
from deltaq.errors import Corrupt, Unavailable
from deltaq.store import Store, StoreError
from deltaq.store.parallel import in_parallel

READ_AHEAD_MAX = 64
"""Maximum number of entries read in parallel when a log on a remote store is loaded."""

_LOAD_ATTEMPTS = 5
_SYNC_ATTEMPTS = 3


class LogCleaned(Exception):
    """Log clean-up removed the next entry: load a snapshot and continue from there."""


class LogPosition(Generic[V]):
    """A position in one log, with the reads that move it. Not thread-safe: one owner at a time.

    `at` is the log at that position: a value that each entry replaces. `known` is what the process
    knows of the log, which other positions may use, too. `folder` is the table's; it ends in `/`
    and is relative to the store's root.
    """

    def __init__(self, store: Store, folder: str, clock: Clock, known: KnownLog[V]) -> None:
        self.folder = folder
        self.clock = clock
        self.known = known
        self.at = LogState(TableState(), known.fold.restored(TableState()))
        self.entries = LogEntries(store, folder, clock)
        self._proof = SlotProof(self.entries)
        self._is_loaded = False
        self._is_partial = False  # a load began and did not succeed: `at` is incomplete
        self._is_end_open = False
        self._life = known.life  # in which `at` was loaded
        self._was_replaced = False  # as another position found; the next commit reports it

    @property
    def state(self) -> TableState:
        """The table at this position."""
        return self.at.table

    @property
    def store(self) -> Store:
        return self.entries.store

    @property
    def is_whole(self) -> bool:
        """Whether the log has been loaded, and the last load has not failed half way."""
        return self._is_loaded and not self._is_partial

    @property
    def is_end_open(self) -> bool:
        """Whether the position may be a gap in the log instead of its end: `check_end` has not run
        yet.
        """
        return self._is_end_open

    def take_over(self) -> bool:
        """Move to what another position of this process has read, with everything that it has
        verified; False if it is no newer. To begin from, it must have been read lately, because a
        checkpoint may be nearer to the end.
        """
        self._notice_replacement()
        newest = self.known.newest
        if newest is None or self._is_partial or newest.state is self.at:
            return False
        if self._is_loaded and newest.state.table.version <= self.at.table.version:
            return False
        if not self._is_loaded and self.clock.uptime() - newest.proven_at > HEAD_PROOF_S:
            return False
        if not self.known.fold.may_skip_to(newest.state.view):
            return False
        if not self._is_loaded:
            self.begin_at(newest)
            return True
        # It keeps what it has seen of the log itself: entries that follow each other do not prove
        # that those before them are still there.
        self.at, self._is_end_open = newest.state, newest.is_end_open
        self._proof.extend(newest.proven_at)
        return True

    def _notice_replacement(self) -> None:
        """Load the log anew at the next occasion if another position found it replaced."""
        if self._life != self.known.life:
            self._life = self.known.life
            self._is_partial = True
            self._was_replaced = self._is_loaded

    def begin_at(self, known: KnownState[V]) -> None:
        """Move to a position that was read before, of the same log."""
        self.at = known.state
        self._is_loaded, self._is_partial, self._is_end_open = True, False, known.is_end_open
        self._proof.restart(known.proven_at)

    def _publish(self) -> None:
        """Let other positions of this process take over what this one has read."""
        if self._life == self.known.life:
            self.known.newest = KnownState(self.at, self._proof.proven_at, self._is_end_open)

    def is_in_place(self) -> bool:
        """Whether the log that `state` was read from is still there: the folder may have been
        removed or replaced.

        Reads the newest entry. Raises Unavailable.
        """
        return reading(lambda: self._proof.is_in_place(self.at.table))

    # --- loading ---

    def load(self, *, to_end: bool = True) -> bool:
        """Move to the newest version, from the newest checkpoint or from version 0. False if the
        table does not exist.

        With `to_end=False` the end of the log may stay unchecked (`is_end_open`). That saves a
        listing for a reader that needs only old entries. Raises Corrupt, Incompatible, Unavailable.
        """
        self._notice_replacement()
        self._is_partial = True
        exists = self._load(to_end)
        self._is_loaded, self._is_partial = True, False
        self._publish()
        return exists

    def _load(self, to_end: bool) -> bool:
        for attempt in range(1, _LOAD_ATTEMPTS + 1):
            self._restore(None)
            started_at = self.clock.uptime()
            found = find_load_start(self.entries)
            listed = found.listed
            if found.checkpoint is not None:
                self._restore(found.checkpoint)
            first = self.state.version + 1
            self._proof.restart(started_at)
            self._advance_to_end()
            self._learn_token()
            if listed is not None and self.state.version > max(listed, default=first - 1):
                # The log has grown since the listing, and the new entries may have a gap.
                listed = None
            start = reading(self.entries.start)
            if self.state.version < 0:
                if not has_entries(self.entries, start, is_last_attempt=attempt == _LOAD_ATTEMPTS):
                    return False
                # The log was created or cleaned up between our read and the listing, or the store
                # lists an object that it does not return yet.
            # Nothing was cleaned up meanwhile, and the caller does not need the end.
            elif start <= first and not to_end and listed is None:
                self._is_end_open = True
                return True
            elif start <= first and self._is_whole(listed):
                return True
            # The entries below the start are gone and nothing replaces them. Only the last attempt
            # says so: before, a newer checkpoint may be on its way.
            elif (
                start > first
                and attempt == _LOAD_ATTEMPTS
                and is_unreadable_from(self.entries, start)
            ):
                reason = f"no checkpoint at or above the log's start {start} can be read"
                raise Corrupt(reason, path=self.entries.folder, version=start)
            # Entries were cleaned up during the read, and a writer that was paused may have filled
            # their slots after that. The newer checkpoint contains the original entries.
            self._pause(attempt)
        raise Unavailable(
            f"the log of {self.folder!r} changes faster than it can be read; try again"
        )

    def _learn_token(self) -> None:
        """On a local store, read the token of the newest entry if the state came from a
        checkpoint.
        """
        if self.state.version >= 0 and self.state.txn_id is None and not self.store.is_remote:
            try:
                table = replace(self.state, txn_id=self.entries.token(self.state.version))
                self.at = LogState(table, self.at.view)
            except StoreError:
                pass  # the token stays unknown

    def _is_whole(self, listed: set[int] | None) -> bool:
        """Whether the position is the end of the log and no clean-up intervened. Raises what
        `check_end` raises.
        """
        try:
            self.check_end(listed)
        except LogCleaned:
            return False
        return True

    def _advance_to_end(self) -> None:
        window = 1
        while True:
            following = range(self.state.version + 1, self.state.version + 1 + window)
            for entry in in_parallel(self.clock, self.entries.read, following):
                if entry is None:
                    return
                self._apply(entry)
            if self.store.is_remote:
                # Reads a long log ahead; a short one costs one failed read.
                window = min(window * 4, READ_AHEAD_MAX)

    def check_end(self, listed: set[int] | None = None) -> None:
        """Check that the position is the end of the log and not a gap, whose slot a writer would
        fill.

        Lists the log, or uses the earlier listing `listed`: then every version in it must be
        readable. Raises what `read_next` raises.
        """
        first = self.state.version + 1
        versions = self.entries.versions(self.state.version) if listed is None else listed
        newest = max(versions, default=-1)
        for attempt in range(1, _LOAD_ATTEMPTS + 1):
            if newest > self.state.version:
                self._advance_to_end()  # most likely they were written just now
            following = self.state.version + 1
            # The missing entry and those read just now may have been cleaned up in the meantime.
            if following != first and not reading(lambda: self._proof.holds_for(first)):
                raise LogCleaned(self.folder)
            # All that was listed has been read.
            if following > newest:
                if self._is_end_open:
                    self._is_end_open = False
                    if not self._is_partial:
                        self._publish()
                return
            path = self.entries.key(following)
            # The missing entry was cleaned up after the listing.
            if following not in versions and reading(self.entries.start) > following:
                raise LogCleaned(self.folder)
            if following not in versions:
                raise Corrupt(
                    "log entry is missing, and later ones exist", path=path, version=following
                )
            # It is listed and was not found: some stores list an object before they return it.
            self._pause(attempt)
        raise Unavailable(f"the store lists {path!r} and does not find it; try again")

    # --- following ---

    def catch_up(self, *, to_end: bool = True, pause: Callable[[], object] | None = None) -> None:
        """Follow the log to its newest version. Unless `to_end`, `is_end_open` may be true
        afterwards. `pause` is called after each entry that is read.

        Raises what `load` raises.
        """
        self.take_over()
        if not self.is_whole:
            self.load(to_end=to_end)
            return
        try:
            while self.read_next() is not None:
                if pause is not None:
                    pause()
            if to_end and self._is_end_open:
                self.check_end()
        except LogCleaned:
            self.load(to_end=to_end)

    def read_next(self) -> Entry | None:
        """The next entry, applied to `state`; None if there is none yet.

        Raises LogCleaned, also if the last `load` failed; Corrupt, Incompatible, Unavailable.
        """
        self._check_whole()
        version = self.state.version + 1
        read_at = self.clock.uptime()
        entry = self.entries.read(version)
        self._accept(version, entry, read_at)
        return entry

    def read_following(self, count: int) -> int:
        """Apply up to `count` next entries, read in parallel; returns their number. Raises what
        `read_next` raises.

        A read of an entry that is being written at that moment can block on some stores, so `count`
        should not exceed the number of entries that are likely to exist.
        """
        self._check_whole()
        first = self.state.version + 1
        versions = range(first, first + count)
        read_at = self.clock.uptime()
        for version, entry in zip(
            versions, in_parallel(self.clock, self.entries.read, versions), strict=True
        ):
            self._accept(version, entry, read_at)
            if entry is None:
                return version - first
        return count

    def _check_whole(self) -> None:
        """Raises LogCleaned if the log must be loaded before it can be followed."""
        self._notice_replacement()
        if self._is_partial:
            raise LogCleaned(self.folder)

    def _accept(self, version: int, entry: Entry | None, read_at: float) -> None:
        """Apply the result of a read of the next slot that began at `read_at` (`Clock.uptime`).
        Raises what `read_next` raises.
        """
        # Checked after the read: a process that was suspended during the read may have seen a freed
        # slot.
        if not reading(lambda: self._proof.holds_for(version)):
            raise LogCleaned(self.folder)
        if entry is None:
            self._proof.extend(read_at)
        else:
            self._apply(entry)

    def sync(self) -> None:
        """Make the entries read so far durable, for a caller that is about to act on them durably.
        Raises Unavailable.

        The writer of an entry may not have synced it yet. A commit needs no such call: it syncs the
        folder, and with it all earlier entries.
        """
        for attempt in range(1, _SYNC_ATTEMPTS + 1):
            try:
                return self.store.sync(self.entries.folder)
            except StoreError as error:
                refusal = error
                self._pause(attempt)  # bounds the CPU use of a caller that retries at once
        raise unavailable(refusal) from refusal

    def _restore(self, checkpoint: Checkpoint | None) -> None:
        table = (
            TableState()
            if checkpoint is None
            else restored_state(checkpoint.version, checkpoint.actions)
        )
        self.at = LogState(table, self.known.fold.restored(table))

    def _apply(self, entry: Entry, after: Callable[[Entry], V] | None = None) -> None:
        """Move to the next entry. `after` makes the view after it, if this position wrote it."""
        newest = None if self._is_partial else self.known.newest
        if newest is not None and self._leads_to(entry, newest.state):
            self.at = newest.state
            return
        at, path = self.at, self.entries.key(entry.version)
        at.table.check(entry, path)
        view = after(entry) if after else self.known.fold.following(at, entry, path)
        self.at = LogState(at.table.after(entry), view)
        is_ahead = newest is None or newest.state.table.version < entry.version
        if is_ahead and not self._is_partial:
            self._publish()

    def _leads_to(self, entry: Entry, state: LogState[V]) -> bool:
        """Whether another position has made the state after the next entry already. A reader and
        the writer of a process meet at each entry.
        """
        is_it = state.table.txn_id == entry.txn_id is not None
        return is_it and self.known.fold.may_skip_to(state.view)

    def _pause(self, attempt: int) -> None:
        self.clock.sleep(error_pause_s(attempt, self.clock.random()))
