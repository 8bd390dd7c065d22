"""Exact percentiles of many measurements. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds."""

    count: int
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float


def percentile(ordered: Sequence[int], per_mille: int) -> int:
    """The smallest of the sorted values that at least `per_mille` thousandths of them do not
    exceed.
    """
    return ordered[max(1, -(-len(ordered) * per_mille // 1000)) - 1]


def distribution(nanoseconds: Iterable[int]) -> Percentiles:
    """Of all measurements, none sampled or rounded. ValueError if there are none."""
    ordered = sorted(nanoseconds)
    if not ordered:
        raise ValueError(
            "nothing was measured: all messages were lost, or the run was shorter than its warm-up"
        )
    p50, p90, p95, p99, p999, most = (
        percentile(ordered, mark) / 1e6 for mark in (500, 900, 950, 990, 999, 1000)
    )
    return Percentiles(len(ordered), p50, p90, p95, p99, p999, most)


def marks(measured: Percentiles) -> tuple[str, str, str, str]:
    """p50, p99, p99.9 and the longest, in milliseconds."""
    p50, p99, p999, most = (
        f"{mark:.1f}" for mark in (measured.p50, measured.p99, measured.p999, measured.max)
    )
    return p50, p99, p999, most
