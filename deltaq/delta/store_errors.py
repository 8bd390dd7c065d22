"""Converts store errors to the exceptions of the log."""

from __future__ import annotations

from deltaq.errors import Unavailable
from deltaq.store import StoreError, StoreRefused

__all__ = ["unavailable"]


def unavailable(error: StoreError) -> Unavailable:
    """`error` as Unavailable, retriable unless the store refused the operation."""
    return Unavailable(str(error), retriable=not isinstance(error, StoreRefused))
