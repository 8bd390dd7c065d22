"""Returns freed memory to the system after rare work that takes much of it.

Arrow's allocator and that of the C library keep freed blocks for later. After the merge of large
files, a process would keep memory that it needs again only for the next such merge.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa

__all__ = ["return_freed_memory"]


def return_freed_memory() -> None:
    """Return to the system what is free; milliseconds. Other threads may allocate meanwhile."""
    pa.default_memory_pool().release_unused()
    if (trim := _malloc_trim()) is not None:
        trim(0)


@lru_cache(maxsize=1)
def _malloc_trim() -> Callable[[int], int] | None:
    """`malloc_trim` of the C library. Only glibc has it: others return memory by themselves, or
    never.
    """
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return trim
