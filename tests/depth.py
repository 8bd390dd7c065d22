"""How far the tests search: `make test` takes some of the seeds, examples and crash points, `make
test-long` all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

LONG = os.environ.get("DELTAQ_TESTS") == "long"


def depth(some: T, everything: T) -> T:
    """`everything` in long tests, otherwise `some`."""
    return everything if LONG else some


def third(cases: Sequence[T]) -> Sequence[T]:
    """All cases in long tests, otherwise every third one."""
    return cases[:: depth(3, 1)]


def fifth(cases: Sequence[T]) -> Sequence[T]:
    """All cases in long tests, otherwise every fifth one."""
    return cases[:: depth(5, 1)]
