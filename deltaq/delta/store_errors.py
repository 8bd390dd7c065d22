"""Converts store errors to the exceptions of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from deltaq.errors import Unavailable
from deltaq.store import StoreError, StoreRefused

T = TypeVar("T")


def reading(read: Callable[[], T]) -> T:
    """Return `read()`. Raises Unavailable for a StoreError."""
    try:
        return read()
    except StoreError as error:
        raise unavailable(error) from error


@contextmanager
def raising_unavailable() -> Iterator[None]:
    """Within it, a StoreError is raised as Unavailable."""
    try:
        yield
    except StoreError as error:
        raise unavailable(error) from error


def unavailable(error: StoreError) -> Unavailable:
    """`error` as Unavailable, retriable unless the store refused the operation."""
    return Unavailable(str(error), retriable=not isinstance(error, StoreRefused))
