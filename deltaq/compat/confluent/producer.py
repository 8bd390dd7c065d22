"""The producer of `confluent_kafka`: what a Kafka broker would refuse is reported to the delivery
callback.

`deltaq.Producer` knows a topic before it queues a message, so it raises at once what a broker would
answer later. Programs that were written for Kafka expect these errors in the callback, and only
those of librdkafka in `produce`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from deltaq.errors import (
    InvalidConfig,
    InvalidValue,
    KafkaError,
    KafkaException,
    MessageTooLarge,
    QueueFull,
    UnknownTopic,
)
from deltaq.producer import Producer as NativeProducer
from deltaq.producer import SerializingProducer as NativeSerializingProducer
from deltaq.producer.accumulator import BatchResult, RowBlock
from deltaq.producer.callbacks import PendingCallbacks, log_failure
from deltaq.producer.producer import DeliveryCallback
from deltaq.producer.topic_handle import HeadersInput, accepted_headers
from deltaq.topic import Topic


class Producer(NativeProducer):
    """`deltaq.Producer`, with the errors of `produce` where `confluent_kafka` has them.

    Raised by `produce`: a message above `message.max.bytes`, a partition that a topic does not have
    which the producer knows already, and BufferError for a full queue. Reported to the callback:
    such a partition of a topic that it does not know yet, a message above the topic's
    `max.message.bytes`, a missing key in a compacted topic (INVALID_RECORD), a topic that does not
    exist and may not be created, and an invalid topic name. A transaction with such a message
    cannot be committed.
    """

    def produce(
        self,
        topic: str | Topic,
        value: Any = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: HeadersInput = None,
        *,
        deliver_at: datetime | float | None = None,
    ) -> None:
        """Queue one message, as `deltaq.Producer.produce` does. Raises BufferError, KafkaException,
        TypeError.
        """
        is_known = topic in self._handles
        try:
            super().produce(
                topic,
                value,
                key,
                partition,
                callback,
                on_delivery,
                timestamp,
                headers,
                deliver_at=deliver_at,
            )
        except QueueFull as error:
            # QueueFull is a KafkaException too: `except KafkaException` before `except BufferError`
            # would catch it.
            raise BufferError(str(error)) from None
        except KafkaException as error:
            answer = self._answer_of_a_broker(error, is_known)
            if answer is None:
                raise
            row = (
                _bytes(value),
                _bytes(key),
                partition,
                timestamp,
                accepted_headers(headers or [])[0],
            )
            notify = next(
                (each for each in (callback, on_delivery, self._on_delivery) if each is not None),
                None,
            )
            name = topic.name if isinstance(topic, Topic) else topic
            self._report(name, row, notify, answer)

    def _answer_of_a_broker(self, error: KafkaException, is_known: bool) -> KafkaError | None:
        """What a broker answers in place of this error; None for an error that librdkafka raises
        itself. That depends on whether it knows the topic: before, it queues a message for any
        partition.
        """
        match error:
            case MessageTooLarge() if error.size <= self._config.message_max_bytes:
                return error.error
            case InvalidValue() if error.field == "key":
                return KafkaError(KafkaError.INVALID_RECORD, error.error.str())
            case UnknownTopic() if error.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return error.error
            case UnknownTopic(partition=int(partition)) if not is_known and partition >= 0:
                return error.error
            case InvalidConfig() if error.error.code() == KafkaError.TOPIC_EXCEPTION:
                return error.error
        return None

    def _report(
        self, topic: str, row: tuple[Any, ...], callback: DeliveryCallback | None, error: KafkaError
    ) -> None:
        """Let the next `poll` or `flush` call the callback of a message that was not written."""
        refusal = KafkaException(error)
        if self._transactions is not None:
            self._transactions.refuse(refusal)
        if callback is None:
            log_failure(topic, refusal, 1)
            return
        now = self._monotonic()
        records = RowBlock.of([*row, now, callback], 1)
        result = BatchResult(records, [row[2]], None, {}, None, refusal, now, topic, 0, 0.0)
        deliveries = PendingCallbacks(result)
        deliveries.finish_futures()
        with self._callbacks.changed:
            self._callbacks.reported(deliveries)


class SerializingProducer(NativeSerializingProducer, Producer):  # type: ignore[misc]  # the key comes first here
    """`deltaq.SerializingProducer`, with the errors of `produce` where `confluent_kafka` has
    them.
    """


def _bytes(data: Any) -> Any:
    return data.encode() if isinstance(data, str) else data
