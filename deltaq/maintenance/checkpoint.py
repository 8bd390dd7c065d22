"""Write Delta checkpoints. The only door to `deltalake`, which is loaded when the first one is written.

A checkpoint is made from our own state, which was checked entry by entry as it grew, and not from what delta-rs would
find in the log. delta-rs turns it into the Parquet file that every Delta reader knows: it is given a scratch log in a
temporary folder, whose only entry is the whole state. Nothing in a checkpoint names its version, so the one of the
scratch log's version 0 will do for any.

There are no tombstones in it: they would grow with the age of the table, and only a vacuum by other tools, which may
not write the table, would miss them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from deltaq import names
from deltaq.delta.actions import Action, Add, CommitInfo, encode_entry
from deltaq.delta.checkpoint import Checkpoint, parse_checkpoint, pointed_version, read_checkpoint
from deltaq.delta.checkpoint_seal import sealed
from deltaq.delta.table_state import TableState
from deltaq.errors import Corrupt
from deltaq.store import ObjectExists, ObjectMissing, Store

__all__ = ["CheckpointFailed", "encode_checkpoint", "point_to_checkpoint", "write_checkpoint"]


class CheckpointFailed(Exception):
    """No checkpoint could be made of a state. Nothing is lost: the log's entries say the same."""


def encode_checkpoint(state: TableState, between: Callable[[], None] = lambda: None) -> bytes:
    """A classic Delta checkpoint of `state` as a Parquet file, read back and found to say the same.

    `between` is called now and then, so that it need not take all of the interpreter's time; what it raises passes.
    Raises CheckpointFailed if it could not be made, or says something else.
    """
    entry = encode_entry(CommitInfo("checkpoint", 0, "CHECKPOINT"), _paced(state.actions(), between))
    between()
    try:
        data = sealed(_by_delta_rs(entry), state.version)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # delta-rs has a family of exceptions of its own, and a full disk under the scratch log is no better. A panic,
        # such as each call ends with in a child of a process that had called it before the fork, is no Exception.
        raise CheckpointFailed(f"version {state.version}: {type(error).__name__}: {error}") from error
    try:
        found = parse_checkpoint(data, state.version, "a new checkpoint", between)
    except Corrupt as error:
        raise CheckpointFailed(f"version {state.version}: {error}") from error
    again = TableState()
    again.restore(found.version, found.actions)
    if again != state or not found.is_sealed:
        raise CheckpointFailed(f"version {state.version}: what delta-rs wrote differs from what it was given")
    between()
    return data


def _paced(actions: Iterable[Action], between: Callable[[], None]) -> Iterator[Action]:
    for action in actions:
        yield action
        between()


def _by_delta_rs(entry: bytes) -> bytes:
    from deltalake import DeltaTable  # noqa: PLC0415 - large, and most programs never write a checkpoint

    folder = tempfile.mkdtemp(prefix="deltaq-checkpoint-")  # not one that the exit of the process removes under us
    try:
        log = Path(folder, names.LOG_FOLDER)
        log.mkdir()
        Path(names.log_entry(f"{log}/", 0)).write_bytes(entry)
        DeltaTable(folder).create_checkpoint()
        return Path(names.checkpoint_file(f"{log}/", 0)).read_bytes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_checkpoint(
    store: Store, log_folder: str, state: TableState, between: Callable[[], None] = lambda: None
) -> None:
    """Put a checkpoint of `state` into the log, and point to it unless there is a newer one.

    Several processes may do so at once; the first one's stays. `between` is as in `encode_checkpoint`. Raises
    CheckpointFailed, StoreError.
    """
    data = encode_checkpoint(state, between)
    key = names.checkpoint_file(log_folder, state.version)
    try:
        store.create(key, data)
    except ObjectExists:
        if read_checkpoint(store, log_folder, state.version) is None:
            store.put(key, data)  # it is damaged, and would stay so for ever
    files = len(state.files)
    about = {"size": len(state.actions()), "sizeInBytes": len(data), "numOfAddFiles": files}
    _point(store, log_folder, state.version, about)


def point_to_checkpoint(store: Store, log_folder: str, checkpoint: Checkpoint) -> None:
    """Make sure that `_last_checkpoint` names `checkpoint`, which was read from the log, or a newer one.

    Raises StoreError.
    """
    about = {"size": len(checkpoint.actions), "numOfAddFiles": sum(isinstance(a, Add) for a in checkpoint.actions)}
    _point(store, log_folder, checkpoint.version, about)


def _point(store: Store, log_folder: str, version: int, about: dict[str, int]) -> None:
    """Move `_last_checkpoint` forward, never back. Two that do so at once may; the next one mends that."""
    pointed = pointed_version(store, log_folder)
    if pointed is None or pointed < version or (pointed > version and not _exists(store, log_folder, pointed)):
        store.put(names.last_checkpoint(log_folder), json.dumps({"version": version, **about}).encode())


def _exists(store: Store, log_folder: str, version: int) -> bool:
    """Whether there is a checkpoint of `version`: a damaged pointer may name any number."""
    try:
        store.get_range(names.checkpoint_file(log_folder, version), 0, 1)
    except ObjectMissing:
        return False
    return True
