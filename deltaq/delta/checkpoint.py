"""Reads the newest Delta checkpoint of a log.

Source: the Delta protocol, "Checkpoints" and "Last checkpoint file". Only classic single-file checkpoints are read:
deltaq and delta-rs write these. A checkpoint repeats the content of the entries, so a missing, truncated or damaged one
is skipped in favour of an older checkpoint, or of the entries while they exist.

Files and transactions, of which a table may have thousands, are read column by column. Row by row takes ten times as
long, each time a table is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from deltaq import names
from deltaq.delta.actions import Action, Add, Metadata, Protocol, Txn, parse_action
from deltaq.delta.checkpoint_seal import has_seal
from deltaq.errors import Corrupt
from deltaq.parquet.bounded_decoding import read_table
from deltaq.serde.json_text import strict_json
from deltaq.store import ObjectMissing, Store

_log = logging.getLogger("deltaq.delta")

CHECKPOINT_INTERVAL = 100
"""Versions between two checkpoints."""

FILES_AT_ONCE = 128
"""Files that are parsed between two calls of `between`."""

# Columns of V2 checkpoints. Ignoring them would lose the files that they refer to.
_OF_V2 = ("checkpointMetadata", "sidecar")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a table at `version`. `is_sealed` if deltaq wrote the checkpoint and its checksum was verified."""

    version: int
    actions: tuple[Action, ...]
    is_sealed: bool


def read_newest_checkpoint(store: Store, log_folder: str) -> Checkpoint | None:
    """The newest readable checkpoint in `log_folder`; None if the log has to be read from version 0.

    Raises StoreError if the store does not answer.
    """
    pointed = pointed_version(store, log_folder)
    if pointed is not None and (checkpoint := read_checkpoint(store, log_folder, pointed)) is not None:
        return checkpoint
    return read_checkpoint_but(store, log_folder, pointed)


def read_checkpoint_but(store: Store, log_folder: str, pointed: int | None) -> Checkpoint | None:
    """The newest readable checkpoint other than `pointed`, the version that `_last_checkpoint` names, if any."""
    if pointed is None and _has_first_entry(store, log_folder):
        return None
    versions = {names.checkpoint_version(entry.key) for entry in store.list(log_folder)}
    for version in sorted((v for v in versions if v is not None and v != pointed), reverse=True):
        if (checkpoint := read_checkpoint(store, log_folder, version)) is not None:
            return checkpoint
    return None


def _has_first_entry(store: Store, log_folder: str) -> bool:
    try:
        store.get(names.log_entry(log_folder, 0))
    except ObjectMissing:
        return False
    return True


def pointed_version(store: Store, log_folder: str) -> int | None:
    """The version that `_last_checkpoint` names; None if it is missing or damaged. Raises StoreError."""
    try:
        pointer = strict_json(store.get(names.last_checkpoint(log_folder)))
    except ObjectMissing:
        return None
    except ValueError:
        _log.warning("ignoring a damaged _last_checkpoint log=%r", log_folder)
        return None
    version = pointer.get("version") if isinstance(pointer, dict) else None
    return version if isinstance(version, int) and not isinstance(version, bool) and version >= 0 else None


def read_checkpoint(store: Store, log_folder: str, version: int) -> Checkpoint | None:
    """The checkpoint of `version`; None if it is missing or damaged. Raises StoreError."""
    key = names.checkpoint_file(log_folder, version)
    try:
        return parse_checkpoint(store.get(key), version, key)
    except ObjectMissing:
        return None
    except Corrupt as error:
        _log.warning("ignoring a damaged checkpoint key=%r reason=%s", key, error)
        return None


def parse_checkpoint(data: bytes, version: int, key: str, between: Callable[[], None] = lambda: None) -> Checkpoint:
    """Parse the checkpoint in the object `key`. `between` is called periodically. Raises Corrupt, and what `between`
    raises."""
    try:
        is_sealed = has_seal(data, version)  # first: damaged bytes can crash the Parquet reader
        actions = tuple(_actions(read_table(data, key), between))
        if {Protocol, Metadata} - {type(action) for action in actions}:
            raise ValueError("protocol or metaData is missing")
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"checkpoint is damaged: {error}", path=key, version=version) from error
    return Checkpoint(version, actions, is_sealed)


