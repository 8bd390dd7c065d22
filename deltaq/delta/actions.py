"""Delta log actions as typed values, and log entries as bytes.

Source: the Delta transaction protocol, "Actions". Only the actions that deltaq writes or must
understand are typed; an action of an unknown kind is ignored, as the protocol requires. Parsing is
strict, because a log entry decides offsets: a partial line, a repeated key or an invalid number is
`Corrupt`.

Entries written by deltaq start with a `commitInfo` that ends with a CRC-32 of the rest of the
entry. Delta defines no checksum for entries; this one detects flipped bits and a cut at a line
boundary.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeAlias

from deltaq.errors import Corrupt, Incompatible
from deltaq.serde.json_text import compact_json, strict_json

FORMAT = 1
"""Version of the on-disk format this code writes; see docs/internals/format.md."""

JsonObject: TypeAlias = "dict[str, object]"


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """The writer and the operation of an entry. `txn_id` is the token by which a writer recognises
    its own commit.
    """

    txn_id: str
    timestamp: int
    operation: str
    client_id: str = ""
    engine: str = ""
    is_blind_append: bool = True
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Protocol:
    """The Delta protocol versions and features that readers and writers must support."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """The table's schema (as Delta's `schemaString`) and properties."""

    id: str
    schema_string: str
    configuration: Mapping[str, str]
    created_time: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class DomainMetadata:
    """A named piece of table state; the newest action of a domain replaces earlier ones."""

    domain: str
    configuration: str
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Txn:
    """The newest version that application `app_id` has committed."""

    app_id: str
    version: int
    last_updated: int | None = None


@dataclass(frozen=True, slots=True)
class Add:
    """Adds a data file to the table. `path` is relative to the table's folder, `stats` is Delta's
    JSON text.
    """

    path: str
    size: int
    modification_time: int
    data_change: bool
    stats: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes a data file from the table."""

    path: str
    deletion_timestamp: int
    data_change: bool


Action: TypeAlias = "CommitInfo | Protocol | Metadata | DomainMetadata | Txn | Add | Remove"


@dataclass(frozen=True, slots=True)
class Entry:
    """One numbered log entry. `info` is None if deltaq did not write the entry."""

    version: int
    info: CommitInfo | None
    actions: tuple[Action, ...]

    @property
    def txn_id(self) -> str | None:
        return None if self.info is None else self.info.txn_id


# --- writing
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """Actions that were encoded, and verified by parsing, before the commit of their entry begins.

    Encoding an entry that removes a hundred files takes a few milliseconds, and other commits of
    the process would wait for them.
    """

    actions: tuple[Action, ...] = ()
    lines: bytes = b""

    def __add__(self, other: Prepared) -> Prepared:
        return Prepared(self.actions + other.actions, self.lines + other.lines)


NOTHING_PREPARED = Prepared()


def prepared(actions: Sequence[Action]) -> Prepared:
    """Encode the first actions of a future entry. ValueError if an encoded action does not parse to
    the same action.
    """
    lines = []
    for action in actions:
        lines.append(line := _line(action))
        if parse_action(strict_json(line)) != action:
            raise ValueError(f"an encoded action parses to a different action: {action}")
    return Prepared(tuple(actions), b"".join(lines))


def encode_entry(
    info: CommitInfo, actions: Iterable[Action], before: Prepared = NOTHING_PREPARED
) -> bytes:
    """The entry as Delta JSON lines. `commitInfo` comes first and ends with the checksum of the
    rest of the entry. The actions prepared in `before` precede `actions`.
    """
    rest = before.lines + b"".join(_line(action) for action in actions)
    sealed = _commit_info(info).removesuffix(_AFTER_FIELDS)
    return sealed + _checksum(sealed, rest) + b"\n" + rest


_CHECKSUM = b',"crc32":'
_AFTER_FIELDS = b"}}}"


def _checksum(sealed: bytes, rest: bytes) -> bytes:
    """The end of the first line, after `sealed`. The checksum covers the token too, which
    identifies the writer.
    """
    return _CHECKSUM + b"%d" % zlib.crc32(rest, zlib.crc32(sealed)) + _AFTER_FIELDS


def _commit_info(info: CommitInfo) -> bytes:
    body = {
        "timestamp": info.timestamp,
        "operation": info.operation,
        "operationParameters": dict(info.parameters),
        "isBlindAppend": info.is_blind_append,
        "engineInfo": info.engine,
        "txnId": info.txn_id,
        "deltaq": {"format": FORMAT, "client": info.client_id},
    }
    return compact_json({"commitInfo": body}).encode()


