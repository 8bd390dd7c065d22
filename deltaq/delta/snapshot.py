"""Finds where a log can be loaded from: the newest checkpoint, and whether it or the first entries
are damaged.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaq import names
from deltaq.delta.checkpoint import (
    Checkpoint,
    load_checkpoint,
    pointed_version,
    read_checkpoint,
    read_checkpoint_but,
    read_newest_checkpoint,
)
from deltaq.delta.entries import LogEntries
from deltaq.delta.store_errors import reading
from deltaq.errors import Corrupt
from deltaq.store.parallel import in_parallel


@dataclass(frozen=True, slots=True)
class LoadStart:
    """Where to load a log from: the newest checkpoint, or version 0 if there is none.

    `listed` are the versions above it as listed meanwhile, on a remote store whose
    `_last_checkpoint` names it.
    """

    checkpoint: Checkpoint | None
    listed: set[int] | None = None


def find_load_start(entries: LogEntries) -> LoadStart:
    """The newest readable checkpoint. On a remote store the listing runs in parallel with the read
    of the checkpoint and takes about as long. Raises Unavailable.
    """
    return reading(lambda: _load_start(entries))


def _load_start(entries: LogEntries) -> LoadStart:
    store, folder = entries.store, entries.folder
    if not store.is_remote:
        return LoadStart(read_newest_checkpoint(store, folder))
    pointed = pointed_version(store, folder)
    # Most likely a log without checkpoints. It is listed only if entry 0 is gone.
    if pointed is None:
        return LoadStart(read_checkpoint_but(store, folder, None))
    listed: set[int] = set()

    def read(checkpoint: bool) -> Checkpoint | None:
        if checkpoint:
            return read_checkpoint(store, folder, pointed)
        listed.update(entries.versions(pointed))
        return None

    found, _ = in_parallel(entries.clock, read, (True, False))
    # The checkpoint is damaged, or was removed in favour of a newer one after the pointer was read.
    if found is None:
        return LoadStart(read_checkpoint_but(store, folder, pointed))
    return LoadStart(found, listed)


def has_entries(entries: LogEntries, log_start: int, *, is_last_attempt: bool) -> bool:
    """Whether a table without entry 0 and without checkpoint has entries, or had some.

    Raises Corrupt in the last attempt if the table is damaged, Unavailable.
    """
    versions = entries.versions()
    is_cut = min(versions) > 0 if versions else log_start > 0
    if is_last_attempt and is_cut and is_unreadable_from(entries, log_start):
        reason = (
            "the log's first entries are missing and no checkpoint replaces them. "
            "Restore the folder from a backup, or remove all of it while no client runs"
        )
        raise Corrupt(reason, path=entries.folder, version=0)
    return bool(versions) or log_start > 0


def is_unreadable_from(entries: LogEntries, start: int) -> bool:
    """Whether no checkpoint from `start` on exists undamaged. Unavailable if one disappears during
    the check.
    """
    return reading(
        lambda: all(_is_damaged(entries, e.key, start) for e in entries.store.list(entries.folder))
    )


def _is_damaged(entries: LogEntries, key: str, start: int) -> bool:
    version = names.checkpoint_version(key)
    if version is None or version < start:
        return True  # cannot replace the missing entries
    try:
        load_checkpoint(entries.store, key, version)
    except Corrupt:
        return True
    return False
