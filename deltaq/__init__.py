"""Kafka's client API over Delta tables: topics and groups in a folder or bucket, without a broker."""

from __future__ import annotations

from deltaq.admin import AdminClient, NewTopic
from deltaq.consumer import Consumer
from deltaq.errors import (
    Corrupt,
    Fenced,
    GroupInUse,
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
    Message,
    TopicPartition,
)
from deltaq.producer import Producer
from deltaq.store.bucket_setup import BucketSetup, setup
from deltaq.topic import Topic
from deltaq.topics.arrow_input import ArrowInput
from deltaq.version import __version__

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "AdminClient",
    "ArrowInput",
    "BucketSetup",
    "Consumer",
    "Corrupt",
    "Fenced",
    "GroupInUse",
    "Incompatible",
    "InvalidConfig",
    "InvalidValue",
    "KafkaError",
    "KafkaException",
    "Message",
    "MessageTooLarge",
    "NewTopic",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "Producer",
    "QueueFull",
    "Topic",
    "TopicExists",
    "TopicPartition",
    "Unavailable",
    "UnknownTopic",
    "UnsafeStore",
    "WrongState",
    "__version__",
    "setup",
]
