"""The actions in the columns of a Delta checkpoint, written and read.

Source: the Delta protocol, "Checkpoint Schema". Each row is one action, in the column of its kind.

When they are read, files and transactions, of which a table may have thousands, are read column by
column. Row by row takes ten times as long, each time a table is opened. Arrow's functions are not
used: they take 0.1 s to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from itertools import groupby, islice
from operator import itemgetter, or_
from typing import Any

import pyarrow as pa

from deltaq.delta.actions import Action, Add, Txn, as_json, parse_action
from deltaq.parquet.tables import encode_table, read_table

FILES_AT_ONCE = 128
"""Files that are converted at once, and that are parsed between two calls of `between`."""

_TEXT, _NUMBER, _FLAG = pa.string(), pa.int64(), pa.bool_()
_TEXTS = pa.map_(_TEXT, _TEXT)
_NAMES = pa.list_(pa.field("element", _TEXT))
_FORMAT = pa.struct({"provider": _TEXT, "options": _TEXTS})

# What deltaq's actions have, and each kind that readers look for. All of it is optional, as in
# checkpoints of Spark.
_COLUMNS = {
    "txn": {"appId": _TEXT, "version": _NUMBER, "lastUpdated": _NUMBER},
    "add": {
        "path": _TEXT,
        "partitionValues": _TEXTS,
        "size": _NUMBER,
        "modificationTime": _NUMBER,
        "dataChange": _FLAG,
        "stats": _TEXT,
        "tags": _TEXTS,
    },
    "remove": {"path": _TEXT, "deletionTimestamp": _NUMBER, "dataChange": _FLAG},
    "metaData": {
        "id": _TEXT,
        "name": _TEXT,
        "format": _FORMAT,
        "schemaString": _TEXT,
        "partitionColumns": _NAMES,
        "configuration": _TEXTS,
        "createdTime": _NUMBER,
    },
    "protocol": {
        "minReaderVersion": pa.int32(),
        "minWriterVersion": pa.int32(),
        "readerFeatures": _NAMES,
        "writerFeatures": _NAMES,
    },
    "domainMetadata": {"domain": _TEXT, "configuration": _TEXT, "removed": _FLAG},
}
_SCHEMA = pa.schema({kind: pa.struct(fields) for kind, fields in _COLUMNS.items()})

# Columns of V2 checkpoints. Ignoring them would lose the files that they refer to.
_OF_V2 = ("checkpointMetadata", "sidecar")


def encode_actions(actions: Iterable[Action]) -> bytes:
    """The Parquet file of a checkpoint with these actions. Raises what Arrow raises for a value
    that is no text or number of Delta's.
    """
    return encode_table(_batches(actions), _SCHEMA)


def _batches(actions: Iterable[Action]) -> Iterator[pa.RecordBatch]:
    """A few actions of one kind at once: Arrow converts Python's values without giving way to other
    threads.
    """
    for kind, run in groupby(map(as_json, actions), itemgetter(0)):
        while bodies := [body for _, body in islice(run, FILES_AT_ONCE)]:
            columns = [
                pa.array(bodies, field.type)
                if field.name == kind
                else pa.nulls(len(bodies), field.type)
                for field in _SCHEMA
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def actions_of(data: bytes, key: str, between: Callable[[], None]) -> Iterator[Action]:
    """The actions in the object `key`. `between` is called periodically.

    Raises Corrupt, ValueError, KeyError or TypeError for a damaged checkpoint, and what `between`
    raises.
    """
    table = read_table(data, key)
    found = {name: rows for name in table.column_names if len(rows := _rows(table.column(name)))}
    for name in _OF_V2:
        if name in found:
            raise ValueError(
                f"{name!r} belongs to V2 checkpoints, which keep actions in other files"
            )
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
    """The rows that hold an action of this kind. In other rows some writers put null, and some a
    struct of nulls.
    """
    if not pa.types.is_struct(column.type) or not column.type.num_fields:
        return column.slice(0, 0)
    rows = column.combine_chunks()
    valid = reduce(or_, map(_valid, rows.flatten()))
    first, number = (valid & -valid).bit_length() - 1, valid.bit_count()
    if not valid or valid >> first == (1 << number) - 1:
        return rows.slice(max(first, 0), number)  # as writers order them
    return rows.take(
        pa.array([at for at, bit in enumerate(_bits(valid, len(rows))) if bit], pa.int64())
    )


def _valid(values: pa.Array) -> int:
    """The values that are not null, as bits from the lowest on."""
    # Also a column of the type null, whose bitmap is that of its struct.
    if values.null_count == len(values):
        return 0
    every, bitmap = (1 << len(values)) - 1, values.buffers()[0]
    return (
        every
        if bitmap is None
        else int.from_bytes(bitmap.to_pybytes(), "little") >> values.offset & every
    )


def _bits(valid: int, length: int) -> Iterator[bool]:
    return (bit == "1" for bit in reversed(f"{valid:0{length}b}"))


def _txns(rows: pa.StructArray) -> Iterator[Txn]:
    fields = _Fields(rows)
    return map(
        Txn,
        fields.texts("appId"),
        fields.numbers("version"),
        fields.numbers("lastUpdated", is_optional=True),
    )


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

    KeyError, TypeError or ValueError for a field that is missing, of the wrong type, or null where
    null is not allowed.
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
        """A string map for each action, empty for null. A null value means the same as a missing
        one.
        """
        if not self.has_any(name):
            return [{} for _ in range(len(self._rows))]
        maps = self._fields[name]
        if not (
            pa.types.is_map(maps.type)
            and _is_text(maps.type.key_type)
            and _is_text(maps.type.item_type)
        ):
            raise TypeError(f"the field {name!r} is of type {maps.type}")
        keys, texts, ends = maps.keys.to_pylist(), maps.items.to_pylist(), maps.offsets.to_pylist()
        spans = zip(ends, ends[1:], _bits(_valid(maps), len(maps)), strict=False)
        return (
            _map(keys[start:end], texts[start:end]) if valid else {} for start, end, valid in spans
        )

    def _values(
        self, name: str, is_right: Callable[[pa.DataType], bool], is_optional: bool
    ) -> list[Any]:
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
