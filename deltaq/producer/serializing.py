"""`SerializingProducer`: a producer whose messages pass through serializers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Generic

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.message import K, V
from deltaq.producer.producer import DeliveryCallback, Producer
from deltaq.producer.topic_handle import HeadersInput
from deltaq.serde.conversion import MessageSerializers, take_functions
from deltaq.store import Store
from deltaq.topic import Topic


class SerializingProducer(Producer, Generic[K, V]):
    """A `Producer` with the settings `key.serializer` and `value.serializer`: callables `(object,
    context) -> bytes`.

    Serializers of a `Topic` handle take precedence. Mirrors `confluent_kafka.SerializingProducer`,
    whose `produce` has the key before the value. `produce_arrow` takes columns of bytes, which pass
    no serializer.
    """

    _serializes: ClassVar[bool] = True

    def __init__(
        self,
        conf: Mapping[str, Any] | None = None,
        /,
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        rest, others, key, value = take_functions(conf, keywords, "serializer")
        self._serializers = MessageSerializers(key, value)
        super().__init__(rest, store=store, clock=clock, **others)

    def produce(  # type: ignore[override]  # confluent-kafka's order: the key comes first, and there is no `callback`
        self,
        topic: str | Topic,
        key: K | None = None,
        value: V | None = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersInput = None,
        *,
        deliver_at: datetime | float | None = None,
    ) -> None:
        """Serialize key and value, then queue the message as `Producer.produce` does.

        Raises KeySerializationError and ValueSerializationError, after which nothing is queued, and
        what `Producer.produce` raises.
        """
        self._check_open()  # before the serializers, which may register a schema
        if not isinstance(topic, str | Topic):
            raise TypeError(f"topic must be str or Topic, not {type(topic).__name__}")
        name, serializers = str(topic), self._serializers
        if isinstance(topic, Topic):
            name, serializers = topic.name, topic.serializers.over(serializers)
        key_bytes, value_bytes, headers = serializers.serialize(name, key, value, headers)
        super().produce(
            topic,
            value_bytes,
            key_bytes,
            partition,
            on_delivery=on_delivery,
            timestamp=timestamp,
            headers=headers,
            deliver_at=deliver_at,
        )
