"""Long work in pieces: a generator that yields after each piece, so that its caller can pause or do
other work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Work: TypeAlias = Generator[None, None, T]
"""Work that returns a T. A caller that gives it up closes the generator, which then removes what is
half done.
"""


def finish(work: Work[T], after_piece: Callable[[], object] = lambda: None) -> T:
    """Do all of the work, calling `after_piece` after each piece, and return its result. Raises
    what either raises.
    """
    with closing(work):
        while True:
            try:
                next(work)
            except StopIteration as end:
                result: T = end.value
                return result
            after_piece()
