"""The names of `confluent_kafka.deserializing_consumer`."""

from __future__ import annotations

from deltaq.consumer import DeserializingConsumer

__all__ = ["DeserializingConsumer"]
