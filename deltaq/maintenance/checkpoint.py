"""Writes Delta checkpoints.

A checkpoint is made from deltaq's own table state, which was checked entry by entry, and read back
before it is used.

Checkpoints contain no tombstones, which would grow with the age of the table: only a vacuum by
another tool would need them, and other tools may not write the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from deltaq import names
from deltaq.delta.actions import Action, Add
from deltaq.delta.checkpoint import Checkpoint, parse_checkpoint, pointed_version, read_checkpoint
from deltaq.delta.checkpoint_seal import sealed
from deltaq.delta.table_state import TableState, restored_state
from deltaq.errors import Corrupt
from deltaq.store import ObjectExists, ObjectMissing, Store


class CheckpointFailed(Exception):
    """A checkpoint could not be made. Nothing is lost: the log's entries hold the same state."""


def encode_checkpoint(state: TableState, yield_point: Callable[[], None] = lambda: None) -> bytes:
    """Encode `state` as a classic Delta checkpoint, a Parquet file, and verify it by reading it
    back.

    `yield_point` is called between pieces of work. Raises CheckpointFailed; what `yield_point`
    raises.
    """
    from deltaq.delta.checkpoint_columns import encode_actions  # noqa: PLC0415 - loads what most programs never need

    try:
        data = sealed(encode_actions(_paced(state.actions(), yield_point)), state.version)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise CheckpointFailed(
            f"version {state.version}: {type(error).__name__}: {error}"
        ) from error
    yield_point()
    try:
        found = parse_checkpoint(data, state.version, "a new checkpoint", yield_point)
    except Corrupt as error:
        raise CheckpointFailed(f"version {state.version}: {error}") from error
    if restored_state(found.version, found.actions) != state or not found.is_sealed:
        raise CheckpointFailed(
            f"version {state.version}: it reads as another state than it was made from"
        )
    yield_point()
    return data


def _paced(actions: Iterable[Action], yield_point: Callable[[], None]) -> Iterator[Action]:
    for action in actions:
        yield action
        yield_point()


def write_checkpoint(
    store: Store, log_folder: str, state: TableState, yield_point: Callable[[], None] = lambda: None
) -> None:
    """Write a checkpoint of `state` into the log, and move `_last_checkpoint` to it unless that
    names a newer one.

    Of several processes at once, the first one's is kept. `yield_point` is as in
    `encode_checkpoint`. Raises CheckpointFailed, StoreError.
    """
    data = encode_checkpoint(state, yield_point)
    key = names.checkpoint_file(log_folder, state.version)
    try:
        store.create(key, data)
    except ObjectExists:
        if read_checkpoint(store, log_folder, state.version) is None:
            # The existing one is damaged, and nothing else would ever replace it.
            store.put(key, data)
    about = {
        "size": len(state.actions()),
        "sizeInBytes": len(data),
        "numOfAddFiles": len(state.files),
    }
    _point(store, log_folder, state.version, about)


def point_to_checkpoint(store: Store, log_folder: str, checkpoint: Checkpoint) -> None:
    """Ensure that `_last_checkpoint` names `checkpoint`, which is in the log, or a newer one.
    Raises StoreError.
    """
    about = {
        "size": len(checkpoint.actions),
        "numOfAddFiles": sum(isinstance(a, Add) for a in checkpoint.actions),
    }
    _point(store, log_folder, checkpoint.version, about)


def _point(store: Store, log_folder: str, version: int, about: dict[str, int]) -> None:
    """Move `_last_checkpoint` forward only. Two processes at once may move it back; the next
    checkpoint corrects it.
    """
    pointed = pointed_version(store, log_folder)
    if (
        pointed is None
        or pointed < version
        or (pointed > version and not _exists(store, log_folder, pointed))
    ):
        store.put(
            names.last_checkpoint(log_folder), json.dumps({"version": version, **about}).encode()
        )


def _exists(store: Store, log_folder: str, version: int) -> bool:
    """Whether there is a checkpoint of `version`; a damaged pointer may name any number."""
    try:
        store.get_range(names.checkpoint_file(log_folder, version), 0, 1)
    except ObjectMissing:
        return False
    return True
