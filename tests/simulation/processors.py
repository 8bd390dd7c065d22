"""On which processors simulations run."""

from __future__ import annotations

import os

__all__ = ["PROCESSORS", "keep_to"]

PROCESSORS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
"""Processors that this process could use when it started; empty where the system does not report
them.
"""


def keep_to(*processors: int) -> None:
    """Keep this thread, and those it will start, to these processors; to none in particular without
    any.

    The threads of a simulation run one at a time, and a processor that goes on with another thread
    is a fifth faster than one that wakes another processor for it.
    """
    if processors:
        os.sched_setaffinity(0, processors)
