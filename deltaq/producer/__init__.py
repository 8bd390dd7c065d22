"""The producer client and its write path: accumulate, upload, commit, report."""

from __future__ import annotations

from deltaq.producer.producer import Producer
from deltaq.producer.serializing import SerializingProducer

__all__ = ["Producer", "SerializingProducer"]