def _line(action: Action) -> bytes:
    name, body = as_json(action)
    return compact_json({name: body}).encode() + b"\n"


def as_json(action: Action) -> tuple[str, JsonObject]:
    """The kind of an action, and its fields as Delta names them."""
    match action:
        case Add():
            body: JsonObject = {
                "path": action.path,
                "partitionValues": {},
                "size": action.size,
                "modificationTime": action.modification_time,
                "dataChange": action.data_change,
            }
            if action.stats is not None:
                body["stats"] = action.stats
            if action.tags:
                body["tags"] = dict(action.tags)
            return "add", body
        case Remove():
            return "remove", {
                "path": action.path,
                "deletionTimestamp": action.deletion_timestamp,
                "dataChange": action.data_change,
            }
        case Txn():
            txn: JsonObject = {"appId": action.app_id, "version": action.version}
            if action.last_updated is not None:
                txn["lastUpdated"] = action.last_updated
            return "txn", txn
        case DomainMetadata():
            return "domainMetadata", {
                "domain": action.domain,
                "configuration": action.configuration,
                "removed": action.removed,
            }
        case Metadata():
            return "metaData", {
                "id": action.id,
                "name": action.name,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": action.schema_string,
                "partitionColumns": [],
                "configuration": dict(action.configuration),
                "createdTime": action.created_time,
            }
        case Protocol():
            protocol: JsonObject = {
                "minReaderVersion": action.min_reader_version,
                "minWriterVersion": action.min_writer_version,
            }
            # Feature lists are required from these versions on, and not allowed below.
            if action.min_reader_version >= 3:
                protocol["readerFeatures"] = list(action.reader_features)
            if action.min_writer_version >= 7:
                protocol["writerFeatures"] = list(action.writer_features)
            return "protocol", protocol
        case CommitInfo():
            raise ValueError("an entry has one commitInfo, and encode_entry writes it")


# --- reading
# --------------------------------------------------------------------------------------------------


def parse_entry(data: bytes, version: int, path: str, before: Prepared = NOTHING_PREPARED) -> Entry:
    """Parse the bytes of log entry `version`, read from `path`. Its actions begin with those
    prepared in `before`.

    Raises Corrupt (truncated, damaged or empty entry) and Incompatible (newer deltaq format).
    """
    if not data.strip():
        raise Corrupt("log entry is empty", path=path, version=version)
    try:
        lines = [
            strict_json(line) for line in _without(before.lines, data).splitlines() if line.strip()
        ]
        actions = [action for line in lines if (action := parse_action(line)) is not None]
        actions[1:1] = before.actions
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"log entry cannot be parsed: {_reason(error)}", path=path, version=version
        ) from error
    infos = [action for action in actions if isinstance(action, CommitInfo)]
    if len(infos) > 1:
        raise Corrupt("log entry has two commitInfo actions", path=path, version=version)
    sealed = _check_seal(data, lines[0] if lines else None, version, path)
    _check_one_action_per_key(actions, version, path)
    rest = tuple(action for action in actions if not isinstance(action, CommitInfo))
    return Entry(version, infos[0] if infos and sealed else None, rest)


def _without(prepared_lines: bytes, data: bytes) -> bytes:
    """An entry without its prepared lines, which follow the first line. ValueError if they do
    not.
    """
    if not prepared_lines:
        return data
    first, newline, rest = data.partition(b"\n")
    if not rest.startswith(prepared_lines):
        raise ValueError("the entry does not begin with its prepared actions")
    return first + newline + rest[len(prepared_lines) :]


def _reason(error: Exception) -> str:
    return f"missing field {error}" if isinstance(error, KeyError) else str(error)


def _check_seal(data: bytes, first: object, version: int, path: str) -> bool:
    seal = _seal(first)
    if seal is None:
        return False
    if seal.get("format") != FORMAT:
        raise Incompatible(
            f"log entry {version} at {path!r} has deltaq format {seal.get('format')!r}; "
            f"this version reads format {FORMAT}. Upgrade deltaq."
        )
    first_line, newline, rest = data.partition(b"\n")
    sealed, _, _ = first_line.rpartition(_CHECKSUM)
    if not newline or first_line != sealed + _checksum(sealed, rest):
        raise Corrupt(
            "log entry is cut or damaged: it does not match its checksum",
            path=path,
            version=version,
        )
    return True


