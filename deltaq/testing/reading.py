"""Reading a topic's messages, for assertions."""

from __future__ import annotations

from deltaq.consumer import Consumer
from deltaq.errors import KafkaError, KafkaException
from deltaq.message import OFFSET_BEGINNING, Message, TopicPartition
from deltaq.store import Store, open_store
from deltaq.topic import Topic

__all__ = ["messages_of"]

TIMEOUT_S = 60.0


def messages_of(root: str | Store, topic: str | Topic) -> list[Message]:
    """All messages that a topic holds now, ordered by partition and offset; empty if the topic does
    not exist.

    `root` is the value of `bootstrap.servers`, or a store. With a `Topic` that has a model, values
    are instances of the model. Commits nothing and joins no group. Raises KafkaException if data is
    damaged or the store does not answer.
    """
    store = open_store(root) if isinstance(root, str) else root
    name = topic.name if isinstance(topic, Topic) else topic
    conf = {
        "bootstrap.servers": store.url,
        "group.id": "deltaq-testing",
        "enable.auto.commit": False,
    }
    handles = [topic] if isinstance(topic, Topic) else []
    with Consumer(conf, topics=handles, store=store, enable_partition_eof=True) as consumer:
        found = consumer.list_topics(name).topics[name]
        if found.error == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return []
        if found.error is not None:
            raise KafkaException(found.error)
        consumer.assign(
            [TopicPartition(name, partition, OFFSET_BEGINNING) for partition in found.partitions]
        )
        return _until_the_end(consumer, len(found.partitions))


def _until_the_end(consumer: Consumer, partitions: int) -> list[Message]:
    messages: list[Message] = []
    ended = 0
    while ended < partitions:
        event = consumer.poll(TIMEOUT_S)
        if event is None:
            raise KafkaException(
                KafkaError(KafkaError._TIMED_OUT, f"no message and no end within {TIMEOUT_S:g} s")
            )
        error = event.error()
        if error is None:
            messages.append(event)
        elif error == KafkaError._PARTITION_EOF:
            ended += 1
        else:
            raise KafkaException(error)
    return sorted(messages, key=lambda message: (message.partition() or 0, message.offset() or 0))
