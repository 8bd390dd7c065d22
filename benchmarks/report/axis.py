"""The axis of a chart: which numbers it covers, where its ticks are, and how these are written."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

__all__ = ["Axis", "figure"]

INTERVALS = 6
"""At most so many between the ticks of a linear axis, or one more where the data begins beside a
tick.
"""

FINE_TICKS = 8
"""At most so many ticks at 1, 2 and 5 of each decade; beyond that, one for each decade."""

_UNITS = ((Decimal(10**9), "G"), (Decimal(10**6), "M"), (Decimal(10**3), "k"))


@dataclass(frozen=True, slots=True)
class Axis:
    """From its first tick to its last, which are not the same."""

    ticks: tuple[Decimal, ...]
    log: bool

    @classmethod
    def covering(
        cls, values: Collection[float], *, log: bool = False, from_zero: bool = False
    ) -> Axis:
        """An axis on which all of the values, finite ones, have a place. Without values it reaches
        from 0 to 1.

        With `from_zero`, 0 is on it too. A logarithmic one is made only if all values are above 0.
        """
        exact = [Decimal(float(value)) for value in values] or [Decimal(0), Decimal(1)]
        if log and min(exact) > 0:
            return cls(_decades(min(exact), max(exact)), log=True)
        within = [*exact, Decimal(0)] if from_zero else exact
        return cls(_steps(min(within), max(within)), log=False)

    def place(self, value: float) -> float:
        """Where a value is: 0 at the first tick, 1 at the last."""
        low, high = float(self.ticks[0]), float(self.ticks[-1])
        if self.log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    @property
    def labels(self) -> tuple[str, ...]:
        """Of each tick: of a linear axis all in the same unit."""
        largest = max(map(abs, self.ticks))
        return tuple(_written(tick, abs(tick) if self.log else largest) for tick in self.ticks)


def figure(value: float) -> str:
    """A value as it is to be read: three digits, or all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _steps(low: Decimal, high: Decimal) -> tuple[Decimal, ...]:
    """Multiples of 1, 2 or 5 of some decade."""
    if low == high:
        high = low + (abs(low) or 1)
    finest = (high - low) / INTERVALS
    decade = Decimal(1).scaleb(finest.adjusted())
    step = next(step for step in (decade, 2 * decade, 5 * decade, 10 * decade) if step >= finest)
    first = int((low / step).to_integral_value(ROUND_FLOOR))
    last = int((high / step).to_integral_value(ROUND_CEILING))
    return tuple(number * step for number in range(first, last + 1))


def _decades(low: Decimal, high: Decimal) -> tuple[Decimal, ...]:
    """1, 2 and 5 of each decade, or if these were too many, whole decades."""
    exponents = range(low.adjusted(), high.adjusted() + 3)
    for digits in ((1, 2, 5), (1,)):
        candidates = [Decimal(digit).scaleb(exponent) for exponent in exponents for digit in digits]
        ticks = _around(candidates, low, high)
        if len(ticks) <= FINE_TICKS:
            break
    return ticks


def _around(candidates: Sequence[Decimal], low: Decimal, high: Decimal) -> tuple[Decimal, ...]:
    """From the last that is not above `low` to the first after it that is not below `high`."""
    first = max(candidate for candidate in candidates if candidate <= low)
    last = min(candidate for candidate in candidates if candidate >= high and candidate > first)
    return tuple(candidate for candidate in candidates if first <= candidate <= last)


def _written(tick: Decimal, size: Decimal) -> str:
    limit, unit = next(((limit, unit) for limit, unit in _UNITS if size >= limit), (Decimal(1), ""))
    return f"{float(tick / limit):g}{unit}" if tick else "0"