def _seal(first: object) -> JsonObject | None:
    if isinstance(first, dict) and isinstance(info := first.get("commitInfo"), dict):
        seal = info.get("deltaq")
        return seal if isinstance(seal, dict) else None
    return None


def _check_one_action_per_key(actions: Iterable[Action], version: int, path: str) -> None:
    keys = [
        (kind, _RECONCILIATION_KEYS[kind](action))
        for action in actions
        if (kind := type(action)) is not CommitInfo
    ]
    if len(set(keys)) != len(keys):
        raise Corrupt("log entry has two actions for one key", path=path, version=version)


_RECONCILIATION_KEYS: Mapping[type[Action], Callable[[Action], object]] = {
    Add: attrgetter("path"),
    Remove: attrgetter("path"),
    Txn: attrgetter("app_id"),
    DomainMetadata: attrgetter("domain"),
    Metadata: lambda _: "",
    Protocol: lambda _: "",
}


def parse_action(line: object) -> Action | None:
    """The action of one line, `{"add": {...}}`; None for an unknown kind. Raises ValueError,
    KeyError, TypeError.
    """
    body = _object(line)
    if len(body) != 1:
        raise ValueError(f"a line must hold one action, found {sorted(body)}")
    ((name, value),) = body.items()
    parse = _PARSERS.get(name)
    return None if parse is None else parse(_object(value))


def _object(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {type(value).__name__}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, found {type(value).__name__}")
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected an integer, found {value!r:.40}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {value!r:.40}")
    return value


def _texts(value: object) -> dict[str, str]:
    # Delta allows a null map value, which means the same as a missing one.
    return {key: _text(text) for key, text in _object(value or {}).items() if text is not None}


def _names(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {type(value).__name__}")
    return tuple(_text(name) for name in value)


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _parse_commit_info(body: JsonObject) -> CommitInfo | None:
    if _optional_text(body.get("txnId")) is None:
        return None  # commitInfo is free-form; one without a txnId is another program's
    seal = body.get("deltaq")
    return CommitInfo(
        txn_id=_text(body["txnId"]),
        timestamp=_number(body.get("timestamp", 0)),
        operation=_text(body.get("operation", "")),
        client_id=_text(seal.get("client", "")) if isinstance(seal, dict) else "",
        engine=_optional_text(body.get("engineInfo")) or "",
        is_blind_append=body.get("isBlindAppend") is True,
        parameters={
            key: str(value) for key, value in _object(body.get("operationParameters") or {}).items()
        },
    )


def _parse_protocol(body: JsonObject) -> Protocol:
    return Protocol(
        _number(body["minReaderVersion"]),
        _number(body["minWriterVersion"]),
        _names(body.get("readerFeatures")),
        _names(body.get("writerFeatures")),
    )


def _parse_metadata(body: JsonObject) -> Metadata:
    return Metadata(
        id=_text(body["id"]),
        schema_string=_text(body["schemaString"]),
        configuration=_texts(body.get("configuration")),
        created_time=_number(body.get("createdTime") or 0),
        name=_optional_text(body.get("name")),
    )


def _parse_domain(body: JsonObject) -> DomainMetadata:
    return DomainMetadata(
        _text(body["domain"]), _text(body["configuration"]), _flag(body["removed"])
    )


def _parse_txn(body: JsonObject) -> Txn:
    updated = body.get("lastUpdated")
    return Txn(
        _text(body["appId"]),
        _number(body["version"]),
        None if updated is None else _number(updated),
    )


def _parse_add(body: JsonObject) -> Add:
    if body.get("deletionVector") is not None:
        raise ValueError("a file has a deletion vector, which deltaq tables never use")
    return Add(
        path=_text(body["path"]),
        size=_number(body["size"]),
        modification_time=_number(body["modificationTime"]),
        data_change=_flag(body["dataChange"]),
        stats=_optional_text(body.get("stats")),
        tags=_texts(body.get("tags")),
    )


def _parse_remove(body: JsonObject) -> Remove:
    return Remove(
        _text(body["path"]), _number(body.get("deletionTimestamp") or 0), _flag(body["dataChange"])
    )


_PARSERS = {
    "commitInfo": _parse_commit_info,
    "protocol": _parse_protocol,
    "metaData": _parse_metadata,
    "domainMetadata": _parse_domain,
    "txn": _parse_txn,
    "add": _parse_add,
    "remove": _parse_remove,
}
