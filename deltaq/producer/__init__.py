"""The producer client and its write path: accumulate, upload, commit, report."""

from __future__ import annotations

from deltaq.producer.producer import Producer

__all__ = ["Producer"]
