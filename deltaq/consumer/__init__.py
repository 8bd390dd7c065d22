"""The consumer: from the log to `poll`, and the positions of its partitions."""

from __future__ import annotations

from deltaq.consumer.consumer import Consumer

__all__ = ["Consumer"]
