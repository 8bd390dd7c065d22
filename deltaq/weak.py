"""Callbacks that hold their owner by a weak reference, so that a thread does not keep a dropped
client alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

P = ParamSpec("P")
R = TypeVar("R")


def weakly(method: Callable[P, R], otherwise: R) -> Callable[P, R]:
    """A function that calls the bound `method` while its object lives, and returns `otherwise`
    afterwards.
    """
    reference = WeakMethod(method)

    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        alive = reference()
        return otherwise if alive is None else alive(*arguments, **keywords)

    return call
