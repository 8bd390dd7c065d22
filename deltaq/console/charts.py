"""Charts as numbers for SVG: points, areas and grid lines. Pure; a template draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Line:
    """A horizontal grid line and its label."""

    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve in a box of `width` by `height`, and the area below it, as lists of points. Empty
    without two values.
    """

    width: int
    height: int
    curve: str
    area: str
    lines: tuple[Line, ...] = ()


def sparkline(
    values: Sequence[float], width: int = 120, height: int = 24, length: int = 60
) -> Chart:
    """The last `length` values as a small curve from zero to their greatest."""
    return _chart(
        values[-length:], (0, 2, width, height - 2), max(values[-length:], default=0.0), length
    )


def chart(values: Sequence[float], label: Callable[[float], str], length: int = 150) -> Chart:
    """The last `length` values as a chart with grid lines. The newest value is at the right
    edge.
    """
    box = (64, 8, 1040, 172)
    top = round_up(max(values[-length:], default=0.0))
    made = _chart(values[-length:], box, top, length)
    _, y0, _, y1 = box
    lines = tuple(Line(y1 - part * (y1 - y0), label(part * top)) for part in (0.0, 0.5, 1.0))
    return Chart(1040, 184, made.curve, made.area, lines)


def round_up(value: float) -> float:
    """The least round number that is not less than a value; 1 for less than 1."""
    if value <= 1 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((factor * power for factor in _ROUND if factor * power >= value), 10 * power)


def _chart(
    values: Sequence[float], box: tuple[int, int, int, int], top: float, length: int
) -> Chart:
    x0, y0, x1, y1 = box
    if len(values) < 2:
        return Chart(x1, y1 + y0, "", "")
    step = (x1 - x0) / (length - 1)
    first = x1 - step * (len(values) - 1)
    points = [
        (first + at * step, y1 - (y1 - y0) * min(value / top if top else 0.0, 1.0))
        for at, value in enumerate(values)
    ]
    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Chart(x1, y1 + y0, curve, f"{first:.1f},{y1} {curve} {x1},{y1}")
