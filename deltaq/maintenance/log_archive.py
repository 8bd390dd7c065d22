"""Log archive: on a local store, keeps the folder `_delta_log/` so small that other engines can
list it in one piece.

A file system returns the names of a folder in pieces. An entry that is created between two pieces
may be left out while a later one is returned. Other engines list the log and refuse it then: "found
gap". So once a checkpoint replaces them, older entries are moved to `_deltaq/log/`, where deltaq's
clients, which ask for entries by name, go on reading them. Entries leave the archive by log
clean-up alone, after its marker and its grace period (`log_cleanup`).

An entry is linked into the archive, and the archive synced, before its name in `_delta_log/` is
removed, so it is never missing. A writer that creates its slot again finds it in the archive
afterwards (`delta/log.py`). Several processes may archive the same entries at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deltaq import names
from deltaq.delta.entries import ENTRY_BYTES_MAX
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.store import ObjectExists, ObjectMissing, Store, StoreRefused
from deltaq.work import Work

MOVED_AT_ONCE = 64
"""Entries moved between two pauses, with one sync of the archive."""

_NAME_HEADER_BYTES = 20
_NAME_ALIGNMENT_BYTES = 8


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """What leaves `_delta_log/`: the versions of the entries that are archived, lowest first, and
    the keys of the checkpoints that are removed.
    """

    versions: tuple[int, ...] = ()
    checkpoints: tuple[str, ...] = ()


def listed_bytes(key: str) -> int:
    """The size of a name in the buffer in which Linux returns the names of a folder."""
    size = _NAME_HEADER_BYTES + len(key.rpartition("/")[2])
    return size + -size % _NAME_ALIGNMENT_BYTES


def plan_archive(keys: Iterable[str], settings: MaintenanceSettings) -> ArchivePlan:
    """What leaves a log folder with these keys so that the names of the others take
    `listed_bytes_max` bytes.

    The newest checkpoint, its entry and what follows always stay, even if they take more: a reader
    needs all of it.
    """
    keys = list(keys)
    entries = {version: key for key in keys if (version := names.entry_version(key)) is not None}
    checkpoints = {
        version: key for key in keys if (version := names.checkpoint_version(key)) is not None
    }
    surplus = sum(map(listed_bytes, keys)) - settings.listed_bytes_max
    if surplus <= 0 or not checkpoints:
        return ArchivePlan()
    newest = sorted(checkpoints)[-settings.keep_checkpoints :]
    versions: list[int] = []
    removed: list[str] = []
    for version in sorted({*entries, *checkpoints}):
        if surplus <= 0 or version >= newest[-1]:
            break
        if version in entries:
            versions.append(version)
            surplus -= listed_bytes(entries[version])
        if version in checkpoints and version not in newest:
            removed.append(checkpoints[version])
            surplus -= listed_bytes(checkpoints[version])
    return ArchivePlan(tuple(versions), tuple(removed))


class LogArchive:
    """Archives the entries of the log of the table in `folder`. Keeps no state.

    Does nothing on a remote store: object stores list in the order of names, so a listing has no
    gap.
    """

    def __init__(self, store: Store, folder: str, settings: MaintenanceSettings) -> None:
        self._store = store
        self._log_folder = folder + names.LOG_FOLDER
        self._archive = names.log_archive_folder(folder)
        self._settings = settings

    def plan(self) -> ArchivePlan:
        """What `move` would do now. Raises StoreError."""
        if self._store.is_remote:
            return ArchivePlan()
        return plan_archive(
            (entry.key for entry in self._store.list(self._log_folder)), self._settings
        )

    def full_at(self, version: int) -> int:
        """The version of the commit that will fill `_delta_log` up to `listed_bytes_limit`, where
        `version` is the newest; not above `version` if it is full. Raises StoreError.
        """
        listed = sum(listed_bytes(entry.key) for entry in self._store.list(self._log_folder))
        return version + (self._settings.listed_bytes_limit - listed) // listed_bytes(
            names.log_entry("", version)
        )

    def move(self) -> Work[int]:
        """Move what the plan says; returns the number of entries archived. Raises StoreError."""
        plan = self.plan()
        for at in range(0, len(plan.versions), MOVED_AT_ONCE):
            self._move(plan.versions[at : at + MOVED_AT_ONCE])
            yield
        for key in plan.checkpoints:
            self._store.delete(key)
        return len(plan.versions)

    def _move(self, versions: Iterable[int]) -> None:
        archived = [version for version in versions if self._link(version)]
        if archived:
            self._store.sync(self._archive)
        for version in archived:
            self._store.delete(names.log_entry(self._log_folder, version))

    def _link(self, version: int) -> bool:
        """Link an entry into the archive; False if another process has moved it."""
        entry = names.log_entry(self._log_folder, version)
        archived = names.log_entry(self._archive, version)
        try:
            try:
                self._store.link(entry, archived)
            except StoreRefused:
                # Linux refuses links to files of another user, unless this one may write them
                # (protected_hardlinks).
                self._store.create(archived, self._store.get(entry, ENTRY_BYTES_MAX))
        except ObjectExists:
            # A process ended before it removed the name, or a late writer filled the slot again.
            pass
        except ObjectMissing:
            return False
        return True
