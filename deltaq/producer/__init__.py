"""The producer: from `produce` to the log and the delivery report."""

from __future__ import annotations

from deltaq.producer.producer import Producer

__all__ = ["Producer"]
