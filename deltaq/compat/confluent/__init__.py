"""The names of `confluent_kafka`, for services that migrate by changing an import.

    import deltaq.compat.confluent as confluent_kafka

Classes are those of deltaq. Where `confluent_kafka` behaves differently in a way that a working
program may rely on, the class here follows it: `Producer` reports errors that only a broker can
find to the delivery callback, and `AdminClient` describes topics with a `Uuid`. The guide
`docs/guides/migrate-from-kafka.md` lists what stays different.
"""

from __future__ import annotations

import importlib
import typing

from deltaq.admin import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    IsolationLevel,
    Node,
    TopicCollection,
    TopicPartitionInfo,
)
from deltaq.compat.confluent.events import ThrottleEvent
from deltaq.compat.confluent.producer import Producer, SerializingProducer
from deltaq.compat.confluent.types import (
    ElectionType,
    Uuid,
    consistent,
    fnv1a,
    libversion,
    murmur2,
    version,
)
from deltaq.consumer import Consumer, DeserializingConsumer
from deltaq.errors import (
    ConcurrentModificationException,
    IllegalStateException,
    KafkaError,
    KafkaException,
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
from deltaq.share_consumer import DeserializingShareConsumer, Messages, ShareConsumer

__version__ = version()

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "AcknowledgeType",
    "ConcurrentModificationException",
    "Consumer",
    "ConsumerGroupState",
    "ConsumerGroupTopicPartitions",
    "ConsumerGroupType",
    "DeserializingConsumer",
    "DeserializingShareConsumer",
    "ElectionType",
    "IllegalStateException",
    "IsolationLevel",
    "KafkaError",
    "KafkaException",
    "Message",
    "Messages",
    "Node",
    "Producer",
    "SerializingProducer",
    "ShareConsumer",
    "ThrottleEvent",
    "TopicCollection",
    "TopicPartition",
    "TopicPartitionInfo",
    "Uuid",
    "consistent",
    "fnv1a",
    "libversion",
    "murmur2",
    "version",
]


if typing.TYPE_CHECKING:  # a type checker that sees `__getattr__` accepts any name
    from deltaq.compat.confluent import admin as admin
    from deltaq.compat.confluent import aio as aio
    from deltaq.compat.confluent import cimpl as cimpl
    from deltaq.compat.confluent import error as error
    from deltaq.compat.confluent import schema_registry as schema_registry
    from deltaq.compat.confluent import serialization as serialization
else:

    def __getattr__(name: str) -> object:
        """`confluent_kafka.admin` and the other modules need no import of their own."""
        if name in ("admin", "aio", "cimpl", "error", "schema_registry", "serialization"):
            return importlib.import_module("deltaq.compat.confluent." + name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
