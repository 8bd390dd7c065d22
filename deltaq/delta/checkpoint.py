"""Reads the newest Delta checkpoint of a log.

Source: the Delta protocol, "Checkpoints" and "Last checkpoint file". Only classic single-file
checkpoints are read: deltaq and delta-rs write these. A checkpoint repeats the content of the
entries, so a missing, truncated or damaged one is skipped in favour of an older checkpoint, or of
the entries while they exist.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from deltaq import names
from deltaq.delta.actions import Action, Metadata, Protocol
from deltaq.delta.checkpoint_seal import has_seal
from deltaq.delta.entries import ENTRY_BYTES_MAX
from deltaq.errors import Corrupt
from deltaq.serde.json_text import strict_json
from deltaq.store import ObjectMissing, ObjectTooLarge, Store

_log = logging.getLogger("deltaq.delta")

CHECKPOINT_INTERVAL = 100
"""Versions between two checkpoints."""
CHECKPOINT_BYTES_MAX = 2**30
"""A larger checkpoint is refused before it is read. One of a million data files takes 60 MB and
more.
"""
POINTER_BYTES_MAX = 2**20
"""That of `_last_checkpoint`. Ours has 100 bytes; other writers may add the checkpoint's schema."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a table at `version`. `is_sealed` if deltaq wrote the checkpoint and its
    checksum was verified.
    """

    version: int
    actions: tuple[Action, ...]
    is_sealed: bool


def read_newest_checkpoint(store: Store, log_folder: str) -> Checkpoint | None:
    """The newest readable checkpoint in `log_folder`; None if the log has to be read from version
    0.

    Raises StoreError if the store does not answer.
    """
    pointed = pointed_version(store, log_folder)
    if (
        pointed is not None
        and (checkpoint := read_checkpoint(store, log_folder, pointed)) is not None
    ):
        return checkpoint
    return read_checkpoint_but(store, log_folder, pointed)


def read_checkpoint_but(store: Store, log_folder: str, pointed: int | None) -> Checkpoint | None:
    """The newest readable checkpoint other than `pointed`, the version that `_last_checkpoint`
    names, if any.
    """
    # The log can be read from its beginning.
    if pointed is None and _has_first_entry(store, log_folder):
        return None
    versions = {names.checkpoint_version(entry.key) for entry in store.list(log_folder)}
    for version in sorted((v for v in versions if v is not None and v != pointed), reverse=True):
        if (checkpoint := read_checkpoint(store, log_folder, version)) is not None:
            return checkpoint
    return None


def _has_first_entry(store: Store, log_folder: str) -> bool:
    try:
        store.get(names.log_entry(log_folder, 0), ENTRY_BYTES_MAX)
    except ObjectMissing:
        return False
    except ObjectTooLarge:
        pass  # the reader of the entries refuses it
    return True


def pointed_version(store: Store, log_folder: str) -> int | None:
    """The version that `_last_checkpoint` names; None if it is missing or damaged. Raises
    StoreError.
    """
    try:
        pointer = strict_json(store.get(names.last_checkpoint(log_folder), POINTER_BYTES_MAX))
    except ObjectMissing:
        return None
    except (ValueError, ObjectTooLarge):
        _log.warning("ignoring a damaged _last_checkpoint log=%r", log_folder)
        return None
    version = pointer.get("version") if isinstance(pointer, dict) else None
    return (
        version
        if isinstance(version, int) and not isinstance(version, bool) and version >= 0
        else None
    )


def read_checkpoint(store: Store, log_folder: str, version: int) -> Checkpoint | None:
    """The checkpoint of `version`; None if it is missing or damaged. Raises StoreError."""
    key = names.checkpoint_file(log_folder, version)
    try:
        return load_checkpoint(store, key, version)
    except ObjectMissing:
        return None
    except Corrupt as error:
        _log.warning("ignoring a damaged checkpoint key=%r reason=%s", key, error)
        return None


def load_checkpoint(store: Store, key: str, version: int) -> Checkpoint:
    """The checkpoint in the object `key`. Raises Corrupt, StoreError."""
    try:
        return parse_checkpoint(store.get(key, CHECKPOINT_BYTES_MAX), version, key)
    except ObjectTooLarge as error:
        raise Corrupt(error.reason, path=key, version=version) from None


def parse_checkpoint(
    data: bytes, version: int, key: str, between: Callable[[], None] = lambda: None
) -> Checkpoint:
    """Parse the checkpoint in the object `key`. `between` is called periodically. Raises Corrupt,
    and what `between` raises.
    """
    from deltaq.delta.checkpoint_columns import actions_of  # noqa: PLC0415 - loads Arrow, which a short log does not need

    try:
        is_sealed = has_seal(data, version)  # first: damaged bytes can crash the Parquet reader
        actions = tuple(actions_of(data, key, between))
        if {Protocol, Metadata} - {type(action) for action in actions}:
            raise ValueError("protocol or metaData is missing")
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"checkpoint is damaged: {error}", path=key, version=version) from error
    return Checkpoint(version, actions, is_sealed)
