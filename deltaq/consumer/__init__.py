"""The consumer: fetching from the topic logs, `poll`, and the positions of partitions."""

from __future__ import annotations

from deltaq.consumer.consumer import Consumer

__all__ = ["Consumer"]
