"""Read the newest Delta checkpoint of a log.

Source: the Delta protocol, "Checkpoints" and "Last checkpoint file". Classic single-file checkpoints only: these are
what deltaq and delta-rs write. A checkpoint is a copy of what the entries say, so one that is missing, cut or damaged
is passed over in favour of an older one, or of the entries themselves while they exist.

Files and transactions, of which there may be thousands, are read column by column: row by row costs ten times as much,
and every opening of a table would pay for it.
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
from deltaq.parquet.segment import read_table
from deltaq.serde.json_text import strict_json
from deltaq.store import ObjectMissing, Store

__all__ = [
    "Checkpoint",
    "parse_checkpoint",
    "pointed_version",
    "read_checkpoint",
    "read_checkpoint_but",
    "read_newest_checkpoint",
]

_log = logging.getLogger("deltaq.delta")

FILES_AT_ONCE = 128
"""How many files are understood in one go."""

# Passing over them would pass over the files that they stand for.
_OF_V2 = ("checkpointMetadata", "sidecar")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The whole state of a table at `version`. `is_sealed` if deltaq wrote it: a checksum then vouches for it."""

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
    """As `read_newest_checkpoint`, where the one that `_last_checkpoint` names, if any, cannot be read."""
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
    """The checkpoint in the bytes of the object `key`. `between` is called now and then. Raises Corrupt, and what
    `between` raises."""
    try:
        is_sealed = has_seal(data, version)  # first: damaged bytes are nothing for a Parquet reader
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
    """The rows that hold an action of this kind: elsewhere some writers put null, and some a struct of nulls."""
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
    """The fields of the actions of one kind, each as a list with a value for each action.

    KeyError, TypeError or ValueError for a field that is missing, of a wrong type, or null where it must not be.
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
        """A map of texts for each action, an empty one for null. A null value means the same as a missing one."""
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
