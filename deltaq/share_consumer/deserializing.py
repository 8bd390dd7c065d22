"""`DeserializingShareConsumer`: a share consumer whose messages pass through deserializers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.message import K, Message, V
from deltaq.serde.conversion import MessageDeserializers, take_functions
from deltaq.serde.errors import ConsumeError
from deltaq.share_consumer.consumer import ShareConsumer
from deltaq.share_consumer.messages import Messages
from deltaq.store import Store
from deltaq.topic import Topic


class DeserializingShareConsumer(ShareConsumer[K, V]):
    """A `ShareConsumer` with the settings `key.deserializer` and `value.deserializer`: callables
    `(bytes, context) -> object`. Deserializers of a `Topic` handle take precedence. Mirrors
    `confluent_kafka.DeserializingShareConsumer`.

    A record that cannot be deserialized has an `error()` of code _KEY_DESERIALIZATION or
    _VALUE_DESERIALIZATION, and the key and value that were read. It can be acknowledged like any
    other.
    """

    _deserializes: ClassVar[bool] = True

    def __init__(
        self,
        conf: Mapping[str, Any] | None = None,
        /,
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        rest, others, key, value = take_functions(conf, keywords, "deserializer")
        self._deserializers = MessageDeserializers(key, value)
        self._of_topics: dict[str, MessageDeserializers] = {}
        super().__init__(rest, store=store, clock=clock, **others)

    def subscribe(self, topics: list[str] | list[Topic] | list[str | Topic]) -> None:
        """As `ShareConsumer.subscribe`; the handles of topics may have deserializers."""
        super().subscribe(topics)
        for topic in topics:
            if isinstance(topic, Topic):
                self._of_topics[topic.name] = topic.deserializers.over(self._deserializers)

    def _converted(self, messages: list[Message[K, V]]) -> Messages[K, V]:
        for message in messages:
            if message.error() is None:
                of_topic = self._of_topics.get(message.topic() or "", self._deserializers)
                try:
                    of_topic.deserialize(message)
                except ConsumeError as error:
                    message.set_error(error.error)
        return super()._converted(messages)
