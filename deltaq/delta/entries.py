"""Reads the objects of one Delta table log: entries, their tokens, and the markers of the log's
start.

On a local store maintenance moves older entries of a topic from `_delta_log/` into the log archive,
`_deltaq/log/` (`maintenance/log_archive.py`). An entry is in the archive before it leaves
`_delta_log/`. So each read looks in the archive after it has looked in `_delta_log/`, and an
archived entry is the one that counts: what else is in its slot was created by a writer that found
the slot empty after the move.
"""

from __future__ import annotations

import re

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.actions import Entry, parse_entry
from deltaq.delta.store_errors import reading
from deltaq.errors import Corrupt, Incompatible
from deltaq.store import ObjectMissing, ObjectTooLarge, Store

ENTRY_BYTES_MAX = 256 * 2**20
"""A larger entry is refused before it is read, and is not written. The largest ends a topic: it
removes all data files, with 115 bytes for each.
"""

_TOKEN_BYTES = 1024
"""Bytes at the start of an entry that contain the token of its commit."""

_TXN_ID = re.compile(rb'"txnId":"([^"]*)"')


class LogEntries:
    """The objects of the log of the table in `table_folder`. Keeps no state."""

    def __init__(self, store: Store, table_folder: str, clock: Clock) -> None:
        self.store = store
        self.table_folder = table_folder
        self.folder = table_folder + names.LOG_FOLDER
        self.clock = clock
        self._has_archive = not store.is_remote and names.has_log_archive(table_folder)

    def key(self, version: int) -> str:
        """The key of entry `version`."""
        return names.log_entry(self.folder, version)

    def read(self, version: int) -> Entry | None:
        """An entry; None if it is not there. Raises Corrupt, Incompatible, Unavailable."""
        found = reading(lambda: self.fetch(version))
        return None if found is None else found[0]

    def fetch(self, version: int) -> tuple[Entry, bytes] | None:
        """An entry and its bytes; None if it is not there. Raises Corrupt, Incompatible,
        StoreError.
        """
        found = self._fetch(self.key(version), version)
        archived = self._fetch(self._archived_key(version), version) if self._has_archive else None
        # A late writer may have filled the slot again after its entry had gone to the archive.
        return found if archived is None else archived

    def is_archived(self, version: int) -> bool:
        """Whether the entry of slot `version` has left the slot for the log archive. Raises
        StoreError.
        """
        if not self._has_archive:
            return False
        try:
            self.store.get_impatient(self._archived_key(version), ENTRY_BYTES_MAX)
        except ObjectMissing:
            return False
        except ObjectTooLarge:
            pass
        return True

    def _archived_key(self, version: int) -> str:
        return names.log_entry(names.log_archive_folder(self.table_folder), version)

    def _fetch(self, key: str, version: int) -> tuple[Entry, bytes] | None:
        try:
            data = self.store.get_impatient(key, ENTRY_BYTES_MAX)
            try:
                entry = parse_entry(data, version, key)
            except (Corrupt, Incompatible):
                entry = None
            if entry is None or entry.info is None:
                # The data may have been damaged in transit, which can also make our entry look like
                # a foreign one.
                data = self.store.get(key, ENTRY_BYTES_MAX)
                entry = parse_entry(data, version, key)
            return entry, data
        except ObjectMissing:
            return None
        except ObjectTooLarge as error:
            raise Corrupt(error.reason, path=key, version=version) from None

    def token(self, version: int) -> str | None:
        """The token in slot `version`, from the entry's first bytes; None if not found. Raises
        StoreError.
        """
        found = _TXN_ID.search(self._beginning(version, _TOKEN_BYTES))
        return None if found is None else found[1].decode(errors="replace")

    def exists(self, version: int) -> bool:
        """Whether slot `version` is filled. Raises StoreError."""
        try:
            self._beginning(version, 1)
        except ObjectMissing:
            return False
        return True

    def _beginning(self, version: int, length: int) -> bytes:
        """The first bytes of an entry: of the one in `_delta_log/` if there is one, which no caller
        takes for proof that the slot was free. Raises StoreError.
        """
        try:
            return self.store.get_range(self.key(version), 0, length)
        except ObjectMissing:
            if not self._has_archive:
                raise
            return self.store.get_range(self._archived_key(version), 0, length)

    def versions(self, after: int = -1) -> set[int]:
        """List the versions of the entries above `after`. Raises Unavailable."""
        start_after = self.key(after) if after >= 0 else ""
        listed = reading(lambda: [entry.key for entry in self.store.list(self.folder, start_after)])
        return {version for key in listed if (version := names.entry_version(key)) is not None}

    def start(self) -> int:
        """The lowest version that clean-up keeps; 0 if it has never run. Raises StoreError."""
        folder = names.log_start_folder(self.table_folder)
        versions = [names.log_start_version(entry.key) for entry in self.store.list(folder)]
        return max((version for version in versions if version is not None), default=0)