def _actions(table: pa.Table, between: Callable[[], None]) -> Iterator[Action]:
    found = {name: rows for name in table.column_names if len(rows := _rows(table.column(name)))}
    for name in _OF_V2:
        if name in found:
            raise ValueError(f"{name!r} belongs to V2 checkpoints, which keep actions in other files")
    for name in ("protocol", "metaData", "domainMetadata"):
        for body in found[name].to_pylist(maps_as_pydicts="strict") if name in found else ():
            if (action := parse_action({name: body})) is not None:
                yield action
    if "txn" in found:
        yield from _txns(found["txn"])
    for number, add in enumerate(_adds(found["add"]) if "add" in found else ()):
        if number % FILES_AT_ONCE == 0:
            between()
        yield add


def _rows(column: pa.ChunkedArray) -> pa.Array:
    """The rows that hold an action of this kind. In other rows some writers put null, and some a struct of nulls."""
    if not pa.types.is_struct(column.type) or not column.type.num_fields:
        return column.slice(0, 0)
    rows = column.combine_chunks()
    return rows.filter(reduce(pc.or_, (field.is_valid() for field in rows.flatten())))


def _txns(rows: pa.StructArray) -> Iterator[Txn]:
    fields = _Fields(rows)
    return map(Txn, fields.texts("appId"), fields.numbers("version"), fields.numbers("lastUpdated", is_optional=True))


def _adds(rows: pa.StructArray) -> Iterator[Add]:
    fields = _Fields(rows)
    if fields.has_any("deletionVector"):
        raise ValueError("a file has a deletion vector, which deltaq tables never use")
    return map(
        Add,
        fields.texts("path"),
        fields.numbers("size"),
        fields.numbers("modificationTime"),
        fields.flags("dataChange"),
        fields.texts("stats", is_optional=True),
        fields.maps("tags"),
    )


class _Fields:
    """The fields of the actions of one kind, each as a list with one value per action.

    KeyError, TypeError or ValueError for a field that is missing, of the wrong type, or null where null is not allowed.
    """

    def __init__(self, rows: pa.StructArray) -> None:
        self._rows = rows
        self._fields = dict(zip((field.name for field in rows.type), rows.flatten(), strict=True))

    def has_any(self, name: str) -> bool:
        """Whether some action has this field."""
        return name in self._fields and self._fields[name].null_count < len(self._rows)

    def texts(self, name: str, *, is_optional: bool = False) -> list[Any]:
        return self._values(name, _is_text, is_optional)

    def numbers(self, name: str, *, is_optional: bool = False) -> list[Any]:
        return self._values(name, pa.types.is_signed_integer, is_optional)

    def flags(self, name: str) -> list[Any]:
        return self._values(name, pa.types.is_boolean, is_optional=False)

    def maps(self, name: str) -> Iterable[dict[str, str]]:
        """A string map for each action, empty for null. A null value means the same as a missing one."""
        if not self.has_any(name):
            return [{} for _ in range(len(self._rows))]
        maps = self._fields[name]
        if not (pa.types.is_map(maps.type) and _is_text(maps.type.key_type) and _is_text(maps.type.item_type)):
            raise TypeError(f"the field {name!r} is of type {maps.type}")
        keys, texts, ends = maps.keys.to_pylist(), maps.items.to_pylist(), maps.offsets.to_pylist()
        spans = zip(ends, ends[1:], maps.is_valid().to_pylist(), strict=False)
        return (_map(keys[start:end], texts[start:end]) if valid else {} for start, end, valid in spans)

    def _values(self, name: str, is_right: Callable[[pa.DataType], bool], is_optional: bool) -> list[Any]:
        if is_optional and not self.has_any(name):
            return [None] * len(self._rows)
        values = self._fields[name]
        if not is_right(values.type):
            raise TypeError(f"the field {name!r} is of type {values.type}")
        if values.null_count and not is_optional:
            raise ValueError(f"the field {name!r} is missing")
        found: list[Any] = values.to_pylist()
        return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _map(keys: list[str], texts: list[str | None]) -> dict[str, str]:
    found = {key: text for key, text in zip(keys, texts, strict=True) if text is not None}
    if len(found) + texts.count(None) != len(keys):
        raise ValueError("a key is repeated")
    return found
