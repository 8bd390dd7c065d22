"""Protobuf: the only door to `google.protobuf`, which resolves the names of schemas and reads
messages.

A schema is the text of a `.proto` file or, as confluent-kafka registers it, a serialized
FileDescriptorProto in base64. Both have the same id if they describe the same file.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from deltaq.schema_registry.compatibility import protobuf
from deltaq.schema_registry.formats import NamedText
from deltaq.schema_registry.protobuf_bounds import check_payload, is_recursive
from deltaq.schema_registry.protobuf_text import file_descriptor
from deltaq.serde.errors import SerializationError

_WELL_KNOWN = re.compile(r"google/protobuf/[a-z_]+\.proto")
_ROOT = "schema.proto"
"""The name of the registered file in its pool."""


def canonical(text: str) -> str:
    """The text without white space around it. Raises ValueError."""
    found = text.strip()
    if not found:
        raise ValueError("the schema is empty")
    return found


normalized = canonical
"""Two texts of one file have the same id already."""


def identity(text: str, references: Sequence[NamedText]) -> str:
    """What all texts of one file have in common. Raises ValueError."""
    proto = descriptor_pb2.FileDescriptorProto()
    parse(text, references).CopyToProto(proto)
    proto.ClearField("name")
    proto.ClearField("source_code_info")
    if proto.syntax == "proto2":
        proto.ClearField("syntax")
    fields = [
        field
        for message in _messages(proto.message_type)
        for field in (*message.field, *message.extension)
    ]
    for field in (*fields, *proto.extension):
        if field.json_name == _json_name(field.name):
            field.ClearField("json_name")
    return base64.b64encode(proto.SerializeToString(deterministic=True)).decode()


def _messages(messages: Iterable[Any]) -> Iterator[Any]:
    for message in messages:
        yield message
        yield from _messages(message.nested_type)


def _json_name(name: str) -> str:
    return re.sub(r"_+(.?)", lambda found: found[1].upper(), name)


def parse(text: str, references: Sequence[NamedText]) -> Any:
    """The file as a FileDescriptor. Raises ValueError."""
    return _parsed(text, tuple(references))


prepared = parse
"""The file, for `message_at` and `indexes_of`."""


@lru_cache(maxsize=1000)
def _parsed(text: str, references: tuple[NamedText, ...]) -> Any:
    pool = descriptor_pool.DescriptorPool()
    known: set[str] = set()
    for name, schema in (*references, (_ROOT, text)):
        proto = _proto(schema)
        proto.name = name
        for path in proto.dependency:
            if path not in known and _WELL_KNOWN.fullmatch(path):
                _add_well_known(pool, path, known)
            if path not in known:
                raise ValueError(f"the import {path!r:.200} is not among the references")
        try:
            pool.AddSerializedFile(proto.SerializeToString())
        except (TypeError, DecodeError) as error:
            raise ValueError(str(error)[:1000]) from error
        known.add(name)
    return pool.FindFileByName(_ROOT)


def _proto(text: str) -> Any:
    """The descriptor of a file with the names that stand in it. Raises ValueError."""
    try:
        proto = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        try:
            return ParseDict(file_descriptor(text), descriptor_pb2.FileDescriptorProto())
        except ParseError as error:
            raise ValueError(str(error)[:1000]) from error
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
    if proto.syntax not in ("", "proto2", "proto3"):
        raise ValueError(f"{proto.syntax!r} is not supported: use the syntax proto2 or proto3")
    return proto


def _add_well_known(pool: Any, path: str, known: set[str]) -> None:
    """Add a file that comes with Protobuf, and what it imports."""
    try:
        name = path.removeprefix("google/protobuf/").removesuffix(".proto")
        file = importlib.import_module("google.protobuf." + name + "_pb2").DESCRIPTOR
    except ModuleNotFoundError as error:
        raise ValueError(f"the import {path!r:.200} is no file of Protobuf") from error
    for dependency in file.dependencies:
        if dependency.name not in known:
            _add_well_known(pool, dependency.name, known)
    pool.AddSerializedFile(file.serialized_pb)
    known.add(path)


def incompatibilities(reader: Any, writer: Any) -> list[str]:
    """Why messages of the writer's file cannot be read with the reader's; empty if they can."""
    return protobuf.incompatibilities(reader, writer)


# --- messages ---


def is_message_class(kind: Any) -> bool:
    """Whether this is a class that protoc has generated."""
    return isinstance(kind, type) and issubclass(kind, Message)


def schema_text(file: Any) -> str:
    """A FileDescriptor in base64, as confluent-kafka registers it."""
    return base64.b64encode(file.serialized_pb).decode()


def imports(file: Any, *, known_too: bool) -> list[Any]:
    """The files that a file imports; those that come with Protobuf only with `known_too`."""
    return [each for each in file.dependencies if known_too or not _WELL_KNOWN.fullmatch(each.name)]


def indexes_of(file: Any, message: Any) -> list[int]:
    """Where a file has the message of this name: its index, after those of the messages around it.
    Raises SerializationError.
    """
    around: list[Any] = [message]
    while around[0].containing_type is not None:
        around.insert(0, around[0].containing_type)
    indexes, among = [], list(file.message_types_by_name.values())
    for part in around:
        names = [each.name for each in among]
        if part.name not in names:
            raise SerializationError(f"the schema has no message {message.full_name}")
        indexes.append(names.index(part.name))
        among = list(among[indexes[-1]].nested_types)
    return indexes


def message_at(file: Any, indexes: Sequence[int]) -> Any:
    """The message at a place in a file. Raises SerializationError."""
    among, found = list(file.message_types_by_name.values()), None
    for index in indexes:
        if index >= len(among):
            raise SerializationError(f"the schema has no message at {list(indexes)}")
        found = among[index]
        among = list(found.nested_types)
    return found


def encode(message: Any, kind: Any) -> bytes:
    """The message's bytes. Raises SerializationError for one of another class, and if a required
    field is missing.
    """
    if not isinstance(message, kind):
        raise SerializationError(f"expected {kind.__name__}, not {type(message).__name__}")
    try:
        payload = bytes(message.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise SerializationError(str(error)[:1000]) from error
    # Protobuf writes messages that are nested more deeply than it reads.
    if is_recursive(kind.DESCRIPTOR):
        decode(payload, kind)
    return payload


def decode(payload: bytes, kind: Any) -> Any:
    """The message of these bytes. Raises SerializationError."""
    try:
        check_payload(payload, kind.DESCRIPTOR)
        return kind.FromString(payload)
    except (DecodeError, EncodeError, ValueError, RecursionError) as error:
        raise SerializationError(f"no {kind.__name__}: {error!s:.1000}") from error


def as_dict(payload: bytes, message: Any, *, with_defaults: bool = False) -> dict[str, Any]:
    """The fields of a message, by its descriptor alone, as JSON has them. `with_defaults`: also
    those without presence that have their default. Raises SerializationError.
    """
    fields: dict[str, Any] = MessageToDict(
        decode(payload, GetMessageClass(message)),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=with_defaults,
    )
    return fields


def message_named(file: Any, name: str | None) -> Any:
    """The message of a file with this full name; the first one for None. Raises
    SerializationError.
    """
    if name is None:
        return message_at(file, [0])
    try:
        found = file.pool.FindMessageTypeByName(name)
    except KeyError:
        raise SerializationError(f"the schema has no message {name!r:.200}") from None
    indexes_of(file, found)  # the pool has those of the imports, too
    return found


def of_dict(fields: Any, message: Any) -> bytes:
    """The bytes of a message whose fields are as JSON has them. Raises SerializationError."""
    try:
        return bytes(ParseDict(fields, GetMessageClass(message)()).SerializeToString())
    except (
        ParseError,
        EncodeError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise SerializationError(str(error)[:1000]) from error
