"""`DeserializingConsumer`: a consumer whose messages pass through deserializers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.consumer.consumer import Consumer
from deltaq.errors import KafkaError
from deltaq.message import K, Message, V
from deltaq.serde.conversion import MessageDeserializers, take_functions
from deltaq.serde.errors import ConsumeError
from deltaq.store import Store
from deltaq.topic import Topic


class DeserializingConsumer(Consumer[K, V]):
    """A `Consumer` with the settings `key.deserializer` and `value.deserializer`: callables
    `(bytes, context) -> object`.

    Deserializers of a `Topic` handle take precedence. Mirrors
    `confluent_kafka.DeserializingConsumer`. `consume_arrow` returns the columns as they are stored,
    without deserializers.
    """

    _deserializes: ClassVar[bool] = True

    def __init__(
        self,
        conf: Mapping[str, Any] | None = None,
        /,
        *,
        topics: Iterable[Topic] = (),
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        rest, others, key, value = take_functions(conf, keywords, "deserializer")
        self._deserializers = MessageDeserializers(key, value)
        self._of_topics: dict[str, MessageDeserializers] = {}
        super().__init__(rest, topics=topics, store=store, clock=clock, **others)

    def poll(self, timeout: float | None = -1) -> Message[K, V] | None:
        """The next message with its key and value deserialized, or None if none arrives within
        `timeout` seconds.

        Raises KeyDeserializationError and ValueDeserializationError for a record that cannot be
        deserialized, and ConsumeError for an event such as _PARTITION_EOF. `kafka_message` has the
        message as it was read, and the next call continues after it.
        """
        message = super().poll(timeout)
        if message is None:
            return None
        if (error := message.error()) is not None:
            raise ConsumeError(error, kafka_message=message)
        self._of(message).deserialize(message)
        return message

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message[K, V]]:
        """Up to `num_messages` messages with their keys and values deserialized.

        A record that cannot be deserialized raises nothing here, because the records after it would
        be lost. It has an `error()` of code _KEY_DESERIALIZATION or _VALUE_DESERIALIZATION, and the
        key and value that were read.
        """
        messages = super().consume(num_messages, timeout)
        for message in messages:
            if message.error() is None:
                try:
                    self._of(message).deserialize(message)
                except ConsumeError as error:
                    message.set_error(error.error)
        return messages

    def __iter__(self) -> Iterator[Message[K, V]]:
        """Yield messages as `poll` returns them until the consumer is closed. The end of a
        partition is skipped. After an error, a new loop continues with the next message.
        """
        while not self._calls.is_closed:
            try:
                message = self.poll(1.0)
            except ConsumeError as error:
                if error.code == KafkaError._PARTITION_EOF:
                    continue
                raise
            except RuntimeError:
                if self._calls.is_closed:  # between the check and the call
                    return
                raise
            if message is not None:
                yield message

    def _of(self, message: Message) -> MessageDeserializers:
        return self._of_topics.get(message.topic() or "", self._deserializers)

    def _name(self, topic: str | Topic) -> str:
        if isinstance(topic, Topic):
            self._of_topics[topic.name] = topic.deserializers.over(self._deserializers)
        return super()._name(topic)
