"""The names of `confluent_kafka.serializing_producer`."""

from __future__ import annotations

from deltaq.compat.confluent.producer import SerializingProducer

__all__ = ["SerializingProducer"]
