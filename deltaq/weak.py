"""Callbacks that do not keep what they belong to: threads outlive the clients that started them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

__all__ = ["weakly"]

P = ParamSpec("P")
R = TypeVar("R")


def weakly(method: Callable[P, R], otherwise: R) -> Callable[P, R]:
    """The bound `method` as long as its object lives; from then on, what gives `otherwise`."""
    reference = WeakMethod(method)

    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        alive = reference()
        return otherwise if alive is None else alive(*arguments, **keywords)

    return call
