"""Distributions as lines of a chart and as cells of a table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from benchmarks.distribution import Distribution
from benchmarks.finding import Chart, Series

__all__ = ["marks", "percentile_chart", "percentiles"]

_ONE_OF = {"p50": 2, "p90": 10, "p95": 20, "p99": 100, "p999": 1000}
"""Of so many messages, one took longer."""


def percentiles(name: str, measured: Sequence[Distribution]) -> Series:
    """The percentiles from the median to the longest; of several distributions, the median of each
    percentile.

    x is of how many messages one took longer. On a logarithmic scale that gives every further nine
    the same room.
    """
    count = min(one.count for one in measured)
    points = [
        (float(one_of), float(median(getattr(one, mark) for one in measured)))
        for mark, one_of in _ONE_OF.items()
        if one_of < count
    ]
    return Series(name, (*points, (float(count), float(median(one.max for one in measured)))))


def percentile_chart(title: str, series: Iterable[Series]) -> Chart:
    """What `percentiles` made, in one chart."""
    x = "of so many messages one took longer (10: p90, 100: p99, 1k: p99.9)"
    return Chart(title, x, "ms", tuple(series), log_x=True, log_y=True)


def marks(measured: Distribution) -> tuple[str, str, str, str]:
    """p50, p99, p99.9 and the longest, in milliseconds."""
    p50, p99, p999, most = (
        f"{mark:.1f}" for mark in (measured.p50, measured.p99, measured.p999, measured.max)
    )
    return p50, p99, p999, most
