"""Exact percentiles of many measurements, and their picture. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Distribution", "distribution", "histogram", "percentile"]

BOUNDS_MS = (
    0.5,
    1,
    1.5,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
)
"""Upper bounds of the histogram's bars: two for each doubling."""

_BAR = 40


@dataclass(frozen=True, slots=True)
class Distribution:
    """Milliseconds. `counts[i]` measurements were below `BOUNDS_MS[i]` and not below the bound
    before it.
    """

    count: int
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float
    counts: tuple[int, ...]


def percentile(ordered: Sequence[int], per_mille: int) -> int:
    """The smallest of the sorted values that at least `per_mille` thousandths of them do not
    exceed.
    """
    return ordered[max(1, -(-len(ordered) * per_mille // 1000)) - 1]


def distribution(nanoseconds: Iterable[int]) -> Distribution:
    """Of all measurements, none sampled or rounded. ValueError if there are none."""
    ordered = sorted(nanoseconds)
    if not ordered:
        raise ValueError(
            "nothing was measured: all messages were lost, or the run was shorter than its warm-up"
        )
    below = [bisect_left(ordered, int(bound * 1_000_000)) for bound in BOUNDS_MS]
    counts = [
        upto - before for before, upto in zip([0, *below], [*below, len(ordered)], strict=True)
    ]
    p50, p90, p95, p99, p999, most = (
        percentile(ordered, mark) / 1e6 for mark in (500, 900, 950, 990, 999, 1000)
    )
    return Distribution(len(ordered), p50, p90, p95, p99, p999, most, tuple(counts))


def histogram(measured: Distribution) -> list[str]:
    """Lines of text: one bar for each range from the first to the last that holds a measurement."""
    filled = [bar for bar, count in enumerate(measured.counts) if count]
    most = max(measured.counts)
    lines = []
    for bar in range(filled[0], filled[-1] + 1):
        count = measured.counts[bar]
        label = f"< {BOUNDS_MS[bar]:g}" if bar < len(BOUNDS_MS) else f">= {BOUNDS_MS[-1]:g}"
        mark = "#" * round(_BAR * count / most) or ("." if count else "")
        lines.append(f"{label:>8} ms {mark:<{_BAR}} {100 * count / measured.count:6.2f} %")
    return lines
