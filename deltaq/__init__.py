"""Kafka's client API over Delta tables: topics and groups in a folder or bucket, without a
broker.

Modules:

* `__main__`: `python -m deltaq`, the command
* `topic`, `metadata`: `Topic`; topics and the one synthetic broker, described
* `root`: the store of a root
* `names`, `message`, `errors`, `partitioner`, `version`: pure rules and values
* `telemetry`: metrics for OpenTelemetry, which is known only here, and trace context in headers
* `statistics`, `log_forwarding`: when `stats_cb` is called, and the fields of all clients; the
  setting `logger`
* `units`: numbers, sizes and times as people read them; text with nothing in it that a terminal
  would act on
* `outage`: when `error_cb` hears of a store that does not answer
* `weak`, `work`: callbacks that do not keep their owner alive; long work in pieces
* `shared_threads`: few threads for the tasks of many senders
* `freed_memory`: returns freed memory to the system
* `clock`: the one module that touches time, threads, randomness and ids
"""

from __future__ import annotations

import importlib
import typing

from deltaq.errors import (
    ConcurrentModificationException,
    Corrupt,
    Fenced,
    GroupInUse,
    IllegalStateException,
    Incompatible,
    InvalidConfig,
    InvalidValue,
    KafkaError,
    KafkaException,
    MessageTooLarge,
    OffsetOutOfRange,
    OutcomeUnknown,
    QueueFull,
    TopicExists,
    Unavailable,
    UnknownTopic,
    UnsafeStore,
    WrongState,
)
from deltaq.message import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    AcknowledgeType,
    Message,
    TopicPartition,
)
from deltaq.version import __version__

if typing.TYPE_CHECKING:
    from deltaq import aio as aio
    from deltaq.admin import AdminClient, NewTopic
    from deltaq.consumer import Consumer, ConsumerHealth, DeserializingConsumer, PartitionHealth
    from deltaq.producer import Producer, SerializingProducer
    from deltaq.serde.errors import ConsumeError, ProduceError, SerializationError
    from deltaq.share_consumer import (
        DeserializingShareConsumer,
        Messages,
        ShareAcknowledgements,
        ShareConsumer,
        ShareGroupMetadata,
    )
    from deltaq.store.bucket_setup import BucketSetup, setup
    from deltaq.topic import Topic
    from deltaq.topics.arrow_input import ArrowInput
    from deltaq.transactions.cut import cut

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "AcknowledgeType",
    "AdminClient",
    "ArrowInput",
    "BucketSetup",
    "ConcurrentModificationException",
    "ConsumeError",
    "Consumer",
    "ConsumerHealth",
    "Corrupt",
    "DeserializingConsumer",
    "DeserializingShareConsumer",
    "Fenced",
    "GroupInUse",
    "IllegalStateException",
    "Incompatible",
    "InvalidConfig",
    "InvalidValue",
    "KafkaError",
    "KafkaException",
    "Message",
    "MessageTooLarge",
    "Messages",
    "NewTopic",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "PartitionHealth",
    "ProduceError",
    "Producer",
    "QueueFull",
    "SerializationError",
    "SerializingProducer",
    "ShareAcknowledgements",
    "ShareConsumer",
    "ShareGroupMetadata",
    "Topic",
    "TopicExists",
    "TopicPartition",
    "Unavailable",
    "UnknownTopic",
    "UnsafeStore",
    "WrongState",
    "__version__",
    "cut",
    "setup",
]

# Loaded when first used: a program that only catches errors or reads messages needs no Arrow, and a
# producer needs no admin client. Everything that the first message needs is loaded with its client.
_LOADED_WHEN_USED = {
    "AdminClient": "admin",
    "ArrowInput": "topics.arrow_input",
    "BucketSetup": "store.bucket_setup",
    "ConsumeError": "serde.errors",
    "Consumer": "consumer",
    "ConsumerHealth": "consumer",
    "DeserializingConsumer": "consumer",
    "DeserializingShareConsumer": "share_consumer",
    "Messages": "share_consumer",
    "NewTopic": "admin",
    "PartitionHealth": "consumer",
    "ProduceError": "serde.errors",
    "Producer": "producer",
    "SerializationError": "serde.errors",
    "SerializingProducer": "producer",
    "ShareAcknowledgements": "share_consumer",
    "ShareConsumer": "share_consumer",
    "ShareGroupMetadata": "share_consumer",
    "Topic": "topic",
    "cut": "transactions.cut",
    "setup": "store.bucket_setup",
}


# A type checker that sees it accepts any name, such as `deltaq.Produser`.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "aio":
            return importlib.import_module("deltaq.aio")
        if name not in _LOADED_WHEN_USED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(importlib.import_module("deltaq." + _LOADED_WHEN_USED[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
