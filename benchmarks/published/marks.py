"""Percentiles of latency, of a whole run and by windows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import median_high
from typing import cast

import numpy as np

from benchmarks.distribution import percentile
from benchmarks.load import Load
from benchmarks.published.rows import Int64s

__all__ = ["Marks", "by_window", "marks", "middle_of"]

_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Marks:
    """Percentiles of latency, in milliseconds."""

    p50: float
    p75: float
    p85: float
    p95: float
    p99: float


_PER_MILLE = (500, 750, 850, 950, 990)


def marks(nanoseconds: Int64s) -> Marks:
    """Of all measurements, none sampled or rounded. ValueError if there are none."""
    if not len(nanoseconds):
        raise ValueError("nothing was measured: all messages were lost, or the run was shorter than its warm-up")
    ordered = cast("list[int]", np.sort(nanoseconds))
    return Marks(*(float(percentile(ordered, mark)) / 1e6 for mark in _PER_MILLE))


def middle_of(windows: Sequence[Marks]) -> Marks:
    """Of each mark, the median of the windows: the worse one of two in the middle."""
    return Marks(*map(median_high, zip(*map(astuple, windows), strict=True)))


def by_window(load: Load, sequences: Int64s, latency_ns: Int64s, window_s: float) -> tuple[Marks, ...]:
    """The marks of each window after the warm-up, by the time at which messages were due. A window of which nothing
    came has none."""
    window_ns = round(window_s * _SECOND_NS)
    windows = (sequences - load.warmup) * _SECOND_NS // load.rate // window_ns
    return tuple(marks(latency_ns[windows == window]) for window in np.unique(windows))
