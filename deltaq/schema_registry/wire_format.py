"""How a message names its schema: Confluent's prefix of the payload, or a header.

The prefix is a zero byte and the id in four bytes, big-endian. A header has a byte of value one and
the sixteen bytes of the schema's guid. For Protobuf, the indexes of the message type in its file
follow.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from deltaq.serde.errors import SerializationError
from deltaq.serde.serializers import MessageField, SerializationContext

_BY_ID, _BY_GUID = b"\x00", b"\x01"
_ID = struct.Struct(">I")
_GUID_BYTES = 16
_HEADERS = {MessageField.KEY: "__key_schema_id"}
_VALUE_HEADER = "__value_schema_id"
_INDEXES_MAX = 100
"""Message types are not nested deeper: protoc allows 32 levels. A forged number must not cost
memory.
"""


class SchemaId:
    """The id of a message's schema, its guid, or both. `message_indexes` is None unless the schema
    is Protobuf.
    """

    __slots__ = ("guid", "id", "message_indexes", "schema_type")

    def __init__(
        self,
        schema_type: str,
        schema_id: int | None = None,
        guid: str | None = None,
        message_indexes: Sequence[int] | None = None,
    ) -> None:
        self.schema_type = schema_type
        self.id = schema_id
        self.guid = guid
        self.message_indexes = message_indexes

    def id_to_bytes(self) -> bytes:
        """The prefix of a payload. Raises SerializationError if the id is unknown."""
        if self.id is None:
            raise SerializationError("the id of the schema is not set")
        return _BY_ID + _ID.pack(self.id) + self._indexes()

    def guid_to_bytes(self) -> bytes:
        """The value of a header. Raises SerializationError if the guid is unknown."""
        if self.guid is None:
            raise SerializationError("the guid of the schema is not set")
        return _BY_GUID + bytes.fromhex(self.guid.replace("-", "")) + self._indexes()

    def from_bytes(self, payload: io.BytesIO) -> io.BytesIO:
        """Read the id or the guid; the payload is left at what follows it. Raises
        SerializationError.
        """
        kind = payload.read(1)
        length = {_BY_ID: _ID.size, _BY_GUID: _GUID_BYTES}.get(kind)
        found = payload.read(length or 0)
        if length is None or len(found) < length:
            raise SerializationError(
                "the message has no schema id: no serializer of a schema registry wrote it"
            )
        if kind == _BY_ID:
            self.id = _ID.unpack(found)[0]
        else:
            self.guid = _guid(found)
        if self.schema_type == "PROTOBUF":
            self.message_indexes = _read_indexes(payload)
        return payload

    def _indexes(self) -> bytes:
        if self.message_indexes is None:
            return b""
        # The first message of a file: the most frequent case has one byte.
        if list(self.message_indexes) == [0]:
            return b"\x00"
        return b"".join(map(_varint, (len(self.message_indexes), *self.message_indexes)))


IdSerializer: TypeAlias = Callable[[bytes, "SerializationContext | None", Any], bytes]
IdDeserializer: TypeAlias = Callable[[bytes, "SerializationContext | None", Any], io.BytesIO]


def prefix_schema_id_serializer(
    payload: bytes, ctx: SerializationContext | None, schema_id: SchemaId
) -> bytes:
    """The payload after the id of its schema: the default."""
    return schema_id.id_to_bytes() + payload


def header_schema_id_serializer(
    payload: bytes, ctx: SerializationContext | None, schema_id: SchemaId
) -> bytes:
    """The payload as it is; the guid of its schema is added to the headers. Raises
    SerializationError without headers.
    """
    headers = None if ctx is None else ctx.headers
    if ctx is None or not isinstance(headers, list | dict):
        raise SerializationError(
            "a schema id in a header needs a context whose headers are a list or a dict"
        )
    name, guid = _HEADERS.get(ctx.field, _VALUE_HEADER), schema_id.guid_to_bytes()
    if isinstance(headers, dict):
        headers[name] = guid
    else:
        headers.append((name, guid))
    return payload


def prefix_schema_id_deserializer(
    payload: bytes, ctx: SerializationContext | None, schema_id: SchemaId
) -> io.BytesIO:
    """What follows the id of the schema. Raises SerializationError."""
    return schema_id.from_bytes(io.BytesIO(payload))


def dual_schema_id_deserializer(
    payload: bytes, ctx: SerializationContext | None, schema_id: SchemaId
) -> io.BytesIO:
    """The payload of a message that names its schema in a header or, without this header, in front
    of the payload: the default. Raises SerializationError.
    """
    if ctx is not None and ctx.headers:
        name = _HEADERS.get(ctx.field, _VALUE_HEADER)
        headers: Any = ctx.headers.items() if isinstance(ctx.headers, dict) else ctx.headers
        found = [value for key, value in headers if key == name and value is not None]
        if found:
            schema_id.from_bytes(
                io.BytesIO(found[0].encode() if isinstance(found[0], str) else found[0])
            )
            return io.BytesIO(payload)
    return schema_id.from_bytes(io.BytesIO(payload))


def _guid(found: bytes) -> str:
    digits = found.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _varint(number: int) -> bytes:
    """Protobuf's zigzag encoding of a number that is not negative."""
    number <<= 1
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def _read_indexes(payload: io.BytesIO) -> list[int]:
    count = _read_varint(payload)
    if count > _INDEXES_MAX:
        raise SerializationError(f"{count} message indexes are more than {_INDEXES_MAX}")
    return [_read_varint(payload) for _ in range(count)] or [0]


def _read_varint(payload: io.BytesIO) -> int:
    number = 0
    for shift in range(0, 35, 7):
        part = payload.read(1)
        if not part:
            break
        number |= (part[0] & 0x7F) << shift
        if part[0] < 0x80:
            if number & 1:
                raise SerializationError("a message index is negative")
            return number >> 1
    raise SerializationError("the message indexes after the schema id cannot be read")
