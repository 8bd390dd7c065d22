"""A store's error as the one that users of the log see."""

from __future__ import annotations

from deltaq.errors import Unavailable
from deltaq.store import StoreError, StoreRefused

__all__ = ["unavailable"]


def unavailable(error: StoreError) -> Unavailable:
    """`error` as Unavailable: worth a retry unless the store said a definite no."""
    return Unavailable(str(error), retriable=not isinstance(error, StoreRefused))
