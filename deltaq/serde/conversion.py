"""Both parts of a message through their serializers, and the settings that name these."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from deltaq.errors import InvalidConfig, KafkaException
from deltaq.message import Message
from deltaq.serde.errors import (
    KeyDeserializationError,
    KeySerializationError,
    ValueDeserializationError,
    ValueSerializationError,
)
from deltaq.serde.serializers import (
    DeserializerFunction,
    MessageField,
    SerializationContext,
    SerializerFunction,
)

F = TypeVar("F")


class SerializedMessage(NamedTuple):
    """A message as bytes. `headers` includes those that the serializers have added."""

    key: Any
    value: Any
    headers: Any


@dataclass(frozen=True, slots=True)
class _PartFunctions(Generic[F]):
    """The functions of both parts of a message."""

    key: F | None = None
    value: F | None = None

    def __bool__(self) -> bool:
        return self.key is not None or self.value is not None

    def over(self, other: Self) -> Self:
        """These, and those of `other` for parts that have none here."""
        return type(self)(self.key or other.key, self.value or other.value)


class MessageSerializers(_PartFunctions[SerializerFunction]):
    """The serializers of a message. A part without one stays as it is."""

    __slots__ = ()

    def serialize(self, topic: str, key: Any, value: Any, headers: Any) -> SerializedMessage:
        """The message as bytes. Raises KeySerializationError, ValueSerializationError."""
        copy = _copied(headers)
        if self.key is not None:
            try:
                key = self.key(key, SerializationContext(topic, MessageField.KEY, copy))
                if type(key) is CoroutineType:
                    _refuse_coroutine(key)
            except Exception as error:
                raise KeySerializationError(error) from error
        if self.value is not None:
            try:
                value = self.value(value, SerializationContext(topic, MessageField.VALUE, copy))
                if type(value) is CoroutineType:
                    _refuse_coroutine(value)
            except Exception as error:
                raise ValueSerializationError(error) from error
        return SerializedMessage(key, value, copy or None)

    # Apart from `serialize`: one code for both would make `produce` half as slow again.
    async def serialize_async(
        self, topic: str, key: Any, value: Any, headers: Any
    ) -> SerializedMessage:
        """As `serialize`, with serializers that may be coroutine functions."""
        copy = _copied(headers)
        if self.key is not None:
            try:
                key = await _made(
                    self.key(key, SerializationContext(topic, MessageField.KEY, copy))
                )
            except Exception as error:
                raise KeySerializationError(error) from error
        if self.value is not None:
            try:
                value = await _made(
                    self.value(value, SerializationContext(topic, MessageField.VALUE, copy))
                )
            except Exception as error:
                raise ValueSerializationError(error) from error
        return SerializedMessage(key, value, copy or None)


def _copied(headers: Any) -> Any:
    """Headers for serializers to append to: an application may use one list for many messages."""
    if headers is None or isinstance(headers, Mapping | list):
        return [*(headers.items() if isinstance(headers, Mapping) else headers or ())]
    return headers


def _refuse_coroutine(result: CoroutineType[Any, Any, Any]) -> None:
    """For what `take_functions` did not see: a function that returns coroutines, the functions of a
    `Topic`.
    """
    result.close()  # else Python warns that it was never awaited
    raise TypeError("the function returned a coroutine, which only the clients of deltaq.aio await")


async def _made(result: Any) -> Any:
    """What a function has returned, or what that becomes when it is awaited."""
    return await result if inspect.isawaitable(result) else result


class MessageDeserializers(_PartFunctions[DeserializerFunction]):
    """The deserializers of a message. A part without one stays bytes."""

    __slots__ = ()

    def deserialize(self, message: Message) -> None:
        """Replace key and value of a record by what they stand for. If one of them fails, neither
        is replaced. Raises KeyDeserializationError, ValueDeserializationError.
        """
        topic, headers = message.topic() or "", message.headers()
        key, value = message.key(), _stored_value(message)
        if self.key is not None:
            try:
                key = self.key(key, SerializationContext(topic, MessageField.KEY, headers))
                if type(key) is CoroutineType:
                    _refuse_coroutine(key)
            except Exception as error:
                raise KeyDeserializationError(error, message) from error
        if self.value is not None:
            try:
                value = self.value(value, SerializationContext(topic, MessageField.VALUE, headers))
                if type(value) is CoroutineType:
                    _refuse_coroutine(value)
            except Exception as error:
                raise ValueDeserializationError(error, message) from error
        message.set_key(key)
        message.set_value(value)

    async def deserialize_async(self, message: Message[Any, Any]) -> None:
        """As `deserialize`, with deserializers that may be coroutine functions."""
        topic, headers = message.topic() or "", message.headers()
        key, value = message.key(), _stored_value(message)
        if self.key is not None:
            try:
                key = await _made(
                    self.key(key, SerializationContext(topic, MessageField.KEY, headers))
                )
            except Exception as error:
                raise KeyDeserializationError(error, message) from error
        if self.value is not None:
            try:
                value = await _made(
                    self.value(value, SerializationContext(topic, MessageField.VALUE, headers))
                )
            except Exception as error:
                raise ValueDeserializationError(error, message) from error
        message.set_key(key)
        message.set_value(value)


def _stored_value(message: Message[Any, Any]) -> Any:
    """The value of a message. Raises ValueDeserializationError for one of a typed topic that cannot
    be returned.
    """
    try:
        return message.value()
    except KafkaException as error:
        raise ValueDeserializationError(error, message) from error


def take_functions(
    conf: Mapping[str, Any] | None,
    keywords: dict[str, Any],
    kind: str,
    *,
    asynchronous: bool = False,
) -> tuple[dict[str, Any], dict[str, Any], Any, Any]:
    """The configuration without `key.<kind>` and `value.<kind>`, as a dict and as keywords, and
    these two. Raises InvalidConfig unless they are callable, and for coroutine functions unless the
    client is `asynchronous`.
    """
    rest, others = dict(conf or {}), dict(keywords)
    found = []
    for part in ("key", "value"):
        name = f"{part}.{kind}"
        function = rest.pop(name, None)
        function = others.pop(name.replace(".", "_"), others.pop(name, function))
        found.append(checked_function(function, name))
        if not asynchronous and _is_coroutine_function(function):
            reason = "is a coroutine function, which only the clients of deltaq.aio await"
            raise InvalidConfig(f"{name} {reason}: {function!r:.60}", key=name)
    return rest, others, *found


def checked_function(function: Any, name: str) -> Any:
    """`function` if it is callable or None. Raises InvalidConfig."""
    if function is not None and (not callable(function) or isinstance(function, type)):
        raise InvalidConfig(
            f"{name} must be a callable such as StringSerializer(), not {function!r:.60}", key=name
        )
    return function


def _is_coroutine_function(function: Any) -> bool:
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
