"""Proves that what a client knows of a log still holds: no clean-up freed its slots, and the log
was not replaced.

Log clean-up frees old slots, so that they could be created again. It therefore first writes a
marker to `_deltaq/log_start/`. A client that has not read the log for `HEAD_PROOF_S` looks for a
marker above the slot before it trusts that slot, whether the slot is filled or empty.
"""

from __future__ import annotations

from deltaq.delta.entries import LogEntries
from deltaq.delta.table_state import TableState
from deltaq.errors import Corrupt, Incompatible
from deltaq.store import ObjectMissing

HEAD_PROOF_S = 30.0
"""How long a position at the head of the log is trusted without reading the log-start markers, in
seconds of uptime.

Far shorter than the time after which maintenance removes an entry, far longer than a normal commit.
"""

CLEAN_UP_GRACE_S = 2 * HEAD_PROOF_S
"""How long clean-up waits between writing its log-start marker and removing the entries below it,
in seconds.

A client that still trusts a position from before the marker finds its slots unchanged.
"""


class SlotProof:
    """When a position in a log was last verified. All times are of `Clock.uptime`.

    `proven_at` is the latest time at which clean-up had certainly not freed the slot after the
    position: the slot was empty then, or above the log's start. `in_place_at`: when the newest
    entry was last seen in its slot.
    """

    def __init__(self, entries: LogEntries) -> None:
        self._entries = entries
        self._clock = entries.clock
        self.proven_at = self.in_place_at = float("-inf")
        self._anchor = -1  # version of an entry that was there when this client began to write

    def restart(self, at: float) -> None:
        """The position was loaded, from a read of the log that began at `at`."""
        self.proven_at = self.in_place_at = at
        self._anchor = -1

    def trust(self, version: int) -> None:
        """A write follows the entry `version` without a check. That entry must still be there at
        the next check: otherwise the log may have been removed before the write, which then vouches
        for itself.
        """
        if self._anchor < 0:
            self._anchor = version

    def extend(self, at: float) -> None:
        """The slot after the position was proven at `at`."""
        self.proven_at = max(self.proven_at, at)

    def holds_for(self, version: int) -> bool:
        """Whether everything read of slot `version` before this call was read before clean-up could
        free the slot.

        Clean-up waits `CLEAN_UP_GRACE_S` between writing its marker and removing entries, so a
        proof is valid for `HEAD_PROOF_S`. An entry of another writer in a slot proves nothing about
        the next slot: it may itself have been freed long ago. Raises StoreError.
        """
        asked_at = self._clock.uptime()  # taken before the listing, which may only be newer
        if asked_at - self.proven_at > HEAD_PROOF_S:
            if self._entries.start() > version:
                return False
            self.proven_at = asked_at
        return True

    def is_in_place(self, state: TableState) -> bool:
        """Whether the log that `state` was read from is still there: its newest entry, and one from
        the time when this client began to write. Raises StoreError.

        `rm -rf` lists a folder and then removes what it has listed. Entries created in between
        survive, and each of them would vouch for the next one.
        """
        return self._is_newest_in_place(state) and self._is_anchored(state.version)

    def _is_newest_in_place(self, state: TableState) -> bool:
        known = state.txn_id
        try:
            # A state from a checkpoint may have no token: then it is enough that there is an entry.
            if self._entries.token(state.version) == known or known is None:
                return True
            found = self._entries.fetch(state.version)  # the token may have been damaged in transit
        except (ObjectMissing, Corrupt, Incompatible):
            return False
        return found is not None and found[0].txn_id == known

    def _is_anchored(self, version: int) -> bool:
        if not 0 <= self._anchor <= version:
            self._anchor = version
        if self._anchor == version:
            return True
        if not self._entries.exists(self._anchor):
            if self._entries.start() <= self._anchor:
                return False
            self._anchor = version  # log clean-up has removed it
        return True
