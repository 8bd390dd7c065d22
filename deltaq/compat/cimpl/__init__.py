"""The names of `confluent_kafka.cimpl`, the C module of confluent-kafka.

Everything else in confluent-kafka is Python on top of that module, and runs on deltaq unmodified if
this one takes its place before the first import:

    import sys
    import deltaq.compat.cimpl

    sys.modules["confluent_kafka.cimpl"] = deltaq.compat.cimpl
    import confluent_kafka
"""

from __future__ import annotations

import contextvars

from deltaq.admin import NewPartitions, NewTopic
from deltaq.compat.cimpl.admin import AdminClientImpl as _AdminClientImpl
from deltaq.compat.cimpl.constants import *  # noqa: F403 - all of them, and nothing else is in there
from deltaq.compat.confluent.producer import Producer
from deltaq.compat.confluent.types import (
    Uuid,
    consistent,
    fnv1a,
    libversion,
    murmur2,
    version,
)
from deltaq.consumer import Consumer
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
    Message,
    TopicPartition,
)
from deltaq.share_consumer import ShareConsumer

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "ConcurrentModificationException",
    "Consumer",
    "IllegalStateException",
    "KafkaError",
    "KafkaException",
    "Message",
    "NewPartitions",
    "NewTopic",
    "Producer",
    "ShareConsumer",
    "TopicPartition",
    "Uuid",
    "_AdminClientImpl",
    "_reentry_identity_var",
    "consistent",
    "fnv1a",
    "libversion",
    "murmur2",
    "version",
]

_reentry_identity_var: contextvars.ContextVar[int] = contextvars.ContextVar(
    "reentry_identity", default=0
)
"""Which call of an `AIOConsumer` runs. The C module needs it to admit calls inside callbacks;
deltaq's consumer admits them from any thread.
"""
