"""Errors of serializers, with the names that `confluent_kafka.error` and
`confluent_kafka.serialization` have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from deltaq.errors import KafkaError, KafkaException

if TYPE_CHECKING:
    from deltaq.message import Message


class SerializationError(KafkaException, ValueError):
    """A value could not be converted to bytes, or bytes to a value. Correct the value, or the
    schema of the reader.

    `field` names the part of the record that does not conform, such as `address.zip`; None for the
    record as a whole. It is a ValueError too: serializers of confluent-kafka let the errors of
    their libraries pass.
    """

    def __init__(self, reason: str = "", *, field: str | None = None) -> None:
        prefix = "" if field is None else f"field {field!r}: "
        super().__init__(KafkaError(KafkaError._BAD_MSG, prefix + reason))
        self.field = field

    def __str__(self) -> str:
        return self.error.str()


class ClientError(KafkaException):
    """An error of a serializing client: `exception` is its cause, `kafka_message` the message, if
    there is one.
    """

    def __init__(
        self,
        kafka_error: KafkaError,
        exception: BaseException | None = None,
        kafka_message: Message | None = None,
    ) -> None:
        KafkaException.__init__(self, kafka_error)
        self.exception = exception
        self.kafka_message = kafka_message

    @property
    def code(self) -> int:
        """The error's code."""
        return self.error.code()

    @property
    def name(self) -> str:
        """The name of the error's code."""
        return self.error.name()


class ProduceError(ClientError):
    """The message was refused and not queued. Correct what `exception` says."""

    def __init__(self, kafka_error: KafkaError, exception: BaseException | None = None) -> None:
        super().__init__(kafka_error, exception)


class ConsumeError(ClientError):
    """`DeserializingConsumer.poll` met an error or an event. The next call continues after it."""


class _NotSerialized(ProduceError, SerializationError):
    _code: ClassVar[int]

    def __init__(self, exception: BaseException | None = None) -> None:
        super().__init__(KafkaError(self._code, _text(exception)), exception)
        self.field = _field(exception)


class KeySerializationError(_NotSerialized):
    """The key could not be serialized, and the message was not queued. Correct the field that
    `field` names.
    """

    _code = KafkaError._KEY_SERIALIZATION


class ValueSerializationError(_NotSerialized):
    """The value could not be serialized, and the message was not queued. Correct the field that
    `field` names.
    """

    _code = KafkaError._VALUE_SERIALIZATION


class _NotDeserialized(ConsumeError, SerializationError):
    _code: ClassVar[int]

    def __init__(
        self, exception: BaseException | None = None, kafka_message: Message | None = None
    ) -> None:
        reason = _text(exception) + _place(kafka_message)
        super().__init__(KafkaError(self._code, reason), exception, kafka_message)
        self.field = _field(exception)


class KeyDeserializationError(_NotDeserialized):
    """The key could not be deserialized. `kafka_message` has the bytes and the place; the next call
    continues after.
    """

    _code = KafkaError._KEY_DESERIALIZATION


class ValueDeserializationError(_NotDeserialized):
    """The value could not be deserialized. `kafka_message` has the bytes and the place; the next
    call continues after it.
    """

    _code = KafkaError._VALUE_DESERIALIZATION


def _text(exception: BaseException | None) -> str:
    if exception is None:
        return "the serializer failed"
    if isinstance(exception, KafkaException):
        return exception.error.str()
    return str(exception) or type(exception).__name__


def _place(message: Message | None) -> str:
    if message is None:
        return ""
    return (
        f" (topic {message.topic()!r}, partition {message.partition()}, offset {message.offset()})"
    )


def _field(exception: BaseException | None) -> str | None:
    field = getattr(exception, "field", None)
    return field if isinstance(field, str) else None


class MissingLibrary(SerializationError, ImportError):
    """An optional library is not installed. Install the extra of deltaq that the text names."""

    def __init__(self, what: str, extra: str) -> None:
        SerializationError.__init__(
            self, f"{what} needs more libraries: pip install 'deltaq[{extra}]'"
        )
