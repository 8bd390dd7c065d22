"""Resolves commits that ended in OutcomeUnknown, by their tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deltaq.delta.actions import Add, Entry
from deltaq.delta.log import DeltaLog, Draft
from deltaq.delta.store_errors import reading
from deltaq.delta.table_state import TableState
from deltaq.delta.tokens import parse_commit_token
from deltaq.errors import OutcomeUnknown, Unavailable


def resolve_commit(
    log: DeltaLog[Any], token: str, write: Callable[[TableState], Draft], deadline: float
) -> Entry | None:
    """The entry of the commit with this token, or None if it was not and will not be committed.

    `write` drafts an entry without effect. If the slot is still empty, that entry fills it, so that
    the delayed write fails. Raises OutcomeUnknown with the same token if the outcome is not known
    by the deadline; Corrupt, Incompatible; ValueError for a malformed token.
    """
    version, txn_id = parse_commit_token(log.folder, token)
    try:
        log.load_until(deadline, token, maybe=True)
        if log.state.version < version - 1:
            return None  # the log is gone or shorter: it was removed, or restored from a backup
        # The slot is free. This commit fills it, so that the one asked about never can.
        if log.state.version < version:
            log.commit(write, deadline)
        entry = log.entries.read(version)
        start = reading(log.entries.start)
    except (Unavailable, OutcomeUnknown) as error:
        raise _unresolved(error, token) from error
    # An entry in a slot below the log's start was written after clean-up, so it proves nothing,
    # even if it is ours.
    if entry is None or start > version:
        raise _cleaned(log, version, token)
    if entry.txn_id != txn_id:
        return None
    log.sync_or_unknown(token)
    return entry


def resolve_add(
    log: DeltaLog[Any],
    token: str,
    as_of: int,
    write: Callable[[TableState], Draft],
    is_it: Callable[[Add], bool],
    deadline: float,
) -> Add | None:
    """The shared file that `is_it` identifies, if any writer added it after version `as_of`; None
    if it was not added and will not be.

    `write` drafts an entry without effect after which no writer adds the file. Raises
    OutcomeUnknown with the same token if the outcome is not known by the deadline; Corrupt,
    Incompatible.
    """
    try:
        log.load_until(deadline, token, maybe=True)
        # There is no table to which a writer could add the file.
        if log.state.version < 0:
            return None
        ended = log.commit(write, deadline).entry.version
        live = next((add for add in log.state.files.values() if is_it(add)), None)
        if live is not None:
            return live
        return _first_with(log, is_it, range(as_of + 1, ended), token)
    except (Unavailable, OutcomeUnknown) as error:
        raise _unresolved(error, token) from error


def _first_with(
    log: DeltaLog[Any], is_it: Callable[[Add], bool], versions: range, token: str
) -> Add | None:
    """The first file in these entries that `is_it` accepts. Raises OutcomeUnknown if an entry was
    cleaned up.
    """
    found: Add | None = None
    missing = False
    for version in versions:
        entry = log.entries.read(version)
        missing = entry is None
        adds = (
            (action for action in entry.actions if isinstance(action, Add))
            if entry is not None
            else ()
        )
        found = next((add for add in adds if is_it(add)), None)
        if missing or found is not None:
            break
    # An entry in a slot below the log's start was written after clean-up, so it proves nothing.
    if missing or (versions and reading(log.entries.start) > versions[0]):
        raise _cleaned(log, versions[0], token)
    return found


def _unresolved(error: Unavailable | OutcomeUnknown, token: str) -> OutcomeUnknown:
    """Report the outcome of the commit asked about, not the failure of this lookup or of its own
    entry.
    """
    return OutcomeUnknown(error.error.str().partition(" (token ")[0], token=token)


def _cleaned(log: DeltaLog[Any], version: int, token: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"version {version} of {log.folder!r} was cleaned up before it could be read", token=token
    )
