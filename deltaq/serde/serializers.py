"""Serializers and deserializers: values as the bytes of a message. The names are those of
confluent-kafka.

A serializer is any callable `(value, context) -> bytes | None`, a deserializer any callable `(bytes
| None, context) -> value`. None, a tombstone or a missing key, is passed on to them. Those that
need a schema registry are in `deltaq/schema_registry/`.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, MutableSequence
from enum import Enum
from typing import Any, TypeAlias

from deltaq.serde.errors import SerializationError

Headers: TypeAlias = "MutableSequence[tuple[str, str | bytes | None]]"


class MessageField(str, Enum):  # noqa: UP042 - `topic + "-" + field` needs a str, and confluent-kafka's has this base
    """The part of a message that is being converted."""

    NONE = "none"
    KEY = "key"
    VALUE = "value"

    def __str__(self) -> str:
        return self.value


class SerializationContext:
    """What a serializer knows of the message: its topic, the part that is converted, and the
    headers, to which a serializer may append.
    """

    __slots__ = ("field", "headers", "topic")

    def __init__(self, topic: str, field: MessageField, headers: Any = None) -> None:
        self.topic = topic
        self.field = field
        self.headers = headers


SerializerFunction: TypeAlias = Callable[
    [Any, SerializationContext], "bytes | Awaitable[bytes | None] | None"
]
"""Only clients for asyncio take coroutine functions."""

DeserializerFunction: TypeAlias = Callable[["bytes | None", SerializationContext], Any]


class Serializer:
    """Base class of serializers. Subclasses define `__call__`; raise SerializationError for a value
    that does not conform.
    """

    __slots__: tuple[str, ...] = ()

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        """The bytes of `obj`; None for None."""
        raise TypeError(f"{type(self).__name__} does not define __call__(obj, ctx)")

    def close(self) -> None:
        """Release what the serializer has created for itself."""


class Deserializer:
    """Base class of deserializers. Subclasses define `__call__`; raise SerializationError for bytes
    that do not conform.
    """

    __slots__: tuple[str, ...] = ()

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
        """The value of the bytes; None for None."""
        raise TypeError(f"{type(self).__name__} does not define __call__(value, ctx)")

    def close(self) -> None:
        """Release what the deserializer has created for itself."""


class StringSerializer(Serializer):
    """Text in the encoding `codec`."""

    __slots__ = ("codec",)

    def __init__(self, codec: str = "utf_8") -> None:
        self.codec = codec

    def __call__(self, obj: str | None, ctx: SerializationContext | None = None) -> bytes | None:
        """The text as bytes. Raises SerializationError."""
        if obj is None:
            return None
        if not isinstance(obj, str):
            raise SerializationError(f"expected str, not {type(obj).__name__}")
        try:
            return obj.encode(self.codec)
        except UnicodeError as error:
            raise SerializationError(str(error)) from error


class StringDeserializer(Deserializer):
    """Text in the encoding `codec`."""

    __slots__ = ("codec",)

    def __init__(self, codec: str = "utf_8") -> None:
        self.codec = codec

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> str | None:
        """The bytes as text. Raises SerializationError."""
        if value is None:
            return None
        try:
            return value.decode(self.codec)
        except UnicodeError as error:
            raise SerializationError(str(error)) from error


class IntegerSerializer(Serializer):
    """An int as four bytes, big-endian: Kafka's IntegerSerializer."""

    __slots__ = ()

    def __call__(self, obj: int | None, ctx: SerializationContext | None = None) -> bytes | None:
        """The number as bytes. Raises SerializationError for a number outside 32 bits."""
        return _packed(_INTEGER, obj)


class IntegerDeserializer(Deserializer):
    """An int from four bytes, big-endian."""

    __slots__ = ()

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> int | None:
        """The bytes as a number. Raises SerializationError unless they are four."""
        number: int | None = _unpacked(_INTEGER, value)
        return number


class DoubleSerializer(Serializer):
    """A float as eight bytes, big-endian: Kafka's DoubleSerializer."""

    __slots__ = ()

    def __call__(self, obj: float | None, ctx: SerializationContext | None = None) -> bytes | None:
        """The number as bytes. Raises SerializationError."""
        return _packed(_DOUBLE, obj)


class DoubleDeserializer(Deserializer):
    """A float from eight bytes, big-endian."""

    __slots__ = ()

    def __call__(
        self, value: bytes | None, ctx: SerializationContext | None = None
    ) -> float | None:
        """The bytes as a number. Raises SerializationError unless they are eight."""
        number: float | None = _unpacked(_DOUBLE, value)
        return number


_INTEGER = struct.Struct(">i")
_DOUBLE = struct.Struct(">d")


def _packed(layout: struct.Struct, number: float | None) -> bytes | None:
    if number is None:
        return None
    try:
        return layout.pack(number)
    except (struct.error, OverflowError) as error:
        raise SerializationError(f"{number!r:.40}: {error}") from error


def _unpacked(layout: struct.Struct, data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return layout.unpack(data)[0]
    except struct.error:
        raise SerializationError(f"expected {layout.size} bytes, not {len(data)}") from None
