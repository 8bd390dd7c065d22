"""The consumer: fetching from the topic logs, `poll`, and the positions of partitions."""

from __future__ import annotations

from deltaq.consumer.consumer import Consumer
from deltaq.consumer.deserializing import DeserializingConsumer
from deltaq.consumer.health import (
    ConsumerHealth,
    MembershipState,
    Ownership,
    PartitionHealth,
    ReadState,
)

__all__ = [
    "Consumer",
    "ConsumerHealth",
    "DeserializingConsumer",
    "MembershipState",
    "Ownership",
    "PartitionHealth",
    "ReadState",
]
