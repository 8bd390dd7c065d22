"""The outcome of a measurement as a report shows it: tables, charts and targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "Bars",
    "Chart",
    "Finding",
    "Series",
    "Table",
    "Target",
    "at_least",
    "at_most",
    "cores_cell",
    "known_cores",
]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells: the first column is aligned to the left, the others to the right.

    Without a head it is preformatted text: each row is one cell, a line.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A target, the figure that was measured, and whether it was met."""

    name: str
    aim: str
    found: str
    met: bool


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: (x, y) from left to right."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one x-axis. An axis with `log` set has a logarithmic scale."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars from 0: for each label one bar of each series, which has a name and a value for each
    label.
    """

    title: str
    unit: str
    labels: tuple[str, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]


class Finding(Protocol):
    """The outcome of one measurement, a frozen dataclass whose fields are written as JSON."""

    @property
    def is_clean(self) -> bool:
        """Whether every message arrived once, in order and unchanged. Otherwise its figures are
        void.
        """

    @property
    def others_cores(self) -> tuple[float, ...]:
        """Cores that other programs kept busy, for each part of the measurement for which that is
        known.
        """

    def tables(self) -> Iterable[Table]:
        """The tables."""

    def charts(self) -> Iterable[Chart | Bars]:
        """The charts."""

    def targets(self) -> Iterable[Target]:
        """The targets for which something was measured."""


def at_most(name: str, aim: float, found: float, unit: str = "") -> Target:
    """A figure that should not be above `aim`."""
    return Target(name, f"<= {_aim(aim)}{unit}", f"{_figure(found)}{unit}", found <= aim)


def at_least(name: str, aim: float, found: float, unit: str = "") -> Target:
    """A figure that should not be below `aim`."""
    return Target(name, f">= {_aim(aim)}{unit}", f"{_figure(found)}{unit}", found >= aim)


def _aim(aim: float) -> str:
    return f"{aim:,.0f}" if abs(aim) >= 1000 else f"{aim:g}"


def _figure(found: float) -> str:
    return f"{found:,.0f}" if abs(found) >= 1000 else f"{found:.2f}"


def known_cores(found: Iterable[float | None]) -> tuple[float, ...]:
    """For `others_cores`: the values that the system could report."""
    return tuple(cores for cores in found if cores is not None)


def cores_cell(cores: float | None) -> str:
    """The same as a cell of a table."""
    return "?" if cores is None else f"{cores:.2f}"
