"""Read the newest Delta checkpoint of a log.

Source: the Delta protocol, "Checkpoints" and "Last checkpoint file". Classic single-file checkpoints only: these are
what deltaq and delta-rs write. A checkpoint is a copy of what the entries say, so one that is missing, cut or damaged
is
passed over in favour of an older one, or of the entries themselves while they exist.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from deltaq import names
from deltaq.errors import Corrupt
from deltaq.log.actions import Action, Metadata, Protocol, parse_action, strict_json
from deltaq.log.segment import read_table
from deltaq.store import ObjectMissing, Store

__all__ = ["Checkpoint", "read_newest_checkpoint"]

_log = logging.getLogger("deltaq.log")

# Passing over them would pass over the files that they stand for.
_OF_V2 = {"checkpointMetadata", "sidecar"}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The whole state of a table at `version`."""

    version: int
    actions: tuple[Action, ...]


def read_newest_checkpoint(store: Store, log_folder: str) -> Checkpoint | None:
    """The newest readable checkpoint in `log_folder`; None if the log has to be read from version 0.

    Raises StoreError if the store does not answer.
    """
    pointed = _last_checkpoint(store, log_folder)
    if pointed is not None and (checkpoint := _read(store, log_folder, pointed)) is not None:
        return checkpoint
    if pointed is None and _has_first_entry(store, log_folder):
        return None
    versions = {names.checkpoint_version(entry.key) for entry in store.list(log_folder)}
    for version in sorted((v for v in versions if v is not None and v != pointed), reverse=True):
        if (checkpoint := _read(store, log_folder, version)) is not None:
            return checkpoint
    return None


def _has_first_entry(store: Store, log_folder: str) -> bool:
    try:
        store.get(names.log_entry(log_folder, 0))
    except ObjectMissing:
        return False
    return True


def _last_checkpoint(store: Store, log_folder: str) -> int | None:
    try:
        pointer = strict_json(store.get(names.last_checkpoint(log_folder)))
    except ObjectMissing:
        return None
    except ValueError:
        _log.warning("ignoring a damaged _last_checkpoint log=%r", log_folder)
        return None
    version = pointer.get("version") if isinstance(pointer, dict) else None
    return version if isinstance(version, int) and not isinstance(version, bool) and version >= 0 else None


def _read(store: Store, log_folder: str, version: int) -> Checkpoint | None:
    key = names.checkpoint_file(log_folder, version)
    try:
        table = read_table(store.get(key), key)
        actions = tuple(_actions(table.to_pylist(maps_as_pydicts="strict")))
        if {Protocol, Metadata} - {type(action) for action in actions}:
            raise ValueError("protocol or metaData is missing")
    except ObjectMissing:
        return None
    except (Corrupt, ValueError, KeyError, TypeError) as error:
        _log.warning("ignoring a damaged checkpoint key=%r reason=%s", key, error)
        return None
    return Checkpoint(version, actions)


def _actions(rows: list[dict[str, object]]) -> Iterator[Action]:
    for row in rows:
        for name, body in row.items():
            # A row holds one action; some writers leave the other columns null, some fill them with structs of nulls.
            if isinstance(body, dict) and any(value is not None for value in body.values()):
                if name in _OF_V2:
                    raise ValueError(f"{name!r} belongs to V2 checkpoints, which keep actions in other files")
                action = parse_action({name: body})
                if action is not None:
                    yield action
