"""What a measurement found, as a report can show it: tables, curves, and what was aimed at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Bars", "Chart", "Finding", "Series", "Table", "Target", "at_least", "at_most", "cores_cell", "known_cores"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells as they are to be read: the first column to the left, the others to the right.

    Without a head it is a picture made of text: each row is one cell, a line whose blanks count.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """What was aimed at, and what came out."""

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
    """Bars from 0: for each label one of each series, which is a name and as many values as there are labels."""

    title: str
    unit: str
    labels: tuple[str, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]


class Finding(Protocol):
    """The outcome of one measurement, a frozen dataclass: its fields are what is written down as JSON."""

    @property
    def is_clean(self) -> bool:
        """Whether every message arrived once, in order and unchanged. If not, no figure of it counts."""

    @property
    def others_cores(self) -> tuple[float, ...]:
        """Processors that others kept busy meanwhile, for each part of the measurement of which that is known."""

    def tables(self) -> Iterable[Table]:
        """What is to be read."""

    def charts(self) -> Iterable[Chart | Bars]:
        """What one would rather look at."""

    def targets(self) -> Iterable[Target]:
        """What was aimed at of the things measured."""


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


def known_cores(told: Iterable[float | None]) -> tuple[float, ...]:
    """For `others_cores`: what the system told of the processors that others kept busy, without what it did not."""
    return tuple(cores for cores in told if cores is not None)


def cores_cell(cores: float | None) -> str:
    """The same as a cell of a table."""
    return "?" if cores is None else f"{cores:.2f}"
