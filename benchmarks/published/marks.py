"""Percentiles of latency, of a whole run and by windows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from statistics import median_high
from typing import cast

import numpy as np

from benchmarks.distribution import percentile
from benchmarks.load import Load
from benchmarks.published.rows import Int64s

__all__ = ["Marks", "Spike", "by_window", "marks", "middle_of", "spikes"]

_SECOND_NS = 1_000_000_000

SPIKE_FACTOR = 3.0
"""A window is part of a spike if its 99th percentile exceeds the median window's by this factor."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Percentiles of latency, in milliseconds."""

    p50: float
    p75: float
    p85: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Spike:
    """Windows in a row with a high 99th percentile: when the first began and the last ended, in
    seconds after the warm-up, the highest of them in milliseconds, and whether a usual window
    followed.
    """

    start_s: float
    end_s: float
    p99: float
    is_recovered: bool


_PER_MILLE = (500, 750, 850, 950, 990)


def marks(nanoseconds: Int64s) -> Marks:
    """Of all measurements, none sampled or rounded. ValueError if there are none."""
    if not len(nanoseconds):
        raise ValueError(
            "nothing was measured: all messages were lost, or the run was shorter than its warm-up"
        )
    ordered = cast("list[int]", np.sort(nanoseconds))
    return Marks(*(float(percentile(ordered, mark)) / 1e6 for mark in _PER_MILLE))


def middle_of(windows: Sequence[Marks]) -> Marks:
    """Of each mark, the median of the windows: the worse one of two in the middle."""
    return Marks(*map(median_high, zip(*map(astuple, windows), strict=True)))


def by_window(
    load: Load, sequences: Int64s, latency_ns: Int64s, window_s: float
) -> tuple[Marks, ...]:
    """The marks of each window after the warm-up, by the time at which messages were due. A window
    of which nothing came has none.
    """
    window_ns = round(window_s * _SECOND_NS)
    windows = (sequences - load.warmup) * _SECOND_NS // load.rate // window_ns
    return tuple(marks(latency_ns[windows == window]) for window in np.unique(windows))


def spikes(windows: Sequence[Marks], window_s: float) -> tuple[Spike, ...]:
    """The spikes of a run, in order."""
    limit = SPIKE_FACTOR * middle_of(windows).p99
    found = []
    for is_high, run in groupby(enumerate(windows), lambda numbered: numbered[1].p99 > limit):
        if is_high:
            high = list(run)
            (first, _), (last, _) = high[0], high[-1]
            worst = max(window.p99 for _, window in high)
            found.append(
                Spike(first * window_s, (last + 1) * window_s, worst, last + 1 < len(windows))
            )
    return tuple(found)
